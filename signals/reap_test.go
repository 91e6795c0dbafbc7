package signals

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// startReaper runs a Reaper in the tests' own process, which adopts orphans.
func startReaper(t *testing.T) *Reaper {
	t.Helper()
	if err := BecomeSubreaper(); err != nil {
		t.Fatal(err)
	}
	r := NewReaper(inbox(t))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("reaper: %v", err)
		}
	})
	return r
}

func spawn(t *testing.T, r *Reaper, script string) *Process {
	t.Helper()
	p, err := r.Spawn(func() (int, error) {
		return syscall.ForkExec("/bin/sh", []string{"sh", "-c", script},
			&syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: 0}})
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("never: %s", what)
	}
}

// empty waits until the kernel says that no child is left.
func empty(t *testing.T, r *Reaper) {
	t.Helper()
	deadline := time.After(2 * patience)
	for {
		changed := r.Changed()
		if r.Empty() {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("children are left")
		}
	}
}

// Statuses come out by PID, whatever else dies meanwhile.
func TestEachProcessGetsItsOwnStatus(t *testing.T) {
	r := startReaper(t)
	var processes []*Process
	for n := range 50 {
		processes = append(processes, spawn(t, r, fmt.Sprintf("(:&) ; exit %d", n)))
	}
	for n, p := range processes {
		await(t, "the process ends", p.Exited())
		if got := p.Status().ExitStatus(); got != n {
			t.Errorf("process %d: got status %d", n, got)
		}
	}
	empty(t, r)
}

// Two waiters for one process lose statuses: 9 of 400 to 45 of 50 with a plain wait(-1) beside os/exec. Here 400 commands
// are run by os/exec as a library would, while 10,000 orphans are reaped, and one child of ours ends among them.
func TestNoStatusIsLostToTheReaper(t *testing.T) {
	r := startReaper(t)
	storm := spawn(t, r, `i=0; while [ $i -lt 10000 ]; do (: &); i=$((i+1)); done; exit 17`)
	commands := make(chan struct{}, 400)
	for range 400 {
		commands <- struct{}{}
	}
	close(commands)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for range commands {
				err := exec.Command("/bin/sh", "-c", "exit 3").Run()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 3 {
					t.Errorf("os/exec lost a status: %v", err)
				}
			}
		})
	}
	workers.Wait()
	await(t, "the storm ends", storm.Exited())
	if got := storm.Status().ExitStatus(); got != 17 {
		t.Errorf("got status %d, want 17", got)
	}
	empty(t, r)
}

// What a stranger leaves behind in our own group looks like another stranger. It is reaped all the same, and not one after
// the other.
func TestAStrangersOrphansAreReapedTogether(t *testing.T) {
	r := startReaper(t)
	if out, err := exec.Command("/bin/sh", "-c", `i=0; while [ $i -lt 500 ]; do (: &); i=$((i+1)); done`).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	empty(t, r)
}

// A signal after the end must not reach whoever has the PID now.
func TestNoSignalAfterTheEnd(t *testing.T) {
	r := startReaper(t)
	p := spawn(t, r, "exit 0")
	await(t, "the process ends", p.Exited())
	if err := p.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal: got %v, want os.ErrProcessDone", err)
	}
	if err := p.SignalGroup(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("SignalGroup: got %v, want os.ErrProcessDone", err)
	}
	empty(t, r)
}

// Job control needs to know that a child was stopped, and by what; its end must not be mistaken for that, or the other way.
func TestAStopIsNotAnEnd(t *testing.T) {
	r := startReaper(t)
	p := spawn(t, r, "kill -TSTP $$; exit 5")
	select {
	case sig := <-p.Stopped():
		if sig != unix.SIGTSTP {
			t.Errorf("got %s, want SIGTSTP", Name(sig))
		}
	case <-time.After(patience):
		t.Fatal("the stop was not noticed")
	}
	select {
	case <-p.Exited():
		t.Fatal("the stop was taken for the end")
	default:
	}
	if err := p.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, "the process ends", p.Exited())
	if got := p.Status().ExitStatus(); got != 5 {
		t.Errorf("got status %d, want 5", got)
	}
	empty(t, r)
}

// A fork that fails registers nothing.
func TestAFailedForkLeavesNothing(t *testing.T) {
	r := startReaper(t)
	if _, err := r.Spawn(func() (int, error) { return 0, unix.EAGAIN }); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("got %v, want EAGAIN", err)
	}
	if !r.Empty() {
		t.Error("something is registered or left")
	}
}

// Whoever waits for a group to become empty is woken by the change, and only by one.
func TestAChangeIsAnnounced(t *testing.T) {
	r := startReaper(t)
	p := spawn(t, r, "exec sleep 1000")
	before := r.Changed()
	select {
	case <-before:
		t.Error("a change without a change")
	default:
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "the end is announced", before)
	await(t, "the process ends", p.Exited())
	if got := p.Status().Signal(); got != unix.SIGKILL {
		t.Errorf("got %v, want SIGKILL", got)
	}
	empty(t, r)
}
