package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A stopped process cannot act on TERM until it is continued; signal(7).
func TestStopWakesAStoppedChild(t *testing.T) {
	w := startInit(t, visible(t, "signals"))
	pid, _ := w.ready()
	unix.Kill(pid, unix.SIGSTOP)
	eventually(t, "the child is stopped", func() bool { return inState(pid, 'T') })
	w.signal(unix.SIGTERM)
	if got := w.code(); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
}

// etcd ends a clean stop by raising TERM again. That is success.
func TestAReraisedTermIsSuccess(t *testing.T) {
	w := startInit(t, visible(t, "reraise"))
	w.ready()
	w.signal(unix.SIGTERM)
	if got := w.code(); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
}

func TestAChildThatIgnoresTermIsKilledAfterGrace(t *testing.T) {
	w := startInit(t, append([]string{"-grace", "50ms"}, visible(t, "stubborn")...))
	pid, _ := w.ready()
	w.signal(unix.SIGTERM)
	w.line("got SIGTERM")
	if got := w.code(); got != 137 || !gone(pid) {
		t.Errorf("got %d, child gone: %v", got, gone(pid))
	}
}

// The grace here is an hour: only the second signal can end this in time.
func TestASecondStopKillsAtOnce(t *testing.T) {
	for _, second := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGQUIT} {
		w := startInit(t, append([]string{"-grace", "1h"}, visible(t, "stubborn")...))
		w.ready()
		w.signal(unix.SIGTERM)
		w.line("got SIGTERM")
		w.signal(second)
		if got := w.code(); got != 137 {
			t.Errorf("%v: got %d, want 137", second, got)
		}
	}
}

// What the child leaves gets TERM and the time to act on it, before anything is killed: a worker that flushes would
// lose its data otherwise.
func TestTheRestGetsTermAndTime(t *testing.T) {
	for _, how := range []string{"", "setsid "} {
		w := startInit(t, append([]string{"-rest-grace", "1h"}, shell(how+`"$0" @child slow & read l; kill -TERM $$`, testBinary(t))...))
		w.ready()
		w.stdin.Close()
		w.line("got SIGTERM")
		w.line("bye")
		w.code()
	}
}

// Nothing survives, neither in the child's group nor in a session of its own, as PID 1 or not.
func TestNothingSurvivesTheStop(t *testing.T) {
	modes := map[string]func(*testing.T) []option{
		"subprocess": func(*testing.T) []option { return nil },
		"PID 1":      func(t *testing.T) []option { return []option{asPID1(t)} },
	}
	for name, options := range modes {
		t.Run(name, func(t *testing.T) {
			w := startInit(t, append([]string{"-grace", "300ms", "-rest-grace", "20ms"}, shell(
				`"$0" @child stubborn & setsid "$0" @child stubborn & (setsid "$0" @child stubborn &) ; exec "$0" @child signals`, testBinary(t))...),
				options(t)...)
			for range 4 {
				w.ready()
			}
			w.signal(unix.SIGTERM)
			if got := w.code(); got != 0 {
				t.Errorf("got %d, want 0", got)
			}
			w.all() // each of them holds the output open while it lives
		})
	}
}

// Where a filter refuses the subreaper call, the warden warns, works, and still clears the group.
func TestWithoutSubreaperTheGroupIsStillCleared(t *testing.T) {
	w := startInit(t, append([]string{"-no-subreaper", "-grace", "300ms", "-rest-grace", "20ms"}, shell(`"$0" @child stubborn & exec "$0" @child signals`, testBinary(t))...))
	w.ready()
	w.ready()
	w.signal(unix.SIGTERM)
	if got := w.code(); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
	w.all()
	if !strings.Contains(strings.Join(w.seen, "\n"), "orphans are not adopted") {
		t.Error("no warning about the refusal")
	}
}

// If the warden dies, etcd dies with it: an etcd that nobody fences could go on serving after a handover.
func TestAKilledWardenTakesTheChildAlong(t *testing.T) {
	w := startInit(t, visible(t, "stubborn"))
	pid, _ := w.ready()
	w.signal(unix.SIGKILL)
	eventually(t, "the child is gone", func() bool { return gone(pid) })
}

// The same for a socket-activated child, which starts through one more exec.
func TestAKilledWardenTakesASocketActivatedChildAlong(t *testing.T) {
	w := startInit(t, visible(t, "stubborn"), withActivation(t, 1))
	pid, _ := w.ready()
	w.signal(unix.SIGKILL)
	eventually(t, "the child is gone", func() bool { return gone(pid) })
}

// Orphans are reaped as they die, as PID 1 or not, and one that dies late too.
func TestOrphansAreReaped(t *testing.T) {
	w := startInit(t, shell(`(sh -c 'echo orphan $$; read l' <&3 &) 3<&0; exec sleep 1000`))
	var orphan int
	fmt.Sscan(w.line("orphan "), &orphan)
	eventually(t, "the warden adopts the orphan", func() bool {
		p, err := readProcess(orphan)
		return err == nil && p.parent == w.cmd.Process.Pid
	})
	w.stdin.Close()
	eventually(t, "the orphan is reaped", func() bool { _, err := readProcess(orphan); return err != nil })
}

// A frozen child outlives SIGKILL. It is reported once, waited for, and not forgotten.
func TestAFrozenChildIsReportedAndWaitedFor(t *testing.T) {
	needRoot(t, "a cgroup freezer")
	freeze, thaw, join := freezer(t)
	w := startInit(t, append([]string{"-grace", "10ms", "-alarm", "20ms", "-kill-every", "5ms"}, visible(t, "signals")...))
	pid, _ := w.ready()
	join(pid)
	freeze()
	w.signal(unix.SIGTERM)
	report := w.line(`{"level":"error"`)
	if !strings.Contains(report, "child not dying") || !strings.Contains(report, `"frozen":true`) {
		t.Errorf("got report %s", report)
	}
	select {
	case <-w.done:
		t.Fatal("the warden ended before its child")
	default:
	}
	thaw()
	w.code()
	if !gone(pid) {
		t.Error("the child lives on")
	}
	for _, l := range w.all() {
		if strings.Contains(l, "child not dying") {
			t.Error("reported twice")
		}
	}
}

// freezer makes a cgroup v1 freezer, in which SIGKILL waits for the thaw.
func freezer(t *testing.T) (freeze, thaw func(), join func(pid int)) {
	dir, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "warden-test-")
	if err != nil {
		t.Skipf("no cgroup v1 freezer to be had: %v", err)
	}
	write := func(file, value string) {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			t.Errorf("freezer: %v", err)
		}
	}
	t.Cleanup(func() {
		write("freezer.state", "THAWED")
		eventually(t, "the freezer is empty", func() bool { return os.Remove(dir) == nil })
	})
	freeze = func() {
		write("freezer.state", "FROZEN")
		eventually(t, "it is frozen", func() bool {
			b, _ := os.ReadFile(filepath.Join(dir, "freezer.state"))
			return strings.HasPrefix(string(b), "FROZEN")
		})
	}
	return freeze, func() { write("freezer.state", "THAWED") }, func(pid int) { write("cgroup.procs", strconv.Itoa(pid)) }
}
