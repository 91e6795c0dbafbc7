package supervisor

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/signals"
)

// trapping is a shell that prints "got N" for each of sigs: it has no runtime that keeps signals for itself.
func trapping(sigs []unix.Signal) []string {
	var script strings.Builder
	for _, sig := range sigs {
		fmt.Fprintf(&script, "trap 'echo got %d' %d; ", sig, sig)
	}
	script.WriteString("echo ready $$ 0; while :; do sleep 0.01; done")
	return shell(script.String())
}

// No signal is lost silently: whatever the policy forwards reaches the child, each number by itself.
func TestEverySignalReachesTheChild(t *testing.T) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("SIGPROF, 32 and 34 need the handler of amd64 and arm64")
	}
	var sigs []unix.Signal
	for sig := unix.Signal(1); sig <= 64; sig++ {
		switch {
		case signals.ForCommand.Action(sig, signals.State{}) != signals.Forward:
		case sig == 32: // the shell cannot trap it
		case slices.Contains([]unix.Signal{unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU}, sig): // the shell's sleep would be stopped
		default:
			sigs = append(sigs, sig)
		}
	}
	if len(sigs) < 50 {
		t.Fatalf("only %d signals are forwarded", len(sigs))
	}
	w := startInit(t, trapping(sigs))
	w.ready()
	for _, sig := range sigs {
		w.signal(sig)
		w.line(fmt.Sprintf("got %d", sig))
	}
}

// The main child alone is meant: its own children are its own affair.
func TestSignalsGoToTheMainChildOnly(t *testing.T) {
	w := startInit(t, shell(`"$0" @child signals & read l; trap 'echo main' USR1; echo up; while :; do sleep 0.01; done`, testBinary(t)))
	w.ready()
	fmt.Fprintln(w.stdin, "go on")
	w.line("up")
	w.signal(unix.SIGUSR1)
	w.line("main")
	w.signal(unix.SIGUSR1)
	w.line("main")
	for _, l := range w.seen {
		if l == "got SIGUSR1" {
			t.Error("the grandchild got the signal too")
		}
	}
}

// A burst may become fewer signals, but no kind of them is lost, and the last one arrives.
func TestABurstLosesNoKind(t *testing.T) {
	w := startInit(t, visible(t, "signals"))
	w.ready()
	for n := range 1000 {
		w.signal([]unix.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGHUP}[n%3])
	}
	w.signal(unix.SIGWINCH)
	want := map[string]bool{"SIGUSR1": true, "SIGUSR2": true, "SIGHUP": true, "SIGWINCH": true}
	for len(want) > 0 {
		delete(want, w.line("got "))
	}
}

// A TERM that comes at any time during the start must not be lost: an orchestrator sends one only. Either the warden takes
// it and stops the child, or, before it could listen, dies of it without having started one.
func TestATermBeforeTheChildIsNotLost(t *testing.T) {
	for n := range 20 {
		w := startInit(t, []string{"--", "sleep", "1000"})
		looks := 0
		eventually(t, "so many looks have passed", func() bool { looks++; return looks > 2*n }) // a moment more each time
		w.signal(unix.SIGTERM)
		if got := w.code(); got != 0 && got != -int(unix.SIGTERM) {
			t.Fatalf("got %d, want 0", got)
		}
		w.all()
	}
}

// For etcd HUP is a request to us, and INT a stop: HUP would kill it without grace.
func TestEtcdNeverSeesHUP(t *testing.T) {
	w := startInit(t, append([]string{"-etcd"}, visible(t, "signals")...))
	w.ready()
	w.signal(unix.SIGHUP)
	w.signal(unix.SIGINT)
	if got := w.line("got "); got != "SIGTERM" && got != "SIGCONT" {
		t.Errorf("etcd got %s first, want TERM alone for our INT", got)
	}
	if got := w.code(); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
	if slices.Contains(append(w.seen, w.all()...), "got SIGHUP") {
		t.Error("etcd got SIGHUP")
	}
}

// A busy warden's runtime sends itself SIGURG all the time; the child must see none of it.
func TestNoSIGURGReachesTheChild(t *testing.T) {
	w := startInit(t, trapping([]unix.Signal{unix.SIGURG, unix.SIGUSR1}))
	w.ready()
	for range 300 {
		w.signal(unix.SIGUSR1)
		w.line("got 10")
	}
	if slices.Contains(w.seen, "got 23") {
		t.Error("SIGURG was forwarded")
	}
}

// TSTP reaches the child, and CONT brings it back; a warden without a terminal goes on meanwhile.
func TestStopAndContinueReachTheChild(t *testing.T) {
	w := startInit(t, shell("echo ready $$ 0; exec sleep 1000"))
	pid, _ := w.ready()
	w.signal(unix.SIGTSTP)
	eventually(t, "the child is stopped", func() bool { return inState(pid, 'T') })
	w.signal(unix.SIGCONT)
	eventually(t, "the child runs again", func() bool { return !inState(pid, 'T') })
}

// Everything that has to reach the supervisor does, counted and in bounds, however late it looks.
func TestEventsWaitForTheSupervisor(t *testing.T) {
	f := forwarding{Init: &Init{escalated: make(chan struct{})}}
	f.cfg.Policy = signals.ForEtcd
	for range 3 {
		for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGTERM} {
			f.act(sig)
		}
	}
	var got []string
	for _, e := range f.pending {
		got = append(got, fmt.Sprint(e.Kind, e.Reason, e.Count))
	}
	want := []string{fmt.Sprint(ReloadRequested, "SIGHUP", 0), fmt.Sprint(StopRequested, "SIGTERM", 1), fmt.Sprint(StopRequested, "SIGTERM", 3)}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	select {
	case <-f.escalated:
	default:
		t.Error("the second stop did not escalate")
	}
}
