package snapshot

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// scanFixture writes an etcd-like backend with bbolt itself: many commits, so that the file holds pages of trees that are no more.
type scanFixture struct {
	db  *bolt.DB
	rev uint64
	rnd *rand.Rand
}

func newScanFixture(t *testing.T, seed uint64, pageSize int) *scanFixture {
	t.Helper()
	db, err := bolt.Open(filepath.Join(t.TempDir(), "db"), 0o600, &bolt.Options{NoSync: true, PageSize: pageSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	f := &scanFixture{db: db, rnd: rand.New(rand.NewPCG(seed, 1))}
	f.update(t, func(tx *bolt.Tx) error {
		for _, name := range []string{"alarm", "auth", "authRoles", "authUsers", "cluster", "key", "lease", "members", "members_removed", "meta"} {
			b, err := tx.CreateBucket([]byte(name))
			if err != nil {
				return err
			}
			// Small buckets live inside the page of buckets: enough of them make it two pages and a branch above.
			if seed%2 == 1 && name != "key" && name != "meta" {
				if err := b.Put([]byte("x"), make([]byte, tx.DB().Info().PageSize/6)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return f
}

func (f *scanFixture) update(t *testing.T, do func(*bolt.Tx) error) {
	t.Helper()
	if err := f.db.Update(do); err != nil {
		t.Fatal(err)
	}
}

func recordKey(rev uint64) []byte {
	return append(binary.BigEndian.AppendUint64(nil, rev), '_', 0, 0, 0, 0, 0, 0, 0, 0)
}

// step is one commit: writes of all sizes, and now and then a compaction, which may remove the newest record.
func (f *scanFixture) step(t *testing.T, largest int) {
	f.update(t, func(tx *bolt.Tx) error {
		keys, meta := tx.Bucket([]byte("key")), tx.Bucket([]byte("meta"))
		for range 1 + f.rnd.IntN(20) {
			f.rev++
			value := make([]byte, f.rnd.IntN(largest))
			if err := keys.Put(recordKey(f.rev), value); err != nil {
				return err
			}
		}
		if err := meta.Put([]byte("consistent_index"), binary.BigEndian.AppendUint64(nil, f.rev*3)); err != nil {
			return err
		}
		if err := meta.Put([]byte("term"), binary.BigEndian.AppendUint64(nil, 7)); err != nil {
			return err
		}
		// A large configuration makes "meta" outgrow the page of the buckets.
		if f.rnd.IntN(4) == 0 {
			if err := meta.Put([]byte("confState"), make([]byte, f.rnd.IntN(tx.DB().Info().PageSize/2))); err != nil {
				return err
			}
		}
		if err := tx.Bucket([]byte("authRoles")).Put(fmt.Appendf(nil, "role-%d", f.rnd.IntN(12)), make([]byte, f.rnd.IntN(80))); err != nil {
			return err
		}
		if f.rnd.IntN(5) == 0 {
			upTo := f.rev - uint64(f.rnd.IntN(3))
			c := keys.Cursor()
			for k, _ := c.First(); k != nil && bigEndian(k) <= upTo; k, _ = c.First() {
				if err := c.Delete(); err != nil {
					return err
				}
			}
			for _, name := range []string{"scheduledCompactRev", "finishedCompactRev"} {
				if err := meta.Put([]byte(name), recordKey(upTo)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// atRest is what the backend reader finds in the same bytes as a file.
func atRest(t *testing.T, stream []byte) backendMeta {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(path, stream, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := openBackend(t.Context(), path, 0, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	m, err := b.meta()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The revision in the manifest of a live snapshot decides what a restore accepts: it must be that of the bytes, not of a moment before or after.
func TestScanOfAStreamFindsWhatTheFileHolds(t *testing.T) {
	for seed := range uint64(9) {
		pageSize := []int{1024, 4096, 16384}[seed%3]
		largest := []int{20, 900, 30_000}[(seed/3)%3]
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			f := newScanFixture(t, seed, pageSize)
			for round := range 16 {
				f.step(t, largest)
				var stream bytes.Buffer
				if err := f.db.View(func(tx *bolt.Tx) error { _, err := tx.WriteTo(&stream); return err }); err != nil {
					t.Fatal(err)
				}
				want := atRest(t, stream.Bytes())
				scan := newPageScan()
				whole := append(bytes.Clone(stream.Bytes()), make([]byte, 32)...) // the trailer is no page
				if _, err := io.CopyBuffer(struct{ io.Writer }{scan}, struct{ io.Reader }{bytes.NewReader(whole)}, make([]byte, 1+f.rnd.IntN(40_000))); err != nil {
					t.Fatal(err)
				}
				got, err := scan.result()
				if err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				if got.revision != want.revision || got.consistentIndex != want.consistentIndex || got.term != want.term || got.lastKey != want.lastKey || got.compacted != want.compacted {
					t.Fatalf("round %d: scan found %+v, the file holds %+v", round, got, want)
				}
			}
		})
	}
}

// Whatever arrives, the scan ends with an error or a result: an etcd that is broken, or none, must not end the warden.
func TestScanSurvivesAnyBytes(t *testing.T) {
	f := newScanFixture(t, 1, 4096)
	for range 10 {
		f.step(t, 3000)
	}
	var stream bytes.Buffer
	if err := f.db.View(func(tx *bolt.Tx) error { _, err := tx.WriteTo(&stream); return err }); err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 600 {
		b := bytes.Clone(stream.Bytes()[:rnd.IntN(stream.Len()+1)])
		for range rnd.IntN(40) {
			if len(b) > 4096 {
				b[160+rnd.IntN(len(b)-160)] = byte(rnd.IntN(256)) // behind the first meta page, which has a checksum
			}
		}
		scan := newPageScan()
		_, _ = scan.Write(b)
		_, _ = scan.result()
	}
	if _, err := newPageScan().result(); err == nil {
		t.Error("a scan of nothing has a result")
	}
}
