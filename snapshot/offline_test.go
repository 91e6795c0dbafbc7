package snapshot

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A write that etcd acknowledged before it ended at TERM must be in the file that replaces it.
func TestOfflineIsExactAfterTERMUnderLoad(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	e := startRealEtcd(t, data)
	acked := e.writeUnderLoad(t, 500, func() { e.end(t, syscall.SIGTERM) })
	file, proof := captureFile(t, data)
	if !proof.Exact() {
		t.Errorf("not exact after TERM: %+v", proof)
	}
	if proof.Members != 1 || proof.Version() != "3.6.0" || proof.MemberID == 0 || proof.ClusterID == 0 {
		t.Errorf("got %+v, want one member of a known cluster with storage version 3.6.0", proof)
	}

	target := filepath.Join(t.TempDir(), "restored")
	res, err := Restore(t.Context(), restoreConfig(file, target))
	if err != nil {
		t.Fatal(err)
	}
	if res.Revision != proof.Revision {
		t.Errorf("restored revision %d, captured %d", res.Revision, proof.Revision)
	}
	if missing := startRealEtcd(t, target).missingFrom(t, acked); len(missing) > 0 {
		t.Errorf("%d of %d acknowledged writes are missing, e.g. %s", len(missing), len(acked), missing[0])
	}
}

// After KILL the backend lags behind, which must be seen: a capture that took it for whole would lose acknowledged writes.
func TestOfflineSeesThatTheBackendLagsAfterKILL(t *testing.T) {
	for range 5 { // once in ten times etcd has just saved everything
		data := filepath.Join(t.TempDir(), "data")
		e := startRealEtcd(t, data)
		acked := e.writeUnderLoad(t, 500, func() { e.end(t, syscall.SIGKILL) })
		file, proof := captureFile(t, data)
		if proof.LastIndex < uint64(len(acked)) {
			t.Fatalf("the log ends at entry %d but %d writes were acknowledged", proof.LastIndex, len(acked))
		}
		if proof.Exact() {
			continue
		}
		t.Logf("behind by %d entries, torn %v", proof.LastIndex-proof.ConsistentIndex, proof.Torn)
		target := filepath.Join(t.TempDir(), "restored")
		if _, err := Restore(t.Context(), restoreConfig(file, target)); err != nil {
			t.Fatal(err)
		}
		t.Logf("a restore of it would miss %d of %d writes", len(startRealEtcd(t, target).missingFrom(t, acked)), len(acked))
		return
	}
	t.Error("5 of 5 kills under load left an exact backend: the proof cannot be right")
}

