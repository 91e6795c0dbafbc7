package snapshot

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Why the files of a dead etcd cannot be read. OpenOffline wraps them with the path and what to do. Besides these it
// returns ErrNoWAL, *WALCorruptError, and errors of the operating system (fs.ErrPermission for what may not be read).
var (
	ErrInUse         = errors.New("in use by a running etcd")
	ErrNoDataDir     = errors.New("no data directory")
	ErrNotEtcd       = errors.New("not an etcd data directory")
	ErrNoDB          = errors.New("no backend file")
	ErrDBDamaged     = errors.New("backend file is damaged")
	ErrStorageNewer  = errors.New("storage version is newer than this program knows")
	ErrForeignMember = errors.New("backend file and write-ahead log belong to different members")
)

// DataDirs says where an etcd keeps its files.
type DataDirs struct {
	Data string // --data-dir
	WAL  string // --wal-dir; empty: Data/member/wal
}

// DB is the path of the backend file.
func (d DataDirs) DB() string { return filepath.Join(d.Data, "member", "snap", "db") }

// Log is the directory of the write-ahead log.
func (d DataDirs) Log() string {
	if d.WAL != "" {
		return d.WAL
	}
	return filepath.Join(d.Data, "member", "wal")
}

// Proof is what the files of a dead etcd say of its last state.
type Proof struct {
	ConsistentIndex   uint64 // of the last entry whose effect is in the backend file
	Term              uint64 // of that entry; 0 where etcd 3.4 wrote the file, which does not record it
	LastIndex         uint64 // of the write-ahead log
	LastTerm          uint64
	Commit            uint64 // as last persisted; acknowledged entries may lie beyond it
	Torn              bool   // the log ends in a record written in part: a crash, and nothing that was acknowledged
	Revision          int64  // etcd's revision with this backend file, as in its response headers; a delete counts too
	CompactedRevision int64
	MemberID          uint64
	ClusterID         uint64
	StorageVersion    string // "3.6.0"; empty before etcd 3.6
	ClusterVersion    string // "3.5.0"; the minor version that the cluster last agreed on, a hint at etcd's
	Members           int    // of the cluster, as the backend file knows them
	SizeBytes         int64  // of the snapshot file, trailer included
}

// Version is the best hint at the version of the etcd that wrote the files: "3.6.0" for any 3.6; empty if unknown.
func (p Proof) Version() string {
	if p.StorageVersion != "" {
		return p.StorageVersion
	}
	return p.ClusterVersion
}

// Exact reports whether the backend file holds the effect of every entry of the log, and so every acknowledged write of a
// one-member cluster. When it does not, nothing need be missing: etcd 3.4 saves its consistent index only together with
// a change of keys, and an entry need not have been acknowledged.
func (p Proof) Exact() bool {
	return p.ConsistentIndex >= p.LastIndex && (p.Term == 0 || p.Term >= p.LastTerm)
}

// ExactAfterRestart reports the same of files whose etcd was just restarted on them, answered a linearizable read, and
// then ended cleanly: that read proves that the log was applied, the clean end that it was saved. Only for files of etcd
// 3.4 does it say more than Exact, as there every restart appends entries that change no key and leave the index behind.
func (p Proof) ExactAfterRestart() bool { return p.Exact() || p.Term == 0 }

// Offline is the open files of a dead etcd. While it is open no etcd can start on them. It is not safe for concurrent use.
type Offline struct {
	back  *backend
	proof Proof
}

// OpenOffline opens the files of an etcd that must be dead, read-only. It takes a shared lock on the backend file, of
// which a living etcd holds the exclusive one, and waits for it as long as wait; then the error wraps ErrInUse. The
// caller closes what it returns. The leading part of the log that the backend covers is not read.
func OpenOffline(ctx context.Context, d DataDirs, wait time.Duration) (*Offline, error) {
	if err := checkDataDir(d); err != nil {
		return nil, err
	}
	back, err := openBackend(ctx, d.DB(), 0, wait)
	if err != nil {
		return nil, err
	}
	proof, err := prove(back, d)
	if err != nil {
		return nil, errors.Join(err, back.close())
	}
	return &Offline{back: back, proof: proof}, nil
}

