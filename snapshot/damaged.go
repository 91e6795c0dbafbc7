package snapshot

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Damaged is what can be said of the files of a dead etcd that do not make a whole: the zero value knows nothing.
type Damaged struct {
	Problem  string `json:"problem"` // what is wrong, in one line
	Missing  string `json:"missing"` // what is known to be missing, and what is not known
	DBIndex  uint64 `json:"db_index,omitempty"`
	Revision int64  `json:"db_revision,omitempty"`       // 0: the backend file cannot be read
	LogFirst uint64 `json:"log_first_index,omitempty"`   // of the entries that were read
	LogLast  uint64 `json:"log_last_index,omitempty"`    // the last readable one
	LogWhole bool   `json:"log_whole"`                   // nothing is broken behind LogLast
	MemberID HexID  `json:"member_id,omitzero"`          // as far as the log tells
	Salvaged string `json:"salvaged_manifest,omitempty"` // key of the ordinary snapshot made of the backend file, where that can be read
}

// DamagedManifest describes an archive of such files, as they were found: a tar of the directories "member" and, where it
// lies elsewhere, "wal", compressed with zstd. It stands beside the archive and is written last. It is never restored by
// itself.
type DamagedManifest struct {
	Version    int    `json:"version"`
	Generation uint64 `json:"generation"`
	Key        string `json:"key"`
	Damaged
	Unreadable   []string  `json:"unreadable,omitempty"` // ranges of files that the disk did not give; zeros stand in their place
	PlainBytes   int64     `json:"plain_size_bytes"`     // of the tar
	PlainSHA256  string    `json:"plain_sha256"`
	StoredBytes  int64     `json:"stored_size_bytes"`
	StoredSHA256 string    `json:"stored_sha256"`
	Compression  string    `json:"compression"`
	CreatedAt    time.Time `json:"created_at"`
	TookMS       int64     `json:"took_ms"`
}

// Keys of archives: damaged/0000000001/20261201T170133.250Z.tar.zst, and the manifest beside it.
const (
	damagedPrefix         = "damaged/"
	damagedSuffix         = ".tar.zst"
	maxUnreadableReported = 1000
)

// DamagedPrefix is the prefix of the archives of a generation.
func DamagedPrefix(generation uint64) string { return damagedPrefix + keyNumber(generation) + "/" }

// ManifestKey is where the manifest is stored.
func (m DamagedManifest) ManifestKey() string {
	return strings.TrimSuffix(m.Key, damagedSuffix) + manifestSuffix
}

// ExamineDamaged reads what can be read of the files of a dead etcd, of which problem says why they cannot be captured.
// It changes nothing.
func ExamineDamaged(ctx context.Context, d DataDirs, problem error) Damaged {
	found := Damaged{Problem: problem.Error()}
	dbProblem := found.readDB(ctx, d)
	w, logProblem := ReadWAL(d.Log(), found.DBIndex, nil)
	found.LogFirst, found.LogLast, found.LogWhole, found.MemberID = w.FirstIndex, w.LastIndex, logProblem == nil, HexID(w.NodeID)
	if dbProblem != nil { // all of the log matters then
		if all, err := ReadWAL(d.Log(), 0, nil); err == nil {
			found.LogFirst = all.FirstIndex
		}
	}
	found.Missing = found.describe(dbProblem, logProblem)
	return found
}

func (f *Damaged) readDB(ctx context.Context, d DataDirs) error {
	back, err := openBackend(ctx, d.DB(), 0, lockRetry)
	if err != nil {
		return err
	}
	m, err := back.meta()
	if err == nil {
		err = back.checkRecords(ctx)
	}
	if err = errors.Join(err, back.close()); err == nil {
		f.DBIndex, f.Revision = m.consistentIndex, m.revision
	}
	return err
}

func (f *Damaged) describe(dbProblem, logProblem error) string {
	var text strings.Builder
	if dbProblem == nil && logProblem == nil {
		text.WriteString(f.Problem + "; ")
	}
	if dbProblem == nil {
		fmt.Fprintf(&text, "the database is readable and holds everything up to log entry %d (revision %d)", f.DBIndex, f.Revision)
	} else {
		fmt.Fprintf(&text, "nothing can be read from the database (%v)", dbProblem)
	}
	switch {
	case logProblem != nil && f.LogLast == 0:
		fmt.Fprintf(&text, "; nothing can be read from the log (%v): how much was acknowledged beyond that is not known", logProblem)
	case logProblem != nil:
		fmt.Fprintf(&text, "; the log is readable up to entry %d, then it is broken (%v): how much was acknowledged behind it is not known", f.LogLast, logProblem)
	default:
		fmt.Fprintf(&text, "; the log is whole and ends with entry %d", f.LogLast)
	}
	switch {
	case dbProblem != nil && f.LogLast > 0:
		fmt.Fprintf(&text, "; of the log, entries %d to %d are there, what came before only in older snapshots", f.LogFirst, f.LogLast)
	case dbProblem == nil && f.LogLast > f.DBIndex:
		fmt.Fprintf(&text, "; entries %d to %d are in the log only", f.DBIndex+1, f.LogLast)
	}
	return text.String()
}

