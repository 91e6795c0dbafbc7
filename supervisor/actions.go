package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
)

// step feeds the ownership machine one event and does what it asks for.
func (s *Supervisor) step(ctx context.Context, ev ownership.Event) {
	if s.stopping && s.handingOff == nil {
		return // an orderly stop is under way; what ownership says now is for the next start
	}
	before := s.machine
	s.logVerdict(ev)
	m, actions := s.machine.Step(ev, s.clock())
	s.machine = m
	if m.State() != before.State() {
		s.log.Info().Str("state", string(m.State())).Str("before", string(before.State())).Str("reason", m.Reason()).Msg("ownership changed")
	}
	s.publishOwner(ev)
	for _, a := range actions {
		s.perform(ctx, a)
	}
	s.afterStep()
}

// mark has the marker written; nothing waits for it.
func (s *Supervisor) mark(p ownership.Phase, generation uint64) {
	s.scribe.write(Marker{Phase: p, Generation: generation, Reason: s.machine.Reason(), At: time.Now().UTC()})
}

// logVerdict logs a poll whose answer differs from the last one.
func (s *Supervisor) logVerdict(ev ownership.Event) {
	v, ok := ev.(ownership.VerdictEvent)
	if last := s.machine.Last(); !ok || v.Kind == last.Kind && v.Value == last.Value {
		return
	}
	s.log.Info().Str("verdict", string(v.Kind)).Str("answer", v.Value).Str("server", v.Server).Str("proto", v.Proto).Str("reason", v.Reason).Msg("owner record polled")
}

func (s *Supervisor) perform(ctx context.Context, a ownership.Action) {
	switch a := a.(type) {
	case ownership.Poll:
		s.watcher.Next(a.After, a.TCP)
	case ownership.ReadJournal:
		s.scheduleRead(ctx, a.After)
	case ownership.Append:
		s.appendEntry(ctx, a)
	case ownership.Serve:
		s.serve(ctx)
	case ownership.Fence:
		s.startHandover(ctx, loss{proven: a.Lost, reason: a.Reason})
		if a.Lost {
			s.mark(ownership.PhaseLost, s.machine.Generation())
		} else {
			s.mark(ownership.PhaseIsolated, s.machine.Generation())
		}
	case ownership.Mark:
		s.mark(a.Phase, a.Generation)
	case ownership.Finalize:
		if s.handingOff == nil { // else the handover that proved the death goes on by itself
			s.startHandover(ctx, loss{proven: true, reason: s.machine.Reason()})
		}
	case ownership.Restore:
		s.enter(Restoring, "from "+a.Head.Describe())
		s.do(ctx, func(ctx context.Context) func() { return s.restore(ctx, a.Head) })
	case ownership.Alarm:
		s.metrics.alarms.WithLabelValues(string(a.Code)).Inc()
		s.log.Error().Str("alarm", string(a.Code)).Msg(a.Text)
	}
}

// afterStep lets the phase follow the machine where no action did.
func (s *Supervisor) afterStep() {
	if s.handingOff != nil {
		return // the handover says itself how far it is
	}
	switch state := s.machine.State(); {
	case state == ownership.Finalized, state == ownership.Superseded, state == ownership.Fenced && s.journal == nil:
		s.enter(Fenced, s.machine.Reason())
		if s.cfg.ExitWhenFenced && state == ownership.Superseded {
			s.end(0, ErrSuperseded)
		} else if head, _ := s.machine.Head(); s.cfg.ExitWhenFenced && head.Damaged != "" {
			s.end(0, damagedFinal(head))
		} else if s.cfg.ExitWhenFenced {
			s.end(0, ErrFenced)
		}
	case state == ownership.Claiming, s.machine.Serving(): // Restore and Serve have said it
	default:
		s.enter(Waiting, s.machine.Reason())
	}
}

