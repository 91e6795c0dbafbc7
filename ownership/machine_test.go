package ownership

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const us, them, nonce = "seed-a", "seed-b", "n-a"

// The events of the tables, short. A poll is as of now unless aged.
func mine() Event { return VerdictEvent{Verdict{Kind: Mine, Value: us, Proto: "udp", Reason: "ours"}} }
func other() Event {
	return VerdictEvent{Verdict{Kind: Other, Value: them, Foreign: true, Proto: "udp"}}
}
func otherTCP() Event {
	return VerdictEvent{Verdict{Kind: Other, Value: them, Foreign: true, Proto: "tcp"}}
}
func said(k VerdictKind) Event { return VerdictEvent{Verdict{Kind: k, Proto: "udp", Reason: "x"}} }

func entry(k EntryKind, seq, generation uint64, owner, instance string) Head {
	e := Entry{Version: 1, Seq: seq, Generation: generation, Kind: k, Owner: owner, Instance: instance}
	if k == Final || k == Claim {
		e.Snapshot = modelSnapshot
	}
	if k == Claim {
		e.From = generation - 1
	}
	return Head{Entry: e}
}

// row is one step of a story: what happens at which second, and what must follow.
type row struct {
	at    int
	ev    Event
	state State
	acts  string // actions separated by commas; reads and polls only where they are named
}

// brief writes actions as the tables do.
func brief(acts []Action, want string) string {
	var out []string
	for _, a := range acts {
		switch a := a.(type) {
		case Poll:
			if strings.Contains(want, "poll") {
				s := fmt.Sprintf("poll %s", a.After)
				if a.TCP {
					s += " tcp"
				}
				out = append(out, s)
			}
		case ReadJournal:
			if strings.Contains(want, "read") {
				out = append(out, fmt.Sprintf("read %s", a.After))
			}
		case Append:
			out = append(out, "append "+string(a.Kind))
		case Serve:
			out = append(out, "serve")
		case Fence:
			out = append(out, fmt.Sprintf("fence lost=%v", a.Lost))
		case Mark:
			out = append(out, fmt.Sprintf("mark %s %d", a.Phase, a.Generation))
		case Finalize:
			if a.Late {
				out = append(out, "finalize late")
			} else {
				out = append(out, "finalize")
			}
		case Restore:
			out = append(out, fmt.Sprintf("restore %d", a.Head.Seq))
		case Alarm:
			out = append(out, "alarm "+string(a.Code))
		}
	}
	return strings.Join(out, ", ")
}

func play(t *testing.T, m Machine, rows []row) Machine {
	t.Helper()
	for i, r := range rows {
		now := BootTime(1000*time.Second) + BootTime(r.at)*BootTime(time.Second)
		ev := r.ev
		if v, ok := ev.(VerdictEvent); ok {
			v.At, v.AsOf = now, now
			ev = v
		}
		var acts []Action
		m, acts = m.Step(ev, now)
		if got := brief(acts, r.acts); m.State() != r.state || got != r.acts {
			t.Fatalf("row %d (%T at %d s): got %s [%s], want %s [%s]; why: %s", i, r.ev, r.at, m.State(), got, r.state, r.acts, m.Reason())
		}
	}
	return m
}

func machine(change func(*Settings, *Boot)) Machine {
	s, b := Defaults(), Boot{Instance: nonce, HasData: true}
	s.ID, s.Name = us, "owner.test."
	if change != nil {
		change(&s, &b)
	}
	return NewMachine(s, b)
}

// owner is a machine that serves generation 1 since second 0 after a restart.
func owner(t *testing.T, change func(*Settings, *Boot)) Machine {
	return play(t, machine(change), []row{
		{0, Tick{}, Unknown, "read 0s"},
		{0, HeadEvent{entry(Open, 1, 1, us, nonce)}, Unknown, "read 5s"},
		{0, mine(), Unknown, "append open"},
		{0, Appended{entry(Open, 2, 1, us, nonce).Entry}, Owner, "mark serving 1, serve"},
	})
}

