package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/signals"
)

// Exit says how a process ended. It is a value, not an error.
type Exit struct {
	PID      int
	Code     int         // exit status; 0 when a signal ended it
	Signal   unix.Signal // 0 when it exited by itself
	CoreDump bool
	Stopped  bool // it ended after a stop that we sent
	Killed   bool // we had to send SIGKILL
}

// Status is the code that the warden exits with: the child's own, 128 plus the number of the signal that ended it, and 0
// when it died of the stop that we sent. etcd ends a clean stop by raising the signal again, unless it is PID 1, and a
// service manager would take 143 for a failure.
func (e Exit) Status() int {
	switch {
	case e.Signal == 0:
		return e.Code
	case e.Stopped && !e.Killed && (e.Signal == unix.SIGTERM || e.Signal == unix.SIGINT):
		return 0
	}
	return 128 + int(e.Signal)
}

// String is for logs and /status: "exit status 2", "SIGKILL after the grace period".
func (e Exit) String() string {
	if e.Signal == 0 {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	s := signals.Name(e.Signal)
	switch {
	case e.Killed && e.Signal == unix.SIGKILL:
		s += " after the grace period"
	case e.Stopped && e.Status() == 0:
		s += " as asked"
	}
	if e.CoreDump {
		s += ", core dumped"
	}
	return s
}

func exitOf(pid int, ws unix.WaitStatus) Exit {
	e := Exit{PID: pid}
	if ws.Signaled() {
		e.Signal, e.CoreDump = ws.Signal(), ws.CoreDump()
	} else {
		e.Code = ws.ExitStatus()
	}
	return e
}

// Exit codes of a command that could not be executed, as in a shell.
const (
	CodeNotExecutable = 126
	CodeNotFound      = 127
)

// ExecError is returned by Init.Start when the command could not be executed.
type ExecError struct {
	Path string
	Code int // what a shell would exit with: 127 when there is no such program, 126 otherwise
	Err  error
}

func (e *ExecError) Error() string { return fmt.Sprintf("execute %s: %v", e.Path, e.Err) }

func (e *ExecError) Unwrap() error { return e.Err }

func execError(path string, err error) *ExecError {
	e := &ExecError{Path: path, Code: CodeNotExecutable, Err: err}
	var lookup *exec.Error
	if errors.As(err, &lookup) {
		e.Err = lookup.Err // its text repeats the path
	}
	var onPath *fs.PathError
	if errors.As(err, &onPath) {
		e.Err = onPath.Err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) || errors.Is(err, unix.ENOTDIR) {
		e.Code = CodeNotFound
	}
	return e
}
