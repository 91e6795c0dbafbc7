package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

const maxBackoff = 30 * time.Second

// errStalled ends a call in which nothing moved for too long.
type errStalled struct{ limit time.Duration }

func (e errStalled) Error() string { return fmt.Sprintf("nothing moved for %s", e.limit) }

// call is one attempt at one request. The transport finds it in the request's context and tells it of every byte that moves; when none does for the limit, the
// attempt is ended. There is no total deadline: a slow line is not a fault.
type call struct {
	cancel context.CancelCauseFunc
	began  time.Time

	mu         sync.Mutex // guards what follows
	timer      *time.Timer
	limit      time.Duration
	stopped    bool
	retryAfter time.Duration
	offset     time.Duration // the server's clock minus ours
	answered   bool
}

type callKey struct{}

// newCall derives the context of one attempt. Stop must be called.
func newCall(ctx context.Context, limit time.Duration) (context.Context, *call) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &call{cancel: cancel, began: time.Now(), limit: limit}
	c.timer = time.AfterFunc(limit, func() { cancel(errStalled{limit}) })
	return context.WithValue(ctx, callKey{}, c), c
}

// moved notes that bytes moved.
func (c *call) moved() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.timer.Reset(c.limit)
	}
}

// sent notes that the whole body was handed to the kernel, which may still hold megabytes of it: a line that took a minute so far may need another one.
func (c *call) sent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		c.timer.Reset(max(c.limit, time.Since(c.began)))
	}
}

// rest suspends the watch, for as long as a reader of the answer does not read.
func (c *call) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer.Stop()
}

// stop ends the call for good and frees its context.
func (c *call) stop() {
	c.mu.Lock()
	c.stopped = true
	c.timer.Stop()
	c.mu.Unlock()
	c.cancel(nil)
}

func (c *call) after() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retryAfter
}

func (c *call) clockOffset() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset
}

// retry makes attempts at a small request until one succeeds, fails for good, or the attempts are used up.
func (s *s3Store) retry(ctx context.Context, op, key string, f func(context.Context) error) error {
	return s.attempts(ctx, op, key, attemptLimits{tries: s.limits.Attempts, stall: s.limits.Stall}, func(ctx context.Context, c *call) error {
		defer c.stop()
		return f(ctx)
	})
}

// retryOpen is retry for a request whose answer is read after the return: the call ends when the body that f opened is closed.
func (s *s3Store) retryOpen(ctx context.Context, op, key string, f func(context.Context) error) error {
	return s.attempts(ctx, op, key, attemptLimits{tries: s.limits.Attempts, stall: s.limits.Stall}, func(ctx context.Context, c *call) error {
		err := f(ctx)
		if err != nil {
			c.stop()
		} else {
			c.rest()
		}
		return err
	})
}

// attemptLimits bounds a series of attempts: by count, or else by the time that passed since the first failure.
type attemptLimits struct {
	tries  int // 0: no bound
	budget time.Duration
	stall  time.Duration
}

// attempts runs f with a call of its own until it succeeds or its error is final. Errors come out as *StoreError, or as the cause of ctx.
func (s *s3Store) attempts(ctx context.Context, op, key string, lim attemptLimits, f func(context.Context, *call) error) error {
	var firstFailure time.Time
	for try := 1; ; try++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		callCtx, c := newCall(ctx, lim.stall)
		err := f(callCtx, c)
		s.learn(c)
		if err == nil {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if cause := context.Cause(callCtx); cause != nil && cause != context.Canceled {
			err = cause
		}
		failure := s.classify(err, c, try)
		if !failure.again {
			return failure.err
		}
		if firstFailure.IsZero() {
			firstFailure = time.Now()
		}
		wait := retryWait(s.limits.Backoff, try)
		if failure.now {
			wait = 0
		}
		wait = max(wait, ThrottledFor(failure.err))
		if lim.tries > 0 && try >= lim.tries || lim.budget > 0 && time.Since(firstFailure)+wait > lim.budget {
			return failure.err
		}
		s.log.Warn().Str("op", op).Str("key", key).Int("attempt", try).Int64("wait_ms", wait.Milliseconds()).Err(failure.err).Msg("store call failed, trying again")
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// learn keeps what an answer told besides its content.
func (s *s3Store) learn(c *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered {
		s.clockOffset.Store(int64(c.offset))
	}
}

// retryWait is the wait after the nth failure: doubled each time up to 30 s, half of it random so that many clients do not come back together.
func retryWait(first time.Duration, try int) time.Duration {
	d := min(maxBackoff, first<<min(try-1, 20))
	return d/2 + rand.N(d/2+1)
}

// callBody is the body of an answer: each read is watched for a stall, and closing it ends the call.
type callBody struct {
	io.ReadCloser
	call *call
	ctx  context.Context // of the request that this body answers
}

func (b *callBody) Read(p []byte) (int, error) {
	b.call.moved()
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		if cause := context.Cause(b.ctx); cause != nil && errors.As(cause, new(errStalled)) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, cause)
		}
	}
	return n, err
}

// sentBody is the body of a request: each read shows that the line takes bytes.
type sentBody struct {
	io.ReadCloser
	call *call
	left int64
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if err == io.EOF || b.left <= 0 {
		b.call.sent()
	} else {
		b.call.moved()
	}
	return n, err
}
