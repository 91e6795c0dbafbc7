package signals

import "golang.org/x/sys/unix"

// lastSignal is the highest number on Linux (mips, which has more, is not a platform of etcd).
const lastSignal unix.Signal = 64

// Action is what the warden does with a signal that it gets.
type Action uint8

// The actions.
const (
	Drop        Action = iota // nothing
	Forward                   // send it to the main child, and to nobody else
	RequestStop               // ask the supervisor to stop; a second one escalates to SIGKILL
	Reload                    // ask the supervisor to read its configuration and certificates again
	Hangup                    // RequestStop if our terminal is gone, else Reload
	Continue                  // resume the child's group, after giving the terminal back to it
	Never                     // the kernel or the Go runtime does not let the warden have it
)

// Policy says for whom signals are handled.
type Policy uint8

// The policies.
const (
	ForCommand Policy = iota // any command: it gets every signal, as from tini
	ForEtcd                  // etcd, which SIGHUP would kill without grace, and which reads no terminal
)

// State is what the decision depends on besides the signal.
type State struct {
	Stopping bool // a stop was requested before
}

// Action looks sig up in the table. Once a stop was requested, SIGINT and SIGQUIT mean the same as a second SIGTERM.
func (p Policy) Action(sig unix.Signal, s State) Action {
	if sig < 1 || sig > lastSignal {
		return Drop
	}
	if s.Stopping && (sig == unix.SIGINT || sig == unix.SIGQUIT) {
		return RequestStop
	}
	return actions(sig)[p]
}

// TakesTerminal says whether the child is made the foreground of the warden's terminal, if it has one. etcd is not: Ctrl-C
// then comes to the warden, which stops etcd in order, and a hangup does not reach etcd, which would die of it.
func (p Policy) TakesTerminal() bool { return p == ForCommand }

// actions is the table of all signals: the action for any command, and for etcd.
func actions(sig unix.Signal) [2]Action {
	switch sig {
	case unix.SIGHUP:
		return [2]Action{Forward, Hangup}
	case unix.SIGINT:
		return [2]Action{Forward, RequestStop}
	case unix.SIGTERM:
		return [2]Action{RequestStop, RequestStop}
	case unix.SIGCONT:
		return [2]Action{Continue, Continue}
	case unix.SIGQUIT, // etcd: goroutine dump on stderr, exit 2
		unix.SIGABRT,                             // the same
		unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, // etcd ignores them
		unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, // stops the child; the warden then stops itself if a shell can resume it
		unix.SIGWINCH, unix.SIGPWR, unix.SIGIO, unix.SIGPIPE, unix.SIGSTKFLT,
		unix.SIGXCPU, unix.SIGXFSZ, unix.SIGVTALRM, unix.SIGPROF, unix.SIGSYS,
		unix.SIGTRAP, unix.SIGILL, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV: // sent by kill(2); a fault of our own is a crash
		return [2]Action{Forward, Forward}
	case unix.SIGKILL, unix.SIGSTOP, // not catchable
		unix.SIGCHLD, // the reaper's
		unix.SIGURG,  // the Go runtime preempts its threads with it
		33:           // the Go runtime runs system calls on all threads with it
		return [2]Action{Never, Never}
	}
	return [2]Action{Forward, Forward} // 32, and the real-time signals 34 to 64
}
