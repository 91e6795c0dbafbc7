package ownership

// decide is the table: one function for each state, of the facts that observe has collected.
func (s *step) decide() {
	switch s.state {
	case Unknown:
		s.unknown()
	case Owner, Suspect:
		s.serving()
	case Fencing:
		s.fencing()
	case Fenced:
		s.fenced()
	case Isolated:
		s.isolated()
	case Finalizing:
		s.finalizing()
	case Finalized, Superseded:
		s.comeBack()
	case WaitFinal:
		s.waitFinal()
	case Claiming:
		s.claiming()
	}
}

// standing is what the journal says about the local data.
type standing int

const (
	notRead  standing = iota // the journal is not known
	blank                    // the journal is empty
	ours                     // this instance holds the generation of the data
	ourFinal                 // this instance closed the generation of the data with its final
	theirs                   // the data is of a generation that others closed or went past, or of none
	mismatch                 // this instance holds a generation, but not that of the data
	beyond                   // the data is of a generation that the journal has not reached
)

func (s *step) standing() standing {
	h, own := s.head, s.head.Instance == s.boot.Instance
	same := s.generation == 0 || s.generation == h.Generation
	switch {
	case !s.headKnown:
		return notRead
	case h.Empty:
		return blank
	case own && h.Held() && same:
		return ours
	case own && h.Kind == Final && same:
		return ourFinal
	case s.generation > h.Generation && !s.boot.Claiming:
		return beyond
	case own && h.Held() && s.boot.HasData:
		return mismatch
	}
	return theirs
}

// twin reports whether the head is held under our own id by another instance, and nobody said that it is gone. DNS cannot
// tell the two apart, so waiting proves nothing.
func (s *step) twin() bool {
	return s.head.Held() && s.head.Owner == s.set.id && s.head.Instance != s.boot.Instance && !s.boot.TakeOver
}

func (s *step) refuseTwin() {
	s.because("generation %d is held by instance %s under our own id %q since entry %d", s.head.Generation, s.head.Instance, s.set.id, s.head.Seq)
	s.raise(AlarmHeldByTwin, "%s; if that instance is gone for good, say --take-over, or give this site a new id and point the record at it", s.why)
}

func (s *step) unknown() {
	if s.boot.NoStore {
		s.unknownNoStore()
		return
	}
	st := s.standing()
	if s.others >= s.set.lostCount && st != ours {
		s.because("the record names %q", s.last.Value)
	}
	switch st {
	case notRead:
		s.unknownNotRead()
	case blank:
		s.unknownBlank()
	case ours:
		s.unknownOurs()
	case ourFinal:
		s.home = Finalized
		s.to(Finalized, "our final of generation %d is entry %d", s.head.Generation, s.head.Seq)
	case mismatch:
		s.because("the data directory is of generation %d, but what we hold is generation %d (entry %d)", s.generation, s.head.Generation, s.head.Seq)
		s.raise(AlarmDataMismatch, "%s: it is not served; put the right data directory back, or move this one away and restart with --take-over", s.why)
	case beyond:
		s.because("the data directory is of generation %d, but the journal ends with the %s", s.generation, s.head.Describe())
		s.raise(AlarmDataMismatch, "%s: is this the right bucket and prefix, and is the journal whole?", s.why)
	case theirs:
		s.unknownTheirs()
	}
}

func (s *step) unknownNotRead() {
	switch {
	case !s.storeDown:
		s.because("the journal is being read")
	case s.set.startIfOurs && s.boot.HadOpen && s.boot.HasData && s.regained():
		s.serve("started without the store: the record is ours and so was the last known entry")
		s.raise(AlarmWithoutStore, "etcd was started though the journal cannot be read; if another closed generation %d meanwhile, that is noticed only when the store is back", s.generation)
	default:
		s.because("the journal cannot be read, so etcd is not started")
	}
}

// unknownBlank begins the first generation.
func (s *step) unknownBlank() {
	switch {
	case s.generation > 0 || s.boot.HadOpen:
		s.because("the journal is empty, but the data directory is of generation %d", s.generation)
		s.raise(AlarmJournalEmpty, "%s: is this the right bucket and prefix? If the journal is lost for good, remove the marker beside the data directory to begin a new one", s.why)
	case !s.boot.HasData && !s.boot.MayBootstrap:
		s.because("neither the data directory nor the store has anything")
		s.raise(AlarmNotBootstrapped, "%s, and nobody said that the cluster is new: say --new-cluster to start an empty etcd", s.why)
	case !s.fresh():
		s.because("waiting for the record to name us; last poll: %s", s.last.Reason)
	case s.headFresh():
		s.because("beginning generation 1")
		s.ask(Open, "first generation")
	}
}