func TestStart(t *testing.T) {
	empty := HeadEvent{Head{Empty: true}}
	ours := HeadEvent{entry(Open, 4, 2, us, nonce)}
	for name, tt := range map[string]struct {
		boot func(*Settings, *Boot)
		rows []row
	}{
		"data and an empty journal begin generation 1": {nil, []row{
			{0, Tick{}, Unknown, "read 0s"},
			{0, empty, Unknown, ""},
			{1, mine(), Unknown, "append open"},
			{1, Appended{entry(Open, 1, 1, us, nonce).Entry}, Owner, "mark serving 1, serve"}}},
		"an empty etcd needs the operator's word": {func(_ *Settings, b *Boot) { b.HasData = false }, []row{
			{0, Tick{}, Unknown, "read 0s"},
			{0, empty, Unknown, "alarm not-bootstrapped"},
			{1, mine(), Unknown, ""}}},
		"with the operator's word an empty etcd is begun": {func(_ *Settings, b *Boot) { b.HasData, b.MayBootstrap = false, true }, []row{
			{0, Tick{}, Unknown, "read 0s"},
			{0, empty, Unknown, ""},
			{1, mine(), Unknown, "append open"},
			{1, Appended{entry(Open, 1, 1, us, nonce).Entry}, Owner, "mark serving 1, serve"}}},
		"a bootstrap that died before etcd wrote anything goes on": {func(_ *Settings, b *Boot) { b.HasData, b.MayBootstrap = false, true }, []row{
			{0, HeadEvent{entry(Open, 1, 1, us, nonce)}, Unknown, ""},
			{1, mine(), Unknown, "append open"},
			{1, Appended{entry(Open, 2, 1, us, nonce).Entry}, Owner, "mark serving 1, serve"}}},
		"the word does not make an empty etcd where data was": {func(_ *Settings, b *Boot) { b.HasData, b.MayBootstrap, b.HadOpen = false, true, true }, []row{
			{0, ours, Unknown, "alarm data-missing"},
			{1, mine(), Unknown, ""}}},
		"an emptied store starts nothing": {func(_ *Settings, b *Boot) { b.Generation, b.HadOpen = 2, true }, []row{
			{0, empty, Unknown, "alarm journal-empty"},
			{1, mine(), Unknown, ""}, {6, mine(), Unknown, ""}, {12, mine(), Unknown, ""}}},
		"without the store nothing starts": {func(_ *Settings, b *Boot) { b.HadOpen = true }, []row{
			{0, Tick{}, Unknown, "read 0s"},
			{0, HeadFailed{}, Unknown, "read 5s"},
			{1, mine(), Unknown, ""}, {6, mine(), Unknown, ""}, {12, mine(), Unknown, ""}}},
		"without the store, if-ours starts after R answers and says so": {func(s *Settings, b *Boot) { s.StartWithoutStore, b.HadOpen, b.Generation = StartIfOurs, true, 2 }, []row{
			{0, Tick{}, Unknown, "read 0s"},
			{0, HeadFailed{}, Unknown, ""},
			{1, mine(), Unknown, "poll 1s"}, {6, mine(), Unknown, ""}, {12, mine(), Owner, "mark serving 2, serve, alarm started-storeless"},
			{13, HeadEvent{entry(Claim, 9, 3, them, "n-b")}, Fencing, "fence lost=true"}}},
		"the record first names another: an unfinished generation is finalized": {nil, []row{
			{0, ours, Unknown, ""},
			{1, other(), Unknown, "poll 0s tcp"},
			{1, otherTCP(), Finalizing, "mark lost 2, finalize"}}},
		"the record names another and we have nothing: idle": {func(_ *Settings, b *Boot) { b.HasData = false }, []row{
			{0, HeadEvent{entry(Open, 4, 2, them, "n-b")}, Unknown, ""},
			{1, other(), Unknown, ""}, {1, otherTCP(), Unknown, ""}}},
		"two wardens with one id: the second refuses": {func(_ *Settings, b *Boot) { b.Instance = "n-twin"; b.HasData = false }, []row{
			{0, ours, Unknown, "alarm held-by-twin"},
			{1, mine(), Unknown, ""}, {6, mine(), Unknown, ""}, {12, mine(), Unknown, ""}}},
		"data of another generation than the one we hold is never served": {func(_ *Settings, b *Boot) { b.Generation = 1 }, []row{
			{0, ours, Unknown, "alarm data-mismatch"}, {1, mine(), Unknown, ""}}},
		"data newer than the journal is never served": {func(_ *Settings, b *Boot) { b.Generation = 7 }, []row{
			{0, ours, Unknown, "alarm data-mismatch"}, {1, mine(), Unknown, ""}}},
		"abandoned while down: superseded, and the data kept": {func(_ *Settings, b *Boot) { b.Generation = 2 }, []row{
			{0, HeadEvent{entry(Abandoned, 5, 2, them, "n-b")}, Superseded, "mark superseded 2, alarm superseded, finalize late"}}},
		"claimed by another while down: superseded": {func(_ *Settings, b *Boot) { b.Generation = 2 }, []row{
			{0, HeadEvent{entry(Claim, 6, 3, them, "n-b")}, Superseded, "mark superseded 2, alarm superseded, finalize late"}}},
		"our final at the head: finalized": {func(_ *Settings, b *Boot) { b.Generation = 2 }, []row{
			{0, HeadEvent{entry(Final, 5, 2, us, nonce)}, Finalized, ""}}},
		"marker lost: finalized without asking DNS": {func(_ *Settings, b *Boot) { b.Lost, b.Generation = true, 2 }, []row{
			{0, Tick{}, Fenced, "read 0s"},
			{0, HeadFailed{}, Fenced, "read 5s"},
			{5, mine(), Fenced, ""},
			{9, ours, Finalizing, "finalize"}}},
		"marker lost and the final is there: finalized": {func(_ *Settings, b *Boot) { b.Lost, b.Generation = true, 2 }, []row{
			{0, HeadEvent{entry(Final, 5, 2, us, nonce)}, Finalized, "mark finalized 2"}}},
		"marker finalized but the journal says open: the journal counts": {func(_ *Settings, b *Boot) { b.Finalized, b.Generation = true, 2 }, []row{
			{0, ours, Finalizing, "finalize"}}},
		"marker isolated: one answer is not enough": {func(_ *Settings, b *Boot) { b.Isolated, b.Generation = true, 2 }, []row{
			{0, ours, Isolated, ""},
			{1, mine(), Isolated, ""}, {6, mine(), Isolated, ""}, {12, mine(), Isolated, "append open"},
			{12, Appended{entry(Open, 5, 2, us, nonce).Entry}, Owner, "mark serving 2, serve"}}},
		"a claim whose marker is there and entry is not starts over": {func(_ *Settings, b *Boot) { b.Claiming, b.Generation = true, 3 }, []row{
			{0, HeadEvent{entry(Final, 5, 2, them, "n-b")}, Unknown, ""},
			{1, mine(), Claiming, "restore 5"}}},
		"a claim that was made before the crash is served with a new entry": {func(_ *Settings, b *Boot) { b.Claiming, b.Generation = true, 3 }, []row{
			{0, HeadEvent{entry(Claim, 6, 3, us, nonce)}, Unknown, ""},
			{1, mine(), Unknown, "append open"},
			{1, Appended{entry(Open, 7, 3, us, nonce).Entry}, Owner, "mark serving 3, serve"}}},
		"an answer that failed, then an open that failed, is tried again": {nil, []row{
			{0, ours, Unknown, ""},
			{1, said(Failed), Unknown, ""}, {6, mine(), Unknown, "append open"}, {7, AppendFailed{}, Unknown, ""}, {11, mine(), Unknown, "append open"}}},
		"an open found in place of ours is not newer than what came since": {nil, []row{
			{0, ours, Unknown, ""},
			{6, mine(), Unknown, "append open"}, {7, AppendRefused{Open, entry(Open, 5, 2, us, nonce)}, Unknown, "append open"},
			{8, Appended{entry(Open, 6, 2, us, nonce).Entry}, Owner, "mark serving 2, serve"}}},
		"the record moved away while the open was made: not served": {nil, []row{
			{0, ours, Unknown, ""},
			{6, mine(), Unknown, "append open"}, {7, other(), Unknown, ""}, {8, Appended{entry(Open, 5, 2, us, nonce).Entry}, Unknown, ""}}},
	} {
		t.Run(name, func(t *testing.T) { play(t, machine(tt.boot), tt.rows) })
	}
}