func (s *Supervisor) publishOwner(ev ownership.Event) {
	m, now := s.machine, s.clock()
	s.board.update(func(st *Status) {
		o := st.Owner
		o.State, o.Reason = string(m.State()), m.Reason()
		o.LeaseLeftMS = m.LeaseLeft(now).Milliseconds()
		o.Generation = m.Generation()
		if h, ok := m.Head(); ok {
			o.Head, o.HeadSeq, o.HeadKind = h.Describe(), h.Seq, string(h.Kind)
		}
		if v, ok := ev.(ownership.VerdictEvent); ok {
			s.metrics.polls.WithLabelValues(string(v.Kind)).Inc()
			o.Verdict, o.VerdictAt = v.String(), time.Now()
		}
	})
}

// scheduleRead replaces the read of the journal that is scheduled, if it has not begun.
func (s *Supervisor) scheduleRead(ctx context.Context, after time.Duration) {
	if s.reading != nil {
		s.reading.Stop()
	}
	s.reading = time.AfterFunc(after, func() {
		s.post(ctx, func() { s.do(ctx, s.readJournal) })
	})
}

// readTimeout bounds one exchange with the journal; the machine asks again.
const readTimeout = 30 * time.Second

func (s *Supervisor) readJournal(ctx context.Context) func() {
	bounded, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	head, err := s.journal.Head(bounded)
	return func() {
		if err != nil {
			s.log.Warn().Err(err).Msg("journal not read")
			s.step(ctx, ownership.HeadFailed{Reason: err.Error()})
			return
		}
		s.step(ctx, ownership.HeadEvent{Head: head})
	}
}

// author is who we are in the journal: without ownership, the etcd's name.
func (s *Supervisor) author() ownership.Author {
	if s.cfg.Owner == nil {
		return ownership.Author{Owner: s.cfg.Etcd.Name, Instance: s.state.Instance()}
	}
	return ownership.Author{Owner: s.cfg.Owner.ID, Instance: s.state.Instance()}
}

// appendEntry makes the entry that the machine asked for.
func (s *Supervisor) appendEntry(ctx context.Context, a ownership.Append) {
	head, _ := s.machine.Head()
	entry, illegal := s.nextEntry(head, a)
	s.do(ctx, func(ctx context.Context) func() {
		bounded, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		ev := s.tryAppend(bounded, a.Kind, entry, illegal)
		return func() { s.step(ctx, ev) }
	})
}

// tryAppend makes an entry that err, where it is not nil, says cannot be made.
func (s *Supervisor) tryAppend(ctx context.Context, kind ownership.EntryKind, entry ownership.Entry, err error) ownership.Event {
	if err == nil {
		err = s.journal.Append(ctx, entry)
	}
	var illegal *ownership.IllegalAppendError
	switch {
	case err == nil:
		s.made(string(kind) + " journalled")
		s.log.Info().Str("entry", string(kind)).Uint64("generation", entry.Generation).Msg(appendedMessage(kind))
		return ownership.Appended{Entry: entry}
	case errors.Is(err, ErrEntryExists), errors.As(err, &illegal):
		now, readErr := s.journal.Head(ctx)
		if readErr != nil {
			return ownership.AppendFailed{Reason: readErr.Error()}
		}
		return ownership.AppendRefused{Kind: kind, Head: now}
	}
	s.log.Warn().Err(err).Str("entry", string(kind)).Msg("journal entry not made")
	return ownership.AppendFailed{Reason: err.Error()}
}

func appendedMessage(k ownership.EntryKind) string {
	if k == ownership.Claim {
		return "generation claimed"
	}
	return "journal entry made"
}

func (s *Supervisor) nextEntry(head ownership.Head, a ownership.Append) (ownership.Entry, error) {
	now := time.Now()
	switch a.Kind {
	case ownership.Open:
		return ownership.NextOpen(head, s.author(), now, a.Reason)
	case ownership.Abandoned:
		return ownership.NextAbandoned(head, s.author(), now, a.Reason)
	case ownership.Claim:
		return ownership.NextClaim(head, s.author(), now, s.origin.generation, s.origin.ref)
	}
	return ownership.Entry{}, fmt.Errorf("append %s: not asked for outside a handover", a.Kind)
}
