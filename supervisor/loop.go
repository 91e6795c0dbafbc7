package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/signals"
	"github.com/etcd-warden/etcd-warden/snapshot"
)

// loop is the one place where the supervisor's state changes. Whatever takes time runs beside it as a job and comes back
// through s.posts, so that a request, a verdict or the end of the child is never kept waiting.
func (s *Supervisor) loop(ctx context.Context) ending {
	ctx, cancel := context.WithCancel(ctx)
	defer s.jobs.Wait()
	defer cancel()
	defer close(s.over)
	wake := time.NewTimer(time.Hour)
	defer wake.Stop()
	watchdog, stopWatchdog := s.watchdog()
	defer stopWatchdog()
	s.boot(ctx)
	for s.ending == nil {
		s.arm(wake)
		select {
		case e := <-s.init.Events():
			s.onRequest(ctx, e)
		case v := <-s.verdicts():
			s.step(ctx, ownership.VerdictEvent{Verdict: v})
		case result := <-s.posts:
			result()
		case <-s.childExited():
			s.onChildExit(ctx)
		case <-s.restart:
			s.restart = nil
			s.serve(ctx)
		case <-wake.C:
			if s.begun {
				s.step(ctx, ownership.Tick{})
			}
		case <-ctx.Done():
			s.onStop(ctx, "the program is ending", 1)
			ctx = context.WithoutCancel(ctx) // once is enough; what follows is bounded by the stop itself
		case <-watchdog:
			s.signOfLife(ctx)
		case s.pings <- struct{}{}:
		}
	}
	s.enter(Ended, "")
	return *s.ending
}

// boot takes the first step: ownership decides, or the store where there is one, or nobody.
func (s *Supervisor) boot(ctx context.Context) {
	if s.watcher != nil {
		s.notified(s.init.Notifier().Ready()) // the warden is up; whether etcd may be is another matter, and may take days
	}
	switch {
	case s.watcher != nil && s.journal != nil:
		s.enter(Waiting, "the store is asked what it can do")
		s.do(ctx, s.probe)
	case s.watcher != nil:
		s.begin(ctx, snapshot.Capabilities{})
	case s.journal != nil && !hasData(s.cfg.Etcd.DataDir):
		s.enter(Waiting, "the data directory is empty: the store is asked for history")
		s.do(ctx, s.restoreOrBootstrap)
	default:
		s.serve(ctx)
	}
}

// staleUpload is the age from which an unfinished upload below our prefix is nobody's any more. Another site may share
// the prefix, and a large final over a slow line takes hours.
const staleUpload = 24 * time.Hour

