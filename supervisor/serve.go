package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

// restGrace is what the child's own children get between TERM and KILL once it is gone.
const restGrace = 5 * time.Second

// serve starts the child for its users. For an etcd under ownership only the machine's word leads here.
func (s *Supervisor) serve(ctx context.Context) {
	child, err := s.init.Start(ctx, Command{Path: s.cfg.Path, Args: s.cfg.Args})
	if err != nil {
		s.end(0, err)
		return
	}
	s.child, s.started = child, time.Now()
	s.enter(Running, "")
	s.board.update(func(st *Status) {
		st.Child.PID, st.Child.Started, st.Child.Restarts = child.PID(), s.started, s.restarts
		st.Handover = nil
		st.Ready = s.cfg.Etcd == nil // nobody tells whether another command serves
	})
	log := s.log.Info().Int("pid", child.PID())
	if s.cfg.Etcd == nil {
		log.Msg("child started")
		return
	}
	if s.watcher != nil {
		log = log.Uint64("generation", s.machine.Generation())
	}
	log.Msg("etcd started")
	s.do(ctx, func(ctx context.Context) func() { return s.awaitServing(ctx, child) })
}

// awaitServing asks until etcd answers; readiness follows. Where etcd cannot be asked (its listeners want certificates
// that we do not have) its own READY=1 says so.
func (s *Supervisor) awaitServing(ctx context.Context, child *Child) func() {
	if s.cfg.Serving == nil {
		return nil
	}
	ctx, release := whileAlive(ctx, child)
	defer release()
	retry := time.NewTicker(100 * time.Millisecond)
	defer retry.Stop()
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := s.cfg.Serving(try)
		cancel()
		if err == nil {
			return func() {
				if s.child == child {
					s.onServing()
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
		}
	}
}

func (s *Supervisor) onServing() {
	if s.child == nil || s.board.read().Ready {
		return
	}
	s.board.update(func(st *Status) { st.Ready, st.Why = true, "" })
	s.log.Info().Dur("took_ms", time.Since(s.started)).Msg("etcd serving")
	s.regular.begin()
}

// onChildExit acts on a child that ended by itself.
func (s *Supervisor) onChildExit(ctx context.Context) {
	child := s.child
	s.child = nil
	exit := child.Exit()
	s.metrics.exited(exit)
	next := s.cfg.Restart.Decide(s.failures, exit, time.Since(s.started), rand.Float64())
	s.childGone(exit)
	if next.Again {
		s.enter(BackingOff, "the child ended with "+exit.String())
	}
	s.do(ctx, func(ctx context.Context) func() {
		// What it left behind goes first: it may hold the database's lock, and nothing of it may serve beside a successor.
		_, err := child.Stop(ctx, 0, nil)
		return func() { s.afterExit(ctx, exit, next, err) }
	})
}

func (s *Supervisor) afterExit(ctx context.Context, exit Exit, next Restart, err error) {
	switch {
	case err != nil:
		s.end(0, fmt.Errorf("clear away what the child left: %w", err))
	case s.handingOff != nil: // ownership was lost meanwhile; the handover finds nothing left to kill
	case !next.Again || s.stopping:
		s.log.Info().Stringer("exit", exit).Str("why", next.Reason).Msg("child ended")
		s.finish(ctx, exit.Status())
	default:
		s.restarts, s.failures = s.restarts+1, next.Failures
		s.log.Warn().Stringer("exit", exit).Dur("delay_ms", next.Delay).Int("restarts", s.restarts).Msg("child is started again")
		s.restart = time.After(next.Delay)
	}
}

// stopChild ends the child in good order, or the warden at once when there is none.
func (s *Supervisor) stopChild(ctx context.Context) {
	child := s.child
	s.child, s.restart = nil, nil
	if child == nil {
		s.finish(ctx, 0)
		return
	}
	s.enter(Stopping, "stop requested")
	s.do(ctx, func(ctx context.Context) func() {
		exit, err := child.Stop(context.WithoutCancel(ctx), s.cfg.Grace, s.init.Escalated())
		return func() {
			if err != nil {
				s.end(0, err)
				return
			}
			s.childGone(exit)
			s.log.Info().Stringer("exit", exit).Bool("killed", exit.Killed).Msg("child ended")
			s.finish(ctx, exit.Status())
		}
	})
}

// childGone publishes the end of the child.
func (s *Supervisor) childGone(exit Exit) {
	s.board.update(func(st *Status) {
		st.Child.PID, st.Child.LastExit, st.Ready = 0, exit.String(), false
	})
}

// finish ends whatever processes are left and then the loop.
func (s *Supervisor) finish(ctx context.Context, code int) {
	s.do(ctx, func(ctx context.Context) func() {
		err := s.init.StopRest(context.WithoutCancel(ctx), restGrace)
		return func() { s.end(code, err) }
	})
}

// hasData says whether an etcd has lived in dir.
func hasData(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "member"))
	return err == nil
}

// checkUnused refuses a data directory on which an etcd runs that is not ours: a second one would wait for its lock for
// ever. What else may be wrong with the files is etcd's to say.
func (s *Supervisor) checkUnused() error {
	dead, err := snapshot.OpenOffline(context.Background(), s.dirs(), time.Second)
	if err == nil {
		return dead.Close()
	}
	if errors.Is(err, snapshot.ErrInUse) {
		return fmt.Errorf("data directory %s: %w; stop that etcd first", s.cfg.Etcd.DataDir, err)
	}
	return nil
}

// checkDataDir refuses a data directory that cannot be looked into: taking it for empty would bootstrap a new cluster
// over the old one.
func checkDataDir(dir string) error {
	st, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !st.IsDir() {
		return fmt.Errorf("data directory %s: %w", dir, ErrDataDir)
	}
	if err == nil {
		_, err = os.ReadDir(dir)
	}
	if err == nil {
		if _, err = os.Stat(filepath.Join(dir, "member")); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("data directory %s: %w: %w", dir, ErrDataDir, err)
	}
	return nil
}
