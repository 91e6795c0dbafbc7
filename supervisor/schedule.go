package supervisor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/snapshot"
)

// How soon a snapshot that failed is tried again, unless the next one is due earlier. Doubled after each failure.
const (
	snapshotRetryFirst = time.Minute
	snapshotRetryMost  = 5 * time.Minute
	// openRetry is the same for the journal entry that an etcd without ownership opens its generation with.
	openRetry = 30 * time.Second
	// pruneTimeout bounds what follows a snapshot; what is left is deleted after the next one.
	pruneTimeout = 10 * time.Minute
)

// errInterrupted is the cause of a snapshot's end when etcd is about to be stopped.
var errInterrupted = errors.New("etcd is being stopped")

// snapshots takes full snapshots of the running etcd by a schedule. It stands beside the loop and shares nothing with it but the published status: whatever
// fails here is logged, counted and tried again, and neither etcd, its readiness nor its restart know of it. What it stores is never a final: those are
// made by the handover alone, and named by the journal.
type snapshots struct {
	cfg    Snapshotting
	log    zerolog.Logger
	board  *board
	open   func(context.Context) error                      // makes sure of a generation; nil: ownership does
	take   func(context.Context) (snapshot.Manifest, error) // takes one snapshot and stores it
	prune  func(context.Context, uint64) (snapshot.PruneResult, error)
	served chan struct{} // etcd began to serve

	mu     sync.Mutex // guards cancel
	cancel context.CancelCauseFunc
}

// newSnapshots returns nil where there is nothing to do.
func (s *Supervisor) newSnapshots() *snapshots {
	if s.journal == nil {
		return nil
	}
	n := &snapshots{cfg: s.cfg.Snapshots, log: s.log.With().Str("component", "snapshots").Logger(), board: &s.board, served: make(chan struct{}, 1),
		take: s.takeSnapshot, prune: func(ctx context.Context, generation uint64) (snapshot.PruneResult, error) {
			return snapshot.Prune(ctx, s.cfg.Store, generation, s.cfg.Snapshots.Keep, time.Now(), false)
		}}
	if s.watcher == nil {
		n.open = s.openStore
	}
	if !n.cfg.Schedule.Never() {
		s.board.update(func(st *Status) { st.Snapshots = &SnapshotStatus{Schedule: n.cfg.Schedule.String()} })
	}
	return n
}

// SnapshotStatus tells of the snapshots that are taken while etcd runs.
type SnapshotStatus struct {
	Schedule     string    `json:"schedule"`
	Next         time.Time `json:"next,omitzero"`
	Running      bool      `json:"running"`
	Taken        int       `json:"taken"`
	Failed       int       `json:"failed"`
	Skipped      int       `json:"skipped"` // due while another one was under way, or etcd did not serve as owner
	LastAt       time.Time `json:"last_at,omitzero"`
	LastKey      string    `json:"last_key,omitempty"`
	LastRevision int64     `json:"last_revision,omitempty"`
	LastTookMS   int64     `json:"last_took_ms,omitempty"`
	LastError    string    `json:"last_error,omitempty"`
}

func (n *snapshots) update(change func(*SnapshotStatus)) {
	n.board.update(func(st *Status) {
		if st.Snapshots == nil {
			return
		}
		changed := *st.Snapshots // a reader may hold the old one
		change(&changed)
		st.Snapshots = &changed
	})
}

// begin tells that etcd serves. It may be called on nil, and never blocks.
func (n *snapshots) begin() {
	if n == nil {
		return
	}
	select {
	case n.served <- struct{}{}:
	default:
	}
}

// interrupt ends the snapshot under way: etcd would wait for its stream before it ends. It may be called on nil, and never blocks.
func (n *snapshots) interrupt() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cancel != nil {
		n.cancel(errInterrupted)
	}
}

// allowed says whether etcd runs, serves, and is ours.
func (n *snapshots) allowed() bool {
	st := n.board.read()
	ours := st.Owner == nil || st.Owner.State == string(ownership.Owner) || st.Owner.State == string(ownership.Suspect)
	return st.Phase == Running && st.Ready && ours
}

// run takes snapshots until ctx ends.
func (n *snapshots) run(ctx context.Context) {
	var job sync.WaitGroup
	defer job.Wait()
	due, opening := stoppedTimer(), stoppedTimer()
	defer due.Stop()
	defer opening.Stop()
	var next time.Time
	plan := func(at time.Time) {
		next = at
		due.Reset(time.Until(at))
		n.update(func(st *SnapshotStatus) { st.Next = at })
	}
	scheduled := func() time.Time { return n.cfg.Schedule.next(time.Now(), n.cfg.Jitter, rand.Float64()) }
	if !n.cfg.Schedule.Never() {
		plan(scheduled())
	}
	done := make(chan error)
	running, failures := false, 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.served:
			opening.Reset(0)
		case <-opening.C:
			if !n.opened(ctx) {
				opening.Reset(openRetry)
			}
		case <-due.C:
			plan(scheduled())
			if running || !n.allowed() {
				n.update(func(st *SnapshotStatus) { st.Skipped++ })
				level := zerolog.DebugLevel // a site that stands by skips for months
				if running {
					level = zerolog.WarnLevel
				}
				n.log.WithLevel(level).Bool("running", running).Time("next", next).Msg("snapshot skipped")
				continue
			}
			running = true
			job.Go(func() {
				err := n.one(ctx)
				select {
				case done <- err:
				case <-ctx.Done():
				}
			})
		case err := <-done:
			running = false
			if err == nil || errors.Is(err, errInterrupted) {
				failures = 0
				continue
			}
			again := time.Now().Add(min(snapshotRetryMost, snapshotRetryFirst<<min(failures, 10)))
			failures++
			if again.Before(next) && !errors.Is(err, snapshot.ErrInvalid) { // that takes a hand, not time
				plan(again)
			}
			n.log.Warn().Err(err).Int("attempt", failures).Time("next", next).Msg("snapshot not taken")
		}
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// opened makes sure, without ownership, that the store has a generation for what this etcd writes. It is false when that has to be tried again.
func (n *snapshots) opened(ctx context.Context) bool {
	if n.open == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := n.open(ctx)
	if err != nil {
		n.log.Warn().Err(err).Msg("no generation for snapshots")
	}
	return err == nil || !snapshot.Retryable(err)
}