// probe asks the store once at start what it can do: without create-only writes it cannot arbitrate between two sites.
// Without an answer the journal cannot be read either, so there is nothing else to do than to ask again, unless the
// operator allows a start without the store.
func (s *Supervisor) probe(ctx context.Context) func() {
	for {
		bounded, cancel := context.WithTimeout(ctx, readTimeout)
		can, err := s.cfg.Store.Probe(bounded)
		cancel()
		if err == nil {
			s.log.Info().Stringer("store", s.cfg.Store).Bool("if_absent", can.IfAbsent).Bool("if_absent_multipart", can.IfAbsentMultipart).
				Dur("clock_offset_ms", can.ClockOffset).Msg("store probed")
			return func() {
				s.begin(ctx, can)
				s.do(ctx, func(ctx context.Context) func() { s.sweep(ctx, "", staleUpload); return nil })
			}
		}
		if s.cfg.Owner.StartWithoutStore == ownership.StartIfOurs {
			s.log.Warn().Err(err).Msg("store not probed")
			return func() { s.begin(ctx, snapshot.Capabilities{IfAbsent: true}) } // an entry that it cannot refuse is refused later
		}
		s.log.Warn().Err(err).Msg("store not reached; etcd is not started")
		s.board.update(func(st *Status) { st.Why = err.Error() })
		select {
		case <-time.After(storePause):
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Supervisor) sweep(ctx context.Context, prefix string, olderThan time.Duration) {
	switch n, err := s.cfg.Store.SweepUploads(ctx, prefix, olderThan); {
	case err != nil:
		s.log.Warn().Err(err).Msg("unfinished uploads not swept")
	case n > 0:
		s.log.Info().Int("count", n).Msg("unfinished uploads swept")
	}
}

// begin lets ownership decide.
func (s *Supervisor) begin(ctx context.Context, can snapshot.Capabilities) {
	data := hasData(s.cfg.Etcd.DataDir)
	if s.journal != nil && !can.IfAbsent {
		if !data && !s.cfg.NewCluster {
			s.end(0, fmt.Errorf("store %s: %w", s.cfg.Store, ErrNoIfAbsent))
			return
		}
		s.log.Warn().Stringer("store", s.cfg.Store).Msg("the store has no create-only writes: it keeps snapshots, but no generation is abandoned or claimed through it")
	}
	boot := s.marker.boot()
	boot.Instance, boot.HasData = s.state.Instance(), data
	boot.MayBootstrap, boot.TakeOver = s.cfg.NewCluster, s.cfg.TakeOver
	boot.NoStore, boot.NoConditional = s.journal == nil, s.journal != nil && !can.IfAbsent
	s.machine = ownership.NewMachine(*s.cfg.Owner, boot)
	s.enter(Waiting, "ownership is not confirmed")
	s.begun = true
	s.step(ctx, ownership.Tick{})
}

// do runs job beside the loop; what it returns runs on the loop. A job ends when ctx does.
func (s *Supervisor) do(ctx context.Context, job func(context.Context) func()) {
	s.jobs.Go(func() {
		if result := job(ctx); result != nil {
			s.post(ctx, result)
		}
	})
}

// post has the loop run f; it gives up when ctx ends or the loop is over.
func (s *Supervisor) post(ctx context.Context, f func()) {
	select {
	case s.posts <- f:
	case <-s.over:
	case <-ctx.Done():
	}
}

func (s *Supervisor) verdicts() <-chan ownership.Verdict {
	if !s.begun {
		return nil
	}
	return s.watcher.Verdicts()
}

func (s *Supervisor) childExited() <-chan struct{} {
	if s.child == nil {
		return nil
	}
	return s.child.Exited()
}

// tickLeast bounds how often time alone wakes the loop.
const tickLeast = 20 * time.Millisecond

// arm sets the timer to the next moment at which time itself decides something: the end of the lease or of a wait.
func (s *Supervisor) arm(wake *time.Timer) {
	if !s.begun {
		return // nothing depends on time: an idle init is not woken
	}
	after := time.Hour
	if at, ok := s.machine.Wake(); ok {
		after = max(at.Sub(s.clock()), tickLeast)
	}
	wake.Reset(after)
}

func (s *Supervisor) end(code int, err error) {
	if s.ending == nil {
		s.ending = &ending{code, err}
	}
}

// onRequest acts on what the outside asked of the warden.
func (s *Supervisor) onRequest(ctx context.Context, e Event) {
	switch e.Kind {
	case StopRequested:
		s.onStop(ctx, signals.Name(e.Signal), e.Count)
	case ChildReady:
		s.onServing()
	case ReloadRequested:
		s.reload(ctx)
	}
}

// onStop begins an orderly end, or presses for one that has begun. No stop costs a final snapshot that is owed: during a
// handover the first request is only noted, the second ends the wait and leaves the rest to the next start. A child that
// is being ended is killed at the second request; Init tells whoever waits for it.
func (s *Supervisor) onStop(ctx context.Context, reason string, count int) {
	again := s.stopping
	s.stopping = true
	log := s.log.Info().Str("signal", reason).Int("count", count)
	switch {
	case s.handingOff != nil && count == 1:
		s.notified(s.init.Notifier().Extend(progressGrace)) // the stop's own timeout has just begun
		log.Msg("stop requested; the final snapshot goes on, a second request ends the wait for it")
	case s.handingOff != nil:
		log.Msg("stop requested again; the final snapshot is left to the next start")
		s.handingOff()
	case again:
		log.Msg("stop requested again; the child is killed")
	default:
		log.Dur("grace_ms", s.cfg.Grace).Msg("stop requested")
		s.notifyStop()
		s.stopChild(ctx)
	}
}
