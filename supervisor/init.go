package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/signals"
)

// ErrAlive is returned by Child.Stop and Init.StopRest when their context ended before the processes did.
var ErrAlive = errors.New("processes are still alive")

// InitConfig says how Init behaves.
type InitConfig struct {
	Inbox  *signals.Inbox // from signals.Notify
	Policy signals.Policy

	// Ready asks for an event when the child notifies READY=1, also without a service manager.
	Ready bool
	// KeepFiles keeps the sockets of socket activation (LISTEN_FDS) open here, for a child that may be started again.
	KeepFiles bool
	// LeaveDir moves the warden to / once the main child runs, so that it pins no mount. Only for a program that uses no
	// relative path afterwards; children are still started in the original directory.
	LeaveDir bool
	// NoCgroup leaves children in our own cgroup also where one of their own could be made.
	NoCgroup bool

	KillEvery time.Duration // SIGKILL is repeated this often; 0: 1 s
	AlarmTime time.Duration // a process that survives SIGKILL this long is reported; 0: 10 s
}

// Init is the process-1 part of the warden: it spawns, forwards signals, reaps, and stops. It knows nothing of etcd. Its
// methods may be called from any goroutine; Run must be running for all of them.
type Init struct {
	cfg      InitConfig
	log      zerolog.Logger
	reaper   *signals.Reaper
	notifier *Notifier
	terminal *terminal // nil without one, or when we are not in its foreground
	cgroups  *cgroupTree
	adopts   bool   // orphans come to us
	dir      string // where children start
	files    []int  // sockets of socket activation, from descriptor 3 up

	spawns    chan spawn
	mains     chan *Child
	ended     chan struct{} // Run has returned
	events    chan Event
	escalated chan struct{}

	mu       sync.Mutex // guards children
	children []*Child   // whose group may not be empty yet
}

// EventKind says what Init asks of the supervisor.
type EventKind uint8

// The kinds of events.
const (
	StopRequested   EventKind = iota + 1 // TERM, for etcd also INT and a lost terminal
	ReloadRequested                      // HUP, for etcd only
	ChildReady                           // the child said READY=1, with InitConfig.Ready
)

// Event is something that the supervisor has to act on. Everything else Init does by itself.
type Event struct {
	Kind   EventKind
	Reason string // for the log: the signal's name, or "terminal lost"
	Signal unix.Signal
	Count  int // of a StopRequested: 1 for the first; from 2 on the wait for a graceful end is over
}

// NewInit prepares the process: it becomes the subreaper when it is not PID 1, finds the terminal, a cgroup that it may
// divide, and the notify socket. What the system refuses costs a feature and a warning, not the start. An error means
// that the configuration is wrong.
func NewInit(cfg InitConfig, log zerolog.Logger) (*Init, error) {
	if cfg.Inbox == nil {
		return nil, errors.New("init: an inbox is needed")
	}
	if cfg.KillEvery == 0 {
		cfg.KillEvery = time.Second
	}
	if cfg.AlarmTime == 0 {
		cfg.AlarmTime = 10 * time.Second
	}
	refused := signals.BecomeSubreaper()
	if refused != nil {
		log.Warn().Err(refused).Msg("orphans are not adopted")
	}
	i := &Init{cfg: cfg, adopts: refused == nil, log: log, reaper: signals.NewReaper(cfg.Inbox), terminal: openTerminal(),
		spawns: make(chan spawn), mains: make(chan *Child), ended: make(chan struct{}), events: make(chan Event), escalated: make(chan struct{})}
	i.dir, _ = os.Getwd() // a directory that is gone is inherited as it is
	i.files = activationFiles(cfg.Inbox.Files())
	for _, fd := range cfg.Inbox.Files() {
		if fd >= firstActivationFile+len(i.files) {
			unix.Close(fd) // inherited, and nobody's: only what activation lists is passed on
		}
	}
	notifier, err := newNotifier(os.Getenv("NOTIFY_SOCKET"), cfg.Ready)
	if err != nil {
		log.Warn().Err(err).Msg("no notifications to the service manager")
	}
	i.notifier = notifier
	if !cfg.NoCgroup {
		if i.cgroups, err = openCgroupTree(); err != nil {
			log.Debug().Err(err).Msg("no cgroup of our own")
		}
	}
	return i, nil
}

// Run reaps, forwards, spawns and passes notifications on until ctx ends, and returns when all of that has ended. End
// every child first: what still lives then is killed by its parent-death signal. It is called once.
func (i *Init) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer close(i.ended)
	var parts sync.WaitGroup
	for _, part := range []func(context.Context) error{i.cfg.Inbox.Run, i.notifier.proxy} {
		parts.Go(func() {
			if err := part(ctx); err != nil {
				i.log.Error().Err(err).Msg("a part of init ended; reaping and stopping go on")
			}
		})
	}
	for _, part := range []func(context.Context) error{i.reaper.Run, i.spawner, i.forward} {
		parts.Go(func() {
			if err := part(ctx); err != nil {
				cancel(fmt.Errorf("init: %w", err))
			}
		})
	}
	<-ctx.Done()
	parts.Wait()
	i.cgroups.close()
	if cause := context.Cause(ctx); !errors.Is(cause, ctx.Err()) {
		return cause
	}
	return nil
}

// Events is what the supervisor has to act on. It is never closed. Reading late loses nothing: stops are counted, and
// several reloads are one.
func (i *Init) Events() <-chan Event { return i.events }

// Escalated is closed at the second request to stop: whoever waits for a graceful end should wait no longer.
func (i *Init) Escalated() <-chan struct{} { return i.escalated }

// Notifier speaks to the service manager, for the warden and the child. It is never nil.
func (i *Init) Notifier() *Notifier { return i.notifier }