// OpenSalvage opens the backend file alone, of an etcd whose log is broken or whose whole cannot be started, and walks
// through all of it. Its proof covers the log up to the backend's own index and nothing more. The errors are those of
// OpenOffline.
func OpenSalvage(ctx context.Context, d DataDirs, wait time.Duration) (*Offline, error) {
	back, err := openBackend(ctx, d.DB(), 0, wait)
	if err != nil {
		return nil, err
	}
	m, err := back.meta()
	if err == nil {
		err = back.checkRecords(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, back.close())
	}
	w, _ := ReadWAL(d.Log(), m.consistentIndex, nil) // the ids, where they can be read
	return &Offline{back: back, proof: proofOfFiles(m, WALSummary{NodeID: w.NodeID, ClusterID: w.ClusterID, LastIndex: m.consistentIndex, LastTerm: m.term}, back.size())}, nil
}

// UploadDamaged streams the files of a dead etcd into the store as they are, in constant memory and without a copy. What
// the disk does not give is replaced by zeros and reported. The archive is committed by its manifest.
func UploadDamaged(ctx context.Context, store Store, d DataDirs, generation uint64, found Damaged, progress func(plain, stored int64)) (DamagedManifest, error) {
	began := time.Now()
	m := DamagedManifest{Version: manifestVersion, Generation: generation, Damaged: found, Compression: CompressionZstd, CreatedAt: began.UTC().Truncate(time.Millisecond)}
	m.Key = DamagedPrefix(generation) + began.UTC().Format(keyTimeLayout) + damagedSuffix
	pipe := newUploadPipe(progress)
	archive := archiver{dirs: d}
	object, err := pipe.run(ctx, store, func(_ context.Context, w io.Writer) error { return archive.write(w) }, m.Key)
	if err != nil {
		return m, fmt.Errorf("upload damaged files: %w", err)
	}
	m.Unreadable = archive.unreadable
	m.PlainBytes, m.PlainSHA256 = pipe.plain.sum()
	m.StoredBytes, m.StoredSHA256 = pipe.stored.sum()
	if err := verifyStored(ctx, store, Manifest{Key: m.Key, StoredBytes: m.StoredBytes}, object); err != nil {
		return m, fmt.Errorf("upload damaged files: %w", err)
	}
	m.TookMS = time.Since(began).Milliseconds()
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return m, fmt.Errorf("encode manifest of damaged files: %w", err)
	}
	data = append(data, '\n')
	if _, err := store.Put(ctx, m.ManifestKey(), bytes.NewReader(data), PutOptions{IfAbsent: true, ContentType: "application/json", Size: int64(len(data))}); err != nil {
		return m, fmt.Errorf("upload manifest of damaged files: %w", err)
	}
	return m, nil
}

// archiver writes a tar of a data directory whose disk may have bad places.
type archiver struct {
	dirs       DataDirs
	unreadable []string
}

func (a *archiver) write(w io.Writer) error {
	out := tar.NewWriter(w)
	err := a.tree(out, filepath.Join(a.dirs.Data, "member"), "member")
	if err == nil && a.dirs.WAL != "" {
		err = a.tree(out, a.dirs.WAL, "wal")
	}
	return errors.Join(err, out.Close())
}

func (a *archiver) tree(out *tar.Writer, root, name string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			a.lost("%s: %v", path, err)
			return nil
		}
		st, err := entry.Info()
		if err != nil || !st.Mode().IsRegular() {
			return nil // a directory is implied, a socket is nothing
		}
		below, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(filepath.Join(name, below)), Mode: int64(st.Mode().Perm()), Size: st.Size(), ModTime: st.ModTime(), Format: tar.FormatPAX}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		return a.file(out, path, st.Size())
	})
}

// file copies exactly size bytes.
func (a *archiver) file(out io.Writer, path string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		a.lost("%s: %v", path, err)
	} else {
		defer f.Close() // read only: nothing can be lost
	}
	block := make([]byte, 64<<10)
	for off := int64(0); off < size; {
		b := block[:min(int64(len(block)), size-off)]
		clear(b)
		if f != nil {
			if _, err := f.ReadAt(b, off); err != nil {
				clear(b)
				a.lost("%s bytes %d to %d: %v", path, off, off+int64(len(b)), err)
			}
		}
		if _, err := out.Write(b); err != nil {
			return err
		}
		off += int64(len(b))
	}
	return nil
}

func (a *archiver) lost(format string, args ...any) {
	if len(a.unreadable) < maxUnreadableReported {
		a.unreadable = append(a.unreadable, fmt.Sprintf(format, args...))
	}
}
