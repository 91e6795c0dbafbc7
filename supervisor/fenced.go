package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

const (
	fencedDirPrefix = "fenced-"
	// fencedStart bounds the replay of the log: 25 s for 4 GiB on a busy two-core machine, measured.
	fencedStart = 10 * time.Minute
	// fencedStop bounds its clean end; nobody watches and nobody writes.
	fencedStop = time.Minute
)

// fencedRestart starts the same etcd on the same data where nobody can reach it, on unix sockets in a directory of our
// own, waits until it has applied its whole log, and ends it cleanly. Of the user's flags nothing is kept: no listener
// of his can come up. Afterwards the database covers the log.
func (s *Supervisor) fencedRestart(ctx context.Context) error {
	dir, err := os.MkdirTemp(s.state.Path(), fencedDirPrefix) // 0700
	if err != nil {
		return fmt.Errorf("make a directory for the fenced restart: %w", err)
	}
	defer os.RemoveAll(dir)
	fenced := s.cfg.Etcd.Fenced(dir)
	child, err := s.init.Start(ctx, Command{Path: s.cfg.Path, Args: fenced.Args, Env: fenced.Env, Dir: fenced.Dir, Private: true,
		Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		return fmt.Errorf("fenced restart: %w", err)
	}
	applied := s.awaitApplied(ctx, child, fenced.Endpoint)
	exit, err := child.Stop(context.WithoutCancel(ctx), fencedStop, nil)
	switch {
	case err != nil:
		return fmt.Errorf("end the fenced restart: %w", err)
	case applied != nil:
		return fmt.Errorf("fenced restart (etcd ended with %s): %w", exit, applied)
	case exit.Killed:
		return fmt.Errorf("fenced restart: etcd did not end within %s of TERM and was killed", fencedStop)
	}
	return nil
}

// awaitApplied waits for a linearizable read, which etcd answers only when everything committed is applied.
func (s *Supervisor) awaitApplied(ctx context.Context, child *Child, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, fencedStart)
	defer cancel()
	ctx, release := whileAlive(ctx, child)
	defer release()
	return snapshot.AwaitServing(ctx, endpoint)
}

// errChildEnded is the cause of a context from whileAlive whose child ended.
var errChildEnded = errors.New("etcd ended before it served")

// whileAlive returns a context that also ends when the child does. The caller releases it.
func whileAlive(ctx context.Context, child *Child) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-child.Exited():
			cancel(errChildEnded)
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil); watch.Wait() }
}
