package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/snapshot"
)

// origin is the snapshot that the data directory came from.
type origin struct {
	ref        ownership.SnapshotRef
	generation uint64
}

// restore puts the snapshot of a closed generation into the data directory; the claim follows.
func (s *Supervisor) restore(ctx context.Context, head ownership.Head) func() {
	from, err := s.restoreFrom(ctx, head)
	return func() {
		if err != nil {
			s.log.Error().Err(err).Msg("snapshot not restored")
			s.step(ctx, ownership.RestoreFailed{Reason: err.Error()})
			return
		}
		s.origin = &from
		s.step(ctx, ownership.Restored{})
	}
}

func (s *Supervisor) restoreFrom(ctx context.Context, head ownership.Head) (origin, error) {
	began := time.Now()
	newest := func() (snapshot.Manifest, error) { return Newest(ctx, s.cfg.Store, head) }
	if head.Damaged != "" {
		newest = func() (snapshot.Manifest, error) { return s.afterDamage(ctx, head) }
	}
	m, err := newest()
	if err != nil {
		return origin{}, err
	}
	from := origin{ref: reference(m), generation: m.Generation}
	s.log.Info().Uint64("generation", m.Generation).Int64("revision", m.Revision).Str("key", m.Key).Bool("final", m.Final).Msg("final snapshot found")
	if s.isOurOwnFinal(ctx, head, m) {
		s.log.Info().Int64("revision", m.Revision).Msg("own data kept: it is what our final snapshot holds")
		return from, nil
	}
	res, err := snapshot.Restore(ctx, s.restoreConfig(m))
	if err != nil {
		return origin{}, err
	}
	s.made("restored")
	s.log.Info().Int64("revision", res.Revision).Str("replaced", res.Replaced).Dur("took_ms", time.Since(began)).Msg("snapshot restored")
	return from, nil
}

// restoreConfig is the restore of m for the etcd that we supervise.
func (s *Supervisor) restoreConfig(m snapshot.Manifest) snapshot.RestoreConfig {
	e := s.cfg.Etcd
	return snapshot.RestoreConfig{
		Source: func(ctx context.Context, w io.Writer) error {
			err := snapshot.Download(ctx, s.cfg.Store, m, w, nil)
			s.made("downloaded")
			return err
		},
		DataDir: e.DataDir, WALDir: e.WALDir, Name: e.Name, InitialCluster: e.InitialCluster, InitialClusterToken: e.InitialClusterToken,
		PeerURLs: e.InitialAdvertisePeerURLs, Revision: m.Revision, ForceRename: true,
	}
}

// isOurOwnFinal says whether the data directory is what the snapshot was taken from, untouched since: this instance took
// it, and the files stand at the same revision and at the same place of the log.
func (s *Supervisor) isOurOwnFinal(ctx context.Context, head ownership.Head, m snapshot.Manifest) bool {
	if head.Kind != ownership.Final || head.Damaged != "" || head.Instance != s.state.Instance() || !hasData(s.cfg.Etcd.DataDir) {
		return false
	}
	dead, err := snapshot.OpenOffline(ctx, s.dirs(), lockPatience)
	if err != nil {
		return false
	}
	p := dead.Proof()
	if dead.Close() != nil {
		return false
	}
	return p.Revision == m.Revision && p.LastIndex == m.RaftIndex && p.LastTerm == m.RaftTerm && snapshot.HexID(p.MemberID) == m.MemberID
}