func TestOwner(t *testing.T) {
	for name, rows := range map[string][]row{
		"an answer renews, anything else is suspect":                {{5, mine(), Owner, ""}, {10, said(None), Suspect, "poll 1s"}, {11, mine(), Owner, ""}, {16, said(Unclear), Suspect, ""}, {17, mine(), Owner, ""}, {22, said(Failed), Suspect, ""}},
		"two foreign answers are a loss, the second by TCP at once": {{5, other(), Suspect, "poll 0s tcp"}, {5, otherTCP(), Fencing, "fence lost=true"}},
		"no answer between two foreign ones does not end the row":   {{5, other(), Suspect, "poll 0s tcp"}, {7, said(Failed), Suspect, "poll 1s"}, {8, other(), Fencing, "fence lost=true"}},
		"our own answer between two foreign ones does":              {{5, other(), Suspect, ""}, {5, mine(), Suspect, "append open"}, {6, other(), Suspect, ""}},
		"after a foreign answer an entry is needed":                 {{5, other(), Suspect, ""}, {6, mine(), Suspect, "append open"}, {7, mine(), Suspect, ""}, {8, Appended{entry(Open, 3, 1, us, nonce).Entry}, Owner, ""}, {12, mine(), Owner, ""}},
		"a foreign answer while the entry is made spoils it":        {{5, other(), Suspect, ""}, {6, mine(), Suspect, "append open"}, {7, other(), Suspect, ""}, {8, Appended{entry(Open, 3, 1, us, nonce).Entry}, Suspect, ""}, {9, mine(), Suspect, "append open"}},
		"after a gap longer than J an entry is needed":              {{31, mine(), Suspect, "append open"}, {32, Appended{entry(Open, 3, 1, us, nonce).Entry}, Owner, ""}},
		"a gap of J is bridged":                                     {{30, mine(), Owner, ""}},
		"a failed entry is asked for by the next answer":            {{31, mine(), Suspect, "append open"}, {32, AppendFailed{}, Suspect, ""}, {33, mine(), Suspect, "append open"}},
		"a foreign answer among several servers is a doubt":         {{5, VerdictEvent{Verdict{Kind: Unclear, Foreign: true}}, Suspect, ""}, {6, mine(), Suspect, "append open"}},
		"the lease ends to the tick":                                {{899, Tick{}, Owner, ""}, {900, Tick{}, Fencing, "fence lost=false"}},
		"a lease that is over is over, whatever the answer":         {{901, mine(), Fencing, "fence lost=false"}},
		"suspended past the lease: the first thing is the fence":    {{5, mine(), Owner, ""}, {1200, said(Failed), Fencing, "fence lost=false"}},
		"DNS trouble alone is no loss before the lease ends": {{5, said(Failed), Suspect, ""}, {100, said(None), Suspect, ""}, {400, said(Unclear), Suspect, ""}, {899, said(Failed), Suspect, ""},
			{900, said(Failed), Fencing, "fence lost=false"}, {901, ChildDead{}, Isolated, "mark isolated 1, alarm isolated"}},
		"the journal says abandoned":         {{5, HeadEvent{entry(Abandoned, 3, 1, them, "n-b")}, Fencing, "fence lost=true"}, {6, ChildDead{}, Superseded, "mark superseded 1, alarm superseded, finalize late"}},
		"the journal says claimed":           {{5, HeadEvent{entry(Claim, 4, 2, them, "n-b")}, Fencing, "fence lost=true"}},
		"the journal says opened by another": {{5, HeadEvent{entry(Open, 3, 1, us, "n-twin")}, Fencing, "fence lost=true"}},
		"an older head is a slow answer":     {{5, HeadEvent{entry(Open, 1, 1, us, nonce)}, Owner, ""}},
		"an emptied journal is no loss":      {{5, HeadEvent{Head{Empty: true}}, Owner, "alarm journal-empty"}, {35, HeadEvent{Head{Empty: true}}, Owner, ""}},
		"an owner reads the journal seldom":  {{5, HeadEvent{entry(Open, 2, 1, us, nonce)}, Owner, "read 30s"}},
		"a store that is down is no loss":    {{5, HeadFailed{}, Owner, "read 30s"}},
		"a dying etcd asks for nothing":      {{5, other(), Suspect, ""}, {5, otherTCP(), Fencing, "fence lost=true"}, {6, mine(), Fencing, ""}, {7, HeadFailed{}, Fencing, ""}, {8, Tick{}, Fencing, ""}, {9, ChildDead{}, Finalizing, "mark lost 1, finalize"}},
		"unproven becomes lost while dying":  {{900, Tick{}, Fencing, "fence lost=false"}, {901, other(), Fencing, ""}, {901, otherTCP(), Fencing, ""}, {902, ChildDead{}, Finalizing, "mark lost 1, finalize"}},
	} {
		t.Run(name, func(t *testing.T) { play(t, owner(t, nil), rows) })
	}
}

