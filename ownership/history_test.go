package ownership

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The random histories have what the exhaustive model leaves out: the published proportions of the numbers, polls and store calls that
// take their time and overlap with everything else, reads that are old when they arrive, entries that land after the warden
// that wrote them died. rapid prints the seed of a failure and shrinks it; -rapid.seed replays it.

type past struct {
	t      *rapid.T
	set    [2]Settings
	now    BootTime
	queue  []timed
	moves  []move // of the record, newest last
	head   Head
	sites  [2]*live
	story  []string
	serves int
}

type move struct {
	at BootTime
	to int
}

type timed struct {
	at    BootTime
	site  int // -1: the world
	epoch int
	do    func()
}

// live is one site: its machine, its etcd and what survives a crash of the warden.
type live struct {
	m        Machine
	epoch    int // of the warden's life
	polls    int // the last scheduled poll; older ones are replaced
	reads    int
	tickAt   BootTime
	marker   Mark
	data     bool
	child    bool
	kill     int  // of the etcd that runs
	captured bool // and no write since
	deaf     bool // DNS is down here for a while
}

// draw is nothing, all, or something between: the ends are where things break.
func (h *past) draw(label string, most time.Duration) time.Duration {
	return time.Duration(rapid.SampledFrom([]int{0, 1, 3, 7, 9, 10}).Draw(h.t, label)) * most / 10
}

// chance is true in one of n.
func (h *past) chance(label string, n int) bool {
	return rapid.IntRange(1, n).Draw(h.t, label) == n
}

func (h *past) after(d time.Duration, site int, do func()) {
	epoch := 0
	if site >= 0 {
		epoch = h.sites[site].epoch
	}
	h.queue = append(h.queue, timed{at: h.now.Add(d), site: site, epoch: epoch, do: do})
}

// next runs the earliest of what is planned; of equal ones the first planned.
func (h *past) next() {
	first := 0
	for i, e := range h.queue {
		if e.at < h.queue[first].at {
			first = i
		}
	}
	e := h.queue[first]
	h.queue = append(h.queue[:first], h.queue[first+1:]...)
	h.now = e.at
	if e.site < 0 || h.sites[e.site].epoch == e.epoch {
		e.do()
	}
}

func (h *past) log(site int, format string, args ...any) {
	h.story = append(h.story, fmt.Sprintf("%8.1f %s: %s", time.Duration(h.now).Seconds(), h.set[site].ID, fmt.Sprintf(format, args...)))
}

func (h *past) fail(site int, format string, args ...any) {
	h.log(site, format, args...)
	h.t.Fatalf("broken promise\n%s", strings.Join(h.story, "\n"))
}

func (h *past) start(site int) {
	l := h.sites[site]
	b := Boot{Instance: "n-" + h.set[site].ID, HasData: l.data, Generation: l.marker.Generation}
	switch l.marker.Phase {
	case PhaseServing:
		b.HadOpen = true
	case PhaseLost, PhaseSuperseded:
		b.Lost = true
	case PhaseIsolated:
		b.Isolated = true
	case PhaseFinalized:
		b.Finalized = true
	case PhaseClaiming:
		b.Claiming = true
	}
	l.m = NewMachine(h.set[site], b)
	h.schedulePoll(site, 0)
	h.step(site, Tick{})
}

// crash ends warden and etcd; the warden is started again later. What it had sent to the store may still arrive.
func (h *past) crash(site int) {
	l := h.sites[site]
	h.log(site, "the warden dies")
	l.epoch++
	l.child, l.captured = false, false
	l.m = Machine{}
	h.after(h.draw("down", 3*time.Minute), site, func() { h.start(site) })
}

func (h *past) schedulePoll(site int, d time.Duration) {
	l := h.sites[site]
	l.polls++
	n := l.polls
	h.after(d, site, func() {
		if l.polls == n {
			h.poll(site)
		}
	})
}

func (h *past) poll(site int) {
	v := Verdict{Kind: Failed, At: h.now, Proto: "udp"}
	took := h.draw("poll takes", h.set[site].PollTimeout)
	if !h.sites[site].deaf && !h.chance("poll fails", 8) {
		age := h.draw("cached for", h.set[site].RecordTTL)
		v.AsOf = h.now.Add(-age)
		owner := 0
		for _, m := range h.moves {
			if m.at <= v.AsOf {
				owner = m.to
			}
		}
		v.Kind, v.Value = Other, h.set[owner].ID
		if owner == site {
			v.Kind = Mine
		}
		v.Foreign = v.Kind == Other
	}
	h.after(took, site, func() {
		h.schedulePoll(site, h.set[site].Interval)
		h.step(site, VerdictEvent{v})
	})
}

func (h *past) step(site int, ev Event) {
	l := h.sites[site]
	before := l.m.State()
	m, acts := l.m.Step(ev, h.now)
	l.m = m
	if m.State() != before {
		h.log(site, "%T: %s -> %s (%s)", ev, before, m.State(), m.Reason())
	}
	if l.child && !m.Serving() && m.State() != Fencing {
		h.fail(site, "etcd serves in state %s", m.State())
	}
	for _, a := range acts {
		h.perform(site, a)
	}
	if at, ok := m.Wake(); ok && at >= h.now && at != l.tickAt {
		l.tickAt = at
		h.after(at.Sub(h.now)+h.draw("late tick", time.Second), site, func() { h.step(site, Tick{}) })
	}
}

