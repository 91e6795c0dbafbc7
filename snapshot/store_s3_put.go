package snapshot

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"
)

// writeMark is the metadata name under which each write leaves a random mark. It tells our own object, whose answer was lost, from another's.
const writeMark = "warden-write"

func (s *s3Store) Put(ctx context.Context, key string, r io.Reader, opt PutOptions) (Object, error) {
	object, err := s.put(ctx, key, r, opt)
	if err != nil {
		return Object{}, s.fail("put", key, err)
	}
	return object, nil
}

func (s *s3Store) put(ctx context.Context, key string, r io.Reader, opt PutOptions) (Object, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	source := newPartSource(r, s.where.partBytes, s.where.parallel, opt.Size)
	unwatch := closeOnDone(ctx, r) // a source that hangs while ctx ends
	done := false
	defer func() {
		if unwatched := unwatch(); unwatched && !done {
			closeSource(r)
		}
		cancel(nil)
		source.settle()
	}()
	if err := CheckKey(key); err != nil {
		return Object{}, err
	}
	w := &s3Write{store: s, key: key, opt: opt, mark: rand.Text(), conditional: opt.IfAbsent}
	// Asking first costs little and covers servers that ignore the condition; those that honour it decide races.
	if opt.IfAbsent {
		if err := w.refuseExisting(ctx); err != nil {
			return Object{}, err
		}
	}
	source.start(ctx)
	first, err := source.next(ctx)
	if err != nil {
		return Object{}, err
	}
	var object Object
	if first.last {
		object, err = w.putSingle(ctx, first.data)
		source.done(first)
	} else {
		object, err = w.putParts(ctx, first, source)
	}
	done = err == nil
	return object, err
}

// s3Write is one Put.
type s3Write struct {
	store       *s3Store
	key         string
	opt         PutOptions
	mark        string
	conditional bool // send If-None-Match
}

func (w *s3Write) refuseExisting(ctx context.Context) error {
	_, err := w.store.stat(ctx, w.key)
	switch {
	case err == nil:
		return ErrExists
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrDenied): // denied: may write but not look
		return nil
	default:
		return err
	}
}

// options are those of the object. The condition is added where it is decided: on a single put or on the completion.
func (w *s3Write) options() minio.PutObjectOptions {
	// Unsigned payload also over http: signing each chunk halves the speed and breaks on several servers; the checksum protects the bytes.
	return minio.PutObjectOptions{ContentType: w.opt.ContentType, UserMetadata: w.metadata(), DisableContentSha256: true}
}

func (w *s3Write) metadata() map[string]string {
	meta := map[string]string{writeMark: w.mark}
	maps.Copy(meta, w.opt.Metadata)
	return meta
}

// putSingle stores a stream that fits one part by one request.
func (w *s3Write) putSingle(ctx context.Context, data []byte) (Object, error) {
	s := w.store
	var etag string
	sum := s.checksum(data)
	put := func(ctx context.Context, c *call) error {
		defer c.stop()
		o := w.options()
		if w.conditional {
			o.SetMatchETagExcept("*")
		}
		if sum.crc32c != "" {
			o.UserMetadata["x-amz-checksum-crc32c"] = sum.crc32c
		}
		info, err := s.core.PutObject(ctx, s.where.bucket, s.fullKey(w.key), bytes.NewReader(data), int64(len(data)), sum.md5, "", o)
		etag = info.ETag
		return err
	}
	err := s.attempts(ctx, "put", w.key, attemptLimits{tries: s.limits.Attempts, stall: s.limits.Stall}, put)
	if w.unconditional(err) {
		err = s.attempts(ctx, "put", w.key, attemptLimits{tries: s.limits.Attempts, stall: s.limits.Stall}, put)
	}
	if err != nil {
		return w.recognise(ctx, int64(len(data)), err)
	}
	return w.object(int64(len(data)), etag), nil
}

// unconditional gives up the condition on a server that says it does not know it: the question asked before has to do, and Probe tells so.
func (w *s3Write) unconditional(err error) bool {
	var e *StoreError
	if !w.conditional || !errors.As(err, &e) || e.HTTP != http.StatusNotImplemented {
		return false
	}
	w.conditional = false
	return true
}

// recognise finds out whether a write whose outcome is in doubt has taken effect after all: then the object bears our mark.
func (w *s3Write) recognise(ctx context.Context, size int64, errPut error) (Object, error) {
	doubtful := errors.Is(errPut, ErrExists) || errors.Is(errPut, ErrNotFound) || errors.Is(errPut, ErrUnavailable)
	if !doubtful || ctx.Err() != nil {
		return Object{}, errPut
	}
	object, err := w.store.stat(ctx, w.key)
	switch {
	case err == nil && object.Metadata[writeMark] == w.mark && object.SizeBytes == size:
		return object, nil
	case err == nil && w.opt.IfAbsent && !errors.Is(errPut, ErrUnavailable):
		return Object{}, ErrExists
	case errors.Is(errPut, ErrNotFound): // the upload is gone and there is no object: an abort or a sweep by someone else
		return Object{}, &StoreError{Kind: ErrUnavailable, Retry: true, Err: errors.New("the upload vanished before it was complete")}
	}
	return Object{}, errPut
}

