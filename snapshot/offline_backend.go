package snapshot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// newestStorage is the newest storage version whose files are understood (etcd 3.7).
const newestStorage = "3.7.0"

// lockRetry is how often a taken lock is tried again; a handover waits for it, so it is short.
const lockRetry = 10 * time.Millisecond

// backend is etcd's bbolt file, opened read-only with a shared lock and one read transaction for its whole life.
type backend struct {
	path string
	lock *os.File
	db   *bolt.DB
	tx   *bolt.Tx
}

// openBackend opens the file at path, of which the last trailer bytes are not bbolt's. It waits for the lock as long as
// wait. The error wraps ErrInUse, ErrDBDamaged or an error of the operating system.
func openBackend(ctx context.Context, path string, trailer int64, wait time.Duration) (_ *backend, err error) {
	b := &backend{path: path}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.lock, err = os.Open(path); err != nil {
		return nil, fmt.Errorf("open backend file: %w", err)
	}
	if err := lockShared(ctx, b.lock, wait); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// bbolt maps the file: a read beyond its end would be a SIGBUS, so the size is compared with the meta page first.
	if err := checkPages(b.lock, trailer); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrDBDamaged, path, err)
	}
	err = b.walk(func() error {
		var err error
		// The lock is ours already and shared; the timeout only guards against a stranger between the two.
		if b.db, err = bolt.Open(path, 0, &bolt.Options{ReadOnly: true, Timeout: time.Second}); err != nil {
			return err
		}
		b.tx, err = b.db.Begin(false)
		return err
	})
	return b, err
}

// lockShared takes the shared lock on f, for as long as f is open. etcd holds the exclusive one from before it reads the
// file until the kernel has released its descriptors, which is later than its exit from the view of its parent.
func lockShared(ctx context.Context, f *os.File, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	retry := time.NewTicker(lockRetry)
	defer retry.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrInUse, context.Cause(ctx))
		case <-deadline.C:
			return fmt.Errorf("%w; stop it first (waited %v for its lock)", ErrInUse, wait)
		case <-retry.C:
		}
	}
}

// checkPages compares the size of the file with the high water mark in its newest valid meta page.
func checkPages(f *os.File, trailer int64) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	size := st.Size() - trailer
	m, err := newestMeta(f, size)
	if err != nil {
		return err
	}
	if want := int64(m.highWater) * int64(m.pageSize); size < want {
		return fmt.Errorf("the file is cut short: it has %d bytes and should have %d", size, want)
	}
	if m.root >= m.highWater {
		return fmt.Errorf("root page %d lies beyond the end (%d pages)", m.root, m.highWater)
	}
	return nil
}

// boltMeta is what matters of a bbolt meta page. The layout is native-endian, after a page header of 16 bytes: magic,
// version, page size, flags (4 bytes each), root page, sequence, free list page, high water mark, transaction, FNV-1a of
// all before (8 bytes each); bbolt, internal/common/meta.go.
type boltMeta struct {
	pageSize        uint32
	root, highWater uint64
	txid            uint64
}

func newestMeta(f io.ReaderAt, size int64) (boltMeta, error) {
	var best boltMeta
	reason := errors.New("it has no valid meta page")
	// The second page's place depends on the page size, which only a valid first page tells; bbolt searches the same way.
	for _, off := range []int64{0, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10} {
		var page [80]byte
		if off+int64(len(page)) > size {
			break
		}
		if _, err := f.ReadAt(page[:], off); err != nil {
			return best, err
		}
		m, err := parseBoltMeta(page[16:])
		if err == nil && (off == 0 || off == int64(m.pageSize)) && m.txid >= best.txid {
			best = m
		}
		if err != nil && off == 0 {
			reason = err
		}
	}
	if best.pageSize == 0 {
		return best, reason
	}
	return best, nil
}

func parseBoltMeta(b []byte) (boltMeta, error) {
	u32 := func(off int) uint32 { return binary.NativeEndian.Uint32(b[off:]) }
	u64 := func(off int) uint64 { return binary.NativeEndian.Uint64(b[off:]) }
	if u32(0) != 0xED0CDAED {
		return boltMeta{}, errors.New("it is not a bbolt file")
	}
	if u32(4) != 2 {
		return boltMeta{}, fmt.Errorf("it is a bbolt file of version %d, known is 2", u32(4))
	}
	h := fnv.New64a()
	h.Write(b[:56])
	if h.Sum64() != u64(56) {
		return boltMeta{}, errors.New("its meta pages are damaged")
	}
	return boltMeta{pageSize: u32(8), root: u64(16), highWater: u64(40), txid: u64(48)}, nil
}

// walk runs f, which reads pages, and turns bbolt's panics and faults of the mapping into ErrDBDamaged.
func (b *backend) walk(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %s: %v", ErrDBDamaged, b.path, r)
		}
	}()
	err = f()
	if err != nil && isBoltDamage(err) {
		return fmt.Errorf("%w: %s: %w", ErrDBDamaged, b.path, err)
	}
	return err
}

