package ownership

import "fmt"

// Step feeds one event that happened at now, and returns the machine that follows and what to do, in order. The clock
// must not run backwards between calls.
func (m Machine) Step(ev Event, now BootTime) (Machine, []Action) {
	s := &step{Machine: m, now: now}
	// 1. Time first: a lease that is over is over, whatever the event brings.
	s.passTime()
	// 2. What the event says.
	s.observe(ev)
	// 3. What follows. A decision may open the next one (Fenced and then Finalizing), so decide until it rests; no path
	// through the table is longer than the number of its states.
	for range 11 {
		before := s.state
		s.decide()
		if s.state == before {
			break
		}
		s.dead, s.refused = false, false // an event is used up by one state
	}
	// 4. When to look again.
	s.schedulePoll()
	s.scheduleRead()
	return s.Machine, s.acts
}

// step is one Step under way: the machine, and what only this event says.
type step struct {
	Machine
	now  BootTime
	acts []Action

	polled, mine  bool // a poll came back; it said Mine
	foreign       bool // it named someone else, at least in part
	read          bool // a read of the journal came back
	entered       bool // our open or claim has just been made
	refused       bool // our final was not taken
	failed        bool // an append got no answer
	dead          bool // etcd is proven dead
	readRequested bool
}

func (s *step) do(a Action) { s.acts = append(s.acts, a) }

func (s *step) to(st State, why string, args ...any) {
	s.state = st
	s.because(why, args...)
}

func (s *step) because(why string, args ...any) { s.why = fmt.Sprintf(why, args...) }

// raise alarms once for each code, until etcd serves again.
func (s *step) raise(code AlarmCode, text string, args ...any) {
	if s.alarm != code {
		s.alarm = code
		s.do(Alarm{Code: code, Text: fmt.Sprintf(text, args...)})
	}
}

// passTime does what the clock alone does.
func (s *step) passTime() {
	if s.Serving() && s.leaseOver() {
		s.fence(false, "the lease of %s ran out without an answer that the record is ours; last poll: %s", s.set.lease, s.last.Reason)
	}
	// A destination that was blind for a while cannot know that the record stayed ours: the source may have got it back.
	if s.waiting && !s.rules.bridgeGaps && s.now.Sub(s.proof) > s.set.gap {
		s.waiting = false
	}
}

func (s *step) leaseOver() bool {
	return s.set.lease > 0 && !s.rules.failOpen && s.now.Sub(s.lease) >= s.set.lease
}

func (s *step) observe(ev Event) {
	if !s.begun {
		s.begun = true
		s.readNow()
	}
	switch ev := ev.(type) {
	case VerdictEvent:
		s.observeVerdict(ev.Verdict)
	case HeadEvent:
		s.read, s.reading, s.storeDown = true, false, false
		s.observeHead(ev.Head)
	case HeadFailed:
		s.read, s.reading, s.storeDown = true, false, true
	case Appended:
		s.observeAppended(Head{Entry: ev.Entry})
	case AppendRefused:
		s.observeRefused(ev.Kind, ev.Head)
	case AppendFailed:
		s.appending, s.storeDown, s.failed = "", true, true
	case ChildDead:
		s.dead = true
	case Restored:
		s.observeRestored()
	case RestoreFailed:
		s.restoring, s.retryAt = false, s.now.Add(ownerChecks*s.set.storeCheck)
		s.raise(AlarmRestoreFailed, "restore of entry %d (generation %d): %s; tried again every %s", s.restoreSeq, s.restoreGeneration-1, ev.Reason, ownerChecks*s.set.storeCheck)
	case Tick:
	}
}

func (s *step) observeVerdict(v Verdict) {
	asOf := v.AsOf
	if s.rules.countCached {
		asOf = s.now
	}
	s.polled = true
	s.foreign = v.Foreign || v.Kind == Other || v.Kind == None && s.set.absentLost
	s.last = LastVerdict{Kind: v.Kind, Value: v.Value, AsOf: v.AsOf, At: s.now, Server: v.Server, Proto: v.Proto, Reason: v.Reason}
	switch {
	case v.Kind == Mine:
		if s.mine = true; s.mines == 0 {
			s.firstMine = asOf
		}
		s.mines = min(s.mines+1, s.set.regainCount)
		s.others, s.proof, s.proven = 0, asOf, true
	case v.Kind == Other, v.Kind == None && s.set.absentLost:
		s.mines, s.others = 0, min(s.others+1, s.set.lostCount)
	case v.Kind == Failed: // no answer contradicts nothing
		s.mines = 0
	default:
		s.mines, s.others = 0, 0
	}
	if s.foreign {
		s.doubt, s.clean, s.waiting = true, false, false
	}
}

// observeHead takes what was read. A journal only grows: an older head is a slow answer, an empty one a wrong or emptied store.
func (s *step) observeHead(h Head) {
	switch {
	case s.headKnown && !s.head.Empty && h.Empty:
		s.raise(AlarmJournalEmpty, "the journal is empty, but its last entry was the %s: is the store emptied, or is this another bucket or prefix?", s.head.Describe())
	case s.headKnown && !s.head.Empty && h.Seq < s.head.Seq:
	default:
		s.head, s.headKnown, s.headAt = h, true, s.now
	}
}

