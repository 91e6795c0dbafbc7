package ownership_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/ownership/ownertest"
)

// bubble runs a watcher on synctest's time. The boot clock runs with it, plus what the machine was suspended for.
func bubble(t *testing.T, test func(t *testing.T, w *ownership.Watcher, s *ownertest.Script, suspend func(time.Duration), stop func() error)) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var suspended atomic.Int64
		clock := func() ownership.BootTime {
			return ownership.BootTime(time.Hour + time.Since(began) + time.Duration(suspended.Load()))
		}
		script := ownertest.NewScript(mine, clock)
		script.SetOwner(mine)
		set := ownership.Defaults()
		set.Name, set.ID = name, mine
		w := ownership.NewWatcher(script, set, clock)
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		stop := func() error {
			cancel(errTestOver)
			return <-ended
		}
		test(t, w, script, func(d time.Duration) { suspended.Add(int64(d)) }, stop)
	})
}

var errTestOver = errors.New("test is over")

func TestWatcherKeepsTheInterval(t *testing.T) {
	bubble(t, func(t *testing.T, w *ownership.Watcher, s *ownertest.Script, _ func(time.Duration), stop func() error) {
		for range 100 {
			if v := <-w.Verdicts(); v.Kind != ownership.Mine {
				t.Fatalf("got %s", v)
			}
		}
		asked := s.Asked()
		varied := false
		for i := 1; i < len(asked); i++ {
			gap := asked[i].At.Sub(asked[i-1].At)
			if gap < 4500*time.Millisecond || gap > 5500*time.Millisecond || asked[i].TCP {
				t.Fatalf("poll %d: %s after the last, tcp=%v; want 5s ±10 %% by UDP", i, gap, asked[i].TCP)
			}
			varied = varied || gap != asked[1].At.Sub(asked[0].At)
		}
		if !varied {
			t.Fatal("no jitter: many wardens would poll in step")
		}
		if err := stop(); !errors.Is(err, errTestOver) {
			t.Fatalf("Run returned %v, want the cause", err)
		}
	})
}

func TestNextReplacesTheScheduledPoll(t *testing.T) {
	bubble(t, func(t *testing.T, w *ownership.Watcher, s *ownertest.Script, _ func(time.Duration), stop func() error) {
		<-w.Verdicts()
		w.Next(3*time.Second, false)
		w.Next(0, true) // the last wish counts
		<-w.Verdicts()
		w.Next(time.Second, false)
		<-w.Verdicts()
		<-w.Verdicts()
		a := s.Asked()
		if got := a[1].At.Sub(a[0].At); got != 0 || !a[1].TCP {
			t.Errorf("second poll %s later, tcp=%v; want at once by TCP", got, a[1].TCP)
		}
		if got := a[2].At.Sub(a[1].At); got != time.Second || a[2].TCP {
			t.Errorf("third poll %s later, tcp=%v; want 1s by UDP", got, a[2].TCP)
		}
		if got := a[3].At.Sub(a[2].At); got < 4500*time.Millisecond {
			t.Errorf("fourth poll %s later, want the ordinary interval again", got)
		}
		_ = stop()
	})
}

// TestResumeIsFollowedByAPoll: Go's timers stand still in suspend; the record may have moved meanwhile.
func TestResumeIsFollowedByAPoll(t *testing.T) {
	bubble(t, func(t *testing.T, w *ownership.Watcher, s *ownertest.Script, suspend func(time.Duration), stop func() error) {
		<-w.Verdicts()
		time.Sleep(500 * time.Millisecond) // synctest's: no time passes outside
		suspend(20 * time.Minute)
		resumed := time.Now()
		<-w.Verdicts()
		if late := time.Since(resumed); late > time.Second {
			t.Errorf("the poll came %s after the resume, want 1s at most", late)
		}
		_ = stop()
	})
}

// TestNoPollWhileNobodyListens: verdicts must not pile up, nor polls go on without a reader.
func TestNoPollWhileNobodyListens(t *testing.T) {
	bubble(t, func(t *testing.T, w *ownership.Watcher, s *ownertest.Script, _ func(time.Duration), stop func() error) {
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(s.Asked()); n != 1 {
			t.Errorf("%d polls without a reader, want 1", n)
		}
		if err := stop(); !errors.Is(err, errTestOver) {
			t.Errorf("Run returned %v, want the cause", err)
		}
	})
}

func TestWatcherStopsDuringAPoll(t *testing.T) {
	bubble(t, func(t *testing.T, w *ownership.Watcher, s *ownertest.Script, _ func(time.Duration), stop func() error) {
		<-w.Verdicts()
		s.Hang()
		w.Next(0, true)
		synctest.Wait()
		if err := stop(); !errors.Is(err, errTestOver) {
			t.Errorf("Run returned %v, want the cause", err)
		}
	})
}

// TestBootClockRunsForward with the real kernel.
func TestBootClockRunsForward(t *testing.T) {
	a := ownership.BootClock()
	b := ownership.BootClock()
	if a <= 0 || b < a {
		t.Fatalf("boot clock: %s then %s", time.Duration(a), time.Duration(b))
	}
}
