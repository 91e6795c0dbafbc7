package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/google/go-cmp/cmp"
)

// large is above the part size of object stores, so that it is stored in three parts.
const large = 17 << 20

// Run checks everything that the documentation of snapshot.Store promises. Open returns an empty store of its own for each test.
func Run(t *testing.T, open func(t *testing.T) snapshot.Store) {
	tests := []struct {
		name string
		test func(t *testing.T, s snapshot.Store)
	}{
		{"PutIsReadBackWhole", testRoundTrip},
		{"PutOverwritesUnlessIfAbsent", testOverwrite},
		{"IfAbsentLeavesExistingAlone", testIfAbsent},
		{"IfAbsentHasOneWinner", testIfAbsentRace},
		{"FailingSourceStoresNothing", testFailingSource},
		{"WrongSizeStoresNothing", testWrongSize},
		{"CancelEndsPutWhileSourceHangs", testHangingSource},
		{"EndedContextEndsEveryCall", testEndedContext},
		{"GetReadsFromOffset", testOffsets},
		{"AbsentIsNotFoundAndDeleteForgives", testAbsent},
		{"ETagChangesWithContent", testETag},
		{"ListIsSortedByPrefix", testList},
		{"ListHasNoLimit", testLongList},
		{"OddKeysAreKept", testOddKeys},
		{"BadKeysAreRefused", testBadKeys},
		{"SweepLeavesObjectsAlone", testSweep},
		{"ProbeLeavesNothing", testProbe},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, open(t)) })
	}
}

// Bytes returns n bytes that do not compress, always the same for the same n.
func Bytes(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(data)
	return data
}

// onlyReader hides everything but Read: the length and the rest of a bytes.Reader.
type onlyReader struct{ io.Reader }

func put(t *testing.T, s snapshot.Store, key string, data []byte) snapshot.Object {
	t.Helper()
	object, err := s.Put(t.Context(), key, onlyReader{bytes.NewReader(data)}, snapshot.PutOptions{})
	if err != nil {
		t.Fatalf("put: %v", err)
	}
	return object
}

func get(t *testing.T, s snapshot.Store, key string, offset int64) ([]byte, snapshot.Object) {
	t.Helper()
	body, object, err := s.Get(t.Context(), key, offset)
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	data, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil {
		t.Fatalf("read %s: %v", key, err)
	}
	return data, object
}

func wantKeys(t *testing.T, s snapshot.Store, prefix string, want ...string) {
	t.Helper()
	got := []string{}
	for object, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("list: %v", err)
		}
		got = append(got, object.Key)
	}
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		t.Errorf("keys with prefix %q (-want +got):\n%s", prefix, diff)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

func testRoundTrip(t *testing.T, s snapshot.Store) {
	for _, size := range []int{0, 1, 70_000, 8<<20 - 1, 8 << 20, 8<<20 + 1, large} {
		key := fmt.Sprintf("sizes/%d", size)
		data := Bytes(size)
		stored := put(t, s, key, data)
		got, object := get(t, s, key, 0)
		if sha256.Sum256(got) != sha256.Sum256(data) {
			t.Errorf("%d bytes: got %d other bytes", size, len(got))
		}
		stat, err := s.Stat(t.Context(), key)
		if err != nil {
			t.Fatalf("stat: %v", err)
		}
		for from, o := range map[string]snapshot.Object{"put": stored, "get": object, "stat": stat} {
			if o.Key != key || o.SizeBytes != int64(size) || o.ModTime.IsZero() || o.ETag == "" || o.ETag != stat.ETag {
				t.Errorf("%d bytes: %s describes %+v", size, from, o)
			}
		}
	}
	if text := s.String(); text == "" || strings.Contains(text, "secret") {
		t.Errorf("String is %q", text)
	}
}

func testOverwrite(t *testing.T, s snapshot.Store) {
	put(t, s, "a/b", []byte("old, and longer"))
	put(t, s, "a/b", []byte("new"))
	if got, _ := get(t, s, "a/b", 0); string(got) != "new" {
		t.Errorf("got %q, want new", got)
	}
}

