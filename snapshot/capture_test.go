package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// writeUntil puts keys, with deletes and compactions among them, until stop is called.
func writeUntil(t *testing.T, c *clientv3.Client) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("w%d/%d", w, i%500)
				resp, err := c.Put(ctx, key, strings.Repeat("v", i%2000))
				if err == nil && i%7 == 0 {
					_, err = c.Delete(ctx, key)
				}
				if err == nil && w == 0 && i%300 == 299 {
					_, err = c.Compact(ctx, resp.Header.Revision-10)
				}
				if err != nil && ctx.Err() == nil {
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	return func() { cancel(); writers.Wait() }
}

func dirStoreOf(t *testing.T) Store {
	t.Helper()
	s, err := OpenStore(t.Context(), "file://"+t.TempDir(), OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fetchAndCheck downloads a snapshot and lets the strict reader look at all of it.
func fetchAndCheck(t *testing.T, store Store, m Manifest) FileStatus {
	t.Helper()
	file := filepath.Join(t.TempDir(), "snapshot.db")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Download(t.Context(), store, m, f, nil), f.Close()); err != nil {
		t.Fatal(err)
	}
	st, err := CheckSnapshotFile(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// A manifest that named a revision before or after that of its bytes would let a restore be refused, or lose writes unseen. Under load the two differ at once.
func TestLiveSnapshotRecordsTheRevisionOfItsBytes(t *testing.T) {
	e := startRealEtcd(t, filepath.Join(t.TempDir(), "data"))
	store, live := dirStoreOf(t), LiveEtcd{Endpoint: e.endpoint}
	stop := writeUntil(t, e.client(t))
	defer stop()
	later := 0
	for range 6 {
		m, err := CaptureLive(t.Context(), live, store, 3, nil)
		if err != nil {
			t.Fatal(err)
		}
		st := fetchAndCheck(t, store, m)
		if st.Revision != m.Revision || m.RaftIndex == 0 || m.RaftTerm == 0 || m.ClusterID == 0 || m.EtcdVersion == "" {
			t.Errorf("manifest says revision %d (index %d, term %d, cluster %s, etcd %q), the file holds %d", m.Revision, m.RaftIndex, m.RaftTerm, m.ClusterID, m.EtcdVersion, st.Revision)
		}
		name, _ := ParseSnapshotKey(m.Key)
		if name.Revision > m.Revision {
			t.Errorf("key %s is of a later revision than its content, %d", m.Key, m.Revision)
		}
		if m.Final || m.Captured != CapturedLive {
			t.Errorf("final %v, captured %q: an ordinary snapshot must not look like a final one", m.Final, m.Captured)
		}
		if name.Revision < m.Revision {
			later++
		}
	}
	if later == 0 {
		t.Error("no snapshot was taken between two writes: the test did not test")
	}
	list, err := ListManifests(t.Context(), store, 3)
	if err != nil || len(list.Manifests) != 6 || len(list.Damaged) != 0 {
		t.Fatalf("listed %d, damaged %v, error %v; want 6", len(list.Manifests), list.Damaged, err)
	}
	for i := 1; i < 6; i++ {
		if list.Manifests[i].Revision < list.Manifests[i-1].Revision {
			t.Errorf("keys do not sort as revisions: %s before %s", list.Manifests[i-1].Key, list.Manifests[i].Key)
		}
	}
}

// With authentication on, only a user with the role root may take a snapshot.
func TestLiveSnapshotWithAuthentication(t *testing.T) {
	e := startRealEtcd(t, filepath.Join(t.TempDir(), "data"))
	c := e.client(t)
	ctx := t.Context()
	_, errRole := c.RoleAdd(ctx, "root")
	_, errUser := c.UserAdd(ctx, "root", "secret")
	_, errGrant := c.UserGrantRole(ctx, "root", "root")
	_, errAuth := c.AuthEnable(ctx)
	if err := errors.Join(errRole, errUser, errGrant, errAuth); err != nil {
		t.Fatal(err)
	}
	store := dirStoreOf(t)
	if _, err := CaptureLive(ctx, LiveEtcd{Endpoint: e.endpoint}, store, 1, nil); err == nil {
		t.Error("a stranger took a snapshot")
	}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := CaptureLive(ctx, LiveEtcd{Endpoint: e.endpoint, User: "root", PasswordFile: password}, store, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if st := fetchAndCheck(t, store, m); st.Revision != m.Revision {
		t.Errorf("manifest says revision %d, the file holds %d", m.Revision, st.Revision)
	}
}

// An etcd that dies in mid-stream leaves nothing that could be taken for a snapshot.
func TestLiveSnapshotCutShortStoresNothing(t *testing.T) {
	e := startRealEtcd(t, filepath.Join(t.TempDir(), "data"))
	c := e.client(t)
	for i := range 40 {
		if _, err := c.Put(t.Context(), fmt.Sprint("k", i), string(incompressible(500_000, i))); err != nil {
			t.Fatal(err)
		}
	}
	store := dirStoreOf(t)
	var killed sync.Once
	_, err := CaptureLive(t.Context(), LiveEtcd{Endpoint: e.endpoint}, store, 1, func(plain, _ int64) {
		if plain > 1<<20 {
			killed.Do(func() { e.end(t, syscall.SIGKILL) })
		}
	})
	var source *SourceError
	if !errors.As(err, &source) {
		t.Fatalf("got error %v, want one of the source", err)
	}
	for object, err := range store.List(t.Context(), "") {
		t.Errorf("left behind: %s (%v)", object.Key, err)
	}
}

// An ended context ends a capture of an etcd that hangs.
func TestLiveSnapshotOfAFrozenEtcdIsCancelled(t *testing.T) {
	e := startRealEtcd(t, filepath.Join(t.TempDir(), "data"))
	if err := e.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := CaptureLive(ctx, LiveEtcd{Endpoint: e.endpoint}, dirStoreOf(t), 1, nil); err == nil {
		t.Error("a frozen etcd gave a snapshot")
	}
}

// A stream that arrives in any pieces is measured by its own trailer.
func TestTrailerOfAStreamIsVerified(t *testing.T) {
	whole := incompressible(1000, 1)
	sum := newHashingWriter()
	sum.w = io.Discard
	_, _ = sum.Write(whole)
	whole = append(whole, sum.hash.Sum(nil)...)
	for size := 1; size < len(whole)+5; size += 3 {
		feed := func(b []byte) error {
			c := &trailerCheck{}
			for len(b) > 0 {
				n := min(size, len(b))
				c.write(b[:n])
				b = b[n:]
			}
			return c.verify()
		}
		if err := feed(whole); err != nil {
			t.Errorf("pieces of %d: %v", size, err)
		}
		if err := feed(whole[:len(whole)-1]); !errors.Is(err, ErrBadSnapshot) {
			t.Errorf("pieces of %d, cut short: got %v", size, err)
		}
	}
	if err := (&trailerCheck{}).verify(); !errors.Is(err, ErrBadSnapshot) {
		t.Errorf("nothing at all: got %v", err)
	}
}

func incompressible(n, seed int) []byte {
	b := make([]byte, n)
	x := uint64(seed)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return b
}