func isBoltDamage(err error) bool {
	return errors.Is(err, bolterrors.ErrInvalid) || errors.Is(err, bolterrors.ErrChecksum) || errors.Is(err, bolterrors.ErrVersionMismatch)
}

// size is the number of bytes of all pages up to the high water mark.
func (b *backend) size() int64 { return b.tx.Size() }

func (b *backend) close() error {
	var errs []error
	if b.tx != nil {
		errs = append(errs, b.tx.Rollback())
	}
	if b.db != nil {
		errs = append(errs, b.db.Close())
	}
	if b.lock != nil {
		errs = append(errs, b.lock.Close())
	}
	return errors.Join(errs...)
}

// backendMeta is what etcd keeps about itself in the backend (server/storage/schema).
type backendMeta struct {
	consistentIndex, term          uint64
	revision, lastKey, compacted   int64
	storageVersion, clusterVersion string
	members                        map[uint64]bool // known now or once; empty before the first entry is applied
	current                        int             // members now
}

func (b *backend) meta() (m backendMeta, err error) {
	err = b.walk(func() error {
		meta, keys := b.tx.Bucket([]byte("meta")), b.tx.Bucket([]byte("key"))
		if meta == nil || keys == nil {
			return fmt.Errorf("%w: %s has no bucket \"meta\" or \"key\", so it is not etcd's", ErrDBDamaged, b.path)
		}
		m.consistentIndex = bigEndian(meta.Get([]byte("consistent_index")))
		m.term = bigEndian(meta.Get([]byte("term")))
		m.storageVersion = string(meta.Get([]byte("storageVersion")))
		m.compacted = int64(bigEndian(meta.Get([]byte("finishedCompactRev"))))
		last, _ := keys.Cursor().Last()
		m.lastKey = int64(bigEndian(last))
		// Compaction may remove the newest revision, if it is a delete; etcd then goes by these (mvcc, store.restore).
		m.revision = max(1, m.lastKey, m.compacted, int64(bigEndian(meta.Get([]byte("scheduledCompactRev")))))
		if c := b.tx.Bucket([]byte("cluster")); c != nil {
			m.clusterVersion = string(c.Get([]byte("clusterVersion")))
		}
		m.members = map[uint64]bool{}
		for _, name := range []string{"members", "members_removed"} {
			if err := b.addMembers(name, m.members); err != nil {
				return err
			}
			if name == "members" {
				m.current = len(m.members)
			}
		}
		return nil
	})
	return m, err
}

// addMembers adds the keys of a membership bucket, member ids in hexadecimal.
func (b *backend) addMembers(bucket string, to map[uint64]bool) error {
	members := b.tx.Bucket([]byte(bucket))
	if members == nil {
		return nil
	}
	return members.ForEach(func(k, _ []byte) error {
		if id, err := strconv.ParseUint(string(k), 16, 64); err == nil {
			to[id] = true
		}
		return nil
	})
}

// walkedRecords are looked at before the pages under them are given back: bbolt maps the file, a fault maps 64 KiB of it,
// and what is mapped counts as our memory. 512 of them are 32 MiB at most.
const walkedRecords = 512

// forget gives the mapped pages back to the page cache.
func (b *backend) forget() {
	_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, b.db.Info().Data, uintptr(b.tx.Size()), syscall.MADV_DONTNEED) // advice, no more
}

// checkRecords walks all buckets. It looks at keys alone, so that of a large value only the first page is read.
func (b *backend) checkRecords(ctx context.Context) error {
	return b.walk(func() error {
		return b.tx.ForEach(func(name []byte, bucket *bolt.Bucket) error {
			var last []byte
			records, isKeys := 0, string(name) == "key"
			return bucket.ForEach(func(k, v []byte) error {
				if records++; records%walkedRecords == 0 {
					b.forget()
					if ctx.Err() != nil {
						return context.Cause(ctx)
					}
				}
				if last != nil && bytes.Compare(last, k) >= 0 {
					return fmt.Errorf("%w: %s: bucket %q has key %x after %x", ErrDBDamaged, b.path, name, k, last)
				}
				if isKeys && (len(k) < revisionBytes || len(v) == 0) {
					return fmt.Errorf("%w: %s: record %x is not a key record", ErrDBDamaged, b.path, k)
				}
				last = k
				return nil
			})
		})
	})
}

// bigEndian reads the number at the start of v, 0 where v is too short.
func bigEndian(v []byte) uint64 {
	if len(v) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}

func newerStorage(v string) bool {
	return v != "" && compareMinor(v, newestStorage) > 0
}

// compareMinor compares "major.minor" of two versions; what cannot be read counts as newest.
func compareMinor(a, b string) int {
	minor := func(v string) int {
		parts := strings.SplitN(strings.TrimPrefix(v, "v"), ".", 3)
		if len(parts) < 2 {
			return 1 << 30
		}
		major, errMajor := strconv.Atoi(parts[0])
		minor, errMinor := strconv.Atoi(parts[1])
		if errMajor != nil || errMinor != nil {
			return 1 << 30
		}
		return major*1000 + minor
	}
	return minor(a) - minor(b)
}