// Lost if it fails: the only final of a generation.
func testIfAbsent(t *testing.T, s snapshot.Store) {
	for _, size := range []int{10, large} {
		key := fmt.Sprintf("once/%d", size)
		data := Bytes(size)
		opt := snapshot.PutOptions{IfAbsent: true}
		if _, err := s.Put(t.Context(), key, onlyReader{bytes.NewReader(data)}, opt); err != nil {
			t.Fatalf("first put: %v", err)
		}
		_, err := s.Put(t.Context(), key, onlyReader{bytes.NewReader(Bytes(size + 1))}, opt)
		wantError(t, "second put", err, snapshot.ErrExists)
		if snapshot.Retryable(err) {
			t.Errorf("%v is called retryable", err)
		}
		if got, _ := get(t, s, key, 0); !bytes.Equal(got, data) {
			t.Errorf("%d bytes were replaced by %d others", size, len(got))
		}
	}
}

func testIfAbsentRace(t *testing.T, s snapshot.Store) {
	caps, err := s.Probe(t.Context())
	if err != nil {
		t.Fatalf("probe: %v", err)
	}
	if !caps.IfAbsent {
		t.Skip("this store does not decide create-only writes")
	}
	for round := range 5 {
		key := fmt.Sprintf("race/%d", round)
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				_, errs[i] = s.Put(t.Context(), key, strings.NewReader(fmt.Sprint("writer ", i)), snapshot.PutOptions{IfAbsent: true})
			})
		}
		wg.Wait()
		winners := 0
		for i, err := range errs {
			if err == nil {
				winners++
				if got, _ := get(t, s, key, 0); string(got) != fmt.Sprint("writer ", i) {
					t.Errorf("round %d: writer %d won, the store holds %q", round, i, got)
				}
			} else {
				wantError(t, "loser", err, snapshot.ErrExists)
			}
		}
		if winners != 1 {
			t.Errorf("round %d: %d winners, want 1: %v", round, winners, errs)
		}
	}
}

func testFailingSource(t *testing.T, s snapshot.Store) {
	broken := errors.New("the disk broke")
	for _, size := range []int{0, 10, large} {
		for _, opt := range []snapshot.PutOptions{{}, {IfAbsent: true}} {
			closed := &closeRecorder{Reader: io.MultiReader(bytes.NewReader(Bytes(size)), iotest.ErrReader(broken))}
			_, err := s.Put(t.Context(), "broken", closed, opt)
			wantError(t, fmt.Sprintf("source broken after %d bytes", size), err, broken)
			if !errors.As(err, new(*snapshot.SourceError)) || snapshot.Retryable(err) {
				t.Errorf("error %v is no SourceError, or retryable", err)
			}
			if !closed.isClosed() {
				t.Error("the source was not closed")
			}
		}
	}
	wantKeys(t, s, "")
}

type closeRecorder struct {
	io.Reader
	mu     sync.Mutex // guards closed
	closed bool
}

func (c *closeRecorder) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

func (c *closeRecorder) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func testWrongSize(t *testing.T, s snapshot.Store) {
	for _, size := range []int64{9, 11} {
		_, err := s.Put(t.Context(), "size", onlyReader{bytes.NewReader(Bytes(10))}, snapshot.PutOptions{Size: size})
		if !errors.As(err, new(*snapshot.SourceError)) {
			t.Errorf("10 bytes announced as %d: got error %v, want a SourceError", size, err)
		}
	}
	wantKeys(t, s, "")
	if _, err := s.Put(t.Context(), "size", onlyReader{bytes.NewReader(Bytes(10))}, snapshot.PutOptions{Size: 10}); err != nil {
		t.Errorf("right size: %v", err)
	}
}

