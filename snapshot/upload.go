package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Source writes what is to be uploaded, once, from the first byte to the last. It returns soon after a write failed or ctx ended: Upload waits for it, so that
// whatever it reads from may be closed when Upload returns.
type Source func(ctx context.Context, w io.Writer) error

// ReaderSource makes a Source of a reader. When r is an io.Closer it is closed if ctx ends first, since nothing else ends a read that hangs.
func ReaderSource(r io.Reader) Source {
	return func(ctx context.Context, w io.Writer) error {
		defer closeOnDone(ctx, r)()
		_, err := io.Copy(w, r)
		return err
	}
}

// UploadOptions is the zero value for an ordinary upload.
type UploadOptions struct {
	// Late puts the snapshot under late/: a final of a generation that another one ended.
	Late bool
	// Progress is called often, from one goroutine at a time, with the bytes read from the source and the bytes that left for the store so far.
	Progress func(plain, stored int64)
	// Complete, when set, fills in what only the end of the source tells, such as the exact revision of a live capture. It is called once the source has ended
	// without error, before the manifest is written; its error is the source's. The snapshot's key is made before, of the Revision that m had at first.
	Complete func(m *Manifest) error
}

// Upload streams a snapshot into the store: read → SHA-256 → zstd level 1 → SHA-256 → parts. Memory is constant, there is no temporary file, and one CPU is
// used at most. When it returns without error the snapshot is stored, its size was read back, and its manifest is written.
//
// Of m the caller fills in what only it knows: Generation, Final, Captured, Revision, the raft and etcd fields, StepsMS, and CreatedAt when the capture began
// before the call. Upload fills in the rest and returns it. Each call has a key of its own, so a failed one is simply repeated; what it may have left behind
// has no manifest and is not listed.
//
// A source that fails is a *SourceError and leaves nothing behind; other errors are the store's.
func Upload(ctx context.Context, store Store, src Source, m Manifest, opt UploadOptions) (Manifest, error) {
	began := time.Now()
	if m.CreatedAt.IsZero() {
		m.CreatedAt = began
	}
	m = m.withUploadDefaults(began, opt.Late)
	pipe := newUploadPipe(opt.Progress)
	object, err := pipe.run(ctx, store, src, m.Key)
	if err != nil {
		return Manifest{}, fmt.Errorf("upload snapshot: %w", err)
	}
	m.PlainBytes, m.PlainSHA256 = pipe.plain.sum()
	if opt.Complete != nil {
		if err := opt.Complete(&m); err != nil {
			return Manifest{}, fmt.Errorf("upload snapshot: %w", errors.Join(&SourceError{Err: err}, store.Delete(ctx, m.Key)))
		}
	}
	m.StoredBytes, m.StoredSHA256 = pipe.stored.sum()
	if err := verifyStored(ctx, store, m, object); err != nil {
		return Manifest{}, fmt.Errorf("upload snapshot: %w", err)
	}
	now := time.Now()
	m.StepsMS["upload"] = now.Sub(began).Milliseconds()
	m.TookMS = max(0, now.Sub(m.CreatedAt).Milliseconds())
	data, err := EncodeManifest(m)
	if err != nil {
		return Manifest{}, fmt.Errorf("upload snapshot: %w", err)
	}
	put := PutOptions{IfAbsent: true, ContentType: "application/json", Size: int64(len(data))}
	if _, err := store.Put(ctx, m.ManifestKey(), bytes.NewReader(data), put); err != nil {
		return Manifest{}, fmt.Errorf("upload manifest: %w", err)
	}
	return m, nil
}

func (m Manifest) withUploadDefaults(began time.Time, late bool) Manifest {
	m.Version, m.Kind = manifestVersion, KindFull
	m.Compression, m.Encryption = CompressionZstd, EncryptionNone
	m.CreatedAt = m.CreatedAt.UTC().Truncate(time.Millisecond)
	m.Key = SnapshotName{Generation: m.Generation, Late: late, Revision: m.Revision, At: began, Kind: KindFull}.DataKey()
	steps := make(map[string]int64, len(m.StepsMS)+1)
	for step, ms := range m.StepsMS {
		steps[step] = ms
	}
	m.StepsMS = steps
	return m
}

