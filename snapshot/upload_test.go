package snapshot_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

func upload(t *testing.T, store snapshot.Store, m snapshot.Manifest, data []byte) snapshot.Manifest {
	t.Helper()
	m, err := snapshot.Upload(t.Context(), store, snapshot.ReaderSource(bytes.NewReader(data)), m, snapshot.UploadOptions{})
	if err != nil {
		t.Fatalf("upload: %v", err)
	}
	return m
}

func put(t *testing.T, store snapshot.Store, key, text string) {
	t.Helper()
	if _, err := store.Put(t.Context(), key, strings.NewReader(text), snapshot.PutOptions{}); err != nil {
		t.Fatalf("put: %v", err)
	}
}

func wantIs(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

func wantDamage(t *testing.T, err error, want snapshot.Damage) {
	t.Helper()
	var corrupt *snapshot.CorruptError
	if !errors.As(err, &corrupt) || corrupt.Damage != want {
		t.Errorf("got error %v, want damage %q", err, want)
	}
	if snapshot.Retryable(err) {
		t.Errorf("%v is called retryable", err)
	}
}

// Anyone can restore by hand: what is stored is one zstd stream of the plain bytes, whose hashes the manifest tells.
func TestUploadIsPlainZstdWithATrueManifest(t *testing.T) {
	store := storetest.NewMemory()
	data := append(bytes.Repeat([]byte("etcd "), 1<<20), storetest.Bytes(1<<20)...)
	var plain, stored int64
	m := snapshot.Manifest{Generation: 3, Revision: 42, Final: true, Captured: snapshot.CapturedOffline, StepsMS: map[string]int64{"kill": 12}}
	m, err := snapshot.Upload(t.Context(), store, snapshot.ReaderSource(bytes.NewReader(data)), m, snapshot.UploadOptions{
		Progress: func(p, s int64) { plain, stored = p, s },
	})
	if err != nil {
		t.Fatal(err)
	}
	body, object, err := store.Get(t.Context(), m.Key, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	if got, err := decoder.DecodeAll(raw, nil); err != nil || !bytes.Equal(got, data) {
		t.Errorf("decompresses to %d bytes, error %v", len(got), err)
	}
	if m.PlainBytes != int64(len(data)) || m.PlainSHA256 != fmt.Sprintf("%x", sha256.Sum256(data)) {
		t.Errorf("plain: %d %s", m.PlainBytes, m.PlainSHA256)
	}
	if m.StoredBytes != object.SizeBytes || m.StoredSHA256 != fmt.Sprintf("%x", sha256.Sum256(raw)) {
		t.Errorf("stored: %d %s, the object has %d", m.StoredBytes, m.StoredSHA256, object.SizeBytes)
	}
	if plain != m.PlainBytes || stored != m.StoredBytes {
		t.Errorf("last progress is %d, %d; want %d, %d", plain, stored, m.PlainBytes, m.StoredBytes)
	}
	if _, ok := m.StepsMS["upload"]; !ok || m.StepsMS["kill"] != 12 {
		t.Errorf("steps are %v", m.StepsMS)
	}
	read, err := snapshot.LoadManifest(t.Context(), store, m.ManifestKey())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(m, read); diff != "" {
		t.Errorf("stored manifest (-returned +stored):\n%s", diff)
	}
}

// Lost if it fails: a snapshot that looks whole and is not.
func TestFailingSourceLeavesNothing(t *testing.T) {
	broken := errors.New("the disk broke")
	forEachStore(t, func(t *testing.T, store snapshot.Store) {
		for _, size := range []int{0, 1000, 20 << 20} {
			src := snapshot.ReaderSource(io.MultiReader(bytes.NewReader(storetest.Bytes(size)), iotest.ErrReader(broken)))
			_, err := snapshot.Upload(t.Context(), store, src, snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, snapshot.UploadOptions{})
			wantIs(t, err, broken)
			if snapshot.Retryable(err) || !errors.As(err, new(*snapshot.SourceError)) {
				t.Errorf("%v is retryable, or no SourceError", err)
			}
		}
		_, err := snapshot.Upload(t.Context(), store, snapshot.ReaderSource(strings.NewReader("")),
			snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, snapshot.UploadOptions{})
		if !errors.As(err, new(*snapshot.SourceError)) {
			t.Errorf("empty source: got error %v, want a SourceError", err)
		}
		for object, err := range store.List(t.Context(), "") {
			t.Errorf("left behind: %s, error %v", object.Key, err)
		}
	})
}

func forEachStore(t *testing.T, f func(t *testing.T, store snapshot.Store)) {
	t.Run("memory", func(t *testing.T) { f(t, storetest.NewMemory()) })
	t.Run("directory", func(t *testing.T) { f(t, openStore(t, "file://"+t.TempDir(), snapshot.OpenOptions{})) })
	t.Run("s3", func(t *testing.T) {
		server := httptest.NewServer(storetest.NewS3Server("test"))
		t.Cleanup(server.Close)
		f(t, openStore(t, storetest.S3URL(server.URL, "test", "p"), testOptions()))
	})
}

// The manifest is the commit: as long as it is not there, there is no snapshot.
func TestManifestIsWrittenLastAndOnlyOnce(t *testing.T) {
	manifest := snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}
	for _, tt := range []struct {
		name  string
		fault storetest.MemoryFault
	}{
		{"snapshot refused", failing("put", ".db.zst", snapshot.ErrUnavailable)},
		{"read back fails", failing("stat", ".db.zst", snapshot.ErrUnavailable)},
		{"manifest refused", failing("put", ".json", snapshot.ErrUnavailable)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := storetest.NewMemory()
			store.Inject(tt.fault)
			_, err := snapshot.Upload(t.Context(), store, snapshot.ReaderSource(strings.NewReader("data")), manifest, snapshot.UploadOptions{})
			wantIs(t, err, snapshot.ErrUnavailable)
			if !snapshot.Retryable(err) {
				t.Errorf("%v is not called retryable", err)
			}
			store.Inject(nil)
			l, err := snapshot.ListManifests(t.Context(), store, 1)
			if err != nil || len(l.Manifests) != 0 {
				t.Errorf("listed: %v, error %v; want nothing", l.Manifests, err)
			}
			upload(t, store, manifest, []byte("data")) // the next attempt is not in the way of the first
		})
	}
}

