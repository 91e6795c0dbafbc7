package snapshot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// StartPrivate starts an etcd on a data directory where nobody but the caller can reach it, and returns its endpoint when it serves. Stop ends it and waits.
type StartPrivate func(ctx context.Context, dataDir, scratch string) (endpoint string, stop func() error, err error)

// The member that a deep verification restores. Its peer URL is never listened on.
const (
	deepMember  = "verify"
	deepPeerURL = "http://localhost:2380"
	deepPage    = 500 // keys a read
)

// DeepResult is what a deep verification found.
type DeepResult struct {
	FileStatus
	KeysSHA256 string // over all keys with value, revisions, version and lease, in no order
	Took       time.Duration
}

// VerifyDeep proves that a stored snapshot becomes an etcd with the same content: it fetches it into scratch (an empty directory with room for twice the plain
// size), checks every page of it, makes a data directory with etcd's own restore code, starts an etcd on it, and compares revision and keys, as that
// etcd tells them, with what the file holds. Authentication is switched off in the copy, or nobody could ask. What is found wrong is a *CorruptError.
func VerifyDeep(ctx context.Context, store Store, m Manifest, scratch string, start StartPrivate, progress func(plain, stored int64)) (res DeepResult, err error) {
	began := time.Now()
	bad := func(format string, a ...any) error {
		return &CorruptError{Key: m.Key, Damage: DamageMismatch, Detail: fmt.Sprintf(format, a...)}
	}
	file := filepath.Join(scratch, "snapshot.db")
	if err := FetchFile(ctx, store, m, file, progress); err != nil {
		return res, err
	}
	if res.FileStatus, err = CheckSnapshotFile(ctx, file); err != nil {
		if errors.Is(err, ErrBadSnapshot) {
			return res, &CorruptError{Key: m.Key, Damage: DamageMismatch, Detail: "it is no sound etcd snapshot", Err: err}
		}
		return res, err
	}
	if res.Revision != m.Revision {
		return res, bad("it has revision %d, the manifest says %d", res.Revision, m.Revision)
	}
	want, err := fileKeys(ctx, file)
	if err != nil {
		return res, fmt.Errorf("read keys of %s: %w", m.Key, err)
	}
	dir := filepath.Join(scratch, "data")
	if _, err := Restore(ctx, RestoreConfig{File: file, DataDir: dir, Name: deepMember, InitialCluster: deepMember + "=" + deepPeerURL, PeerURLs: []string{deepPeerURL}, Revision: m.Revision}); err != nil {
		return res, err
	}
	if err := disableAuth(filepath.Join(dir, "member", "snap", "db")); err != nil {
		return res, fmt.Errorf("switch authentication off in the copy: %w", err)
	}
	endpoint, stop, err := start(ctx, dir, scratch)
	if err != nil {
		return res, fmt.Errorf("start an etcd on the restored copy: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	got, revision, err := servedKeys(ctx, endpoint, m.Revision)
	switch {
	case err != nil:
		return res, err
	case revision < m.Revision: // later is possible: leases go on
		return res, bad("the restored etcd is at revision %d, the manifest says %d", revision, m.Revision)
	case got != want:
		return res, bad("the restored etcd has %d keys with SHA-256 %x, the file has %d with %x", got.n, got.sum, want.n, want.sum)
	}
	res.KeysSHA256, res.Took = fmt.Sprintf("%x", got.sum), time.Since(began)
	return res, nil
}

// FetchFile downloads a snapshot into a new plain file, as etcdutl takes it. The name appears when all bytes are verified and on disk; the file must not
// exist.
func FetchFile(ctx context.Context, store Store, m Manifest, path string, progress func(plain, stored int64)) (err error) {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("fetch to %s: %w", path, os.ErrExist)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.part")
	if err != nil {
		return fmt.Errorf("fetch to %s: %w", path, err)
	}
	defer func() {
		if errRemove := os.Remove(f.Name()); errRemove != nil && !errors.Is(errRemove, os.ErrNotExist) {
			err = errors.Join(err, errRemove)
		}
	}()
	err = Download(ctx, store, m, f, progress)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil { // unlike rename, it replaces nothing
		return fmt.Errorf("fetch to %s: %w", path, err)
	}
	return nil
}

// keysDigest stands for a set of keys with all that etcd knows of each. The order of keys does not matter.
type keysDigest struct {
	n   int
	sum [sha256.Size]byte
}

// flip adds a key, or takes it out again.
func (d *keysDigest) flip(record [sha256.Size]byte, n int) {
	d.n += n
	for i := range d.sum {
		d.sum[i] ^= record[i]
	}
}

func recordSum(kv *mvccpb.KeyValue) ([sha256.Size]byte, error) {
	b, err := kv.Marshal()
	return sha256.Sum256(b), err
}

// fileKeys digests the keys that exist at the revision of a snapshot file. It remembers 48 bytes a key.
func fileKeys(ctx context.Context, path string) (d keysDigest, err error) {
	b, err := openBackend(ctx, path, sha256.Size, time.Second)
	if err != nil {
		return d, err
	}
	defer b.close() // read only: nothing can be lost
	live := map[[16]byte][sha256.Size]byte{}
	err = b.walk(func() error {
		return b.tx.Bucket([]byte("key")).ForEach(func(k, v []byte) error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			var kv mvccpb.KeyValue
			if err := kv.Unmarshal(v); err != nil {
				return fmt.Errorf("%w: record %x: %w", ErrDBDamaged, k, err)
			}
			full := sha256.Sum256(kv.Key)
			id := [16]byte(full[:16])
			if old, ok := live[id]; ok {
				d.flip(old, -1)
				delete(live, id)
			}
			if len(k) > revisionBytes && k[revisionBytes] == 't' {
				return nil
			}
			record, err := recordSum(&kv)
			live[id] = record
			d.flip(record, 1)
			return err
		})
	})
	return d, err
}

// servedKeys digests the keys that an etcd has at a revision.
func servedKeys(ctx context.Context, endpoint string, revision int64) (d keysDigest, current int64, err error) {
	c, err := dialEtcd(endpoint, nil)
	if err != nil {
		return d, 0, err
	}
	defer c.Close()
	for key := "\x00"; ; {
		page, cancel := context.WithTimeout(ctx, time.Minute)
		resp, err := c.Get(page, key, clientv3.WithFromKey(), clientv3.WithLimit(deepPage), clientv3.WithRev(revision))
		cancel()
		if err != nil {
			return d, 0, fmt.Errorf("read from the restored etcd: %w", err)
		}
		current = resp.Header.Revision
		for _, kv := range resp.Kvs {
			record, err := recordSum(kv)
			if err != nil {
				return d, 0, err
			}
			d.flip(record, 1)
			key = string(kv.Key) + "\x00"
		}
		if !resp.More {
			return d, current, nil
		}
	}
}

// disableAuth switches authentication off in a backend that no etcd runs on (server/storage/schema, auth.go: bucket "auth", key "authEnabled").
func disableAuth(path string) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		if auth := tx.Bucket([]byte("auth")); auth != nil {
			return auth.Put([]byte("authEnabled"), []byte{0})
		}
		return nil
	})
	return errors.Join(err, db.Close())
}
