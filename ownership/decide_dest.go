package ownership

import "fmt"

// leave goes back to where we were before the record came to us.
func (s *step) leave(why string, args ...any) {
	s.waiting = false
	s.to(s.home, why, args...)
}

// comeBack is Finalized and Superseded: the way back is that of any destination.
func (s *step) comeBack() {
	switch {
	case s.boot.NoStore:
	case s.state == Finalized && s.standing() == ours && s.boot.Finalized:
		// The marker says that the final is stored, the journal does not: the journal counts.
		s.boot.Finalized = false
		s.to(Fenced, "the marker says that the final is stored, but the journal ends with the %s", s.head.Describe())
	case !s.regained() || !s.headFresh() || s.head.Empty:
	case s.twin():
		s.refuseTwin()
	default:
		s.to(WaitFinal, "the record is ours again; the journal ends with the %s", s.head.Describe())
	}
}

// waitFinal waits for the holder's final, and gives its generation up when our own proofs were without a gap for long
// enough that the holder must have fenced itself.
func (s *step) waitFinal() {
	h := s.head
	switch {
	case s.others >= s.set.lostCount:
		s.leave("the record names %q", s.last.Value)
	case h.Closed():
		if s.fresh() && s.headFresh() {
			s.startClaim()
		}
	case h.HeldBy(s.boot.Instance):
		if s.boot.HasData || !s.boot.TakeOver {
			s.leave("generation %d is our own", h.Generation)
		} else if s.regained() {
			s.abandon("the data of this generation is lost; the operator said so")
		}
	case !h.Held():
		s.leave("the journal is empty")
	case s.twin():
		s.refuseTwin()
		s.leave("%s", s.why)
	default:
		s.wait()
	}
}

func (s *step) wait() {
	h := s.head
	if !s.waiting {
		if !s.fresh() {
			s.because("the record is not surely ours; last poll: %s", s.last.Reason)
			return
		}
		s.waiting, s.waitFrom, s.waitSeq = true, s.now, h.Seq
	}
	if s.waitSeq != h.Seq { // the holder was back: it may serve on from there
		s.waitFrom, s.waitSeq = s.now, h.Seq
	}
	s.because("waiting for the final of generation %d, held by %q (entry %d)", h.Generation, h.Owner, h.Seq)
	if s.set.wait > 0 && s.now.Sub(s.waitFrom) >= s.set.wait && s.fresh() {
		s.abandon(fmt.Sprintf("no final within %s in which the record was ours", s.set.wait))
	}
}

func (s *step) abandon(reason string) {
	if s.boot.NoConditional {
		s.because("generation %d has no final, and the store cannot arbitrate", s.head.Generation)
		s.raise(AlarmNoConditional, "%s (it has no create-if-absent): nothing is abandoned; make sure yourself that the holder is dead", s.why)
		return
	}
	s.raise(AlarmAbandoning, "generation %d of %q is given up without its final: %s; writes after its newest snapshot are lost here", s.head.Generation, s.head.Owner, reason)
	s.ask(Abandoned, "%s", reason)
}

func (s *step) startClaim() {
	h := s.head
	if s.boot.NoConditional {
		s.because("generation %d is closed, but the store cannot arbitrate", h.Generation)
		s.raise(AlarmNoConditional, "%s (it has no create-if-absent): nothing is claimed; move journal and snapshots to a store that can", s.why)
		return
	}
	s.waiting = false
	s.restored = s.restored && s.restoreSeq == h.Seq
	s.to(Claiming, "claiming generation %d after the %s", h.Generation+1, h.Describe())
	s.retryAt = s.now
}

// claiming restores, claims, and serves; the record must be ours at each of the three.
func (s *step) claiming() {
	h := s.head
	switch {
	case s.others >= s.set.lostCount:
		s.leave("the record names %q", s.last.Value)
	case h.HeldBy(s.boot.Instance) && s.standing() == ours:
		if s.sealed() {
			s.serve("generation %d is claimed and restored", h.Generation)
		} else if s.fresh() {
			s.ask(Open, "serving what was claimed before")
		}
	case !h.Closed():
		s.restored = false
		s.leave("another was first: %s", h.Describe())
	case !s.fresh() || s.restoring:
	case s.restored && s.restoreSeq == h.Seq:
		s.ask(Claim, "")
	case s.now >= s.retryAt:
		s.restoring, s.restored, s.restoreSeq, s.restoreGeneration = true, false, h.Seq, h.Generation+1
		s.do(Restore{Head: h})
	}
}
