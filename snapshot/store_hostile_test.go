package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// hostile is a bucket that somebody else writes to as well.
func hostile(t *testing.T) (*storetest.S3Server, snapshot.Store) {
	server := storetest.NewS3Server("test")
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	return server, openStore(t, storetest.S3URL(web.URL, "test", "p"), testOptions())
}

// allocated is what f allocated in all, a bound of what it can have held.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Keys that are paths elsewhere, or names of ours in disguise, are neither followed nor deleted nor taken for snapshots.
func TestHostileKeysAreLeftAlone(t *testing.T) {
	server, store := hostile(t)
	keys := fill(t, store, 1, 3)
	tricks := []string{
		"generations/0000000001/../../../etc/passwd", "generations/0000000001/..", "generations//0000000001/x", "generations/0000000001/./x.json",
		"generations/0000000001/.json", "generations/0000000001/-full.json", "generations/1/0000000000000001-20261201T000000.000Z-full.json",
		"generations/0000000001/0000000000000001-20261201T000000.000Z-full.JSON", "generations/0000000001/000000000000000G-20261201T000000.000Z-full.json",
		"generations/0000000001/0000000000000001-20261301T000000.000Z-full.json", "generations/0000000001/0000000000000001-20261201T000000.000Z-full.json/",
		"generations/0000000001/ 000000000000001-20261201T000000.000Z-full.json", "generations/0000000001/\x01", "generations/0000000001/a\\b",
		"generations/99999999999999999999999/x", "generations/0000000001/" + strings.Repeat("x", 300), "journal/0000000001.json.bak", "journal/../x",
	}
	for _, key := range tricks {
		server.PutObject("p/"+key, []byte("{}"))
	}
	list, err := snapshot.ListManifests(t.Context(), store, 1)
	if err != nil || len(list.Manifests) != 3 || len(list.Damaged) != 0 {
		t.Errorf("listed %d, damaged %v, error %v; want our 3 alone", len(list.Manifests), list.Damaged, err)
	}
	if m, err := snapshot.NewestManifest(t.Context(), store, 1); err != nil || m.Key != keys[2] {
		t.Errorf("newest is %s, error %v; want %s", m.Key, err, keys[2])
	}
	if got, err := snapshot.Generations(t.Context(), store); err != nil || len(got) != 1 {
		t.Errorf("generations %v, error %v; want 1", got, err)
	}
	res, err := snapshot.Prune(t.Context(), store, 1, snapshot.Retention{Last: 1}, time.Now().Add(48*time.Hour), false)
	if err != nil || res.Deleted != 4 {
		t.Errorf("prune deleted %d, error %v; want 2 snapshots and their manifests", res.Deleted, err)
	}
	for _, key := range tricks {
		if _, err := store.Stat(t.Context(), key); err == nil {
			continue // a key that is none of a snapshot's, and still there
		} else if !errors.Is(err, snapshot.ErrInvalid) {
			t.Errorf("%q: %v; want it there, or refused", key, err)
		}
	}
}

// Ten thousand strangers' objects cost pages of listing, nothing else.
func TestForeignObjectsAreCountedNotRead(t *testing.T) {
	server, store := hostile(t)
	fill(t, store, 1, 2)
	for i := range 10_000 {
		server.PutObject(fmt.Sprintf("p/generations/0000000001/foreign-%05d", i), []byte("x"))
	}
	before := len(server.Requests())
	list, err := snapshot.ListManifests(t.Context(), store, 1)
	if err != nil || len(list.Manifests) != 2 || list.Foreign != 10_000 {
		t.Errorf("listed %d, foreign %d, error %v", len(list.Manifests), list.Foreign, err)
	}
	if n := len(server.Requests()) - before; n > 20 {
		t.Errorf("%d requests for 10,004 objects", n)
	}
}

// endless is a store whose objects never end.
type endless struct {
	*storetest.Memory
	read int64
}

func (e *endless) Get(_ context.Context, key string, _ int64) (io.ReadCloser, snapshot.Object, error) {
	return io.NopCloser(readerFunc(func(b []byte) (int, error) {
		for i := range b {
			b[i] = ' '
		}
		e.read += int64(len(b))
		return len(b), nil
	})), snapshot.Object{Key: key, SizeBytes: 1 << 30}, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// A manifest of a gigabyte is refused after one megabyte.
func TestHugeManifestIsRefusedEarly(t *testing.T) {
	store := &endless{Memory: storetest.NewMemory()}
	key := snapshot.ManifestKey(snapshot.SnapshotKey(1, 1, time.Now()))
	var err error
	used := allocated(func() { _, err = snapshot.LoadManifest(t.Context(), store, key) })
	var corrupt *snapshot.CorruptError
	if !errors.As(err, &corrupt) || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got error %v, want one that says how large it may be", err)
	}
	if store.read > 4<<20 || used > 32<<20 {
		t.Errorf("%d bytes were read and %d allocated", store.read, used)
	}
}

// bomb is a small object that decompresses to many bytes.
func bomb(t *testing.T, plain int64, window int) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(false))
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for left := plain; left > 0; left -= int64(len(zeros)) {
		if _, err := w.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// counting counts, and keeps nothing.
type counting struct{ n int64 }

func (c *counting) Write(b []byte) (int, error) { c.n += int64(len(b)); return len(b), nil }

// What decompresses to more than its manifest promises, or wants a window of hundreds of megabytes, is stopped: by a named error, with memory as always.
func TestCompressionBombIsStopped(t *testing.T) {
	bombs := map[string][]byte{
		"more than promised": bomb(t, 256<<20, 1<<20),
		"giant window":       bomb(t, 200<<20, 128<<20),
		"not a frame":        []byte("\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
		"many empty frames":  bytes.Repeat([]byte("\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00"), 200_000),
	}
	for name, content := range bombs {
		t.Run(name, func(t *testing.T) {
			store := storetest.NewMemory()
			m, err := snapshot.Upload(t.Context(), store, snapshot.ReaderSource(strings.NewReader("innocent")),
				snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, snapshot.UploadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			store.Corrupt(m.Key, func([]byte) []byte { return content })
			m.StoredBytes, m.PlainBytes = int64(len(content)), 64<<20
			out := &counting{}
			used := allocated(func() { err = snapshot.Download(t.Context(), store, m, out, nil) })
			var corrupt *snapshot.CorruptError
			if !errors.As(err, &corrupt) || snapshot.Retryable(err) {
				t.Errorf("got error %v, want damage", err)
			}
			if out.n > m.PlainBytes || used > 128<<20 {
				t.Errorf("%d bytes written, %d allocated", out.n, used)
			}
		})
	}
}
