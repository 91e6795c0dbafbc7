package ownership

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The model is a small world in discrete time around the real Machine: two sites, each with a supervisor and an etcd, one journal
// and one record whose answers may be cached. In each tick, in any order and combination: the record moves, each poll is fresh,
// cached or fails, each store call works, fails, or works and loses its answer, the marker is written or not, a warden dies (its
// etcd with it) and starts again. Times are kept relative to now and as far as anything compares them, so the number of
// states is finite and the search over them complete.

const (
	tick     = time.Second
	modelNow = BootTime(1000 * tick)
	modelSeq = 100 // of the head, in normal form
)

type modelConfig struct {
	ttl, lease, kill, wait, gap, lost, regain int // ticks, counts
	dwell                                     int // shortest time between two moves of the record
	rules                                     rules
	overwrite                                 bool // the store does not keep its promise of if-absent
	stops                                     bool // the first site's warden may be stopped while its etcd runs on
	deadman                                   bool // somebody else kills etcd when the lease is over
	generations                               uint64
	modes                                     []storeMode
	crashes                                   bool // wardens may die at any time
	markFails                                 bool // the marker may not get written
}

func (c modelConfig) settings(id string) Settings {
	s := Defaults()
	s.ID = id
	s.RecordTTL, s.Lease, s.WaitFinal, s.MaxGap = ticks(c.ttl), ticks(c.lease), ticks(c.wait), ticks(c.gap)
	s.LostCount, s.RegainCount = c.lost, c.regain
	return s
}

func ticks(n int) time.Duration { return time.Duration(n) * tick }

// site is one supervisor with its disk and its etcd.
type site struct {
	m         Machine
	marker    Mark
	data      bool
	child     bool // etcd runs and acknowledges writes
	dying     bool // it was told to stop
	deadman   bool // ... by the deadman, not by the warden
	killTicks int
	final     finalStage
	dirty     bool // writes were acknowledged after the capture
}

type finalStage int

const (
	noFinal finalStage = iota
	asked
	captured
)

// input is what happens to one site in one tick.
type input struct {
	crash, stopped bool
	verdict        VerdictKind
	age            int
	store          storeMode
	markFails      bool
}

type storeMode int

const (
	storeUp storeMode = iota
	storeDown
	storeReadOnly // reads work, appends do not
	storeLossy    // appends work, their answers are lost
	storeUnread   // all works, but the journal is not read this time
)

// sim runs one tick of one site.
type sim struct {
	cfg     *modelConfig
	id      string
	site    site
	head    Head // of the journal in the store
	appends int
	in      input
	events  []Event
	broken  string
}

var modelSnapshot = &SnapshotRef{Key: "k", Manifest: "m", SHA256: strings.Repeat("0", 64), Revision: 1, SizeBytes: 1}