func (h *past) perform(site int, a Action) {
	l := h.sites[site]
	switch a := a.(type) {
	case Poll:
		h.schedulePoll(site, a.After)
	case ReadJournal:
		l.reads++
		n := l.reads
		h.after(a.After, site, func() {
			if l.reads == n {
				h.read(site)
			}
		})
	case Append:
		h.append(site, a.Kind)
	case Serve:
		h.serve(site)
	case Fence:
		kill := l.kill
		h.after(h.draw("kill takes", h.set[site].TermGrace+2*time.Second), site, func() {
			if l.kill == kill {
				l.child = false
			}
			h.after(h.draw("reaping takes", time.Second), site, func() { h.step(site, ChildDead{}) })
		})
	case Mark:
		if !h.chance("marker fails", 5) {
			l.marker = a
		}
	case Finalize:
		if l.child {
			h.fail(site, "the final is begun while etcd is alive")
		}
		if !a.Late {
			l.captured = true
			h.after(h.draw("capture takes", time.Minute), site, func() { h.append(site, Final) })
		}
	case Restore:
		head := a.Head
		h.after(h.draw("restore takes", 2*time.Minute), site, func() {
			if h.chance("restore fails", 5) {
				h.step(site, RestoreFailed{Reason: "drawn"})
				return
			}
			l.data = true
			h.log(site, "restored the %s", head.Describe())
			h.step(site, Restored{})
		})
	}
}

func (h *past) serve(site int) {
	l := h.sites[site]
	h.serves++
	h.log(site, "etcd is started, generation %d", l.m.Generation())
	l.child, l.data, l.captured = true, true, false
	l.kill++
	if h.sites[1-site].child {
		h.fail(site, "two sites serve")
	}
}

func (h *past) read(site int) {
	head, took := h.head, h.draw("read takes", 5*time.Second)
	failed := h.chance("read fails", 5)
	h.after(took, site, func() {
		if failed {
			h.step(site, HeadFailed{Reason: "drawn"})
			return
		}
		h.step(site, HeadEvent{Head: head})
	})
}

// append sends an entry after the head that the machine knows now; it lands some time later, or not, and is answered later still, or not.
func (h *past) append(site int, k EntryKind) {
	l := h.sites[site]
	known, _ := l.m.Head()
	w := sim{id: h.set[site].ID, site: siteOf(l.m)}
	e, err := w.build(k, known)
	lands, answers := h.draw("lands", 3*time.Second), h.draw("answers", 2*time.Second)
	lost, unsent := h.chance("answer lost", 5), h.chance("not sent", 5)
	var refused *IllegalAppendError
	if err != nil && !errors.As(err, &refused) {
		h.fail(site, "build %s: %v", k, err)
	}
	answer := func(ev Event) {
		h.after(answers, site, func() {
			switch {
			case lost && k == Final:
				h.append(site, Final) // the supervisor's own retry
			case lost:
				h.step(site, AppendFailed{Reason: "drawn"})
			default:
				h.step(site, ev)
			}
		})
	}
	if unsent {
		lost = true
		answer(nil)
		return
	}
	epoch := l.epoch
	h.after(lands, -1, func() { // also when the warden is dead by now
		if refused != nil || e.Seq != h.head.Seq+1 {
			if epoch == l.epoch {
				answer(AppendRefused{Kind: k, Head: h.head})
			}
			return
		}
		if k == Final && (l.child || epoch == l.epoch && !l.captured) {
			h.fail(site, "the final lacks acknowledged writes")
		}
		h.head = Head{Entry: e}
		h.log(site, "%s", h.head.Describe())
		if epoch == l.epoch {
			answer(Appended{Entry: e})
		}
	})
}

func siteOf(m Machine) site { return site{m: m} }

// TestRandomHistoriesNeverServeTwice: two sites, one record, everything slow and half of it failing.
func TestRandomHistoriesNeverServeTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &past{t: t, head: Head{Empty: true}, moves: []move{{at: 0, to: 0}}, now: BootTime(time.Hour)}
		for i, id := range []string{"seed-a", "seed-b"} {
			s := Defaults()
			s.ID, s.Name = id, "owner.test."
			s.Lease = 2 * time.Minute
			s.WaitFinal = s.Lease + s.RecordTTL + s.TermGrace + killMargin
			h.set[i] = s
			h.sites[i] = &live{data: i == 0}
			if err := s.Validate(); err != nil {
				t.Fatal(err)
			}
		}
		h.start(0)
		h.start(1)
		var moved func()
		moved = func() {
			to := 1 - h.moves[len(h.moves)-1].to
			h.moves = append(h.moves, move{at: h.now, to: to})
			h.story = append(h.story, fmt.Sprintf("%8.1f the record names %s", time.Duration(h.now).Seconds(), h.set[to].ID))
			h.after(h.set[0].MaxGap+h.draw("stays", 8*time.Minute), -1, moved)
		}
		h.after(h.draw("first stays", 2*time.Minute), -1, moved)
		for range rapid.IntRange(0, 6).Draw(t, "outages") {
			site := rapid.IntRange(0, 1).Draw(t, "whose")
			h.after(h.draw("outage at", 20*time.Minute), -1, func() {
				h.sites[site].deaf = true
				h.log(site, "DNS fails")
				h.after(h.draw("outage lasts", 4*time.Minute), -1, func() { h.sites[site].deaf = false })
			})
		}
		for range rapid.IntRange(0, 4).Draw(t, "crashes") {
			site := rapid.IntRange(0, 1).Draw(t, "who")
			h.after(h.draw("crash at", 20*time.Minute), -1, func() { h.crash(site) })
		}
		for end := h.now.Add(20 * time.Minute); h.now < end; {
			h.next()
		}
	})
}
