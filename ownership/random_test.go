package ownership

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestAnyEventsKeepTheLeaseHonest: events in any order, also those that no supervisor would send. Serving must rest on a proof that was
// really given, and a fence on a reason that is really there.
func TestAnyEventsKeepTheLeaseHonest(t *testing.T) {
	heads := []Head{{Empty: true}, entry(Open, 1, 1, us, nonce), entry(Open, 2, 1, us, nonce), entry(Final, 3, 1, us, nonce),
		entry(Abandoned, 3, 1, them, "n-b"), entry(Claim, 4, 2, them, "n-b"), entry(Claim, 4, 2, us, nonce), entry(Final, 5, 2, them, "n-b"), entry(Open, 3, 1, us, "n-twin")}
	rapid.Check(t, func(t *rapid.T) {
		m := machine(func(_ *Settings, b *Boot) {
			b.HasData = rapid.Bool().Draw(t, "data")
			b.Generation = uint64(rapid.IntRange(0, 2).Draw(t, "generation"))
			b.Lost, b.Isolated = rapid.Bool().Draw(t, "lost"), rapid.Bool().Draw(t, "isolated")
			b.NoStore, b.NoConditional = rapid.Bool().Draw(t, "no store"), rapid.Bool().Draw(t, "no if-absent")
		})
		now := BootTime(time.Hour)
		var freshest BootTime
		foreign := 0
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 5, 31, 300, 901}).Draw(t, "passes")) * time.Second)
			head := rapid.SampledFrom(heads).Draw(t, "head")
			var ev Event
			switch rapid.IntRange(0, 12).Draw(t, "event") {
			case 0, 1, 2, 3:
				v := Verdict{Kind: Mine, AsOf: now.Add(-time.Duration(rapid.IntRange(0, 10).Draw(t, "age")) * time.Second)}
				freshest, foreign = max(freshest, v.AsOf), 0
				ev = VerdictEvent{v}
			case 4:
				foreign++
				ev = VerdictEvent{Verdict{Kind: Other, Value: them, Foreign: true}}
			case 5:
				k := rapid.SampledFrom([]VerdictKind{None, Unclear, Failed}).Draw(t, "kind")
				if k != Failed {
					foreign = 0
				}
				ev = VerdictEvent{Verdict{Kind: k}}
			case 6:
				ev = HeadEvent{head}
			case 7:
				ev = Appended{head.Entry}
			case 8:
				ev = AppendRefused{Head: head}
			case 9:
				ev = AppendFailed{}
			case 10:
				ev = ChildDead{}
			case 11:
				ev = Restored{}
			default:
				ev = Tick{}
			}
			before := m
			var acts []Action
			m, acts = m.Step(ev, now)
			checkStep(t, before, m, acts, now, freshest, foreign)
		}
	})
}

func checkStep(t *rapid.T, before, after Machine, acts []Action, now, freshest BootTime, foreign int) {
	if len(acts) > 8 {
		t.Fatalf("%d actions after one event: %v", len(acts), acts)
	}
	if after.Serving() && (after.lease > freshest || now.Sub(after.lease) >= after.set.lease) {
		t.Fatalf("serving on a lease as of %s; the freshest proof was %s, now is %s", time.Duration(after.lease), time.Duration(freshest), time.Duration(now))
	}
	if before.Serving() && after.Serving() && after.lease < before.lease {
		t.Fatalf("the lease went back")
	}
	for _, a := range acts {
		switch a := a.(type) {
		case Serve:
			if before.Serving() || after.last.Kind != Mine {
				t.Fatalf("etcd started from state %s, last answer %s", before.state, after.last.Kind)
			}
		case Fence:
			byStore := after.headKnown && !after.head.HeldBy(nonce) || after.headKnown && after.head.Generation != before.generation
			if !a.Lost && now.Sub(before.lease) < before.set.lease {
				t.Fatalf("fenced as unproven %s after the proof", now.Sub(before.lease))
			}
			if a.Lost && foreign < before.set.lostCount && !byStore {
				t.Fatalf("fenced as lost after %d foreign answers, head %s", foreign, after.head.Describe())
			}
		case Append:
			if (a.Kind == Abandoned || a.Kind == Claim) && before.boot.NoConditional {
				t.Fatalf("%s asked of a store that cannot arbitrate", a.Kind)
			}
		case Finalize:
			if before.Serving() || after.Serving() {
				t.Fatalf("final asked for while etcd serves")
			}
		}
	}
}