func (w *s3Write) object(size int64, etag string) Object {
	return Object{Key: w.key, SizeBytes: size, ModTime: time.Now().UTC(), ETag: etag, Metadata: w.metadata()}
}

// checksums are header values for one body; empty ones are not sent.
type checksums struct{ crc32c, md5 string }

func (s *s3Store) checksum(data []byte) checksums {
	switch s.where.checksum {
	case "crc32c":
		sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
		return checksums{crc32c: base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))}
	case "md5":
		sum := md5.Sum(data)
		return checksums{md5: base64.StdEncoding.EncodeToString(sum[:])}
	}
	return checksums{}
}

// partSource cuts a stream into parts of equal size (the last one may be shorter), with at most `parallel` buffers in existence.
type partSource struct {
	r       io.Reader
	size    int // of a part
	want    int64
	free    chan []byte // buffers to fill; nil stands for one that is not made yet
	out     chan part
	settled chan struct{} // closed when r is not read any more
	started bool

	mu     sync.Mutex // guards mapped
	mapped [][]byte   // all full-size buffers
}

// part is one piece of the stream. Its data goes back by done.
type part struct {
	number int // from 1
	data   []byte
	last   bool
	err    error
}

func newPartSource(r io.Reader, size, parallel int, want int64) *partSource {
	p := &partSource{r: r, size: size, want: want, free: make(chan []byte, parallel), out: make(chan part), settled: make(chan struct{})}
	for range parallel {
		p.free <- nil
	}
	return p
}

// start begins to read. The reading goroutine ends with the stream, or when ctx ends and the read under way returns.
func (p *partSource) start(ctx context.Context) {
	p.started = true
	go func() {
		defer close(p.settled)
		var total int64
		for number := 1; ; number++ {
			var buf []byte
			select {
			case buf = <-p.free:
			case <-ctx.Done():
				return
			}
			piece := p.fill(number, buf)
			if total += int64(len(piece.data)); piece.last && p.want > 0 && total != p.want {
				piece.err = &SourceError{Err: fmt.Errorf("it holds %d bytes, %d were announced", total, p.want)}
			}
			select {
			case p.out <- piece:
			case <-ctx.Done():
				return
			}
			if piece.last || piece.err != nil {
				return
			}
		}
	}()
}

// fill reads one part. Small streams get small buffers: a journal entry needs no 8 MiB.
func (p *partSource) fill(number int, buf []byte) part {
	const small = 64 << 10
	if cap(buf) == 0 {
		buf = make([]byte, 0, min(p.size, small))
	}
	buf = buf[:0]
	for len(buf) < p.size {
		if len(buf) == cap(buf) {
			buf = append(p.buffer(), buf...)
		}
		n, err := io.ReadFull(p.r, buf[len(buf):min(cap(buf), p.size)])
		buf = buf[:len(buf)+n]
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF && n > 0:
			return part{number: number, data: buf, last: true}
		case err != nil:
			return part{number: number, data: buf, err: asSourceError(err)}
		}
	}
	return part{number: number, data: buf}
}

// buffer returns an empty buffer that holds a whole part. It lies outside the heap: the collector lets the heap grow to twice what lives, and so would double
// the memory of an upload.
func (p *partSource) buffer() []byte {
	b, err := syscall.Mmap(-1, 0, p.size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return make([]byte, 0, p.size)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mapped = append(p.mapped, b)
	return b[:0]
}

// unmap gives the buffers back to the system. Nothing may use a part any more.
func (p *partSource) unmap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.mapped {
		_ = syscall.Munmap(b) // it is ours and whole, so this cannot fail
	}
	p.mapped = nil
}

// next returns the next part, the source's error, or the cause of ctx.
func (p *partSource) next(ctx context.Context) (part, error) {
	select {
	case piece := <-p.out:
		return piece, piece.err
	case <-ctx.Done():
		return part{}, context.Cause(ctx)
	}
}

// done gives a part's buffer back. It never blocks: there are never more buffers than room.
func (p *partSource) done(piece part) { p.free <- piece.data }

// settle waits until r is left alone, which takes no time unless a read of it hangs; then it gives up after a moment. The buffers go when the last read is
// over, be it long after the return. Nothing but that read may use a part any more.
func (p *partSource) settle() {
	if !p.started {
		return
	}
	timer := time.NewTimer(500 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-p.settled:
		p.unmap()
	case <-timer.C:
		go func() { <-p.settled; p.unmap() }()
	}
}