func (c *modelConfig) start(id string, data bool, marker Mark) Machine {
	b := Boot{Instance: "instance of " + id, HasData: data, Generation: marker.Generation}
	switch marker.Phase {
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
	m := NewMachine(c.settings(id), b)
	m.rules = c.rules
	return m
}

// run is the supervisor's loop for one tick: what came in, then what the machine asks for, until nothing is left.
func (w *sim) run() {
	s := &w.site
	if w.in.crash {
		s.child, s.dying, s.deadman, s.killTicks, s.final, s.dirty = false, false, false, 0, noFinal, false
		s.m = w.cfg.start(w.id, s.data, s.marker)
		return
	}
	if !w.in.stopped {
		w.supervise()
	}
	if w.cfg.deadman && s.child && !s.dying && s.m.Serving() && modelNow.Sub(s.m.lease) > ticks(w.cfg.lease) {
		s.dying, s.deadman, s.killTicks = true, true, 0
	}
	if s.child && s.dying && s.killTicks >= w.cfg.kill {
		s.child, s.dying, s.killTicks = false, false, 0
	}
	if s.child && !s.m.Serving() && s.m.state != Fencing {
		w.violate("etcd serves while the machine is %s", s.m.state)
	}
}

func (w *sim) supervise() {
	s := &w.site
	if !s.child && s.m.state == Fencing {
		w.events = append(w.events, ChildDead{})
	}
	if s.m.begun && w.in.store != storeUnread {
		w.read()
	}
	w.final()
	v := Verdict{Kind: w.in.verdict, At: modelNow, Proto: "tcp"}
	switch v.Kind {
	case Mine:
		v.AsOf = modelNow.Add(-ticks(w.in.age))
	case Other:
		v.Foreign = true
	}
	w.events = append(w.events, VerdictEvent{v})
	for n := 0; len(w.events) > 0; n++ {
		if n > 50 {
			w.violate("the machine does not come to rest")
			return
		}
		ev := w.events[0]
		w.events = w.events[1:]
		var acts []Action
		s.m, acts = s.m.Step(ev, modelNow)
		for _, a := range acts {
			w.perform(a)
		}
	}
}

func (w *sim) perform(a Action) {
	s := &w.site
	switch a := a.(type) {
	case ReadJournal:
		if a.After == 0 {
			w.read()
		}
	case Append:
		w.append(a.Kind)
	case Serve:
		if !w.head.HeldBy(s.m.boot.Instance) && !w.cfg.overwrite {
			w.violate("etcd is started, but the journal ends with the %s", w.head.Describe())
		}
		s.child, s.dying, s.data, s.dirty = true, false, true, false
	case Fence:
		if s.child && !s.dying {
			s.dying, s.killTicks = true, 0
		}
		s.deadman = false
	case Mark:
		if !w.in.markFails {
			s.marker = a
		}
	case Finalize:
		if s.child {
			w.violate("the final is begun while etcd is alive")
		}
		if !a.Late {
			s.final = asked
		}
	case Restore:
		if w.in.store == storeDown {
			w.events = append(w.events, RestoreFailed{})
			return
		}
		s.data = true
		w.events = append(w.events, Restored{})
	}
}

func (w *sim) read() {
	if w.in.store == storeDown {
		w.events = append(w.events, HeadFailed{})
		return
	}
	w.events = append(w.events, HeadEvent{Head: w.head})
}

// final captures in one tick and commits in a later one.
func (w *sim) final() {
	switch w.site.final {
	case asked:
		w.site.final, w.site.dirty = captured, false
	case captured:
		if w.site.m.state == Finalizing && w.in.store != storeDown && w.in.store != storeReadOnly {
			w.append(Final)
		}
	}
}

// append is the create-only write of an entry that follows the head the machine knows.
func (w *sim) append(k EntryKind) {
	if w.in.store == storeDown || w.in.store == storeReadOnly {
		if k != Final {
			w.events = append(w.events, AppendFailed{})
		}
		return
	}
	known, _ := w.site.m.Head()
	e, err := w.build(k, known)
	var illegal *IllegalAppendError
	switch {
	case errors.As(err, &illegal):
		w.events = append(w.events, AppendRefused{Kind: k, Head: w.head})
		return
	case err != nil:
		w.violate("build %s: %v", k, err)
		return
	case e.Seq != w.head.Seq+1 && !w.cfg.overwrite:
		w.events = append(w.events, AppendRefused{Kind: k, Head: w.head})
		return
	case e.Seq != w.head.Seq+1 && k == Final:
		w.violate("the final overwrote another entry of its generation")
	}
	if k == Final && w.site.dirty {
		w.violate("an acknowledged write is missing from the final")
	}
	w.head = Head{Entry: e}
	w.appends++
	if w.in.store == storeLossy {
		if k != Final {
			w.events = append(w.events, AppendFailed{})
		}
		return
	}
	if k == Final {
		w.site.final = noFinal
	}
	w.events = append(w.events, Appended{Entry: e})
}

func (w *sim) build(k EntryKind, known Head) (Entry, error) {
	by := Author{Owner: w.id, Instance: w.site.m.boot.Instance}
	var e Entry
	var err error
	switch k {
	case Open:
		e, err = NextOpen(known, by, time.Time{}, "")
	case Final:
		e, err = NextFinal(known, by, time.Time{}, *modelSnapshot)
	case Abandoned:
		e, err = NextAbandoned(known, by, time.Time{}, "")
	case Claim:
		e, err = NextClaim(known, by, time.Time{}, known.Generation, *modelSnapshot)
	}
	if e.Snapshot != nil {
		e.Snapshot = modelSnapshot
	}
	return e, err
}

func (w *sim) violate(format string, args ...any) {
	if w.broken == "" {
		w.broken = w.id + ": " + fmt.Sprintf(format, args...)
	}
}

// normal brings a site into the form in which states are compared: nothing that decides nothing, and ages as far as they matter.
func (c *modelConfig) normal(s site) site {
	m := &s.m
	m.why, m.alarm = "", ""
	if m.last.Kind != Mine {
		m.last.Kind = Failed // asks for another poll, which comes anyway
	}
	m.last = LastVerdict{Kind: m.last.Kind}
	m.storeDown, m.reading, m.clean = false, false, true
	m.boot.Generation, m.boot.Lost, m.boot.Isolated = 0, false, false
	if m.headKnown {
		m.headAt = modelNow
	}
	m.retryAt = 0
	since := func(t *BootTime, most int) { *t = max(*t, modelNow.Add(-ticks(most))) }
	switch m.state {
	case Owner, Suspect:
		since(&m.lease, c.lease+1)
		m.state = Owner // they differ for people and for the next poll only
		m.last, m.mines, m.proof, m.proven = LastVerdict{}, 0, 0, false
	case Fencing, Fenced, Finalizing:
		m.lease, m.doubt, m.mines, m.proof, m.proven = 0, false, 0, 0, false
		m.last = LastVerdict{}
	default:
		m.lease, m.doubt = 0, false
		if m.last.Kind != Mine && !m.waiting {
			m.proof, m.proven = 0, false
		}
		if m.proven {
			since(&m.proof, c.gap+1)
		}
	}
	if m.mines == 0 {
		m.firstMine = 0
	} else {
		m.firstMine = max(m.firstMine, m.proof.Add(-ticks(c.ttl)))
	}
	if m.waiting {
		since(&m.waitFrom, c.wait)
	} else {
		m.waitFrom, m.waitSeq = 0, 0
	}
	if !m.restored {
		m.restoreSeq, m.restoreGeneration = 0, 0
	}
	if m.state != Fencing {
		m.lost, m.closed = false, false
	}
	if m.headKnown && !m.head.Empty {
		m.head.Reason = ""
		m.head.Owner = ""                  // the instance says the same
		seq := max(m.head.Seq, modelSeq-1) // old is old
		for _, of := range []*uint64{&m.waitSeq, &m.restoreSeq} {
			if *of == m.head.Seq {
				*of = seq
			} else {
				*of = 0
			}
		}
		m.head.Seq = seq
	}
	if !s.child {
		s.dirty = s.dirty && s.final == captured
	}
	if m.state != Finalizing {
		s.final = noFinal
	}
	return s
}

// pass is a tick of time for a site.
func (c *modelConfig) pass(s site) site {
	m := &s.m
	for _, t := range []*BootTime{&m.firstMine, &m.proof, &m.lease, &m.waitFrom} {
		if *t != 0 {
			*t = t.Add(-tick)
		}
	}
	if s.child {
		s.dirty = true // a write is acknowledged in every tick in which etcd runs
	}
	if s.dying {
		s.killTicks = min(s.killTicks+1, c.kill)
	}
	return c.normal(s)
}

// grown is what a site looks like when the head moved on by n entries, in normal form.
func (c *modelConfig) grown(s site, n int) site {
	m := &s.m
	for _, seq := range []*uint64{&m.head.Seq, &m.waitSeq, &m.restoreSeq} {
		if *seq > uint64(n) {
			*seq -= uint64(n)
		}
	}
	return c.normal(s)
}
