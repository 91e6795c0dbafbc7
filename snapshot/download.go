package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"
)

const (
	maxZstdWindow      = 32 << 20 // ours is 4 MiB; hand-made archives of zstd -19 need 8 MiB
	maxResumes         = 5        // in a row without a new byte
	firstResumeBackoff = 200 * time.Millisecond
)

// Damage says what is wrong with a stored snapshot.
type Damage string

// The kinds of damage.
const (
	DamageTruncated Damage = "truncated"                   // bytes are missing from the end
	DamageCorrupted Damage = "corrupted"                   // the stored bytes are not those that were uploaded
	DamageMismatch  Damage = "not what the manifest tells" // sound in itself, but of another size or content
	DamageManifest  Damage = "manifest unreadable"
)

// CorruptError says that a stored snapshot, or its manifest, cannot be trusted. Reading it again does not help.
type CorruptError struct {
	Key    string
	Damage Damage
	Detail string
	Err    error // the cause, may be nil
}

func (e *CorruptError) Error() string {
	msg := fmt.Sprintf("%s is %s: %s", e.Key, e.Damage, e.Detail)
	if e.Damage == DamageManifest {
		msg = fmt.Sprintf("manifest %s cannot be read: %s", e.Key, e.Detail)
	}
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

// Download writes the snapshot that m describes to w, as plain bytes. Only after it returned nil may they be used: size and SHA-256 of both the stored and the
// plain bytes are verified on the way, but known good only at the end. A connection that breaks is resumed where it broke. Memory is bounded whatever the
// object holds, and w never gets more bytes than the manifest promises. Progress may be nil; it is called as in UploadOptions.
//
// Damage is a *CorruptError; errors of w are returned wrapped; other errors are the store's.
func Download(ctx context.Context, store Store, m Manifest, w io.Writer, progress func(plain, stored int64)) error {
	if err := m.Validate(); err != nil {
		return fmt.Errorf("download snapshot: manifest: %w", err)
	}
	stored := &resumingReader{ctx: ctx, store: store, key: m.Key, size: m.StoredBytes, hash: newSideHash()}
	defer stored.hash.stop()
	defer stored.close()
	plain := newSideHash()
	defer plain.stop()
	size := int64(0)
	out := writerFunc(func(b []byte) (int, error) {
		if size+int64(len(b)) > m.PlainBytes {
			return 0, &CorruptError{Key: m.Key, Damage: DamageMismatch, Detail: fmt.Sprintf("it holds more than %d plain bytes", m.PlainBytes)}
		}
		n, err := w.Write(b)
		_, _ = plain.Write(b[:n])
		if size += int64(n); err != nil {
			err = &sinkError{err}
		}
		if progress != nil {
			progress(size, stored.offset)
		}
		return n, err
	})
	if err := decode(m, stored, out); err != nil {
		return fmt.Errorf("download snapshot: %w", err)
	}
	if err := verifySums(m, stored.hash.sum(), size, plain.sum()); err != nil {
		return fmt.Errorf("download snapshot: %w", err)
	}
	return nil
}

// Verify downloads the snapshot to nowhere and checks everything that Download checks.
func Verify(ctx context.Context, store Store, m Manifest, progress func(plain, stored int64)) error {
	return Download(ctx, store, m, io.Discard, progress)
}

// sinkError marks an error of the caller's writer, so that it is not taken for damage.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return "write plain snapshot: " + e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }

// decode copies the decompressed stream and sees to it that the stored one is read to its end.
func decode(m Manifest, stored *resumingReader, plain io.Writer) error {
	var r io.Reader = stored
	if m.Compression == CompressionZstd {
		decoder, err := zstd.NewReader(stored, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return fmt.Errorf("set up zstd: %w", err)
		}
		defer decoder.Close()
		r = struct{ io.Reader }{decoder} // without WriteTo: its writes are larger than we want to hold back
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{plain}, r, make([]byte, 256<<10))
	if err == nil {
		_, err = io.Copy(io.Discard, stored)
	}
	if err == nil || stored.err != nil {
		return stored.err // what the decoder makes of a broken stream is of no interest
	}
	if _, ours := errors.AsType[*CorruptError](err); ours {
		return err
	}
	if _, sink := errors.AsType[*sinkError](err); sink {
		return err
	}
	return &CorruptError{Key: m.Key, Damage: DamageCorrupted, Detail: "it does not decompress", Err: err}
}

func verifySums(m Manifest, stored []byte, size int64, plain []byte) error {
	if got := fmt.Sprintf("%x", stored); got != m.StoredSHA256 {
		return &CorruptError{Key: m.Key, Damage: DamageCorrupted, Detail: fmt.Sprintf("SHA-256 of the stored bytes is %s, want %s", got, m.StoredSHA256)}
	}
	if size != m.PlainBytes {
		return &CorruptError{Key: m.Key, Damage: DamageMismatch, Detail: fmt.Sprintf("it holds %d plain bytes, want %d", size, m.PlainBytes)}
	}
	if got := fmt.Sprintf("%x", plain); got != m.PlainSHA256 {
		return &CorruptError{Key: m.Key, Damage: DamageMismatch, Detail: fmt.Sprintf("SHA-256 of the plain bytes is %s, want %s", got, m.PlainSHA256)}
	}
	return nil
}

// resumingReader reads one object from start to end, however often the connection breaks, and hashes it. It keeps the first error that it could not cope with.
type resumingReader struct {
	ctx    context.Context // of the one call that this reader lives in
	store  Store
	key    string
	size   int64
	hash   *sideHash
	body   io.ReadCloser
	etag   string
	offset int64
	broken int // reads in a row that brought nothing
	err    error
}

func (r *resumingReader) Read(b []byte) (int, error) {
	for r.err == nil && r.offset < r.size {
		if r.body == nil {
			if err := r.open(); err != nil {
				r.fail(err)
			}
			continue
		}
		// Never past the promised size: a larger object was refused when it was opened.
		n, err := r.body.Read(b[:min(int64(len(b)), r.size-r.offset)])
		_, _ = r.hash.Write(b[:n])
		r.offset += int64(n)
		if n > 0 {
			r.broken = 0
			return n, nil
		}
		if err != nil {
			r.close()
			r.fail(err)
		}
	}
	if r.err != nil {
		return 0, r.err
	}
	return 0, io.EOF
}

// open connects at the current offset and makes sure that it is the same object still.
func (r *resumingReader) open() error {
	body, object, err := r.store.Get(r.ctx, r.key, r.offset)
	if err != nil {
		return err
	}
	changed := ""
	switch {
	case object.SizeBytes < r.size:
		r.err = &CorruptError{Key: r.key, Damage: DamageTruncated, Detail: fmt.Sprintf("the store holds %d of %d bytes", object.SizeBytes, r.size)}
	case object.SizeBytes > r.size:
		changed = fmt.Sprintf("the store holds %d bytes, want %d", object.SizeBytes, r.size)
	case r.etag != "" && object.ETag != r.etag:
		changed = "it was replaced while it was read"
	}
	if changed != "" {
		r.err = &CorruptError{Key: r.key, Damage: DamageMismatch, Detail: changed}
	}
	if r.err != nil {
		return errors.Join(r.err, body.Close())
	}
	r.body, r.etag = body, object.ETag
	return nil
}

// fail decides whether a read error ends the reader or is worth another connection, and waits before that one.
func (r *resumingReader) fail(err error) {
	if r.err != nil {
		return
	}
	r.broken++
	final := r.broken > maxResumes || r.ctx.Err() != nil
	if call, ok := errors.AsType[*StoreError](err); ok && !call.Retry {
		final = true
	}
	if final {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: the connection ends at byte %d of %d, again and again", ErrUnavailable, r.offset, r.size)
		}
		r.err = fmt.Errorf("read %s: %w", r.key, err)
		return
	}
	if err := pause(r.ctx, max(ThrottledFor(err), firstResumeBackoff<<(r.broken-1))); err != nil {
		r.err = fmt.Errorf("read %s: %w", r.key, err)
	}
}

func (r *resumingReader) close() {
	if r.body != nil {
		_ = r.body.Close() // only read from
		r.body = nil
	}
}

// pause waits for d or until ctx ends, whose cause it then returns.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
