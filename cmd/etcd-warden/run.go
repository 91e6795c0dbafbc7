package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/supervisor"
)

func (p *program) runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "supervise an etcd (or any command): signals, reaping, ownership, final snapshot",
		ArgsUsage: "-- etcd [etcd flags]",
		Flags:     runFlags(),
		Action:    p.run,
	}
}

func (p *program) run(c *cli.Context) error {
	if c.Bool("check") {
		return p.check(c)
	}
	again := newReloader(c)
	if err := loadSettings(c); err != nil {
		return err
	}
	log, flush, err := newLogger(c)
	if err != nil {
		return err
	}
	defer flush()
	cfg, err := runConfig(c, log)
	if err != nil {
		return err
	}
	if err := again.begin(log); err != nil {
		return err
	}
	cfg.Reload, cfg.FaultPoint = again.reload, p.faultPoint
	s, err := supervisor.New(cfg, p.inbox, log)
	if err != nil {
		return err
	}
	p.code, err = s.Run(context.Background()) // signals come through the inbox, in order, not through the context
	return err
}

// runConfig makes the supervisor's configuration. It looks, and changes nothing.
func runConfig(c *cli.Context, log zerolog.Logger) (supervisor.Config, error) {
	argv := c.Args().Slice()
	if len(argv) == 0 {
		return supervisor.Config{}, badConfig("no command given: etcd-warden run [flags] -- etcd [etcd flags]")
	}
	path, err := findCommand(argv[0])
	if err != nil {
		return supervisor.Config{}, err
	}
	restart := supervisor.DefaultRestartPolicy()
	restart.Mode = supervisor.RestartMode(c.String("restart"))
	if err := restart.Validate(); err != nil {
		return supervisor.Config{}, badConfig("--%w", err)
	}
	cfg := supervisor.Config{
		Version: version, Path: path, Args: argv, Restart: restart, Grace: c.Duration("stop-grace"),
		HTTP: c.String("http"), HTTPRequired: c.IsSet("http"),
		NewCluster: c.Bool("new-cluster"), TakeOver: c.Bool("take-over"), AcceptDamaged: c.Uint64("accept-damaged"), ExitWhenFenced: c.Bool("exit-when-fenced"),
	}
	if cfg.Owner, err = ownerConfig(c); err != nil {
		return supervisor.Config{}, err
	}
	if err := etcdConfig(c, &cfg); err != nil {
		return supervisor.Config{}, err
	}
	if cfg.Store, err = openStore(c, log); err != nil {
		return supervisor.Config{}, err
	}
	if cfg.Snapshots, err = snapshotting(c); err != nil {
		return supervisor.Config{}, err
	}
	if err := cfg.Validate(); err != nil {
		return supervisor.Config{}, badConfig("%w", err)
	}
	if cfg.Owner != nil {
		for _, w := range cfg.Owner.Warnings() {
			log.Warn().Msg(w)
		}
	}
	return cfg, nil
}

// etcdConfig reads the child's own configuration when it is an etcd: its name says so, or --data-dir does.
func etcdConfig(c *cli.Context, cfg *supervisor.Config) error {
	named, wanted := strings.HasPrefix(filepath.Base(cfg.Path), "etcd"), c.String("store") != "" || cfg.Owner != nil
	switch {
	case named || c.IsSet("data-dir"):
	case wanted:
		return badConfig("--owner-name and --store are for an etcd, and %s is not named like one: if it starts an etcd, say --data-dir DIRECTORY", cfg.Args[0])
	default:
		return nil
	}
	e, err := supervisor.ParseEtcd(cfg.Args[1:], os.Environ())
	if errors.Is(err, supervisor.ErrNotServer) && !wanted {
		return nil // etcd --version, for one
	}
	if err != nil {
		return badConfig("etcd's own configuration: %w", err)
	}
	if dir := c.String("data-dir"); dir != "" {
		e.DataDir = dir
	}
	if e.DataDir, err = filepath.Abs(e.DataDir); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	cfg.Etcd = &e
	endpoint, tlsConfig, err := e.ClientEndpoint()
	if err != nil {
		return badConfig("%w", err)
	}
	cfg.Serving = func(ctx context.Context) error { return snapshot.Serving(ctx, endpoint, tlsConfig) }
	cfg.Live = snapshot.LiveEtcd{Endpoint: endpoint, TLS: tlsConfig, User: c.String("etcd-user"), PasswordFile: c.String("etcd-password-file")}
	if err := cfg.Live.Validate(); err != nil {
		return badConfig("--etcd-user, --etcd-password-file: %w", err)
	}
	return nil
}

func ownerConfig(c *cli.Context) (*ownership.Settings, error) {
	name, id := c.String("owner-name"), c.String("owner-id")
	switch {
	case name == "" && id == "":
		return nil, nil
	case id == "":
		return nil, badConfig("--owner-name %s without --owner-id: say which value of the record means this site", name)
	case name == "":
		return nil, badConfig("--owner-id %s without --owner-name: say which DNS name holds the owner record", id)
	}
	s := ownership.Defaults()
	s.Name, s.ID, s.IDPattern, s.Absent = name, id, c.String("owner-id-pattern"), c.String("owner-absent")
	if servers := c.String("owner-servers"); servers != "" {
		s.Servers = strings.Split(servers, ",")
	}
	s.Interval, s.SuspectInterval, s.PollTimeout = c.Duration("owner-interval"), c.Duration("owner-suspect-interval"), c.Duration("owner-poll-timeout")
	s.StoreCheck = c.Duration("owner-store-check")
	s.LostCount, s.RegainCount = c.Int("owner-lost-count"), c.Int("owner-regain-count")
	s.RecordTTL, s.MaxGap, s.TermGrace = c.Duration("owner-record-ttl"), c.Duration("owner-max-gap"), c.Duration("owner-term-grace")
	s.Lease, s.UnsafeNoLease = c.Duration("owner-lease"), c.Bool("owner-unsafe-no-lease")
	s.WaitFinal, s.StartWithoutStore = c.Duration("wait-final"), c.String("start-without-store")
	if err := s.Validate(); err != nil {
		return nil, badConfig("%w", err)
	}
	return &s, nil
}

// openStore opens the store that --store names; nil where it names none.
func openStore(c *cli.Context, log zerolog.Logger) (snapshot.Store, error) {
	url := c.String("store")
	if url == "" {
		return nil, nil
	}
	store, err := snapshot.OpenStore(c.Context, url, snapshot.OpenOptions{Logger: log.With().Str("component", "store").Logger()})
	if errors.Is(err, snapshot.ErrInvalid) {
		return nil, badConfig("--store: %w", err)
	}
	return store, err
}

// findCommand resolves a command as a shell would, with its exit codes.
func findCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil && filepath.Base(path) == "etcd" && isSelf(path):
		return realEtcd() // installed as a drop-in: $PATH leads back here
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrDot):
		return filepath.Join(".", path), nil
	case errors.Is(err, os.ErrPermission):
		return "", &supervisor.ExecError{Path: name, Code: exitNotExecutable, Err: errors.New("not executable; check its mode and the mount options of its file system")}
	}
	return "", &supervisor.ExecError{Path: name, Code: exitNotFound, Err: errors.New("not found; check the path and $PATH")}
}
