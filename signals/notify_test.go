package signals

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds every wait of these tests; it decides nothing but how long a failure takes.
const patience = 30 * time.Second

// listener is a running @notify.
type listener struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
}

func startListener(t *testing.T, prepare string, files ...*os.File) *listener {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{t: t, lines: make(chan string, 256)}
	l.cmd = exec.Command("/bin/sh", "-c", prepare+` exec "$0" "$@"`, self, "@notify")
	l.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	l.cmd.ExtraFiles = files
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(l.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			l.lines <- s.Text()
		}
	}()
	t.Cleanup(func() { l.cmd.Process.Kill(); l.cmd.Wait() })
	return l
}

func (l *listener) next() string {
	l.t.Helper()
	select {
	case s := <-l.lines:
		return s
	case <-time.After(patience):
		l.t.Fatal("no output")
		return ""
	}
}

func (l *listener) ready() (ignored, files string) {
	l.t.Helper()
	ignored, files = l.next(), l.next()
	if !strings.HasPrefix(l.next(), "ready ") {
		l.t.Fatal("not ready")
	}
	return strings.TrimPrefix(ignored, "ignored "), strings.TrimPrefix(files, "files ")
}

// A signal that ends the warden would leave etcd without one; 32 and 34 do that to other Go programs.
func TestEverySignalIsReceivedAndNoneKills(t *testing.T) {
	l := startListener(t, "")
	l.ready()
	for sig := unix.Signal(1); sig <= lastSignal; sig++ {
		if sig == unix.SIGUSR1 || sig == unix.SIGTERM || !(deliverable(sig) || noted(sig)) {
			continue
		}
		if err := unix.Kill(l.cmd.Process.Pid, sig); err != nil {
			t.Fatal(err)
		}
		if got, want := l.next(), fmt.Sprintf("got %d", sig); got != want {
			t.Fatalf("sent %s, %q, want %q", Name(sig), got, want)
		}
	}
	unix.Kill(l.cmd.Process.Pid, 33) // the Go runtime's own: nothing happens
	unix.Kill(l.cmd.Process.Pid, unix.SIGURG)
	unix.Kill(l.cmd.Process.Pid, unix.SIGTERM)
	if got := l.next(); got != "got 15" {
		t.Errorf("got %q, want TERM", got)
	}
}

// A write to a closed pipe is an error to us, not a signal to etcd.
func TestOurOwnSIGPIPEIsNotReceived(t *testing.T) {
	l := startListener(t, "")
	l.ready()
	unix.Kill(l.cmd.Process.Pid, unix.SIGUSR1)
	l.next()
	if got := l.next(); !strings.Contains(got, "broken pipe") {
		t.Fatalf("got %q, want a broken pipe", got)
	}
	unix.Kill(l.cmd.Process.Pid, unix.SIGPIPE)
	if got := l.next(); got != "got 13" {
		t.Errorf("got %q, want the SIGPIPE that was sent", got)
	}
	unix.Kill(l.cmd.Process.Pid, unix.SIGTERM)
	if got := l.next(); got != "got 15" {
		t.Errorf("got %q, want TERM, and no SIGPIPE of our own", got)
	}
}

// What was ignored stays so, as handling a signal makes it the default in a child. Only where the Go runtime leaves a trace
// of it: SIGPIPE is not among those (docs/init.md).
func TestInheritedIgnoredSignalsAreFound(t *testing.T) {
	for prepare, want := range map[string]string{
		"":                            "[]",
		"trap '' HUP;":                "[hangup]",
		"trap '' PIPE;":               "[]",
		"trap '' INT TSTP TTIN TTOU;": "[interrupt stopped stopped (tty input) stopped (tty output)]",
		"trap '' HUP INT PIPE;":       "[hangup interrupt]",
		"trap '' USR1; trap - USR1;":  "[]",
	} {
		if got, _ := startListener(t, prepare).ready(); got != want {
			t.Errorf("%q: got %s, want %s", prepare, got, want)
		}
	}
}

func TestInheritedDescriptorsAreFound(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	// Whoever runs the tests may have left descriptors open too.
	_, got := startListener(t, "exec 3<&- 4<&-;", null, null).ready()
	_, more := startListener(t, "", null, null).ready()
	for _, fd := range []string{"3", "4"} {
		if words := strings.Fields(strings.Trim(got, "[]")); slices.Contains(words, fd) {
			t.Errorf("got %s, though %s was closed", got, fd)
		}
		if words := strings.Fields(strings.Trim(more, "[]")); !slices.Contains(words, fd) {
			t.Errorf("got %s, want %s among them", more, fd)
		}
	}
}

// A command that supervises nothing ends at the first request, told once.
func TestOnStopTellsOnce(t *testing.T) {
	in := inbox(t)
	told := make(chan string, 8)
	stop := in.OnStop(func(sig fmt.Stringer) { told <- sig.String() })
	self := os.Getpid()
	for _, sig := range []unix.Signal{unix.SIGUSR1, unix.SIGTERM} {
		if err := unix.Kill(self, sig); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case got := <-told:
		if got != "SIGTERM" {
			t.Errorf("got %s, want SIGTERM", got)
		}
	case <-time.After(patience):
		t.Fatal("not told")
	}
	stop()
	if len(told) != 0 {
		t.Error("told again")
	}
}

func TestSignalNames(t *testing.T) {
	for sig, want := range map[unix.Signal]string{unix.SIGTERM: "SIGTERM", 40: "signal 40", 34: "signal 34"} {
		if got := Name(sig); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