func TestAfterTheFence(t *testing.T) {
	lost := []row{{5, other(), Suspect, ""}, {5, otherTCP(), Fencing, "fence lost=true"}, {6, ChildDead{}, Finalizing, "mark lost 1, finalize"}}
	final := append(lost[:3:3], row{9, Appended{entry(Final, 3, 1, us, nonce).Entry}, Finalized, "mark finalized 1"})
	isolated := []row{{900, Tick{}, Fencing, "fence lost=false"}, {901, ChildDead{}, Isolated, "mark isolated 1, alarm isolated"}}
	for name, tt := range map[string]struct{ before, rows []row }{
		"lost is final for a generation, even if the record returns": {lost, []row{{7, mine(), Finalizing, ""}, {12, mine(), Finalizing, ""}, {20, mine(), Finalizing, ""}}},
		"our final found in place of ours is ours":                   {lost, []row{{9, AppendRefused{Final, entry(Final, 3, 1, us, nonce)}, Finalized, "mark finalized 1"}}},
		"another was first: superseded":                              {lost, []row{{9, AppendRefused{Final, entry(Abandoned, 3, 1, them, "n-b")}, Superseded, "mark superseded 1, alarm superseded, finalize late"}}},
		"we had moved the head ourselves: the entry is made again":   {lost, []row{{9, AppendRefused{Final, entry(Open, 3, 1, us, nonce)}, Finalizing, "append final"}, {10, AppendFailed{}, Finalizing, ""}, {11, mine(), Finalizing, "append final"}, {12, Appended{entry(Final, 4, 1, us, nonce).Entry}, Finalized, "mark finalized 1"}}},
		"the way back is a new generation":                           {final, []row{{10, mine(), Finalized, "poll 1s"}, {15, mine(), Finalized, ""}, {20, mine(), Claiming, "restore 3"}, {25, Restored{}, Claiming, "mark claiming 2, append claim"}, {26, Appended{entry(Claim, 4, 2, us, nonce).Entry}, Owner, "mark serving 2, serve"}}},
		"the way back waits for another who went on":                 {final, []row{{10, HeadEvent{entry(Claim, 4, 2, them, "n-b")}, Finalized, "read 30s"}, {12, mine(), Finalized, ""}, {17, mine(), Finalized, ""}, {22, mine(), WaitFinal, ""}, {23, HeadEvent{entry(Final, 5, 2, them, "n-b")}, Claiming, "restore 5"}}},
		"isolated comes back with an entry in the same generation":   {isolated, []row{{902, HeadEvent{entry(Open, 2, 1, us, nonce)}, Isolated, ""}, {910, mine(), Isolated, ""}, {915, mine(), Isolated, ""}, {920, mine(), Isolated, "append open"}, {921, Appended{entry(Open, 3, 1, us, nonce).Entry}, Owner, "mark serving 1, serve"}}},
		"isolated and then lost: finalized":                          {isolated, []row{{910, other(), Isolated, ""}, {910, otherTCP(), Finalizing, "mark lost 1, finalize"}}},
		"isolated and abandoned: superseded":                         {isolated, []row{{910, HeadEvent{entry(Abandoned, 3, 1, them, "n-b")}, Superseded, "mark superseded 1, alarm superseded, finalize late"}}},
		"isolated and abandoned unseen: the entry is refused":        {isolated, []row{{902, HeadEvent{entry(Open, 2, 1, us, nonce)}, Isolated, ""}, {910, mine(), Isolated, ""}, {915, mine(), Isolated, ""}, {920, mine(), Isolated, "append open"}, {921, AppendRefused{Open, entry(Abandoned, 3, 1, them, "n-b")}, Superseded, "mark superseded 1, alarm superseded, finalize late"}}},
	} {
		t.Run(name, func(t *testing.T) { play(t, play(t, owner(t, nil), tt.before), tt.rows) })
	}
}

