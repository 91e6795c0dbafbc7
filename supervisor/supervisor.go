package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/signals"
)

// Supervisor owns one child from its start to the proof of its death. Make it with New, use it once. Nothing but Run may
// be called on it.
type Supervisor struct {
	cfg     Config
	log     zerolog.Logger
	clock   ownership.Clock
	init    *Init
	state   *StateDir          // nil: the child is not an etcd
	scribe  *scribe            // nil: the same
	marker  Marker             // as found at start
	journal *Journal           // nil: no store
	watcher *ownership.Watcher // nil: no ownership
	board   board
	metrics *metrics
	regular *snapshots    // taken while etcd runs; nil: no store
	pings   chan struct{} // /livez asks, the loop answers
	posts   chan func()   // results of jobs, run by the loop
	over    chan struct{} // closed when the loop has ended

	// All below belongs to the loop alone.
	jobs       sync.WaitGroup
	machine    ownership.Machine
	begun      bool // the machine is there
	child      *Child
	started    time.Time
	restarts   int
	failures   int    // restarts without a good run
	stopping   bool   // a stop was requested
	handingOff func() // ends the wait of the running handover; nil: none runs
	restart    <-chan time.Time
	reading    *time.Timer // the scheduled read of the journal
	origin     *origin     // what the data directory was restored from
	ending     *ending

	fencedEnds int // fenced restarts that ended by themselves; the handover's alone
}

// ending is how the loop ends.
type ending struct {
	code int
	err  error
}

// New prepares a supervisor: it checks the configuration, locks the data directory and reads the marker. It starts
// nothing. Its errors change nothing on disk but the warden's own directory.
func New(cfg Config, inbox *signals.Inbox, log zerolog.Logger) (*Supervisor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Supervisor{cfg: cfg, log: log, clock: ownership.BootClock, pings: make(chan struct{}), posts: make(chan func()), over: make(chan struct{})}
	s.metrics = newMetrics(&s.board)
	s.board.status = Status{Version: cfg.Version, Since: time.Now()}
	if cfg.Etcd != nil {
		if err := s.prepareEtcd(); err != nil {
			return nil, err
		}
		s.regular = s.newSnapshots()
	}
	var err error
	if s.init, err = NewInit(initConfig(cfg, inbox), log); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// initConfig: an etcd gets its own signal policy, and its paths are absolute, so that the warden need not stay where it
// was started.
func initConfig(cfg Config, inbox *signals.Inbox) InitConfig {
	c := InitConfig{Inbox: inbox, KeepFiles: cfg.Restart.Mode != RestartNever}
	if cfg.Etcd != nil {
		c.Policy, c.LeaveDir, c.Ready = signals.ForEtcd, true, true
	}
	return c
}

func (s *Supervisor) prepareEtcd() error {
	if err := checkDataDir(s.cfg.Etcd.DataDir); err != nil {
		return err
	}
	var err error
	if s.state, err = OpenStateDir(s.cfg.Etcd.DataDir); err != nil {
		return err
	}
	if err := s.checkUnused(); err != nil {
		return errors.Join(err, s.state.Close())
	}
	s.scribe = &scribe{dir: s.state, log: s.log, next: make(chan Marker, 1)}
	if s.cfg.Store != nil {
		s.journal = &Journal{Store: s.cfg.Store}
		s.board.status.Store = s.cfg.Store.String()
	}
	if s.cfg.Owner == nil {
		return nil
	}
	if s.marker, err = s.state.ReadMarker(); err != nil {
		return errors.Join(err, s.state.Close())
	}
	s.watcher = ownership.NewWatcher(&ownership.Resolver{Settings: *s.cfg.Owner}, *s.cfg.Owner, s.clock)
	s.board.status.Owner = &OwnerStatus{Name: s.cfg.Owner.Name, ID: s.cfg.Owner.ID, Instance: s.state.Instance()}
	return nil
}

// Run supervises until the child ended for good, a stop was asked for, or, with ExitWhenFenced, the handover is complete.
// It returns the exit code that says so; an error is for people to read and has its own code. When it returns, every
// process that it started is reaped.
func (s *Supervisor) Run(ctx context.Context) (code int, err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel()
	if s.cfg.HTTP != "" {
		l, err := net.Listen("tcp", s.cfg.HTTP)
		if err != nil && s.cfg.HTTPRequired {
			return 0, fmt.Errorf("listen for health checks: %w; choose another --http", err)
		}
		if err != nil {
			s.log.Warn().Err(err).Msg("no health checks: the default address is taken; choose one with --http")
		} else {
			parts.Go(func() { s.fault(ctx, "health checks ended", s.serveHTTP(ctx, l)) })
		}
	}
	parts.Go(func() { s.fault(ctx, "init ended", s.init.Run(ctx)) })
	if s.scribe != nil {
		parts.Go(func() { s.scribe.run(ctx) })
	}
	if s.regular != nil {
		parts.Go(func() { s.regular.run(ctx) })
	}
	if s.watcher != nil {
		parts.Go(func() { s.fault(ctx, "polls ended", s.watcher.Run(ctx)) })
	}
	end := s.loop(ctx)
	return end.code, end.err
}

// fault logs that a part ended before its time.
func (s *Supervisor) fault(ctx context.Context, what string, err error) {
	if ctx.Err() == nil {
		s.log.Error().Err(err).Msg(what)
	}
}

// statusLine is what `systemctl status` shows.
func statusLine(p Phase, why string) string {
	if why == "" {
		return p.String()
	}
	return p.String() + ": " + why
}

func (s *Supervisor) close() error {
	if s.state == nil {
		return nil
	}
	return s.state.Close()
}

// made tells whoever tests crashes that a step is behind us.
func (s *Supervisor) made(step string) {
	if s.cfg.FaultPoint != nil {
		s.cfg.FaultPoint(step)
	}
}

// enter changes the phase. It may be called by the loop and by the job that the loop has handed the child to.
func (s *Supervisor) enter(p Phase, why string) {
	s.board.update(func(st *Status) {
		if !st.Phase.canFollow(p) {
			s.log.Error().Stringer("from", st.Phase).Stringer("phase", p).Msg("phase out of order")
		}
		if st.Phase != p {
			st.Phase, st.Since = p, time.Now()
			s.notified(s.init.Notifier().Status(statusLine(p, why)))
			s.log.Info().Stringer("phase", p).Str("why", why).Msg("phase")
		}
		st.Why = why
		if p != Running {
			st.Ready = false
		}
	})
	if p != Running {
		s.regular.interrupt()
	}
}
