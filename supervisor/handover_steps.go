package supervisor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/snapshot"
)

// The back-off between two tries of the final snapshot. A store that comes back is used within seconds.
const (
	finalBackoffFirst = time.Second
	finalBackoffMost  = 30 * time.Second
)

// startHandover hands the child over to a handover that runs beside the loop. Requests to stop reach it through
// s.handingOff.
func (s *Supervisor) startHandover(ctx context.Context, why loss) {
	child := s.child
	s.child, s.restart = nil, nil
	// Detached: the end of the program's context must not cost the final snapshot. Only the second stop request ends it.
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.handingOff = cancel
	s.board.update(func(st *Status) { st.Handover = &HandoverStatus{Step: "kill", StepsMS: map[string]int64{}} })
	s.jobs.Go(func() {
		defer cancel()
		defer s.showProgress(detached)()
		err := s.handover(detached, child, why)
		s.post(ctx, func() { s.onHandedOver(ctx, err) })
	})
}

func (s *Supervisor) onHandedOver(ctx context.Context, err error) {
	s.handingOff = nil
	if err == nil {
		s.stepNow(handoverDone)
	}
	switch {
	case err != nil:
		s.end(0, fmt.Errorf("%w (%w)", ErrUnfinished, err))
	case s.stopping:
		s.finish(ctx, 0)
	case s.journal != nil && (s.machine.State() == ownership.Fenced || s.machine.State() == ownership.Finalizing):
		// The loss was proven while the unproven handover was ending.
		s.startHandover(ctx, loss{proven: true, reason: s.machine.Reason()})
	default:
		s.afterStep()
	}
}

// tell gives the machine an event from the handover, in the loop.
func (s *Supervisor) tell(ctx context.Context, ev ownership.Event) {
	s.post(ctx, func() { s.step(ctx, ev) })
}

func (s *Supervisor) unready(why loss) {
	s.enter(Stopping, why.reason)
	s.log.Warn().Bool("proven", why.proven).Str("reason", why.reason).Msg("readiness off")
}

// killEtcd returns nil when every process of etcd's group is reaped. It does not give up, whatever becomes of ctx, and
// touches no file.
func (s *Supervisor) killEtcd(ctx context.Context, child *Child, began time.Time) error {
	if child == nil {
		return nil
	}
	now, stopWatching := quiescence(s.dirs(), child.Exited(), s.init.Escalated())
	defer stopWatching()
	exit, err := child.Stop(context.WithoutCancel(ctx), s.cfg.Owner.TermGrace, now)
	if err != nil {
		return fmt.Errorf("etcd is not proven dead: %w", err)
	}
	took := time.Since(began)
	s.childGone(exit)
	s.stepTook("kill", took)
	s.log.Info().Int("pid", exit.PID).Stringer("exit", exit).Bool("killed", exit.Killed).Dur("took_ms", took).Msg("etcd dead")
	return nil
}

// lockPatience is one wait for etcd's lock on its database; the kernel drops it with the last process that holds it.
const lockPatience = 10 * time.Second

// backOff waits before the next try of the final snapshot.
func (s *Supervisor) backOff(ctx context.Context, attempt int, cause error) error {
	if ctx.Err() != nil {
		return cause
	}
	s.metrics.finals.WithLabelValues("failed").Inc()
	wait := min(finalBackoffFirst<<min(attempt-1, 10), finalBackoffMost)
	wait = wait/2 + rand.N(wait/2) // sites that lost a store together do not come back together
	s.log.Error().Err(cause).Int("attempt", attempt).Dur("next_ms", wait).Msg("final snapshot not stored")
	s.board.update(func(st *Status) { st.Handover.Attempt, st.Handover.LastError = attempt, cause.Error() })
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return cause
	}
}

// finalize captures, stores and journals the last state once. The event says how it ended: our final is in the journal,
// or somebody else's entry is, and then the snapshot lies under late/.
func (s *Supervisor) finalize(ctx context.Context, began time.Time) (ownership.Event, error) {
	head, err := s.journal.Head(ctx)
	if err != nil {
		return nil, err
	}
	self := s.state.Instance()
	if head.Kind == ownership.Final && head.Instance == self {
		s.logFinal(head.Entry, began)
		return ownership.Appended{Entry: head.Entry}, nil // stored by an earlier try or an earlier life
	}
	if head.Empty {
		return nil, errors.New("the journal is empty: the store is not the one that this generation was opened in, or somebody emptied it")
	}
	ours := head.HeldBy(self)
	manifest, err := s.captureAndUpload(ctx, s.generation(head), !ours)
	if damaged, ok := errors.AsType[*damage](err); ok {
		return s.finalizeDamaged(ctx, head, ours, damaged, began)
	}
	if err != nil {
		return nil, err
	}
	if !ours {
		s.log.Error().Str("key", manifest.Key).Str("head", head.Describe()).Msg("superseded: the generation was ended by somebody else; our last state is kept under late/")
		return ownership.AppendRefused{Kind: ownership.Final, Head: head}, nil
	}
	s.stepNow("journal")
	return s.appendFinal(ctx, head, reference(manifest), "", began)
}