// unknownOurs goes on where this instance was. One answer is enough, so that a restart costs no TTL, but not without an entry:
// while we were down the record may have been elsewhere and come back, and a destination may be near the end of its wait.
func (s *step) unknownOurs() {
	h := s.head
	// The entry of a bootstrap whose etcd never got to write anything.
	unborn := s.boot.MayBootstrap && !s.boot.HadOpen && h.Kind == Open && h.Generation == 1
	switch {
	case !s.boot.HasData && !unborn:
		s.because("we hold generation %d, but the data directory is gone", h.Generation)
		switch {
		case !s.boot.TakeOver:
			s.raise(AlarmDataMissing, "%s: is a volume not mounted? If the data is lost for good, restart with --take-over to restore the newest snapshot", s.why)
		case s.regained():
			s.to(WaitFinal, "giving up generation %d, whose data is gone", h.Generation)
		}
	case s.others >= s.set.lostCount && s.boot.HasData:
		s.to(Fenced, "the record names %q, and we hold the unfinished generation %d", s.last.Value, h.Generation)
		s.do(Mark{Phase: PhaseLost, Generation: h.Generation})
	case !s.fresh():
		s.because("waiting for the record to name us; last poll: %s", s.last.Reason)
	case s.sealed(), s.rules.silentReturn:
		s.serve("the record is ours and so is generation %d", h.Generation)
	case s.headFresh():
		s.because("opening generation %d again", h.Generation)
		s.ask(Open, "started again")
	}
}

// unknownTheirs is a destination, or a source that slept through the end of its generation.
func (s *step) unknownTheirs() {
	h := s.head
	switch {
	case s.boot.HasData && s.generation > 0 && !s.boot.Claiming:
		s.supersede("generation %d, which the data directory is of, was ended by others: %s", s.generation, h.Describe())
	case s.twin():
		s.refuseTwin()
	case s.fresh():
		s.to(WaitFinal, "the record is ours; the journal ends with the %s", h.Describe())
	case s.others < s.set.lostCount:
		s.because("waiting for the record to name us; last poll: %s", s.last.Reason)
	}
}

func (s *step) unknownNoStore() {
	switch {
	case !s.boot.HasData && !s.boot.MayBootstrap:
		s.because("the data directory has no etcd")
		s.raise(AlarmNotBootstrapped, "%s, there is no store, and nobody said that the cluster is new: say --new-cluster to start an empty etcd", s.why)
	case s.regained():
		s.serve("the record is ours; there is no store")
	default:
		s.because("waiting for the record to name us; last poll: %s", s.last.Reason)
	}
}

func (s *step) serving() {
	switch {
	case s.closedByOthers():
		s.closed = true
		s.fence(true, "the journal says that generation %d is no longer ours: %s", s.generation, s.head.Describe())
	case s.others >= s.set.lostCount:
		s.fence(true, "the record names %q", s.last.Value)
	case s.mine:
		s.renew()
	case s.entered && s.clean:
		s.renewTo()
	case s.polled:
		s.to(Suspect, "last poll: %s", s.last.Reason)
	}
	switch st := s.standing(); {
	case st == ours && s.generation == 0: // started without the store
		s.generation = s.head.Generation
	case st == blank && s.read:
		s.raise(AlarmJournalEmpty, "the journal is empty while etcd serves: is the store emptied, or is this another bucket or prefix?")
	}
}

// closedByOthers reports whether the journal gave our generation to someone else, or ended it.
func (s *step) closedByOthers() bool {
	st := s.standing()
	return !s.boot.NoStore && st != notRead && st != blank && st != ours
}

// renew lets a proof count. After a foreign answer or a long silence a destination may have begun its wait: only an entry,
// which makes it begin anew, lets proofs count again.
func (s *step) renew() {
	switch {
	case s.rules.silentReturn, !s.doubt && s.now.Sub(s.lease) <= s.set.gap:
		s.renewTo()
	case s.boot.NoStore:
		if s.to(Suspect, "the record is ours again, but not for long enough"); s.regained() {
			s.renewTo()
		}
	default:
		s.to(Suspect, "the record is ours again, but the lease counts only with a new journal entry")
		if s.headKnown && !s.head.Empty {
			s.ask(Open, "still served, after a foreign answer or %s without one", s.now.Sub(s.lease))
		} else if !s.storeDown {
			s.readNow()
		}
	}
}

func (s *step) renewTo() {
	s.lease, s.doubt = max(s.lease, s.proof), false
	if s.last.Kind == Mine {
		s.to(Owner, "the record is ours")
	}
}

