package supervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The names under which this program runs itself.
const (
	trampolineName = "@warden-exec"  // argv: name, parent, report descriptor, ignored signals, path, argv...
	guardName      = "@warden-guard" // argv: name, cgroup
)

const selfExe = "/proc/self/exe" // also when the file was replaced meanwhile

// Trampoline must be called first thing in main, with os.Args. handled is true when this process is one of the warden's
// own helpers: it has then done its work and is to exit with code. The helpers are the last step before a socket-activated
// child, which must know its own PID, and the guard that empties the child's cgroup when the warden is killed.
func Trampoline(argv []string) (code int, handled bool) {
	switch {
	case len(argv) > 5 && argv[0] == trampolineName:
		return jump(argv[1:]), true
	case len(argv) == 2 && argv[0] == guardName:
		return guard(argv[1]), true
	}
	return 0, false
}

// jump executes the real program in this process, with LISTEN_PID set. It returns only if that failed.
func jump(argv []string) int {
	parent, _ := strconv.Atoi(argv[0])
	report, _ := strconv.Atoi(argv[1])
	unix.CloseOnExec(report)
	// The parent-death signal belongs to a thread. This one executes, so set it anew, and look whether the parent died before.
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err == nil && os.Getppid() != parent {
		return 1
	}
	for _, n := range strings.Split(argv[2], ",") {
		if sig, err := strconv.Atoi(n); err == nil {
			signal.Ignore(syscall.Signal(sig))
		}
	}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return name == "LISTEN_PID" || name == "LISTEN_PIDFDID"
	})
	err := syscall.Exec(argv[3], argv[4:], append(env, fmt.Sprintf("LISTEN_PID=%d", os.Getpid())))
	var errno syscall.Errno
	errors.As(err, &errno)
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], uint32(errno))
	unix.Write(report, b[:]) // if nobody listens any more, the exit code still tells
	return execError(argv[3], err).Code
}

// throughTrampoline changes s to run through the trampoline, with the activation sockets. report waits until the program
// has been executed and returns the error if it could not be.
func (i *Init) throughTrampoline(s *spawn) (report func(context.Context) error, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("trampoline: %w", err)
	}
	for _, fd := range i.files {
		s.attr.Files = append(s.attr.Files, uintptr(fd))
	}
	s.attr.Files = append(s.attr.Files, w.Fd())
	ignored := make([]string, 0, 4)
	for _, sig := range i.cfg.Inbox.Ignored() {
		ignored = append(ignored, strconv.Itoa(int(sig)))
	}
	s.args = append([]string{trampolineName, strconv.Itoa(os.Getpid()), strconv.Itoa(len(s.attr.Files) - 1), strings.Join(ignored, ","), s.path}, s.args...)
	s.path = selfExe
	return func(ctx context.Context) error {
		defer r.Close()
		w.Close()
		stop := context.AfterFunc(ctx, func() { r.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
		var b [4]byte
		if _, err := io.ReadFull(r, b[:]); err == nil {
			return syscall.Errno(binary.NativeEndian.Uint32(b[:]))
		}
		return nil // end of file: it was executed, or it is dead and its status tells
	}, nil
}