// While etcd lives nothing may read its files as if it were dead.
func TestOfflineRefusesALivingEtcd(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	e := startRealEtcd(t, data)
	if _, err := OpenOffline(t.Context(), DataDirs{Data: data}, 10*time.Millisecond); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OpenOffline(ctx, DataDirs{Data: data}, time.Hour); !errors.Is(err, ErrInUse) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want ErrInUse and context.Canceled", err)
	}
	if _, err := Restore(t.Context(), func() RestoreConfig { c := restoreConfig("unused", data); c.ForceRename = true; return c }()); !errors.Is(err, ErrInUse) {
		t.Errorf("restore over a living etcd: got %v, want ErrInUse", err)
	}
	e.end(t, syscall.SIGTERM)
	o, err := OpenOffline(t.Context(), DataDirs{Data: data}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	// And while it is open no etcd can take the lock.
	f, err := os.OpenFile(DataDirs{Data: data}.DB(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("got %v for the exclusive lock, want EWOULDBLOCK", err)
	}
}

// A delete is a revision too, also after compaction has removed its record: a manifest with a lower one would let an
// older snapshot pass for the newest.
func TestOfflineRevisionCountsACompactedDelete(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	e := startRealEtcd(t, data)
	c := e.client(t)
	for range 3 {
		if _, err := c.Put(t.Context(), "k", "v"); err != nil {
			t.Fatal(err)
		}
	}
	del, err := c.Delete(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), del.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	e.end(t, syscall.SIGTERM)
	file, proof := captureFile(t, data)
	if proof.Revision != del.Header.Revision || proof.CompactedRevision != del.Header.Revision {
		t.Errorf("got revision %d, compacted %d; want %d for both", proof.Revision, proof.CompactedRevision, del.Header.Revision)
	}
	st, err := CheckSnapshotFile(t.Context(), file)
	if err != nil || st.Revision != proof.Revision {
		t.Errorf("got revision %d of the file, error %v; want %d", st.Revision, err, proof.Revision)
	}
}

// etcd's own tools must take the file as one of theirs, and see in it what we see.
func TestSnapshotFileIsWhatEtcdutlSees(t *testing.T) {
	data, revision := filledDataDir(t)
	file, proof := captureFile(t, data)
	if proof.Revision != revision {
		t.Errorf("got revision %d, want %d, that of the delete", proof.Revision, revision)
	}
	out, err := exec.Command(realTool(t, "etcdutl"), "snapshot", "status", file, "-w", "json").Output()
	if err != nil {
		t.Fatalf("etcdutl snapshot status: %v", err)
	}
	var want struct {
		Hash                uint32
		Revision, TotalSize int64
		TotalKey            int
		Version             string
	}
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatal(err)
	}
	got, err := CheckSnapshotFile(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	wanted := FileStatus{Hash: want.Hash, Revision: want.Revision, LastKeyRevision: want.Revision, CompactedRevision: got.CompactedRevision,
		TotalKeys: want.TotalKey, SizeBytes: want.TotalSize + 32, StorageVersion: want.Version}
	if got != wanted || got.TotalKeys != 49 {
		t.Errorf("got %+v, etcdutl says %s", got, out)
	}
	restored := filepath.Join(t.TempDir(), "by-etcdutl")
	if out, err := exec.Command(realTool(t, "etcdutl"), "snapshot", "restore", file, "--data-dir", restored).CombinedOutput(); err != nil {
		t.Errorf("etcdutl snapshot restore: %v\n%s", err, out)
	}
}

// Each way in which a directory is not that of a dead, sound etcd is told apart from the others.
func TestOpenOfflineTellsWhatIsWrong(t *testing.T) {
	sound, _ := filledDataDir(t)
	db := func(d string) string { return DataDirs{Data: d}.DB() }
	edit := func(f func(tx *bolt.Tx) error) func(*testing.T, string) DataDirs {
		return func(t *testing.T, d string) DataDirs {
			t.Helper()
			b, err := bolt.Open(db(d), 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(b.Update(f), b.Close()); err != nil {
				t.Fatal(err)
			}
			return DataDirs{Data: d}
		}
	}
	damage := func(off int64, b []byte) func(*testing.T, string) DataDirs {
		return func(t *testing.T, d string) DataDirs {
			t.Helper()
			overwrite(t, db(d), off, b)
			return DataDirs{Data: d}
		}
	}
	remove := func(path string) func(*testing.T, string) DataDirs {
		return func(t *testing.T, d string) DataDirs {
			t.Helper()
			if err := os.RemoveAll(filepath.Join(d, path)); err != nil {
				t.Fatal(err)
			}
			return DataDirs{Data: d}
		}
	}
	cases := []struct {
		name string
		make func(*testing.T, string) DataDirs
		want error
	}{
		{"no directory", func(_ *testing.T, d string) DataDirs { return DataDirs{Data: d + "-absent"} }, ErrNoDataDir},
		{"a file", func(_ *testing.T, d string) DataDirs { return DataDirs{Data: db(d)} }, ErrNotEtcd},
		{"another program's", remove("member"), ErrNotEtcd},
		{"no backend", remove("member/snap/db"), ErrNoDB},
		{"no log", remove("member/wal"), ErrNoWAL},
		{"log elsewhere", func(_ *testing.T, d string) DataDirs { return DataDirs{Data: d, WAL: filepath.Join(d, "wal")} }, ErrNoWAL},
		{"empty backend", func(t *testing.T, d string) DataDirs { t.Helper(); truncate(t, db(d), 0); return DataDirs{Data: d} }, ErrDBDamaged},
		{"backend cut short", func(t *testing.T, d string) DataDirs {
			t.Helper()
			truncate(t, db(d), 12<<10)
			return DataDirs{Data: d}
		}, ErrDBDamaged},
		{"both meta pages damaged", damage(0, make([]byte, 8<<10)), ErrDBDamaged},
		{"all data pages damaged", damage(8<<10, make([]byte, 64<<10)), ErrDBDamaged},
		{"bucket missing", edit(func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("key")) }), ErrDBDamaged},
		{"newer storage", edit(func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("meta")).Put([]byte("storageVersion"), []byte("3.8.0"))
		}), ErrStorageNewer},
		{"foreign log", edit(func(tx *bolt.Tx) error {
			if err := tx.DeleteBucket([]byte("members")); err != nil {
				return err
			}
			m, err := tx.CreateBucket([]byte("members"))
			if err != nil {
				return err
			}
			return m.Put([]byte("123abc"), []byte("{}"))
		}), ErrForeignMember},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(d, os.DirFS(sound)); err != nil {
				t.Fatal(err)
			}
			o, err := OpenOffline(t.Context(), c.make(t, d), time.Second)
			if err == nil {
				o.Close()
			}
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// A page that points nowhere makes bbolt panic or read outside its mapping; the warden must live on.
func TestBackendDamageIsAnErrorNotACrash(t *testing.T) {
	sound, _ := filledDataDir(t)
	good, err := os.ReadFile(DataDirs{Data: sound}.DB())
	if err != nil {
		t.Fatal(err)
	}
	pageSize := os.Getpagesize()
	far := binary.NativeEndian.AppendUint64(nil, 1<<40)
	damaged := 0
	for page := 2; page*pageSize < len(good) && page < 40; page++ {
		path := filepath.Join(t.TempDir(), "db")
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
		// Flags, count and the first elements of the page.
		for off := 8; off < 80; off += 8 {
			overwrite(t, path, int64(page*pageSize+off), far)
		}
		b, err := openBackend(t.Context(), path, 0, time.Second)
		if err == nil {
			_, err = b.status(t.Context())
			if err := b.close(); err != nil {
				t.Errorf("page %d: close: %v", page, err)
			}
		}
		switch {
		case errors.Is(err, ErrDBDamaged):
			damaged++
		case err != nil:
			t.Errorf("page %d: got %v, want ErrDBDamaged", page, err)
		}
	}
	if damaged == 0 {
		t.Error("no page was in use: the test damages nothing")
	}
}