func (s *step) fencing() {
	if s.closedByOthers() {
		s.lost, s.closed = true, true
	}
	if s.others >= s.set.lostCount {
		s.lost = true
	}
	switch {
	case !s.dead:
	case s.closed:
		s.supersede("the journal ended our generation: %s", s.head.Describe())
	case s.lost:
		s.to(Fenced, "etcd is dead and the loss is decided: %s", s.why)
		s.do(Mark{Phase: PhaseLost, Generation: s.generation})
	default:
		s.mines = 0
		s.to(Isolated, "etcd is dead: %s", s.why)
		s.do(Mark{Phase: PhaseIsolated, Generation: s.generation})
		s.raise(AlarmIsolated, "etcd was stopped because nobody answered that the record is ours; it starts again when DNS and store do, or is finalized when the record names another")
	}
}

func (s *step) fenced() {
	if s.boot.NoStore {
		s.because("ownership was lost and there is no store to come back through")
		s.raise(AlarmFencedForGood, "%s: to serve this data directory again although another may have gone on with a copy, remove the marker beside it and restart", s.why)
		return
	}
	switch s.standing() {
	case notRead:
		s.because("ownership was lost; the journal is not read yet")
	case ours:
		if !s.boot.HasData {
			s.because("ownership of generation %d was lost, and the data directory is gone: there is nothing to finalize", s.head.Generation)
			s.raise(AlarmDataMissing, "%s; put it back and restart", s.why)
			return
		}
		s.generation, s.stored = s.head.Generation, false
		s.to(Finalizing, "taking the final of generation %d", s.generation)
		s.do(Finalize{})
	case ourFinal:
		s.finalized()
	case blank:
		s.because("ownership of generation %d was lost, and the journal is empty", s.generation)
		s.raise(AlarmJournalEmpty, "%s: is this the right bucket and prefix?", s.why)
	case mismatch, beyond:
		s.because("ownership of generation %d was lost, but the journal ends with the %s", s.generation, s.head.Describe())
		s.raise(AlarmDataMismatch, "%s: is this the right data directory, bucket and prefix?", s.why)
	case theirs:
		s.supersede("generation %d was ended by others: %s", s.generation, s.head.Describe())
	}
}

func (s *step) finalized() {
	s.generation, s.home, s.mines = s.head.Generation, Finalized, 0
	s.boot.Lost, s.boot.Isolated = false, false
	s.to(Finalized, "the final of generation %d is entry %d", s.head.Generation, s.head.Seq)
	s.do(Mark{Phase: PhaseFinalized, Generation: s.generation})
}

// supersede keeps what we have: others ended our generation, so our writes can no longer enter the history.
func (s *step) supersede(why string, args ...any) {
	s.home, s.mines, s.waiting = Superseded, 0, false
	s.boot.Lost, s.boot.Isolated = false, false
	s.to(Superseded, why, args...)
	s.do(Mark{Phase: PhaseSuperseded, Generation: s.generation})
	s.raise(AlarmSuperseded, "%s; writes that only this data directory has are kept in it and below late/, look whether they matter", s.why)
	if s.boot.HasData {
		s.do(Finalize{Late: true})
	}
}

func (s *step) isolated() {
	switch {
	case s.boot.NoStore:
		if s.others >= s.set.lostCount {
			s.to(Fenced, "the record names %q", s.last.Value)
			s.do(Mark{Phase: PhaseLost, Generation: s.generation})
		} else if s.regained() {
			s.serve("the record is ours again; there is no store")
		}
	case s.standing() == ourFinal:
		s.finalized()
	case s.closedByOthers():
		s.supersede("generation %d was ended by others while we were isolated: %s", s.generation, s.head.Describe())
	case s.others >= s.set.lostCount:
		s.to(Fenced, "the record names %q", s.last.Value)
		s.do(Mark{Phase: PhaseLost, Generation: s.generation})
	case s.sealed(), s.rules.silentReturn && s.regained():
		s.serve("the record is ours again and generation %d was opened anew", s.head.Generation)
	case s.standing() == blank:
		s.raise(AlarmJournalEmpty, "the journal is empty, but the data directory is of generation %d: is this the right bucket and prefix?", s.generation)
	case s.regained() && s.headFresh():
		s.ask(Open, "back after isolation")
	}
}

func (s *step) finalizing() {
	switch s.standing() {
	case ourFinal:
		s.finalized()
	case theirs:
		s.supersede("another ended generation %d before our final: %s", s.generation, s.head.Describe())
	case ours:
		// We had moved the head on ourselves: the snapshot is stored, only its entry must be made again.
		s.stored = s.stored || s.refused
		if s.stored && (s.refused || s.read || s.polled) {
			s.ask(Final, "")
		}
	}
}
