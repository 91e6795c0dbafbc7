package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/supervisor"
)

func snapshotTake(ctx context.Context, c *cli.Context, log zerolog.Logger) error {
	live, err := liveEtcd(c)
	if err != nil {
		return err
	}
	store, err := needStore(c, log, "snapshot take")
	if err != nil {
		return err
	}
	generation, err := openGeneration(ctx, c, store)
	if err != nil {
		return err
	}
	if err := checkHistory(ctx, store, generation, live); err != nil {
		return err
	}
	m, err := snapshot.CaptureLive(ctx, live, store, generation, progressLog(log, 0))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s: generation %d, revision %d, %s (%s stored) in %s\n", m.Key, m.Generation, m.Revision, size(m.PlainBytes),
		size(m.StoredBytes), time.Duration(m.TookMS)*time.Millisecond)
	return err
}

// checkHistory refuses to put a snapshot of one cluster into the generation of another: it would be restored as its newest state.
func checkHistory(ctx context.Context, store snapshot.Store, generation uint64, live snapshot.LiveEtcd) error {
	id, err := live.Identify(ctx)
	if err != nil {
		return err
	}
	m, err := snapshot.NewestManifest(ctx, store, generation)
	switch {
	case errors.Is(err, snapshot.ErrNotFound):
		return nil
	case err != nil:
		return err
	case m.ClusterID != 0 && m.ClusterID != id.ClusterID:
		return badConfig("generation %d of %s is of cluster %s, and the etcd at %s is of cluster %s: check --endpoint and --store", generation, store, m.ClusterID, live.Endpoint, id.ClusterID)
	case m.Final:
		return badConfig("generation %d of %s is ended by a final snapshot: what follows belongs to another generation", generation, store)
	}
	return nil
}

// liveEtcd is the etcd that our flags name, or else the one that etcd's own flags do.
func liveEtcd(c *cli.Context) (snapshot.LiveEtcd, error) {
	live := snapshot.LiveEtcd{Endpoint: c.String("endpoint"), User: c.String("etcd-user"), PasswordFile: c.String("etcd-password-file")}
	files := c.String("cacert") + c.String("cert") + c.String("key")
	if live.Endpoint == "" {
		args := c.Args().Slice()
		if len(args) > 0 && filepath.Base(args[0]) == "etcd" {
			args = args[1:]
		}
		e, err := supervisor.ParseEtcd(args, os.Environ())
		if err == nil {
			live.Endpoint, live.TLS, err = e.ClientEndpoint()
		}
		if err != nil {
			return live, badConfig("etcd's flags: %w", err)
		}
	} else if c.Args().Present() {
		return live, badConfig("--endpoint and etcd's flags: give one of them")
	}
	if files != "" || live.TLS == nil && (strings.HasPrefix(live.Endpoint, "https://") || strings.HasPrefix(live.Endpoint, "unixs://")) {
		var err error
		if live.TLS, err = clientTLS(c); err != nil {
			return live, badConfig("%w", err)
		}
	}
	if err := live.Validate(); err != nil {
		return live, badConfig("%w", err)
	}
	return live, nil
}

func clientTLS(c *cli.Context) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := c.String("cacert"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--cacert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--cacert: %s holds no PEM certificate", file)
		}
	}
	if cert, key := c.String("cert"), c.String("key"); cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("--cert and --key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func snapshotVerify(ctx context.Context, c *cli.Context, log zerolog.Logger) error {
	store, err := needStore(c, log, "snapshot verify")
	if err != nil {
		return err
	}
	deep := func(context.Context, snapshot.Manifest) (string, error) { return "", nil }
	if c.Bool("deep") {
		etcd, err := findCommand(c.String("etcd"))
		if err != nil {
			return err
		}
		deep = func(ctx context.Context, m snapshot.Manifest) (string, error) {
			return verifyDeep(ctx, store, m, c.String("scratch"), etcd, progressLog(log, m.PlainBytes))
		}
	}
	chosen, damaged := chosenSnapshots(ctx, c, store, c.Args().Slice(), c.Bool("all"))
	if len(chosen) == 0 {
		return damaged
	}
	for _, m := range chosen {
		more, err := "", snapshot.Verify(ctx, store, m, progressLog(log, m.PlainBytes))
		if err == nil {
			more, err = deep(ctx, m)
		}
		var corrupt *snapshot.CorruptError
		switch {
		case err == nil:
			fmt.Fprintf(c.App.Writer, "ok  %s  revision %d, %s%s\n", m.Key, m.Revision, size(m.PlainBytes), more)
		case errors.As(err, &corrupt), errors.Is(err, snapshot.ErrNotFound):
			fmt.Fprintf(c.App.Writer, "BAD %s\n", m.Key)
			damaged = errors.Join(damaged, err)
		default:
			return errors.Join(damaged, err)
		}
	}
	return damaged
}

// verifyDeep restores one snapshot below dir and asks an etcd what it has become.
func verifyDeep(ctx context.Context, store snapshot.Store, m snapshot.Manifest, dir, etcd string, progress func(plain, stored int64)) (found string, err error) {
	scratch, err := os.MkdirTemp(dir, "etcd-warden-verify-") // 0700: nobody else reaches the etcd's socket
	if err != nil {
		return "", fmt.Errorf("make a scratch directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	res, err := snapshot.VerifyDeep(ctx, store, m, scratch, func(ctx context.Context, data, scratch string) (string, func() error, error) {
		return startPrivate(ctx, etcd, data, scratch)
	}, progress)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(", restored: %d keys at revision %d, hash %x, keys %.16s…, in %s", res.TotalKeys, res.Revision, res.Hash, res.KeysSHA256, res.Took.Round(time.Millisecond)), nil
}

// privateStart bounds the start of an etcd on a restored directory.
const privateStart = 5 * time.Minute

// startPrivate runs an etcd on sockets in scratch alone. It dies with us.
func startPrivate(ctx context.Context, etcd, data, scratch string) (string, func() error, error) {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "ETCD_") && !strings.HasPrefix(kv, "ETCD_UNSUPPORTED_ARCH=")
	})
	cfg, err := supervisor.ParseEtcd([]string{"--name=verify", "--data-dir=" + data}, env)
	if err != nil {
		return "", nil, err
	}
	fenced := cfg.Fenced(scratch)
	if etcd, err = filepath.Abs(etcd); err != nil {
		return "", nil, err
	}
	output, err := os.Create(filepath.Join(scratch, "etcd.log"))
	if err != nil {
		return "", nil, err
	}
	defer output.Close() // the child has its own
	cmd := exec.Command(etcd, fenced.Args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = fenced.Dir, fenced.Env, output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, exited := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the parent-death signal follows the thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return "", nil, err
	}
	stop := func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it is a copy: nothing of it is kept
		if errors.Is(err, syscall.ESRCH) {
			err = nil
		}
		<-exited
		return err
	}
	serving, cancel := context.WithTimeout(ctx, privateStart)
	defer cancel()
	serving, end := context.WithCancelCause(serving)
	defer end(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case err := <-exited:
			exited <- err
			tail, _ := os.ReadFile(output.Name()) // best effort: it says why
			end(fmt.Errorf("etcd ended before it served: %v: %s", err, tail[max(0, len(tail)-500):]))
		case <-serving.Done():
		}
	}()
	err = snapshot.AwaitServing(serving, fenced.Endpoint)
	end(nil)
	<-ended
	if err != nil {
		return "", nil, errors.Join(err, stop())
	}
	return fenced.Endpoint, stop, nil
}