// one takes one snapshot and then deletes what need not be kept.
func (n *snapshots) one(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.mu.Lock()
	n.cancel = cancel
	n.mu.Unlock()
	defer func() { n.mu.Lock(); n.cancel = nil; n.mu.Unlock() }()
	if !n.allowed() { // etcd's end has begun before interrupt could reach us
		return errInterrupted
	}
	began := time.Now()
	n.update(func(st *SnapshotStatus) { st.Running = true })
	m, err := n.take(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errInterrupted) {
		err = cause
	}
	n.update(func(st *SnapshotStatus) {
		st.Running = false
		switch {
		case errors.Is(err, errInterrupted):
			st.Skipped++
			return
		case err != nil:
			st.Failed++
			st.LastError = err.Error()
			return
		}
		st.Taken++
		st.LastAt, st.LastKey, st.LastRevision, st.LastTookMS, st.LastError = time.Now(), m.Key, m.Revision, time.Since(began).Milliseconds(), ""
	})
	if err != nil {
		return err
	}
	n.log.Info().Uint64("generation", m.Generation).Str("key", m.Key).Int64("revision", m.Revision).Int64("size_bytes", m.PlainBytes).
		Int64("stored_bytes", m.StoredBytes).Dur("took_ms", time.Since(began)).Msg("snapshot taken")
	n.clean(ctx, m.Generation)
	return nil
}

// clean applies the rules of retention. Its failure is no reason to take the snapshot again.
func (n *snapshots) clean(ctx context.Context, generation uint64) {
	if n.cfg.Keep.Empty() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pruneTimeout)
	defer cancel()
	res, err := n.prune(ctx, generation)
	for _, damaged := range res.Damaged {
		n.log.Warn().Err(damaged).Msg("manifest cannot be read")
	}
	switch {
	case errors.Is(context.Cause(ctx), errInterrupted): // the next one cleans up
	case err != nil:
		n.log.Warn().Err(err).Int("count", res.Deleted).Msg("old snapshots not all deleted")
	case res.Deleted > 0:
		n.log.Info().Int("count", res.Deleted).Int64("size_bytes", res.Freed).Msg("old snapshots deleted")
	}
}

// takeSnapshot streams one snapshot into the generation of the running etcd.
func (s *Supervisor) takeSnapshot(ctx context.Context) (snapshot.Manifest, error) {
	generation, err := s.snapshotGeneration(ctx)
	if err != nil {
		return snapshot.Manifest{}, err
	}
	return snapshot.CaptureLive(ctx, s.cfg.Live, s.cfg.Store, generation, nil)
}

// snapshotGeneration is that of the machine under ownership, else the one that we hold in the journal.
func (s *Supervisor) snapshotGeneration(ctx context.Context) (uint64, error) {
	if s.watcher == nil {
		return s.ownGeneration(ctx)
	}
	if g := s.board.read().Owner.Generation; g > 0 {
		return g, nil
	}
	return 0, errors.New("the generation is not known yet")
}

// openStore is, for an etcd without ownership, what start does with one: the store is probed, swept, and has a generation for what this etcd writes.
func (s *Supervisor) openStore(ctx context.Context) error {
	if _, err := s.ownGeneration(ctx); err != nil {
		return err
	}
	can, err := s.cfg.Store.Probe(ctx)
	if err != nil {
		return err
	}
	s.log.Info().Stringer("store", s.cfg.Store).Bool("if_absent", can.IfAbsent).Bool("if_absent_multipart", can.IfAbsentMultipart).
		Bool("deletes", can.Deletes).Dur("clock_offset_ms", can.ClockOffset).Msg("store probed")
	s.sweep(ctx, "", staleUpload)
	return nil
}

// ownGeneration is, for an etcd without ownership, the generation that this installation holds in the journal. It opens the first one in an empty journal.
func (s *Supervisor) ownGeneration(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	head, err := s.journal.Head(ctx)
	switch {
	case err != nil:
		return 0, err
	case head.HeldBy(s.state.Instance()):
		return head.Generation, nil
	case !head.Empty:
		return 0, fmt.Errorf("%w: this data directory holds no generation in %s, which ends with %s: give this etcd a store or a prefix of its own", snapshot.ErrInvalid, s.cfg.Store, head.Describe())
	}
	entry, err := ownership.NextOpen(head, s.author(), time.Now(), "started without ownership")
	if err != nil {
		return 0, err
	}
	if err := s.journal.Append(ctx, entry); err != nil {
		return 0, err
	}
	s.log.Info().Str("entry", string(entry.Kind)).Uint64("generation", entry.Generation).Msg("journal entry made")
	return entry.Generation, nil
}
