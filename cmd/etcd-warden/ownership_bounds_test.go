package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership/ownertest"
)

// pair is two sites between which the record moves to and fro.
type pair struct {
	*story
	sites [2]*site
	owner int // of sites
	moves int // made so far
}

// The paths on which the sites ask for the record.
const (
	direct         = "direct"
	throughUnbound = "through unbound"
)

// startPair starts both sites, with the record at the first.
func startPair(s *story, path string) *pair {
	s.test.Helper()
	p := &pair{story: s}
	var flags []string
	if path == throughUnbound {
		flags = []string{"--owner-servers", ownertest.StartUnbound(s.test, demoRecord, s.dns.Addr()).Addr()}
	}
	p.sites[0] = s.start(siteA, append(slices.Clone(flags), "--new-cluster")...)
	s.await(siteA, "etcd serving")
	p.sites[1] = s.start(siteB, flags...)
	return p
}

// lastAck writes to a site without a pause until ctx ends, and returns when the last acknowledgement was read, and how many
// there were.
func lastAck(ctx context.Context, to *site, prefix string, started chan<- struct{}) (last time.Time, n int) {
	g := newGateway(to.client)
	for ctx.Err() == nil {
		if _, err := g.put(ctx, fmt.Sprintf("%s/%08d", prefix, n), "x"); err != nil {
			select {
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		last = time.Now()
		if n++; n == 1 {
			close(started)
		}
	}
	return last, n
}

// lossVisible moves the record away after a pause, while clients write, and returns how long the old site still acknowledged,
// and what the kill took.
func (p *pair) lossVisible(pause time.Duration) (after, killed time.Duration) {
	p.test.Helper()
	from, to := p.sites[p.owner], p.sites[1-p.owner]
	p.owner, p.moves = 1-p.owner, p.moves+1
	writing, stop := context.WithCancel(p.ctx)
	defer stop()
	started := make(chan struct{})
	var last time.Time
	var n int
	var writer sync.WaitGroup
	writer.Go(func() { last, n = lastAck(writing, from, fmt.Sprintf("windows/%d", p.moves), started) })
	select {
	case <-started:
	case <-p.ctx.Done():
		p.test.Fatalf("no write acknowledged: %v", p.ctx.Err())
	}
	select { // the phase of polls and caches in which the move comes
	case <-time.After(pause):
	case <-p.ctx.Done():
	}
	place := p.now()
	moved := p.move(to.name)
	dead := p.awaitFrom(place, from.name, "death", message("etcd dead"))
	p.awaitFrom(place, to.name, "service", message("etcd serving"))
	stop()
	writer.Wait()
	if n == 0 {
		p.test.Fatal("no write was acknowledged")
	}
	took, _ := dead.Fields["took_ms"].(float64)
	return last.Sub(moved), time.Duration(took) * time.Millisecond
}

// mostPause is how long the record rests at least once a poll and a cached answer are somewhere in their course.
func mostPause() time.Duration { return storyOwner.Interval + storyOwner.RecordTTL }

// The promise of `owner explain`: whenever the record moves, the last write that the old site acknowledges comes within the
// computed bound.
func TestLastAcknowledgedWriteIsWithinTheBound(t *testing.T) {
	seed, err := strconv.ParseUint(orElse("WINDOWS_SEED", strconv.FormatInt(time.Now().UnixNano()%1e9, 10)), 10, 64)
	if err != nil {
		t.Fatalf("WINDOWS_SEED: %v", err)
	}
	t.Logf("replay the moments with WINDOWS_SEED=%d", seed)
	for _, path := range []string{direct, throughUnbound} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			const moves = 3
			rng := rand.New(rand.NewPCG(seed, 0))
			p := startPair(newStory(t), path)
			for range moves {
				pause := time.Duration(rng.Int64N(int64(mostPause())))
				after, killed := p.lossVisible(pause)
				bound := storyOwner.Windows().LossVisible + killed
				if path == throughUnbound {
					bound += time.Second // D: caches count in whole seconds
				}
				t.Logf("moved after %s: the last acknowledgement came %s later, the bound is %s", pause, after, bound)
				if after > bound {
					t.Errorf("seed %d: a write was acknowledged %s after the record moved; the bound is %s", seed, after, bound)
				}
			}
		})
	}
}

// BenchmarkLossVisible prints how long after a move of the record the old site still acknowledges writes. One iteration is
// one handover between real etcds: run it with -benchtime 40x.
func BenchmarkLossVisible(b *testing.B) {
	for _, path := range []string{direct, throughUnbound} {
		b.Run(path, func(b *testing.B) {
			s := newStory(b)
			s.t = newTimeline(io.Discard, false) // of a benchmark's log ten lines are printed: they are for the distribution
			s.ctx = b.Context()                  // as long as the caller's iterations take
			p := startPair(s, path)
			var all []time.Duration
			for b.Loop() {
				after, _ := p.lossVisible(rand.N(mostPause()))
				all = append(all, after)
			}
			slices.Sort(all)
			for _, q := range []int{50, 90, 100} {
				b.ReportMetric(float64(all[(len(all)-1)*q/100].Milliseconds()), fmt.Sprintf("p%d-ms", q))
			}
			b.ReportMetric(float64(storyOwner.Windows().LossVisible.Milliseconds()), "bound-ms")
			b.Log("\n" + histogram(all, 8))
		})
	}
}

// histogram is a line for each of at most so many buckets of sorted values.
func histogram(sorted []time.Duration, buckets int) string {
	var out strings.Builder
	first, last := sorted[0], sorted[len(sorted)-1]
	width := max((last-first)/time.Duration(buckets-1), time.Millisecond)
	for i := 0; i < len(sorted); {
		bucket, n := (sorted[i]-first)/width, 0
		for ; i < len(sorted) && (sorted[i]-first)/width == bucket; i++ {
			n++
		}
		from := first + bucket*width
		fmt.Fprintf(&out, "%5d to %5d ms  %s %d\n", from.Milliseconds(), (from + width).Milliseconds(), strings.Repeat("#", n), n)
	}
	return out.String()
}