// verifyStored reads the size back: an upload is done when the store says so itself, not when we have sent everything.
func verifyStored(ctx context.Context, store Store, m Manifest, put Object) error {
	got, err := store.Stat(ctx, m.Key)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if got.SizeBytes != m.StoredBytes || put.SizeBytes != m.StoredBytes {
		return fmt.Errorf("read back %s: %w: %d bytes were sent, the store holds %d", m.Key, ErrUnavailable, m.StoredBytes, got.SizeBytes)
	}
	return nil
}

// uploadPipe is one run of the pipeline. Its counters are the source goroutine's until run returns.
type uploadPipe struct {
	plain, stored *hashingWriter
	progress      func(plain, stored int64)
}

func newUploadPipe(progress func(plain, stored int64)) *uploadPipe {
	return &uploadPipe{plain: newHashingWriter(), stored: newHashingWriter(), progress: progress}
}

// run stores the whole pipeline's output under key and returns when both of its ends have.
func (p *uploadPipe) run(ctx context.Context, store Store, src Source, key string) (Object, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, w := io.Pipe()
	// The source's next write fails as soon as anything else has.
	defer context.AfterFunc(ctx, func() { _ = r.CloseWithError(context.Cause(ctx)) })()
	fed := make(chan error, 1)
	go func() {
		err := p.feed(ctx, src, w)
		_ = w.CloseWithError(err) // nil means EOF
		fed <- err
	}()
	object, errPut := store.Put(ctx, key, r, PutOptions{IfAbsent: true, ContentType: "application/zstd"})
	if errPut != nil {
		cancel(errPut)
	}
	errFed := <-fed
	// When the source failed, errPut wraps its error; when the store did, the source's is only the broken pipe.
	if err := cmp.Or(errPut, errFed); err != nil {
		return Object{}, err
	}
	return object, nil
}

// feed runs the source through hash and compressor into w.
func (p *uploadPipe) feed(ctx context.Context, src Source, w io.Writer) error {
	p.stored.w = w
	// One encoder thread: etcd may share the CPUs. Level 1 is 3.6:1 on etcd's data at 226 MB per CPU second; higher levels cost more than they save.
	encoder, err := zstd.NewWriter(p.stored, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("set up zstd: %w", err)
	}
	p.plain.w = encoder
	var sink io.Writer = p.plain
	if p.progress != nil {
		sink = writerFunc(func(b []byte) (int, error) {
			n, err := p.plain.Write(b)
			p.progress(p.plain.n, p.stored.n)
			return n, err
		})
	}
	if err := src(ctx, sink); err != nil {
		return &SourceError{Err: err}
	}
	if p.plain.n == 0 {
		return &SourceError{Err: errors.New("it is empty")}
	}
	if err := encoder.Close(); err != nil {
		return fmt.Errorf("compress: %w", err)
	}
	if p.progress != nil {
		p.progress(p.plain.n, p.stored.n)
	}
	return nil
}

// hashingWriter counts and hashes what passes through to w.
type hashingWriter struct {
	w    io.Writer
	hash hash.Hash
	n    int64
}

func newHashingWriter() *hashingWriter { return &hashingWriter{hash: sha256.New()} }

func (h *hashingWriter) Write(b []byte) (int, error) {
	n, err := h.w.Write(b)
	h.hash.Write(b[:n])
	h.n += int64(n)
	return n, err
}

func (h *hashingWriter) sum() (bytes int64, sha256Hex string) {
	return h.n, hex.EncodeToString(h.hash.Sum(nil))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// closeOnDone closes r, when it can be closed, as soon as ctx ends. The returned function ends the watch, and is false when r was closed, or is being closed.
func closeOnDone(ctx context.Context, r io.Reader) (stop func() bool) {
	return context.AfterFunc(ctx, func() { closeSource(r) })
}

// closeSource ends a source that is given up. What its Close has to say adds nothing to the reason for that.
func closeSource(r io.Reader) {
	if closer, ok := r.(io.Closer); ok {
		_ = closer.Close()
	}
}
