package signals

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// inboxSize is how many signals may wait. os/signal drops what does not fit; it hands on at most one of each number
// between two turns of the reader, so several times 64 cannot be filled.
const inboxSize = 1024

// Inbox receives every signal that the process can catch. There is one per process, made by Notify. Signals that come
// while nobody reads are kept.
type Inbox struct {
	signals  chan os.Signal
	children chan os.Signal // SIGCHLD, kept apart: it is the reaper's
	notes    *os.File       // nil where there is no handler of our own
	ignored  []unix.Signal
	files    []int
}

// Notify registers for all signals. Call it first thing in main: as PID 1, what comes before it is lost.
//
// Ignored dispositions that were inherited are left alone, so that a child inherits them in turn: SIGHUP of nohup,
// SIGINT of a background job, and the terminal's stop signals. The same call marks every inherited
// descriptor from 3 up as close-on-exec: Go would pass them on to each child.
func Notify() *Inbox {
	in := &Inbox{signals: make(chan os.Signal, inboxSize), children: make(chan os.Signal, 1)}
	signal.Notify(in.children, unix.SIGCHLD)
	var wanted []os.Signal
	for sig := unix.Signal(1); sig <= lastSignal; sig++ {
		switch {
		case !deliverable(sig) || noted(sig):
		case inheritedIgnored(sig):
			in.ignored = append(in.ignored, sig)
		default:
			wanted = append(wanted, sig)
		}
	}
	signal.Notify(in.signals, wanted...)
	in.takeNotes()
	in.files = inheritedFiles()
	return in
}

// deliverable says whether os/signal can deliver sig when somebody sends it by kill(2). SIGURG is left out: the Go
// runtime sends it to itself all the time. 33 is the runtime's own (it has no other way to change all threads).
func deliverable(sig unix.Signal) bool {
	switch sig {
	case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGPROF, 32, 33, 34:
		return false
	}
	return true
}

// inheritedIgnored says whether sig was ignored when the program started, as far as the Go runtime leaves a trace: it
// keeps SIGHUP and SIGINT ignored and does not touch the terminal's signals. Of all others it forgets it before main.
func inheritedIgnored(sig unix.Signal) bool {
	switch sig {
	case unix.SIGHUP, unix.SIGINT:
		return signal.Ignored(sig)
	case unix.SIGCONT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		return ignoredNow(sig)
	}
	return false
}

// Signals is where the signals come out, SIGCHLD excepted.
func (in *Inbox) Signals() <-chan os.Signal { return in.signals }

// Children has a value after one or more SIGCHLD. Only a Reaper may read it.
func (in *Inbox) Children() <-chan os.Signal { return in.children }

// Ignored lists the signals that were ignored when the program started and stay so.
func (in *Inbox) Ignored() []unix.Signal { return in.ignored }

// Files lists the descriptors from 3 up that the program was started with.
func (in *Inbox) Files() []int { return in.files }

// Run moves the signals that our own handler noted to Signals until ctx ends. Without it only those wait.
func (in *Inbox) Run(ctx context.Context) error {
	if in.notes == nil {
		<-ctx.Done()
		return nil
	}
	return in.readNotes(ctx)
}

// OnStop calls f, once, at the first SIGTERM, SIGINT or SIGHUP, and drops what else comes. It is for commands that
// supervise nothing. The returned function ends this and waits until it has ended.
func (in *Inbox) OnStop(f func(sig fmt.Stringer)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for told := false; ; {
			select {
			case sig := <-in.signals:
				switch sig {
				case unix.SIGTERM, unix.SIGINT, unix.SIGHUP:
					if !told {
						told = true
						f(named(sig.(syscall.Signal)))
					}
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

type named unix.Signal

func (n named) String() string { return Name(unix.Signal(n)) }

// Name is the signal's name as in kill -l, "SIGTERM", or "signal 40" for one that has none.
func Name(sig unix.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}

// maxInherited bounds the search for inherited descriptors where /proc is missing.
const maxInherited = 1024

// inheritedFiles finds the descriptors from 3 up that lack close-on-exec and sets it. All of Go's own have it from the
// start, so these came with exec.
func inheritedFiles() (found []int) {
	for _, fd := range openFiles() {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.CloseOnExec(fd)
			found = append(found, fd)
		}
	}
	return found
}

func openFiles() (fds []int) {
	if dir, err := os.Open("/proc/self/fd"); err == nil {
		defer dir.Close()
		names, _ := dir.Readdirnames(-1) // what was read before an error still counts
		for _, name := range names {
			var fd int
			if _, err := fmt.Sscanf(name, "%d", &fd); err == nil && fd > 2 {
				fds = append(fds, fd)
			}
		}
		return fds
	}
	for fd := 3; fd < maxInherited; fd++ {
		fds = append(fds, fd)
	}
	return fds
}