func TestDestination(t *testing.T) {
	waiting := []row{{0, HeadEvent{entry(Open, 4, 2, them, "n-b")}, Unknown, ""}, {1, mine(), WaitFinal, ""}}
	every := func(from, to int) (rows []row) {
		for s := from; s < to; s += 25 {
			rows = append(rows, row{s, mine(), WaitFinal, ""})
		}
		return rows
	}
	for name, tt := range map[string]struct {
		boot func(*Settings, *Boot)
		rows []row
	}{
		"a final is claimed at once": {nil, append(waiting[:2:2], row{3, HeadEvent{entry(Final, 5, 2, them, "n-b")}, Claiming, "restore 5"},
			row{9, Restored{}, Claiming, "mark claiming 3, append claim"}, row{9, Appended{entry(Claim, 6, 3, us, nonce).Entry}, Owner, "mark serving 3, serve"})},
		"the holder's journal is read while waiting": {nil, append(waiting[:2:2], row{3, HeadEvent{entry(Open, 4, 2, them, "n-b")}, WaitFinal, "read 5s"})},
		"no final for W: abandoned, then claimed": {nil, append(append(waiting[:2:2], every(25, 1801)...), row{1801, mine(), WaitFinal, "alarm abandoning, append abandoned"},
			row{1802, Appended{entry(Abandoned, 5, 2, us, nonce).Entry}, Claiming, "restore 5"})},
		"a gap in our own proofs begins the wait anew": {nil, append(append(waiting[:2:2], every(25, 1700)...), row{1750, mine(), WaitFinal, ""}, row{1775, mine(), WaitFinal, ""}, row{1801, mine(), WaitFinal, ""})},
		"a holder who was back begins it anew": {nil, append(append(waiting[:2:2], every(25, 1700)...), row{1700, HeadEvent{entry(Open, 5, 2, them, "n-b")}, WaitFinal, ""},
			row{1725, mine(), WaitFinal, ""}, row{1750, mine(), WaitFinal, ""}, row{1775, mine(), WaitFinal, ""}, row{1801, mine(), WaitFinal, ""})},
		"a foreign answer begins it anew": {nil, append(append(waiting[:2:2], every(25, 1790)...), row{1790, other(), WaitFinal, ""}, row{1801, mine(), WaitFinal, ""})},
		"refused because the holder was first: wait anew": {nil, append(append(waiting[:2:2], every(25, 1801)...), row{1801, mine(), WaitFinal, "alarm abandoning, append abandoned"},
			row{1802, AppendRefused{Abandoned, entry(Open, 5, 2, them, "n-b")}, WaitFinal, ""}, row{1820, mine(), WaitFinal, ""})},
		"refused because the final was first: claimed": {nil, append(append(waiting[:2:2], every(25, 1801)...), row{1801, mine(), WaitFinal, "alarm abandoning, append abandoned"},
			row{1802, AppendRefused{Abandoned, entry(Final, 5, 2, them, "n-b")}, Claiming, "restore 5"})},
		"W of 0 waits for ever":                                     {func(s *Settings, _ *Boot) { s.WaitFinal = 0 }, append(append(waiting[:2:2], every(25, 4000)...), row{4000, mine(), WaitFinal, ""})},
		"a store without if-absent: nothing abandoned":              {func(_ *Settings, b *Boot) { b.NoConditional = true }, append(append(waiting[:2:2], every(25, 1801)...), row{1801, mine(), WaitFinal, "alarm no-if-absent"}, row{1820, mine(), WaitFinal, ""})},
		"a store without if-absent: nothing claimed":                {func(_ *Settings, b *Boot) { b.NoConditional = true }, append(waiting[:2:2], row{3, HeadEvent{entry(Final, 5, 2, them, "n-b")}, WaitFinal, "alarm no-if-absent"})},
		"the record leaves while waiting":                           {nil, append(waiting[:2:2], row{5, other(), WaitFinal, ""}, row{5, otherTCP(), Unknown, ""})},
		"another claims first":                                      {nil, append(waiting[:2:2], row{3, HeadEvent{entry(Final, 5, 2, them, "n-b")}, Claiming, "restore 5"}, row{9, Restored{}, Claiming, "mark claiming 3, append claim"}, row{10, AppendRefused{Claim, entry(Claim, 6, 3, "seed-c", "n-c")}, WaitFinal, ""})},
		"the record leaves during the restore":                      {nil, append(waiting[:2:2], row{3, HeadEvent{entry(Final, 5, 2, them, "n-b")}, Claiming, "restore 5"}, row{4, other(), Claiming, ""}, row{4, otherTCP(), Unknown, ""}, row{9, Restored{}, Unknown, "mark claiming 3"}, row{20, mine(), Claiming, "append claim"})},
		"no claim while the record is not surely ours":              {nil, append(waiting[:2:2], row{3, HeadEvent{entry(Final, 5, 2, them, "n-b")}, Claiming, "restore 5"}, row{8, said(Failed), Claiming, ""}, row{9, Restored{}, Claiming, "mark claiming 3"}, row{10, mine(), Claiming, "append claim"})},
		"a restore that fails is tried again, later":                {nil, append(waiting[:2:2], row{3, HeadEvent{entry(Final, 5, 2, them, "n-b")}, Claiming, "restore 5"}, row{9, RestoreFailed{}, Claiming, "alarm restore-failed"}, row{14, mine(), Claiming, ""}, row{39, mine(), Claiming, "restore 5"})},
		"a claim whose answer was lost is served":                   {nil, append(waiting[:2:2], row{3, HeadEvent{entry(Final, 5, 2, them, "n-b")}, Claiming, "restore 5"}, row{9, Restored{}, Claiming, "mark claiming 3, append claim"}, row{10, AppendFailed{}, Claiming, ""}, row{14, mine(), Claiming, "append claim"}, row{15, AppendRefused{Claim, entry(Claim, 6, 3, us, nonce)}, Claiming, "append open"}, row{16, Appended{entry(Open, 7, 3, us, nonce).Entry}, Owner, "mark serving 3, serve"})},
		"the holder under our id, and the operator says it is gone": {func(_ *Settings, b *Boot) { b.TakeOver = true }, []row{{0, HeadEvent{entry(Open, 4, 2, us, "n-old")}, Unknown, ""}, {1, mine(), WaitFinal, ""}}},
		"our own data is gone, and the operator says so": {func(_ *Settings, b *Boot) { b.TakeOver = true }, []row{{0, HeadEvent{entry(Open, 4, 2, us, nonce)}, Unknown, ""},
			{1, mine(), Unknown, ""}, {6, mine(), Unknown, ""}, {12, mine(), WaitFinal, "alarm abandoning, append abandoned"},
			{13, Appended{entry(Abandoned, 5, 2, us, nonce).Entry}, Claiming, "restore 5"}}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, machine(func(s *Settings, b *Boot) {
				b.HasData = false
				if tt.boot != nil {
					tt.boot(s, b)
				}
			}), tt.rows)
		})
	}
}

