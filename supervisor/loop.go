package supervisor

import (
	"context"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/signals"
)

// loop is the one place where the supervisor's state changes. Whatever takes time runs beside it as a job and comes back
// through s.posts, so that a request, a verdict or the end of the child is never kept waiting.
func (s *Supervisor) loop(ctx context.Context) ending {
	ctx, cancel := context.WithCancel(ctx)
	defer s.jobs.Wait()
	defer cancel()
	wake := time.NewTimer(time.Hour)
	defer wake.Stop()
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
			if s.watcher != nil {
				s.step(ctx, ownership.Tick{})
			}
		case <-ctx.Done():
			s.onStop(ctx, "the program is ending", 1)
			ctx = context.WithoutCancel(ctx) // once is enough; what follows is bounded by the stop itself
		case s.pings <- struct{}{}:
		}
	}
	s.enter(Ended, "")
	return *s.ending
}

// boot takes the first step: ownership decides, or the store where there is one, or nobody.
func (s *Supervisor) boot(ctx context.Context) {
	switch {
	case s.watcher != nil:
		s.enter(Waiting, "ownership is not confirmed")
		s.step(ctx, ownership.Tick{})
	case s.journal != nil && !hasData(s.cfg.Etcd.DataDir):
		s.enter(Waiting, "the data directory is empty: the store is asked for history")
		s.do(ctx, s.restoreOrBootstrap)
	default:
		s.serve(ctx)
	}
}

// do runs job beside the loop; what it returns runs on the loop. A job ends when ctx does.
func (s *Supervisor) do(ctx context.Context, job func(context.Context) func()) {
	s.jobs.Go(func() {
		if result := job(ctx); result != nil {
			s.post(ctx, result)
		}
	})
}

// post has the loop run f; it gives up when the loop is over.
func (s *Supervisor) post(ctx context.Context, f func()) {
	select {
	case s.posts <- f:
	case <-ctx.Done():
	}
}

func (s *Supervisor) verdicts() <-chan ownership.Verdict {
	if s.watcher == nil {
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
	if s.watcher == nil {
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
	case ReloadRequested:
		s.log.Info().Msg("reload requested; there is nothing to reload")
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
		log.Msg("stop requested; the final snapshot goes on, a second request ends the wait for it")
	case s.handingOff != nil:
		log.Msg("stop requested again; the final snapshot is left to the next start")
		s.handingOff()
	case again:
		log.Msg("stop requested again; the child is killed")
	default:
		log.Dur("grace_ms", s.cfg.Grace).Msg("stop requested")
		s.stopChild(ctx)
	}
}
