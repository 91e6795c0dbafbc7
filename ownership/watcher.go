package ownership

import (
	"context"
	"math/rand/v2"
	"time"
)

// Poller makes one poll of the owner record. It must return soon after ctx ends. [Resolver] is the real one.
type Poller interface {
	Poll(ctx context.Context, tcp bool) Verdict
}

// maxNap is the longest sleep between two looks at the clock. Go's timers stand still while the machine is suspended: this
// is how late a poll may be after a resume.
const maxNap = time.Second

// Watcher polls on schedule, one poll at a time: the interval ±10 % after the last poll, or as Next says. It polls at no
// other time.
type Watcher struct {
	poller   Poller
	interval time.Duration
	clock    Clock
	verdicts chan Verdict
	next     chan plan // the latest wish
}

// plan is one poll to come.
type plan struct {
	due BootTime
	tcp bool
}

// NewWatcher returns a watcher of p, to be run once. clock is the one that the schedule and the machine go by; nil is BootClock.
func NewWatcher(p Poller, s Settings, clock Clock) *Watcher {
	if clock == nil {
		clock = BootClock
	}
	return &Watcher{poller: p, interval: s.Interval, clock: clock, verdicts: make(chan Verdict), next: make(chan plan, 1)}
}

// Verdicts delivers the outcome of each poll, in order. The next poll waits until it was taken.
func (w *Watcher) Verdicts() <-chan Verdict { return w.verdicts }

// Next puts a poll after from now in place of the scheduled one; of several wishes the last counts. It never blocks and is safe
// for concurrent use. A wish made while a poll is under way is kept for after it.
func (w *Watcher) Next(after time.Duration, tcp bool) {
	p := plan{due: w.clock().Add(after), tcp: tcp}
	for {
		select {
		case w.next <- p:
			return
		default:
		}
		select {
		case <-w.next:
		default:
		}
	}
}

// Run polls, the first time at once, until ctx ends, and returns the cause of that.
func (w *Watcher) Run(ctx context.Context) error {
	scheduled := plan{due: w.clock()}
	for {
		p, err := w.await(ctx, scheduled)
		if err != nil {
			return err
		}
		v := w.poller.Poll(ctx, p.tcp)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		scheduled = w.ordinary()
		select {
		case w.verdicts <- v:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ordinary is the next poll where nobody wishes another.
func (w *Watcher) ordinary() plan {
	jitter := 0.9 + 0.2*rand.Float64()
	return plan{due: w.clock().Add(time.Duration(float64(w.interval) * jitter))}
}

// await sleeps until p, or what replaces it, is due by the boot clock.
func (w *Watcher) await(ctx context.Context, p plan) (plan, error) {
	nap := time.NewTimer(0)
	defer nap.Stop()
	for {
		select { // a wish counts even when the scheduled poll is due by now
		case p = <-w.next:
		default:
		}
		left := p.due.Sub(w.clock())
		if left <= 0 {
			return p, nil
		}
		nap.Reset(min(left, maxNap))
		select {
		case <-ctx.Done():
			return p, context.Cause(ctx)
		case p = <-w.next:
		case <-nap.C:
		}
	}
}
