package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

const (
	fencedDirPrefix = "fenced-"
	// fencedStart bounds the replay of the log: 25 s for 4 GiB on a busy two-core machine, measured.
	fencedStart = 10 * time.Minute
	// fencedStop bounds its clean end; nobody watches and nobody writes.
	fencedStop = time.Minute
)

// fencedTries is how often an etcd may end by itself in a fenced restart before its files are taken for damaged. With the
// back-off between them they take half a minute: a want of memory passes, damage does not.
const fencedTries = 5

// capture opens the files of the dead etcd, after a fenced restart where its database lags behind its log. done closes
// what it opened and removes what it made. The error is a *damage when another try cannot help.
func (s *Supervisor) capture(ctx context.Context) (dead *snapshot.Offline, how snapshot.Captured, done func(), err error) {
	dead, err = snapshot.OpenOffline(ctx, s.dirs(), lockPatience)
	if err != nil {
		return nil, "", nil, s.damaged(fmt.Errorf("open the dead etcd's files: %w", err))
	}
	if proof := dead.Proof(); !proof.Exact() {
		if err := dead.Close(); err != nil {
			return nil, "", nil, fmt.Errorf("close the dead etcd's files: %w", err)
		}
		return s.captureAfterRestart(ctx, proof)
	}
	if err := dead.Check(ctx); err != nil {
		return nil, "", nil, s.damaged(errors.Join(err, dead.Close()))
	}
	return dead, snapshot.CapturedOffline, func() { s.closing(dead.Close()) }, nil
}

// closing logs what could not be cleared away after a capture: it makes nothing less true.
func (s *Supervisor) closing(err error) {
	if err != nil {
		s.log.Warn().Err(err).Msg("capture not cleared away")
	}
}

// captureAfterRestart has etcd replay its log where nobody can reach it: on the files themselves, or on a copy where
// their disk cannot be written.
func (s *Supervisor) captureAfterRestart(ctx context.Context, before snapshot.Proof) (dead *snapshot.Offline, how snapshot.Captured, done func(), err error) {
	s.log.Info().Uint64("behind", before.LastIndex-min(before.ConsistentIndex, before.LastIndex)).Bool("torn", before.Torn).Msg("fenced restart")
	s.stepNow("fenced restart")
	cfg, remove := *s.cfg.Etcd, func() error { return nil }
	trouble := diskTrouble(cfg.DataDir)
	if trouble != nil {
		if elsewhere, removeCopy, err := s.copyToScratch(ctx); err == nil {
			s.log.Warn().AnErr("cause", trouble).Str("dir", elsewhere.DataDir).Msg("fenced restart on a copy")
			cfg, remove = elsewhere, removeCopy
		} else { // the disk itself may do after all
			trouble = fmt.Errorf("%w, and a copy is not possible: %w; make room, or set TMPDIR to a directory with room", trouble, err)
			s.log.Warn().AnErr("cause", trouble).Msg("fenced restart on a disk that may not take it")
		}
	}
	if err = s.fencedRestart(ctx, cfg); err != nil {
		return nil, "", nil, errors.Join(s.refused(err, trouble), remove())
	}
	if dead, err = snapshot.OpenOffline(ctx, dirsOf(cfg), lockPatience); err != nil {
		return nil, "", nil, errors.Join(fmt.Errorf("open the dead etcd's files after the fenced restart: %w", err), remove())
	}
	err = dead.Check(ctx)
	if after := dead.Proof(); err == nil && (!after.ExactAfterRestart() || after.LastIndex < before.LastIndex) {
		err = fmt.Errorf("the fenced restart left the database at index %d of %d (the log ended at %d before)", after.ConsistentIndex, after.LastIndex, before.LastIndex)
	}
	if err != nil {
		return nil, "", nil, errors.Join(err, dead.Close(), remove())
	}
	return dead, snapshot.CapturedFencedRestart, func() { s.closing(errors.Join(dead.Close(), remove())) }, nil
}

// refused counts the fenced restarts that ended by themselves: what etcd refuses again and again on a sound disk it will
// always refuse.
func (s *Supervisor) refused(err, trouble error) error {
	if !errors.Is(err, errChildEnded) || trouble != nil {
		return errors.Join(err, trouble)
	}
	if s.fencedEnds++; s.fencedEnds < fencedTries {
		return err
	}
	return &damage{fmt.Errorf("etcd does not start on its own files, tried %d times; its log says why: %w", s.fencedEnds, err)}
}

// fencedRestart starts the same etcd on the same data where nobody can reach it, on unix sockets in a directory of our
// own, waits until it has applied its whole log, and ends it cleanly. Of the user's flags nothing is kept: no listener
// of his can come up. Afterwards the database covers the log.
func (s *Supervisor) fencedRestart(ctx context.Context, cfg EtcdConfig) error {
	dir, err := s.socketDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fenced := cfg.Fenced(dir)
	child, err := s.init.Start(ctx, Command{Path: s.cfg.Path, Args: fenced.Args, Env: fenced.Env, Dir: fenced.Dir, Private: true,
		Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		return fmt.Errorf("fenced restart: %w", err)
	}
	applied := s.awaitApplied(ctx, child, fenced.Endpoint)
	s.made("log replayed") // while that etcd lives
	exit, err := child.Stop(context.WithoutCancel(ctx), fencedStop, nil)
	switch {
	case err != nil:
		return fmt.Errorf("end the fenced restart: %w", err)
	case applied != nil && exit.Signal == unix.SIGKILL: // by the kernel, for want of memory, or by somebody: no word of etcd's
		return fmt.Errorf("fenced restart: etcd was killed (%s) before it served", exit)
	case applied != nil:
		return fmt.Errorf("fenced restart (etcd ended with %s): %w", exit, applied)
	case exit.Killed:
		return fmt.Errorf("fenced restart: etcd did not end within %s of TERM and was killed", fencedStop)
	}
	return nil
}

// awaitApplied waits for a linearizable read, which etcd answers only when everything committed is applied.
func (s *Supervisor) awaitApplied(ctx context.Context, child *Child, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, fencedStart)
	defer cancel()
	ctx, release := whileAlive(ctx, child)
	defer release()
	return snapshot.AwaitServing(ctx, endpoint)
}

// errChildEnded is the cause of a context from whileAlive whose child ended.
var errChildEnded = errors.New("etcd ended before it served")

// whileAlive returns a context that also ends when the child does. The caller releases it.
func whileAlive(ctx context.Context, child *Child) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-child.Exited():
			cancel(errChildEnded)
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil); watch.Wait() }
}