func TestWithoutAnyStore(t *testing.T) {
	for name, tt := range map[string]struct {
		boot func(*Settings, *Boot)
		rows []row
	}{
		"R answers start, two foreign ones end for good": {nil, []row{{0, Tick{}, Unknown, ""}, {1, mine(), Unknown, "poll 1s"}, {6, mine(), Unknown, ""}, {12, mine(), Owner, "mark serving 0, serve"},
			{20, other(), Suspect, ""}, {20, otherTCP(), Fencing, "fence lost=true"}, {21, ChildDead{}, Fenced, "mark lost 0, alarm fenced-for-good"},
			{22, mine(), Fenced, ""}, {30, mine(), Fenced, ""}, {40, mine(), Fenced, ""}}},
		"isolated comes back after R answers": {func(_ *Settings, b *Boot) { b.Isolated = true }, []row{{1, mine(), Isolated, ""}, {6, mine(), Isolated, ""}, {12, mine(), Owner, "mark serving 0, serve"}}},
		"after a foreign answer R answers renew": {nil, []row{{1, mine(), Unknown, ""}, {6, mine(), Unknown, ""}, {12, mine(), Owner, "mark serving 0, serve"},
			{20, other(), Suspect, ""}, {21, mine(), Suspect, ""}, {26, mine(), Suspect, ""}, {32, mine(), Owner, ""}}},
		"marker lost: not served": {func(_ *Settings, b *Boot) { b.Lost = true }, []row{{0, Tick{}, Fenced, "alarm fenced-for-good"}, {1, mine(), Fenced, ""}}},
		"no data":                 {func(_ *Settings, b *Boot) { b.HasData = false }, []row{{0, Tick{}, Unknown, "alarm not-bootstrapped"}}},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, machine(func(s *Settings, b *Boot) {
				b.NoStore = true
				if tt.boot != nil {
					tt.boot(s, b)
				}
			}), tt.rows)
		})
	}
}