// checkDataDir tells the ways apart in which a path is not the directory of an etcd that has run.
func checkDataDir(d DataDirs) error {
	st, err := os.Stat(d.Data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s does not exist; check --data-dir", ErrNoDataDir, d.Data)
	case err != nil:
		return fmt.Errorf("data directory: %w", err)
	case !st.IsDir():
		return fmt.Errorf("%w: %s is not a directory; check --data-dir", ErrNotEtcd, d.Data)
	}
	if _, err := os.Stat(filepath.Join(d.Data, "member")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s has no \"member\" directory; check --data-dir", ErrNotEtcd, d.Data)
	} else if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if _, err := os.Stat(d.DB()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s does not exist; etcd never finished its first start there, or the file was removed", ErrNoDB, d.DB())
	} else if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return nil
}

// prove reads what the backend says first: it tells how much of the log is of interest.
func prove(back *backend, d DataDirs) (Proof, error) {
	m, err := back.meta()
	if err != nil {
		return Proof{}, err
	}
	if newerStorage(m.storageVersion) {
		return Proof{}, fmt.Errorf("%w: %s has storage version %s, known is up to %s; use a newer etcd-warden",
			ErrStorageNewer, d.DB(), m.storageVersion, newestStorage)
	}
	w, err := ReadWAL(d.Log(), m.consistentIndex, nil)
	if err != nil {
		return Proof{}, err
	}
	if len(m.members) > 0 && !m.members[w.NodeID] {
		return Proof{}, fmt.Errorf("%w: %s knows no member %x, whose log is in %s; check --data-dir and --wal-dir",
			ErrForeignMember, d.DB(), w.NodeID, d.Log())
	}
	return proofOfFiles(m, w, back.size()), nil
}

func proofOfFiles(m backendMeta, w WALSummary, size int64) Proof {
	return Proof{
		ConsistentIndex: m.consistentIndex, Term: m.term,
		LastIndex: w.LastIndex, LastTerm: w.LastTerm, Commit: w.Commit, Torn: w.Torn,
		Revision: m.revision, CompactedRevision: m.compacted,
		MemberID: w.NodeID, ClusterID: w.ClusterID,
		StorageVersion: m.storageVersion, ClusterVersion: m.clusterVersion, Members: m.current,
		SizeBytes: size + sha256.Size,
	}
}

// Proof is what was found when the files were opened; they cannot have changed since.
func (o *Offline) Proof() Proof { return o.proof }

// Size is the number of bytes that WriteTo writes.
func (o *Offline) Size() int64 { return o.proof.SizeBytes }

// WriteTo writes etcd's snapshot file: the pages of the backend up to its high water mark, then their SHA-256. It may be
// called more than once and writes the same each time.
func (o *Offline) WriteTo(w io.Writer) (int64, error) {
	count := &countingWriter{w: w}
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(count, sum), 256<<10)
	err := o.back.walk(func() error {
		_, err := o.back.tx.WriteTo(out)
		return err
	})
	if err == nil {
		err = out.Flush()
	}
	if err == nil {
		_, err = count.Write(sum.Sum(nil))
	}
	if err != nil {
		return count.n, fmt.Errorf("stream %s: %w", o.back.path, err)
	}
	return count.n, nil
}

// Check walks every page of the backend that its trees reach, and every record. bbolt has no checksums, so a changed value
// is not seen; a page that is not what it should be, or keys out of order, are ErrDBDamaged.
func (o *Offline) Check(ctx context.Context) error { return o.back.checkRecords(ctx) }

// Close releases the files and the lock.
func (o *Offline) Close() error { return o.back.close() }

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