// Newest is the manifest of the snapshot that a closed generation is continued from: its final, or, where it was
// abandoned, its newest snapshot that verifies. It goes back to earlier generations for one that was abandoned before it
// had any. One that ended damaged is ErrDamagedFinal.
func Newest(ctx context.Context, store snapshot.Store, head ownership.Head) (snapshot.Manifest, error) {
	if head.Damaged != "" {
		return snapshot.Manifest{}, damagedFinal(head)
	}
	if head.Kind == ownership.Final {
		m, err := snapshot.LoadManifest(ctx, store, head.Snapshot.Manifest)
		if err != nil {
			return snapshot.Manifest{}, err
		}
		if m.PlainSHA256 != head.Snapshot.SHA256 || m.Revision != head.Snapshot.Revision {
			return snapshot.Manifest{}, &snapshot.CorruptError{Key: head.Snapshot.Manifest, Damage: snapshot.DamageManifest,
				Detail: fmt.Sprintf("the journal's entry %d names another hash or revision", head.Seq)}
		}
		return m, nil
	}
	return newestUpTo(ctx, store, head.Generation)
}

// newestUpTo is the newest snapshot of a generation that verifies or, where it has none, of an earlier one.
func newestUpTo(ctx context.Context, store snapshot.Store, generation uint64) (snapshot.Manifest, error) {
	for g := generation; g > 0; g-- {
		list, err := snapshot.ListManifests(ctx, store, g)
		if err != nil {
			return snapshot.Manifest{}, err
		}
		if m, err := newestVerified(ctx, store, list.Manifests); err == nil || !errors.Is(err, snapshot.ErrNotFound) {
			return m, err
		}
	}
	return snapshot.Manifest{}, fmt.Errorf("generation %d has no final, and the store has no snapshot of it or of any before it: %w", generation, snapshot.ErrNotFound)
}

func newestVerified(ctx context.Context, store snapshot.Store, oldestFirst []snapshot.Manifest) (snapshot.Manifest, error) {
	var damaged error
	for i := len(oldestFirst) - 1; i >= 0; i-- {
		err := snapshot.Verify(ctx, store, oldestFirst[i], nil)
		var corrupt *snapshot.CorruptError
		if !errors.As(err, &corrupt) {
			return oldestFirst[i], err
		}
		damaged = errors.Join(damaged, err)
	}
	if damaged != nil {
		return snapshot.Manifest{}, damaged
	}
	return snapshot.Manifest{}, snapshot.ErrNotFound
}

// storePause is the wait between two questions to a store that does not answer at start.
const storePause = 5 * time.Second

// restoreOrBootstrap decides what an etcd without ownership and without data begins with: what the store has, or nothing
// if the operator said that the cluster is new. A store that does not answer is never taken for an empty one.
func (s *Supervisor) restoreOrBootstrap(ctx context.Context) func() {
	for {
		err := s.tryRestore(ctx)
		switch {
		case err == nil:
			return func() { s.serve(ctx) }
		case ctx.Err() != nil:
			return nil
		case !snapshot.Retryable(err):
			return func() { s.end(0, err) }
		}
		s.log.Warn().Err(err).Msg("store not reached; etcd is not started with an empty data directory")
		s.board.update(func(st *Status) { st.Why = err.Error() })
		select {
		case <-time.After(storePause):
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Supervisor) tryRestore(ctx context.Context) error {
	if _, err := s.cfg.Store.Probe(ctx); err != nil {
		return err
	}
	head, err := s.journal.Head(ctx)
	switch {
	case err != nil:
		return err
	case head.Empty && s.cfg.NewCluster:
		return nil
	case head.Empty:
		return fmt.Errorf("%s is empty and so is %s: %w", s.cfg.Etcd.DataDir, s.cfg.Store, ErrNothing)
	case head.Held():
		return fmt.Errorf("%s is empty, and in %s generation is still open: %s: %w", s.cfg.Etcd.DataDir, s.cfg.Store, head.Describe(), ErrStillOpen)
	}
	s.enter(Restoring, "from "+head.Describe())
	from, err := s.restoreFrom(ctx, head)
	if err != nil {
		return err
	}
	claim, err := ownership.NextClaim(head, s.author(), time.Now(), from.generation, from.ref)
	if err != nil {
		return err
	}
	return s.journal.Append(ctx, claim)
}