// TestCachedAnswersAreOnlyAsGoodAsTheirAge: a cache that repeats one answer must not keep the lease alive.
func TestCachedAnswersAreOnlyAsGoodAsTheirAge(t *testing.T) {
	m := owner(t, nil)
	start := BootTime(1000 * time.Second)
	for s := 5; s <= 600; s += 5 {
		m, _ = m.Step(VerdictEvent{Verdict{Kind: Mine, AsOf: start.Add(4 * time.Second)}}, start.Add(time.Duration(s)*time.Second))
	}
	if got, want := m.LeaseLeft(start.Add(600*time.Second)), 304*time.Second; got != want {
		t.Fatalf("lease left: got %s, want %s: it counts from the age of the answer", got, want)
	}
}

func TestAbsentRecordIsALossOnlyIfConfigured(t *testing.T) {
	rows := []row{{5, said(None), Suspect, ""}, {5, said(None), Suspect, ""}, {6, said(None), Suspect, ""}}
	play(t, owner(t, nil), rows)
	play(t, owner(t, func(s *Settings, _ *Boot) { s.Absent = AbsentLost }), []row{{5, said(None), Suspect, "poll 0s tcp"}, {5, said(None), Fencing, "fence lost=true"}})
}

func TestStatusOfTheMachine(t *testing.T) {
	now := BootTime(1000 * time.Second)
	m := owner(t, nil)
	if got := m.LeaseLeft(now.Add(time.Minute)); got != 14*time.Minute {
		t.Errorf("lease left: got %s, want 14m", got)
	}
	if at, ok := m.Wake(); !ok || at != now.Add(15*time.Minute) {
		t.Errorf("wake: got %v %v, want the end of the lease", at, ok)
	}
	if h, ok := m.Head(); !ok || h.Seq != 2 || m.Generation() != 1 || m.Last().Kind != Mine {
		t.Errorf("head %+v, generation %d, last %s", h, m.Generation(), m.Last().Kind)
	}
	forever := owner(t, func(s *Settings, _ *Boot) { s.Lease = 0 })
	if got := forever.LeaseLeft(now); got != math.MaxInt64 {
		t.Errorf("lease left without an end: got %s", got)
	}
	if left := machine(nil).LeaseLeft(now); left != 0 {
		t.Errorf("lease left of a machine that does not serve: %s", left)
	}
}

func TestStepIsPure(t *testing.T) {
	m := owner(t, nil)
	before := m
	a, actsA := m.Step(otherTCP(), BootTime(1005*time.Second))
	b, actsB := m.Step(otherTCP(), BootTime(1005*time.Second))
	if m != before || a != b {
		t.Fatal("Step changed its receiver, or did not do the same twice")
	}
	if d := cmp.Diff(actsA, actsB); d != "" {
		t.Fatalf("actions differ:\n%s", d)
	}
}