func (s *step) observeAppended(h Head) {
	s.observeHead(h)
	s.appending, s.storeDown = "", false
	switch h.Kind {
	case Open:
		s.entered, s.generation = true, h.Generation
	case Claim:
		s.entered, s.generation, s.boot.Claiming = true, h.Generation, false
	}
}

// observeRefused takes the head that was there first. That may be our own entry of an earlier try whose answer was lost: it is
// in the journal, but not newer than what happened since, so an open is asked for again.
func (s *step) observeRefused(asked EntryKind, h Head) {
	if asked == "" {
		if asked = s.appending; asked == "" && s.state == Finalizing {
			asked = Final
		}
	}
	s.appending, s.storeDown = "", false
	s.refused = asked == Final
	s.observeHead(h)
}

func (s *step) observeRestored() {
	if !s.restoring {
		return
	}
	s.restoring, s.restored = false, true
	s.generation, s.boot.HasData, s.boot.Claiming, s.home = s.restoreGeneration, true, true, Unknown
	s.do(Mark{Phase: PhaseClaiming, Generation: s.generation})
	if s.state == Finalized || s.state == Superseded { // the record left us meanwhile
		s.to(Unknown, "the data directory was restored for generation %d, which is not claimed", s.generation)
	}
}

// sealed reports that an entry of ours, newer than any foreign answer, has just been made, and the record is ours. From here on
// whoever waits to take the generation over waits anew, so proofs count.
func (s *step) sealed() bool { return s.entered && s.clean && s.fresh() }

// regained reports R own answers in a row over at least one TTL, so that not all of them can be one cached answer.
func (s *step) regained() bool {
	return s.last.Kind == Mine && s.mines >= s.set.regainCount && s.proof.Sub(s.firstMine) >= s.set.ttl && s.fresh()
}

// fresh reports whether the last poll said that the record is ours, and of a moment that is not long ago.
func (s *step) fresh() bool {
	return s.proven && s.last.Kind == Mine && s.now.Sub(s.proof) <= s.set.gap
}

// headFresh reports whether the journal was read not long ago, and asks for a read if it was not.
func (s *step) headFresh() bool {
	if s.headKnown && s.now.Sub(s.headAt) <= s.set.gap {
		return true
	}
	if !s.storeDown { // while it is down, the scheduled reads are enough
		s.readNow()
	}
	return false
}

func (s *step) readNow() {
	if !s.boot.NoStore && !s.reading {
		s.reading, s.readRequested = true, true
		s.do(ReadJournal{})
	}
}

// ask requests an entry, one at a time. One that failed is asked for again by a later event, the next poll at the latest.
func (s *step) ask(k EntryKind, why string, args ...any) {
	if s.appending == "" && !s.failed {
		s.appending, s.clean = k, true
		s.do(Append{Kind: k, Reason: fmt.Sprintf(why, args...)})
	}
}

// ownerChecks is how many times rarer the journal is read where nothing is waited for.
const ownerChecks = 6

// scheduleRead plans the next read of the journal after each that came back, so that one is always planned or under way.
func (s *step) scheduleRead() {
	if !s.read || s.readRequested || s.boot.NoStore {
		return
	}
	after := s.set.storeCheck
	if s.Serving() || !s.storeDown && (s.state == Finalized || s.state == Superseded || s.state == Finalizing) {
		after *= ownerChecks
	}
	s.do(ReadJournal{After: after})
}

// schedulePoll replaces the ordinary interval where an answer is wanted sooner.
func (s *step) schedulePoll() {
	switch {
	case !s.polled, s.state == Fencing, s.state == Fenced, s.state == Finalizing:
	case s.others > 0 && s.others < s.set.lostCount && s.last.Kind != Failed:
		after := s.set.suspect
		if s.last.Proto != "tcp" { // at once, over a way that is harder to forge
			after = 0
		}
		s.do(Poll{After: after, TCP: true})
	case s.state == Suspect, s.others > 0 && s.others < s.set.lostCount:
		s.do(Poll{After: s.set.suspect})
	case !s.Serving() && s.mines > 0 && !s.regained():
		s.do(Poll{After: s.set.suspect})
	}
}

// serve makes the machine Owner and starts etcd; the last poll said Mine.
func (s *step) serve(why string, args ...any) {
	if !s.boot.NoStore && s.headKnown && !s.head.Empty {
		s.generation = s.head.Generation
	}
	s.lease, s.doubt, s.alarm, s.home = s.proof, false, "", Unknown
	s.waiting, s.restored, s.stored, s.lost, s.closed = false, false, false, false, false
	b := &s.boot
	b.HasData, b.HadOpen = true, true
	b.Lost, b.Isolated, b.Finalized, b.Claiming = false, false, false, false
	s.to(Owner, why, args...)
	s.do(Mark{Phase: PhaseServing, Generation: s.generation})
	s.do(Serve{})
}

// fence decides that etcd must die. Nothing is asked first.
func (s *step) fence(lost bool, why string, args ...any) {
	s.lost, s.mines = lost, 0
	s.to(Fencing, why, args...)
	s.do(Fence{Lost: lost, Reason: s.why})
	if s.rules.finalEarly {
		s.state = Finalizing
		s.do(Finalize{})
	}
}