func failing(op, suffix string, err error) storetest.MemoryFault {
	return func(o, key string) (before, after error) {
		if o == op && strings.HasSuffix(key, suffix) {
			return err, nil
		}
		return nil, nil
	}
}

// "Uploaded" is said by the store, not by the fact that everything was sent.
func TestShortObjectIsNoUpload(t *testing.T) {
	store := storetest.NewMemory()
	store.Inject(func(op, key string) (error, error) {
		if op == "stat" {
			store.Corrupt(key, func(b []byte) []byte { return b[:len(b)-1] })
		}
		return nil, nil
	})
	_, err := snapshot.Upload(t.Context(), store, snapshot.ReaderSource(strings.NewReader("data")),
		snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, snapshot.UploadOptions{})
	wantIs(t, err, snapshot.ErrUnavailable)
	for _, key := range store.Keys() {
		if strings.HasSuffix(key, ".json") {
			t.Errorf("manifest %s was written", key)
		}
	}
}

func TestLateUploadStaysOutOfTheGeneration(t *testing.T) {
	store := storetest.NewMemory()
	m, err := snapshot.Upload(t.Context(), store, snapshot.ReaderSource(strings.NewReader("data")),
		snapshot.Manifest{Generation: 4, Revision: 1, Final: true, Captured: snapshot.CapturedOffline}, snapshot.UploadOptions{Late: true})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(m.Key, snapshot.LatePrefix(4)) {
		t.Errorf("key is %s", m.Key)
	}
	if l, err := snapshot.ListLate(t.Context(), store, 4); err != nil || len(l.Manifests) != 1 {
		t.Errorf("late: %v, error %v", l.Manifests, err)
	}
	_, err = snapshot.NewestManifest(t.Context(), store, 4)
	wantIs(t, err, snapshot.ErrNotFound)
}

// The source is waited for: whatever it reads from may be closed after the return.
func TestUploadReturnsAfterItsSource(t *testing.T) {
	store := storetest.NewMemory()
	store.Inject(failing("put", "", snapshot.ErrDenied))
	ended := false
	src := func(_ context.Context, w io.Writer) error {
		defer func() { ended = true }()
		for {
			if _, err := w.Write(storetest.Bytes(1 << 16)); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	_, err := snapshot.Upload(ctx, store, src, snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, snapshot.UploadOptions{
		Progress: func(plain, _ int64) {
			if plain > 1<<20 {
				cancel(stop)
			}
		},
	})
	wantIs(t, err, stop)
	if !ended {
		t.Error("Upload returned before its source")
	}
}

// What a real line does in the middle: reset twice, then a lost answer to the completion. The upload is not started over and the result is exact.
func TestUploadSurvivesABadLine(t *testing.T) {
	server := storetest.NewS3Server("test")
	proxy := startProxy(t, server)
	isPart := func(r *http.Request) bool { return r.URL.Query().Has("partNumber") }
	proxy.Inject(storetest.Fault{Mode: storetest.Reset, Match: isPart, Times: 2})
	proxy.Inject(storetest.Fault{Mode: storetest.Refuse503, Match: isPart, Times: 1})
	proxy.Inject(storetest.Fault{Mode: storetest.LoseAnswer, Match: isComplete, Times: 1})
	store := openStore(t, storetest.S3URL(proxy.URL(), "test", "p"), testOptions())
	data := storetest.Bytes(20 << 20)
	m := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 1, Captured: snapshot.CapturedLive}, data)
	if err := snapshot.Verify(t.Context(), store, m, nil); err != nil {
		t.Error(err)
	}
	if n := countRequests(server, "POST p/"+m.Key+" uploads"); n != 1 {
		t.Errorf("%d uploads were started, want 1", n)
	}
	if proxy.Hits(storetest.Reset) != 2 || proxy.Hits(storetest.LoseAnswer) != 1 {
		t.Error("the faults did not happen")
	}
}

func isComplete(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Query().Has("uploadId")
}

func startProxy(t *testing.T, server *storetest.S3Server) *storetest.FaultProxy {
	t.Helper()
	backend := httptest.NewServer(server)
	proxy, err := storetest.StartFaultProxy(backend.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = proxy.Close()
		backend.Close()
	})
	return proxy
}

func countRequests(server *storetest.S3Server, want string) int {
	n := 0
	for _, got := range server.Requests() {
		if got == want {
			n++
		}
	}
	return n
}
