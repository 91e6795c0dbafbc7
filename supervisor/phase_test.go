package supervisor

import (
	"slices"
	"testing"
)

// A phase that the table forgets would be logged as out of order in production, and a path from Capturing back to
// Running would be an etcd that serves what it has given away.
func TestPhaseTableLeadsOnlyWhereTheLifeCycleGoes(t *testing.T) {
	for p := Booting; p <= Ended; p++ {
		if p.String() == "" || p.String()[0] == 'p' {
			t.Errorf("phase %d has no name", p)
		}
		if !p.canFollow(p) {
			t.Errorf("%s cannot follow itself", p)
		}
		if p != Ended && !p.canFollow(Ended) {
			t.Errorf("%s cannot end", p)
		}
	}
	for _, c := range []struct {
		from, to Phase
		want     bool
	}{
		{Running, Stopping, true}, {Stopping, Capturing, true}, {Capturing, Fenced, true}, {Fenced, Restoring, true},
		{Running, Capturing, false}, {Capturing, Running, false}, {Stopping, Running, false}, {Ended, Running, false},
		{Waiting, Capturing, false}, {Running, Fenced, false}, {Running, Waiting, false},
	} {
		if got := c.from.canFollow(c.to); got != c.want {
			t.Errorf("%s to %s: got %v, want %v", c.from, c.to, got, c.want)
		}
	}
	for from, next := range nextPhases {
		if slices.Contains(next, from) {
			t.Errorf("%s names itself", from)
		}
	}
}