// sweepGeneration removes what crashed lives of ours left of their uploads: nobody writes to a generation that is ended.
func (s *Supervisor) sweepGeneration(ctx context.Context, ev ownership.Event) {
	if final, ok := ev.(ownership.Appended); ok {
		bounded, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		s.sweep(bounded, snapshot.GenerationPrefix(final.Entry.Generation), 0)
		s.sweep(bounded, snapshot.DamagedPrefix(final.Entry.Generation), 0)
	}
}

// generation is that of the data in hand: what the machine knows, or the journal's head when it is held by us.
func (s *Supervisor) generation(head ownership.Head) uint64 {
	if head.HeldBy(s.state.Instance()) {
		return head.Generation
	}
	return max(s.board.read().Owner.Generation, 1)
}

// appendFinal ends the generation; damaged says why the snapshot is none, if so. When the head has moved meanwhile, it is read again: an entry of our own moves it too.
func (s *Supervisor) appendFinal(ctx context.Context, head ownership.Head, ref ownership.SnapshotRef, damaged string, began time.Time) (ownership.Event, error) {
	for {
		entry, err := ownership.NextFinal(head, s.author(), time.Now(), ref)
		entry.Damaged = damaged
		if err == nil {
			err = s.journal.Append(ctx, entry)
		}
		if err == nil {
			s.made("final journalled")
			s.logFinal(entry, began)
			return ownership.Appended{Entry: entry}, nil
		}
		if !errors.Is(err, ErrEntryExists) {
			return nil, err
		}
		if head, err = s.journal.Head(ctx); err != nil {
			return nil, err
		}
		if !head.HeldBy(s.state.Instance()) {
			return nil, fmt.Errorf("the generation was ended meanwhile: %s", head.Describe()) // the next try goes to late/
		}
	}
}

func (s *Supervisor) logFinal(e ownership.Entry, began time.Time) {
	s.metrics.finals.WithLabelValues("stored").Inc()
	s.log.Info().Uint64("generation", e.Generation).Int64("revision", e.Snapshot.Revision).Str("key", e.Snapshot.Key).
		Dur("took_ms", time.Since(began)).Msg("final journalled")
	s.board.update(func(st *Status) {
		st.Handover.Step, st.Handover.Revision, st.Handover.Key, st.Handover.LastError = handoverDone, e.Snapshot.Revision, e.Snapshot.Key, ""
	})
}

func reference(m snapshot.Manifest) ownership.SnapshotRef {
	return ownership.SnapshotRef{Key: m.Key, Manifest: m.ManifestKey(), SHA256: m.PlainSHA256, Revision: m.Revision, SizeBytes: m.PlainBytes}
}

// captureAndUpload streams the last state of the dead etcd into the store. It makes no copy on disk.
func (s *Supervisor) captureAndUpload(ctx context.Context, generation uint64, late bool) (snapshot.Manifest, error) {
	captured := time.Now()
	s.stepNow("capture")
	dead, how, done, err := s.capture(ctx)
	if err != nil {
		return snapshot.Manifest{}, err
	}
	defer done()
	proof := dead.Proof()
	s.made("captured")
	s.stepTook("capture", time.Since(captured))
	s.log.Info().Str("how", string(how)).Int64("revision", proof.Revision).Uint64("raft_index", proof.LastIndex).
		Int64("size_bytes", proof.SizeBytes).Msg("final capture")

	if late {
		if m, ok, err := s.uploadedLate(ctx, generation, proof); err != nil || ok {
			return m, err
		}
	}
	s.stepNow("upload")
	uploading := time.Now()
	m, err := s.upload(ctx, dead, snapshot.Manifest{Generation: generation, Final: true, Captured: how, CreatedAt: captured}, late)
	if err != nil {
		return snapshot.Manifest{}, err
	}
	s.made("uploaded")
	s.stepTook("upload", time.Since(uploading))
	s.log.Info().Str("key", m.Key).Int64("revision", m.Revision).Int64("size_bytes", m.PlainBytes).Int64("stored_bytes", m.StoredBytes).
		Dur("took_ms", time.Since(uploading)).Msg("final snapshot uploaded")
	return m, nil
}

// uploadedLate finds the late snapshot of this very state: an earlier life of ours stored it.
func (s *Supervisor) uploadedLate(ctx context.Context, generation uint64, p snapshot.Proof) (snapshot.Manifest, bool, error) {
	list, err := snapshot.ListLate(ctx, s.cfg.Store, generation)
	for _, m := range list.Manifests {
		if m.Revision == p.Revision && m.RaftIndex == p.LastIndex && m.MemberID == snapshot.HexID(p.MemberID) {
			return m, true, err
		}
	}
	return snapshot.Manifest{}, false, err
}

func (s *Supervisor) dirs() snapshot.DataDirs { return dirsOf(*s.cfg.Etcd) }

func (s *Supervisor) stepNow(step string) {
	s.board.update(func(st *Status) { st.Handover.Step = step })
}

func (s *Supervisor) stepTook(step string, took time.Duration) {
	s.board.update(func(st *Status) {
		steps := map[string]int64{step: took.Milliseconds()} // copied: a reader may hold the old map
		for k, v := range st.Handover.StepsMS {
			if k != step {
				steps[k] = v
			}
		}
		st.Handover.StepsMS = steps
	})
}

func (s *Supervisor) stepsTaken() map[string]int64 { return s.board.read().Handover.StepsMS }