func TestOpenOfflineSaysThatItMayNotRead(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	d := t.TempDir()
	if err := os.MkdirAll(filepath.Join(d, "member", "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(d, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(d, 0o700) })
	if _, err := OpenOffline(t.Context(), DataDirs{Data: d}, 0); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, want fs.ErrPermission", err)
	}
}

// An error of the receiver ends the stream and is the one returned: an upload that fails must not look like a capture that failed.
func TestOfflineWriteToReturnsTheWritersError(t *testing.T) {
	data, _ := filledDataDir(t)
	o, err := OpenOffline(t.Context(), DataDirs{Data: data}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	full := errors.New("store is full")
	if _, err := o.WriteTo(failingWriter{full}); !errors.Is(err, full) {
		t.Errorf("got %v, want the writer's error", err)
	}
	if n, err := o.WriteTo(io.Discard); err != nil || n != o.Size() {
		t.Errorf("second try: got %d bytes, error %v; want %d", n, err, o.Size())
	}
}

func TestExactIsAboutIndexAndTerm(t *testing.T) {
	cases := []struct {
		name                string
		p                   Proof
		exact, afterRestart bool
	}{
		{"covers the log", Proof{ConsistentIndex: 9, Term: 3, LastIndex: 9, LastTerm: 3}, true, true},
		{"behind", Proof{ConsistentIndex: 8, Term: 3, LastIndex: 9, LastTerm: 3}, false, false},
		{"another leader's entry", Proof{ConsistentIndex: 9, Term: 2, LastIndex: 9, LastTerm: 3}, false, false},
		{"3.4, covers the log", Proof{ConsistentIndex: 9, LastIndex: 9, LastTerm: 3}, true, true},
		{"3.4, behind", Proof{ConsistentIndex: 8, LastIndex: 9, LastTerm: 3}, false, true},
	}
	for _, c := range cases {
		if got := c.p.Exact(); got != c.exact {
			t.Errorf("%s: Exact is %v, want %v", c.name, got, c.exact)
		}
		if got := c.p.ExactAfterRestart(); got != c.afterRestart {
			t.Errorf("%s: ExactAfterRestart is %v, want %v", c.name, got, c.afterRestart)
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func overwrite(t *testing.T, path string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(fmt.Errorf("damage %s: %w", path, err))
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	if err := os.Truncate(path, size); err != nil {
		t.Fatal(err)
	}
}
