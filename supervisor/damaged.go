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

// ErrDamagedFinal is returned for a generation whose etcd left files that no snapshot could be made of. What to go on
// with is not for a program to decide.
var ErrDamagedFinal = errors.New("the generation ended with damaged files and without a snapshot")

// damage is the error of a capture that no other try can make better. finalize ends the generation all the same.
type damage struct{ cause error }

func (d *damage) Error() string { return d.cause.Error() }
func (d *damage) Unwrap() error { return d.cause }

// damaged marks the errors of OpenOffline that time does not heal. All others may pass: a lock that is held, a disk that
// is not mounted or that refuses a read, a wrong setting, a program that is too old. After those the files are as good as
// before, and the capture is tried again.
func (s *Supervisor) damaged(err error) error {
	var log *snapshot.WALCorruptError
	switch {
	case errors.As(err, &log), errors.Is(err, snapshot.ErrDBDamaged), errors.Is(err, snapshot.ErrNoDB),
		errors.Is(err, snapshot.ErrNoWAL) && s.cfg.Etcd.WALDir == "": // else the other disk may only not be mounted
		return &damage{err}
	}
	return err
}

// finalizeDamaged stores the files as they are, and as an ordinary snapshot what can be read of the database, and ends
// the generation with an entry that says so: no site restores from it by itself.
func (s *Supervisor) finalizeDamaged(ctx context.Context, head ownership.Head, ours bool, cause *damage, began time.Time) (ownership.Event, error) {
	found := snapshot.ExamineDamaged(ctx, s.dirs(), cause)
	s.log.Error().Err(cause).Str("missing", found.Missing).Msg("etcd's files are damaged; they are stored as they are")
	generation := s.generation(head)
	if err := s.salvage(ctx, generation, !ours, &found); err != nil {
		return nil, err
	}
	s.stepNow("upload damaged files")
	m, err := snapshot.UploadDamaged(ctx, s.cfg.Store, s.dirs(), generation, found, s.progress(0))
	if err != nil {
		return nil, err
	}
	s.log.Error().Str("key", m.Key).Str("salvaged", m.Salvaged).Str("missing", m.Missing).Msg(
		"damaged files stored: repair them by hand, or let a site go on from the newest snapshot with --accept-damaged")
	if !ours {
		return ownership.AppendRefused{Kind: ownership.Final, Head: head}, nil
	}
	s.stepNow("journal")
	ref := ownership.SnapshotRef{Key: m.Key, Manifest: m.ManifestKey(), SHA256: m.PlainSHA256, Revision: max(m.Revision, 1), SizeBytes: m.PlainBytes}
	return s.appendFinal(ctx, head, ref, m.Missing, began)
}

// salvage makes an ordinary snapshot of a database that can be read although the whole cannot. It is the newest state
// that anybody can go on from without a repair.
func (s *Supervisor) salvage(ctx context.Context, generation uint64, late bool, found *snapshot.Damaged) error {
	if found.Revision == 0 {
		return nil
	}
	dead, err := snapshot.OpenSalvage(ctx, s.dirs(), lockPatience)
	if err != nil {
		s.log.Warn().Err(err).Msg("database not salvaged")
		return nil
	}
	defer dead.Close()
	s.stepNow("salvage")
	m, err := s.upload(ctx, dead, snapshot.Manifest{Generation: generation, Captured: snapshot.CapturedOffline}, late)
	if err != nil {
		return err
	}
	found.Salvaged = m.ManifestKey()
	return nil
}

// afterDamage is what a site goes on from when the operator has accepted that a generation ended damaged: the newest
// snapshot that verifies.
func (s *Supervisor) afterDamage(ctx context.Context, head ownership.Head) (snapshot.Manifest, error) {
	if s.cfg.AcceptDamaged != head.Generation {
		return snapshot.Manifest{}, damagedFinal(head)
	}
	m, err := newestUpTo(ctx, s.cfg.Store, head.Generation)
	if err != nil {
		return snapshot.Manifest{}, err
	}
	s.log.Warn().Uint64("generation", m.Generation).Int64("revision", m.Revision).Str("missing", head.Damaged).Msg("going on from an older state, as told by --accept-damaged")
	return m, nil
}

func damagedFinal(head ownership.Head) error {
	return fmt.Errorf("%w: %s; the files are at %s: repair them by hand, or, to go on from the newest snapshot and lose what is missing, start with --accept-damaged %d",
		ErrDamagedFinal, head.Damaged, head.Snapshot.Key, head.Generation)
}

// upload streams the files of a dead etcd into the store. It fills in what they say of themselves.
func (s *Supervisor) upload(ctx context.Context, dead *snapshot.Offline, m snapshot.Manifest, late bool) (snapshot.Manifest, error) {
	proof := dead.Proof()
	m.Revision, m.RaftIndex, m.RaftTerm = proof.Revision, proof.LastIndex, proof.LastTerm
	m.MemberID, m.ClusterID, m.EtcdVersion = snapshot.HexID(proof.MemberID), snapshot.HexID(proof.ClusterID), proof.Version()
	m.StepsMS = s.stepsTaken()
	return snapshot.Upload(ctx, s.cfg.Store, func(_ context.Context, w io.Writer) error { _, err := dead.WriteTo(w); return err },
		m, snapshot.UploadOptions{Late: late, Progress: s.progress(proof.SizeBytes)})
}
