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
	handedOver bool // to the reader of the answer's body, whose Close ends the call
	bodies     []*sentBody
	retryAfter time.Duration
	asked      bool          // the answer has a Retry-After
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

// rest suspends the watch, for as long as a reader of the answer does not read: a slow disk over here is no fault over there.
func (c *call) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer.Stop()
}

// handOver leaves the end of the call to the Close of the answer's body.
func (c *call) handOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handedOver = true
	c.timer.Stop()
}

func (c *call) isHandedOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handedOver
}

// watch makes the call the owner of a request's body.
func (c *call) watch(b *sentBody) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bodies = append(c.bodies, b)
}

// stop ends the call for good and frees its context. Afterwards nothing reads the request's body any more, so that its buffer may be used again: the transport
// alone gives no such promise for a request that was cancelled or answered early.
func (c *call) stop() {
	c.mu.Lock()
	c.stopped = true
	c.timer.Stop()
	bodies := c.bodies
	c.mu.Unlock()
	c.cancel(nil)
	for _, b := range bodies {
		b.detach()
	}
}

// after is how long the server asked to be left alone, if it did.
func (c *call) after() (wait time.Duration, asked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retryAfter, c.asked
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
			c.handOver()
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
		// A small request is not worth a long wait: the caller learns for how long, and decides.
		if lim.tries > 0 && (try >= lim.tries || wait > maxBackoff) || lim.budget > 0 && time.Since(firstFailure)+wait > lim.budget {
			return failure.err
		}
		s.log.Debug().Str("op", op).Str("key", key).Int("attempt", try).Int64("wait_ms", wait.Milliseconds()).Err(failure.err).Msg("store call failed, trying again")
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

// callBody is the body of an answer: each read is watched for a stall, and closing it ends a call that was handed over to it.
type callBody struct {
	io.ReadCloser
	call *call
	ctx  context.Context // of the request that this body answers
}

func (b *callBody) Read(p []byte) (int, error) {
	b.call.moved()
	n, err := b.ReadCloser.Read(p)
	b.call.rest()
	if err != nil {
		if stalled, ok := errors.AsType[errStalled](context.Cause(b.ctx)); ok {
			err = fmt.Errorf("%w: %w", ErrUnavailable, stalled)
		}
	}
	return n, err
}

func (b *callBody) Close() error {
	err := b.ReadCloser.Close()
	if b.call.isHandedOver() {
		b.call.stop()
	}
	return err
}

// sentBody is the body of a request: each read shows that the line takes bytes.
type sentBody struct {
	io.ReadCloser
	call *call

	mu       sync.Mutex // guards what follows, and every read
	left     int64
	detached bool
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, last, err := b.read(p)
	if last {
		b.call.sent()
	} else {
		b.call.moved()
	}
	return n, err
}

func (b *sentBody) read(p []byte) (n int, last bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.detached {
		return 0, true, errors.New("the request is over")
	}
	n, err = b.ReadCloser.Read(p)
	b.left -= int64(n)
	return n, err == io.EOF || b.left <= 0, err
}

func (b *sentBody) detach() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.detached = true
}
