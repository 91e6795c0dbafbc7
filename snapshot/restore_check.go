package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/encoding/protowire"
)

// ErrBadSnapshot is wrapped by CheckSnapshotFile and Restore when a file is not a whole, unaltered etcd snapshot.
var ErrBadSnapshot = errors.New("not a good snapshot file")

// FileStatus is what a snapshot file holds. Hash, LastKeyRevision, TotalKeys and StorageVersion are the HASH, REVISION,
// TOTAL KEYS and VERSION of `etcdutl snapshot status` (3.6).
type FileStatus struct {
	Hash              uint32
	Revision          int64 // etcd's revision after a restore: a compacted delete counts; never below 1
	LastKeyRevision   int64 // of the last key record in the file, 0 if there is none
	CompactedRevision int64
	TotalKeys         int   // keys that exist at Revision
	SizeBytes         int64 // of the file, trailer included
	StorageVersion    string
}

// CheckSnapshotFile verifies a snapshot file in full: its length and SHA-256 trailer, every page of the backend, every
// record. It reads the file twice. The error wraps ErrBadSnapshot, or is one of the operating system or of ctx.
func CheckSnapshotFile(ctx context.Context, path string) (FileStatus, error) {
	size, err := checkTrailer(ctx, path)
	if err != nil {
		return FileStatus{}, fmt.Errorf("check snapshot %s: %w", path, err)
	}
	b, err := openBackend(ctx, path, sha256.Size, time.Second)
	if err == nil {
		defer b.close() // read only: nothing can be lost
		var st FileStatus
		if st, err = b.status(ctx); err == nil {
			st.SizeBytes = size
			return st, nil
		}
	}
	if errors.Is(err, ErrDBDamaged) {
		return FileStatus{}, fmt.Errorf("%w: %w", ErrBadSnapshot, err)
	}
	return FileStatus{}, fmt.Errorf("check snapshot: %w", err)
}

// checkTrailer compares the last 32 bytes with the SHA-256 of all before them, and returns the size of the file.
func checkTrailer(ctx context.Context, path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close() // read only: nothing can be lost
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	// Pages are multiples of 512 bytes, so a whole file has 32 bytes more than such a multiple.
	if st.Size() <= sha256.Size || st.Size()%512 != sha256.Size {
		return 0, fmt.Errorf("%w: it has %d bytes, which is no whole number of pages and a trailer; it was cut short, or copied from a data directory", ErrBadSnapshot, st.Size())
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, &contextReader{ctx: ctx, r: f}, st.Size()-sha256.Size); err != nil {
		return 0, err
	}
	trailer := make([]byte, sha256.Size)
	if _, err := io.ReadFull(f, trailer); err != nil {
		return 0, err
	}
	if !bytes.Equal(trailer, sum.Sum(nil)) {
		return 0, fmt.Errorf("%w: its content has SHA-256 %x, its trailer says %x; fetch it again", ErrBadSnapshot, sum.Sum(nil), trailer)
	}
	return st.Size(), nil
}

// contextReader ends reading when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

// status checks every page and reads every record.
func (b *backend) status(ctx context.Context) (st FileStatus, err error) {
	m, err := b.meta()
	if err != nil {
		return st, err
	}
	count := fileCount{hash: crc32.New(crc32.MakeTable(crc32.Castagnoli)), live: map[[16]byte]struct{}{}}
	err = b.walk(func() error {
		for e := range b.tx.Check() {
			// The channel is drained, as the checker would block on it for ever.
			if err == nil {
				err = fmt.Errorf("%w: %s: %w", ErrDBDamaged, b.path, e)
			}
		}
		if err != nil {
			return err
		}
		return b.tx.ForEach(func(name []byte, bucket *bolt.Bucket) error { return count.bucket(ctx, name, bucket) })
	})
	return FileStatus{Hash: count.hash.Sum32(), Revision: m.revision, LastKeyRevision: m.lastKey, CompactedRevision: m.compacted,
		TotalKeys: len(count.live), StorageVersion: m.storageVersion}, err
}

// fileCount hashes and counts like etcdutl. Keys are remembered by their hash: a file may hold more of them than memory.
type fileCount struct {
	hash hash.Hash32
	live map[[16]byte]struct{}
}

func (c *fileCount) bucket(ctx context.Context, name []byte, b *bolt.Bucket) error {
	c.hash.Write(name)
	isKeys := string(name) == "key"
	records := 0
	return b.ForEach(func(k, v []byte) error {
		if records++; records%4096 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c.hash.Write(k)
		c.hash.Write(v)
		if !isKeys {
			return nil
		}
		key, err := keyOfRecord(v)
		if err != nil || len(k) < revisionBytes {
			return fmt.Errorf("%w: record %x is not a key record", ErrDBDamaged, k)
		}
		full := sha256.Sum256(key)
		id := [16]byte(full[:16])
		if len(k) > revisionBytes && k[revisionBytes] == 't' {
			delete(c.live, id)
		} else {
			c.live[id] = struct{}{}
		}
		return nil
	})
}

// revisionBytes is the length of a record's name: main revision, '_', sub revision; a 't' after it marks a delete.
const revisionBytes = 8 + 1 + 8

// keyOfRecord returns field 1 of an mvccpb.KeyValue. A record without it, as a restore with a bumped revision writes,
// has an empty key.
func keyOfRecord(v []byte) (key []byte, err error) {
	for len(v) > 0 {
		num, kind, n := protowire.ConsumeTag(v)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		v = v[n:]
		if num == 1 && kind == protowire.BytesType {
			key, n = protowire.ConsumeBytes(v)
		} else {
			n = protowire.ConsumeFieldValue(num, kind, v)
		}
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		v = v[n:]
	}
	return key, nil
}
