package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"
)

const (
	maxParts     = 10_000 // of one object; AWS, "Multipart upload limits"
	abortTimeout = 15 * time.Second
	abortWait    = 500 * time.Millisecond // that a failing Put waits for its abort before it leaves it to itself
)

// putParts stores a stream of more than one part.
func (w *s3Write) putParts(ctx context.Context, first part, source *partSource) (object Object, err error) {
	id, err := w.initiate(ctx)
	if err != nil {
		return Object{}, err
	}
	defer func() {
		if err != nil {
			w.abort(ctx, id)
		}
	}()
	parts, size, err := w.sendParts(ctx, id, first, source)
	if err != nil {
		return Object{}, err
	}
	return w.complete(ctx, id, parts, size)
}

func (w *s3Write) initiate(ctx context.Context) (id string, err error) {
	s := w.store
	o := w.options()
	if s.where.checksum == "crc32c" {
		o.UserMetadata["x-amz-checksum-algorithm"] = "CRC32C" // or else AWS refuses the parts' checksums
	}
	err = s.retry(ctx, "put", w.key, func(ctx context.Context) (err error) {
		id, err = s.core.NewMultipartUpload(ctx, s.where.bucket, s.fullKey(w.key), o)
		return err
	})
	return id, err
}

// sendParts uploads all parts, a few at a time, and returns them in order.
func (w *s3Write) sendParts(ctx context.Context, id string, first part, source *partSource) ([]minio.CompletePart, int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards sent
		sent []minio.CompletePart
		size int64
	)
	send := func(piece part) {
		defer source.done(piece)
		done, err := w.sendPart(ctx, id, piece)
		if err != nil {
			cancel(fmt.Errorf("part %d: %w", piece.number, err))
			return
		}
		mu.Lock()
		sent = append(sent, done)
		mu.Unlock()
	}
	piece, err := first, error(nil)
	for ; err == nil; piece, err = source.next(ctx) {
		if len(piece.data) > 0 { // a stream that ends with a full part ends with an empty one
			if piece.number > maxParts {
				err = &StoreError{Kind: ErrInvalid, Err: fmt.Errorf("the stream is longer than %d parts of %d bytes", maxParts, w.store.where.partBytes),
					Hint: "set a larger part-size-mib"}
				break
			}
			size += int64(len(piece.data))
			// The source has as many buffers as there may be parts under way, so it also bounds these goroutines.
			this := piece
			wg.Go(func() { send(this) })
		}
		if piece.last {
			break
		}
	}
	if err != nil {
		cancel(err)
	}
	wg.Wait()
	if err = cmp.Or(context.Cause(ctx), err); err != nil {
		return nil, 0, err
	}
	slices.SortFunc(sent, func(a, b minio.CompletePart) int { return cmp.Compare(a.PartNumber, b.PartNumber) })
	return sent, size, nil
}

// sendPart uploads one part from its buffer, as often as its budget allows: starting over would cost the whole stream.
func (w *s3Write) sendPart(ctx context.Context, id string, piece part) (minio.CompletePart, error) {
	s := w.store
	sum := s.checksum(piece.data)
	o := minio.PutObjectPartOptions{DisableContentSha256: true, Md5Base64: sum.md5}
	if sum.crc32c != "" {
		o.CustomHeader = http.Header{"X-Amz-Checksum-Crc32c": {sum.crc32c}}
	}
	var etag string
	err := s.attempts(ctx, "put part", w.key, attemptLimits{budget: s.limits.PartBudget, stall: s.limits.Stall}, func(ctx context.Context, c *call) error {
		defer c.stop()
		done, err := s.core.PutObjectPart(ctx, s.where.bucket, s.fullKey(w.key), id, piece.number, bytes.NewReader(piece.data), int64(len(piece.data)), o)
		etag = done.ETag
		return err
	})
	if errors.Is(err, ErrNotFound) {
		err = &StoreError{Kind: ErrUnavailable, Retry: true, Err: errors.New("the upload vanished while it was under way")}
	}
	return minio.CompletePart{PartNumber: piece.number, ETag: etag, ChecksumCRC32C: sum.crc32c}, err
}

// complete assembles the parts. This is where if-absent is decided, and where a lost answer leaves the outcome in doubt.
func (w *s3Write) complete(ctx context.Context, id string, parts []minio.CompletePart, size int64) (Object, error) {
	s := w.store
	var etag string
	send := func(ctx context.Context, c *call) error {
		defer c.stop()
		o := minio.PutObjectOptions{}
		if w.conditional {
			o.SetMatchETagExcept("*")
		}
		info, err := s.core.CompleteMultipartUpload(ctx, s.where.bucket, s.fullKey(w.key), id, parts, o)
		etag = info.ETag
		return err
	}
	limits := attemptLimits{tries: s.limits.Attempts, stall: s.limits.Complete}
	err := s.attempts(ctx, "put", w.key, limits, send)
	if w.unconditional(err) {
		err = s.attempts(ctx, "put", w.key, limits, send)
	}
	if err != nil {
		return w.recognise(ctx, size, err)
	}
	return w.object(size, etag), nil
}

// abort frees the parts of an upload that failed. It goes on after the caller's context ended, for 15 s at most, but the caller waits for half a second only:
// neither a cancelled handover nor a hanging server is worth more. What stays behind is for SweepUploads.
func (w *s3Write) abort(ctx context.Context, id string) {
	s := w.store
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		err := s.retry(ctx, "abort", w.key, func(ctx context.Context) error {
			return s.core.AbortMultipartUpload(ctx, s.where.bucket, s.fullKey(w.key), id)
		})
		if err != nil && !errors.Is(err, ErrNotFound) {
			s.log.Warn().Str("key", w.key).Err(err).Msg("incomplete upload left behind")
		}
	}()
	timer := time.NewTimer(abortWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