// Lost if it fails: a supervisor that cannot be stopped while a disk or a connection hangs. The test itself hangs then.
func testHangingSource(t *testing.T, s snapshot.Store) {
	for _, size := range []int{0, 10, large} {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("stopped")
		r, w := io.Pipe()
		go func() {
			_, _ = w.Write(Bytes(size))
			cancel(why) // and never end the stream
		}()
		_, err := s.Put(ctx, "hangs", onlyReader{r}, snapshot.PutOptions{})
		wantError(t, fmt.Sprintf("source hangs after %d bytes", size), err, why)
		_ = r.Close()
	}
	wantKeys(t, s, "")
}

func testEndedContext(t *testing.T, s snapshot.Store) {
	put(t, s, "there", []byte("x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, errPut := s.Put(ctx, "new", strings.NewReader("x"), snapshot.PutOptions{})
	_, _, errGet := s.Get(ctx, "there", 0)
	_, errStat := s.Stat(ctx, "there")
	var errList error
	for _, err := range s.List(ctx, "") {
		errList = err
	}
	_, errProbe := s.Probe(ctx)
	for what, err := range map[string]error{"put": errPut, "get": errGet, "stat": errStat, "list": errList, "delete": s.Delete(ctx, "there"), "probe": errProbe} {
		wantError(t, what, err, context.Canceled)
		if snapshot.Retryable(err) {
			t.Errorf("%s: %v is called retryable", what, err)
		}
	}
	wantKeys(t, s, "", "there")
}

func testOffsets(t *testing.T, s snapshot.Store) {
	data := Bytes(100_000)
	put(t, s, "o", data)
	for _, offset := range []int64{0, 1, 65_536, 99_999, 100_000} {
		got, object := get(t, s, "o", offset)
		if !bytes.Equal(got, data[offset:]) {
			t.Errorf("offset %d: got %d bytes, want the last %d", offset, len(got), len(data)-int(offset))
		}
		if object.SizeBytes != int64(len(data)) {
			t.Errorf("offset %d: size is %d, want that of the whole object", offset, object.SizeBytes)
		}
	}
	for _, offset := range []int64{-1, 100_001} {
		_, _, err := s.Get(t.Context(), "o", offset)
		wantError(t, fmt.Sprint("offset ", offset), err, snapshot.ErrInvalid)
	}
}

func testAbsent(t *testing.T, s snapshot.Store) {
	put(t, s, "dir/there", []byte("x"))
	for _, key := range []string{"absent", "dir", "dir/absent", "dir/there/below"} {
		_, _, err := s.Get(t.Context(), key, 0)
		wantError(t, "get "+key, err, snapshot.ErrNotFound)
		_, err = s.Stat(t.Context(), key)
		wantError(t, "stat "+key, err, snapshot.ErrNotFound)
		if err := s.Delete(t.Context(), key); err != nil {
			t.Errorf("delete %s: %v", key, err)
		}
	}
	wantKeys(t, s, "", "dir/there")
	if err := s.Delete(t.Context(), "dir/there"); err != nil {
		t.Errorf("delete: %v", err)
	}
	wantKeys(t, s, "")
}

// Lost if it fails: a download that was resumed on another object, put together from two.
func testETag(t *testing.T, s snapshot.Store) {
	first := put(t, s, "k", []byte("one"))
	second := put(t, s, "k", []byte("two"))
	if first.ETag == second.ETag {
		t.Errorf("both contents have the ETag %q", first.ETag)
	}
	if _, object := get(t, s, "k", 1); object.ETag != second.ETag {
		t.Errorf("get says %q, put said %q", object.ETag, second.ETag)
	}
}

func testList(t *testing.T, s snapshot.Store) {
	keys := []string{"a-b", "a.b", "a/b", "a/b-c", "a/b.c", "a/b/c", "a/b0", "a0", "b/1", "b/10", "b/2"}
	for _, key := range []string{"b/2", "a/b/c", "a0", "a/b0", "a-b", "b/10", "a/b-c", "a.b", "b/1", "a/b.c"} {
		put(t, s, key, []byte(key))
	}
	// A directory cannot hold both a/b and a/b/c.
	keys = slices.DeleteFunc(keys, func(k string) bool { return k == "a/b" })
	wantKeys(t, s, "", keys...)
	wantKeys(t, s, "a/b", "a/b-c", "a/b.c", "a/b/c", "a/b0")
	wantKeys(t, s, "a/b/", "a/b/c")
	wantKeys(t, s, "b/1", "b/1", "b/10")
	wantKeys(t, s, "c")
	wantKeys(t, s, "b/1/")
	for object, err := range s.List(t.Context(), "b/10") {
		if err != nil || object.SizeBytes != 4 || object.ModTime.IsZero() {
			t.Errorf("list describes %+v, error %v", object, err)
		}
	}
	for range s.List(t.Context(), "") {
		break // an iterator that is left early must not go on
	}
}

func testLongList(t *testing.T, s snapshot.Store) {
	if testing.Short() {
		t.Skip("1,010 objects take a while")
	}
	const n = 1010 // one page of S3 holds 1,000
	want := make([]string, n)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < n; i += 4 {
				want[i] = fmt.Sprintf("many/%04d", i)
				if _, err := s.Put(t.Context(), want[i], strings.NewReader("x"), snapshot.PutOptions{Size: 1}); err != nil {
					t.Errorf("put: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	wantKeys(t, s, "many/", want...)
}

func testOddKeys(t *testing.T, s snapshot.Store) {
	keys := []string{"a b", "a%20b", "a&b=c", "a*b", "a+b", "a:b", "a;b,c", "a@b", "a~b'c(d)", "naïve/日本", "x..y", "x/y.", strings.Repeat("s", 200)}
	for _, key := range keys {
		put(t, s, key, []byte(key))
		if got, _ := get(t, s, key, 0); string(got) != key {
			t.Errorf("key %q holds %q", key, got)
		}
	}
	slices.Sort(keys)
	wantKeys(t, s, "", keys...)
}

// Lost if it fails: files outside the store.
func testBadKeys(t *testing.T, s snapshot.Store) {
	for _, key := range []string{
		"", "/", "/etc/passwd", "a/", "a//b", "..", "../x", "a/../b", "a/..", ".", "./a", "a/./b", ".hidden", "a/.warden-x", "a\x00b", "a\nb", "a\\b",
		"bad\xffutf8", strings.Repeat("s", 201), strings.Repeat("s/", 260) + "s",
	} {
		_, errPut := s.Put(t.Context(), key, strings.NewReader("x"), snapshot.PutOptions{})
		_, _, errGet := s.Get(t.Context(), key, 0)
		_, errStat := s.Stat(t.Context(), key)
		for what, err := range map[string]error{"put": errPut, "get": errGet, "stat": errStat, "delete": s.Delete(t.Context(), key)} {
			wantError(t, fmt.Sprintf("%s %q", what, key), err, snapshot.ErrInvalid)
		}
	}
	wantKeys(t, s, "")
}

func testSweep(t *testing.T, s snapshot.Store) {
	put(t, s, "a/b", []byte("x"))
	if n, err := s.SweepUploads(t.Context(), "", time.Hour); n != 0 || err != nil {
		t.Errorf("swept %d, error %v; want 0, none", n, err)
	}
	if n, err := s.SweepUploads(t.Context(), "", 0); n != 0 || err != nil {
		t.Errorf("swept %d, error %v; want 0, none: complete uploads leave nothing", n, err)
	}
	wantKeys(t, s, "", "a/b")
}

func testProbe(t *testing.T, s snapshot.Store) {
	put(t, s, "a/b", []byte("x"))
	caps, err := s.Probe(t.Context())
	if err != nil {
		t.Fatalf("probe: %v", err)
	}
	if !caps.Deletes {
		t.Errorf("probe says %+v; want that we may delete", caps)
	}
	wantKeys(t, s, "", "a/b")
	if n, err := s.SweepUploads(t.Context(), "", 0); n != 0 || err != nil {
		t.Errorf("swept %d after the probe, error %v; want 0, none", n, err)
	}
}
