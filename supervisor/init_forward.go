package supervisor

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/signals"
)

// forwarding is the state of the loop that acts on signals. It belongs to that loop alone.
type forwarding struct {
	*Init
	main    *Child        // nil while none lives
	begun   bool          // there has been one
	early   []unix.Signal // to be forwarded to the first one; each once
	pending []Event       // for the supervisor
	stops   int
}

// forward acts on signals until ctx ends. It waits for nobody: a supervisor that is busy does not keep a signal from the
// child.
func (i *Init) forward(ctx context.Context) error {
	f := forwarding{Init: i}
	defer i.terminal.takeBack()
	for {
		var events chan<- Event
		var next Event
		if len(f.pending) > 0 {
			events, next = i.events, f.pending[0]
		}
		select {
		case sig := <-i.cfg.Inbox.Signals():
			f.act(sig.(syscall.Signal))
		case f.main = <-i.mains:
			f.begin()
		case sig := <-f.childStopped():
			f.suspend(sig)
		case <-f.childExited():
			i.terminal.takeBack()
			f.main = nil
		case <-i.notifier.ready:
			f.post(Event{Kind: ChildReady})
		case events <- next:
			f.pending = f.pending[1:]
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *forwarding) childStopped() <-chan unix.Signal {
	if f.main == nil {
		return nil
	}
	return f.main.process.Stopped()
}

func (f *forwarding) childExited() <-chan struct{} {
	if f.main == nil {
		return nil
	}
	return f.main.Exited()
}

// begin takes a new main child: the terminal is its, and so are the signals that came before it.
func (f *forwarding) begin() {
	f.terminal.takeBack() // from the one before, if its end was not noticed yet
	if f.cfg.Policy.TakesTerminal() {
		f.terminal.lend(f.main.PID())
	}
	for _, sig := range f.early {
		f.send(sig)
	}
	f.begun, f.early = true, nil
}

func (f *forwarding) act(sig unix.Signal) {
	action := f.cfg.Policy.Action(sig, signals.State{Stopping: f.stops > 0})
	if action == signals.Hangup {
		action = signals.Reload
		if f.terminal.gone() {
			action = signals.RequestStop
		}
	}
	switch action {
	case signals.Forward:
		f.send(sig)
	case signals.Continue:
		f.resume()
	case signals.RequestStop:
		f.requestStop(sig)
	case signals.Reload:
		f.post(Event{Kind: ReloadRequested, Signal: sig, Reason: signals.Name(sig)})
	}
}

// send forwards sig to the main child and nobody else. Before the first one it is kept for it.
func (f *forwarding) send(sig unix.Signal) {
	switch {
	case f.main == nil && !f.begun:
		if !slices.Contains(f.early, sig) {
			f.early = append(f.early, sig)
		}
	case f.main == nil:
		f.log.Debug().Str("signal", signals.Name(sig)).Msg("no child to forward to")
	default:
		if err := f.main.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			f.log.Warn().Err(err).Msg("signal not forwarded")
		}
	}
}

func (f *forwarding) requestStop(sig unix.Signal) {
	f.stops++
	if f.stops == 2 {
		close(f.escalated)
	}
	reason := signals.Name(sig)
	if sig == unix.SIGHUP {
		reason = "terminal lost"
	}
	f.post(Event{Kind: StopRequested, Signal: sig, Count: f.stops, Reason: reason})
}

// post queues an event for the supervisor. The queue is bounded: one of each kind, and two stops, say all there is.
func (f *forwarding) post(e Event) {
	same := 0
	for n := range f.pending {
		if f.pending[n].Kind != e.Kind {
			continue
		}
		if same++; same == 2 || e.Kind != StopRequested {
			f.pending[n] = e
			return
		}
	}
	f.pending = append(f.pending, e)
}

// suspend stops the warden after its child, when a job-control stop hit the child on our terminal: the shell gets the
// terminal back, and resumes both with fg. Where no shell waits, Ctrl-Z is undone, as the kernel does for orphaned groups.
func (f *forwarding) suspend(sig unix.Signal) {
	if f.terminal == nil || f.terminal.gone() || (sig != unix.SIGTSTP && sig != unix.SIGTTIN && sig != unix.SIGTTOU) {
		return
	}
	if !aShellWaits() {
		if sig == unix.SIGTSTP {
			f.main.process.SignalGroup(unix.SIGCONT) // ErrProcessDone: it ended meanwhile
		}
		return
	}
	f.terminal.takeBack()
	unix.Kill(0, unix.SIGSTOP) // our whole group, as the terminal would; returns when we are resumed
}

// resume continues the child after a stop of either kind.
func (f *forwarding) resume() {
	if f.main == nil {
		return
	}
	if f.cfg.Policy.TakesTerminal() && f.terminal.ours() {
		f.terminal.lend(f.main.PID())
	}
	send := f.main.Signal
	if f.terminal != nil {
		send = f.main.process.SignalGroup // a job is resumed as a whole
	}
	if err := send(unix.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		f.log.Warn().Err(err).Msg("signal not forwarded")
	}
}
