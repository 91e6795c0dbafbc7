//go:build amd64 || arm64

package signals

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// A signal that no row mentions would be forwarded by default: fine for a real-time signal, wrong for any other.
func TestPolicyTable(t *testing.T) {
	want := map[unix.Signal][2]Action{
		unix.SIGHUP: {Forward, Hangup}, unix.SIGINT: {Forward, RequestStop}, unix.SIGTERM: {RequestStop, RequestStop},
		unix.SIGCONT: {Continue, Continue}, unix.SIGKILL: {Never, Never}, unix.SIGSTOP: {Never, Never},
		unix.SIGCHLD: {Never, Never}, unix.SIGURG: {Never, Never}, 33: {Never, Never},
	}
	for sig := unix.Signal(1); sig <= lastSignal; sig++ {
		row, special := want[sig]
		if !special {
			row = [2]Action{Forward, Forward}
		}
		for p, action := range row {
			if got := Policy(p).Action(sig, State{}); got != action {
				t.Errorf("%s, policy %d: got action %d, want %d", Name(sig), p, got, action)
			}
		}
	}
	for _, sig := range []unix.Signal{0, -1, 65, 1000} {
		if got := ForCommand.Action(sig, State{}); got != Drop {
			t.Errorf("signal %d: got action %d, want Drop", sig, got)
		}
	}
}

// Once a stop was requested, whatever a person presses next means "now".
func TestAfterAStopIntAndQuitEscalate(t *testing.T) {
	for _, p := range []Policy{ForCommand, ForEtcd} {
		for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
			if got := p.Action(sig, State{Stopping: true}); got != RequestStop {
				t.Errorf("%s, policy %d: got action %d, want RequestStop", Name(sig), p, got)
			}
		}
		if got := p.Action(unix.SIGUSR1, State{Stopping: true}); got != Forward {
			t.Errorf("SIGUSR1, policy %d: got action %d, want Forward", p, got)
		}
	}
}

// Every signal that a policy acts on must be one that the inbox can receive, and the other way round.
func TestTheInboxReceivesWhatThePolicyActsOn(t *testing.T) {
	for sig := unix.Signal(1); sig <= lastSignal; sig++ {
		received := deliverable(sig) || noted(sig)
		if acted := ForCommand.Action(sig, State{}) != Never; received != acted {
			t.Errorf("%s: received %v, acted on %v", Name(sig), received, acted)
		}
	}
}

func TestOnlyForeignSignalsCount(t *testing.T) {
	note := func(sig, code, pid int32) (n [noteSize]byte) {
		binary.NativeEndian.PutUint32(n[0:], uint32(sig))
		binary.NativeEndian.PutUint32(n[8:], uint32(code))
		binary.NativeEndian.PutUint32(n[16:], uint32(pid))
		return n
	}
	for _, c := range []struct {
		name string
		note [noteSize]byte
		want bool
	}{
		{"kill by another", note(13, 0, 77), true},
		{"kill from outside our PID namespace", note(13, 0, 0), true},
		{"sigqueue by another", note(34, -1, 77), true},
		{"our own write to a closed pipe", note(13, 0, 1), false},
		{"the terminal's TTOU", note(22, siKernel, 0), false},
	} {
		if sig, got := decodeNote(c.note, 1); got != c.want || int(sig) != int(int32(binary.NativeEndian.Uint32(c.note[:]))) {
			t.Errorf("%s: got %v from outside: %v, want %v", c.name, sig, got, c.want)
		}
	}
}
