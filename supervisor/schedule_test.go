package supervisor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/snapshot"
)

// A typing error must not become a schedule that hammers etcd, or one that never comes.
func TestScheduleIsReadOrRefused(t *testing.T) {
	after := time.Date(2026, 12, 1, 17, 5, 0, 0, time.UTC)
	tests := []struct {
		text, next string // next: in UTC, or empty when it is refused
	}{
		{"6h", "2026-12-01T23:05:00Z"},
		{"@every 90s", "2026-12-01T17:06:30Z"},
		{"CRON_TZ=UTC 15 3 * * *", "2026-12-02T03:15:00Z"},
		{"TZ=UTC */10 * * * *", "2026-12-01T17:10:00Z"},
		{"CRON_TZ=UTC @daily", "2026-12-02T00:00:00Z"},
		{"  1h ", "2026-12-01T18:05:00Z"},
		{"10ms", ""}, {"-1h", ""}, {"0", ""}, {"soon", ""}, {"61 * * * *", ""}, {"* * * *", ""}, {"TZ=UTC", ""}, {"CRON_TZ=UTC ", ""},
		{"CRON_TZ=Nowhere/Atall 1 1 * * *", ""}, {"0 0 30 2 *", ""},
	}
	for _, tt := range tests {
		s, err := ParseSchedule(tt.text)
		if tt.next == "" {
			if err == nil {
				t.Errorf("%q: taken, next is %s", tt.text, s.next(after, 0, 0))
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.text, err)
			continue
		}
		if got := s.next(after, 0, 0.5).UTC().Format(time.RFC3339); got != tt.next {
			t.Errorf("%q: next is %s, want %s", tt.text, got, tt.next)
		}
	}
	if s, err := ParseSchedule(""); err != nil || !s.Never() {
		t.Errorf("empty: never %v, error %v", s.Never(), err)
	}
}

// Jitter spreads clusters; it must not let an interval vanish nor a named time come early.
func TestJitterStaysInItsBounds(t *testing.T) {
	after := time.Date(2026, 12, 1, 17, 5, 0, 0, time.UTC)
	interval, _ := ParseSchedule("1h")
	daily, _ := ParseSchedule("CRON_TZ=UTC 15 3 * * *")
	for _, random := range []float64{0, 0.25, 0.5, 0.999} {
		if d := interval.next(after, 5*time.Hour, random).Sub(after); d < 30*time.Minute || d > 90*time.Minute {
			t.Errorf("random %v: an interval of an hour became %s", random, d)
		}
		if at := daily.next(after, time.Minute, random); at.Before(after.Add(10*time.Hour+10*time.Minute)) || at.After(after.Add(10*time.Hour+11*time.Minute)) {
			t.Errorf("random %v: 03:15 became %s", random, at)
		}
	}
}

// rig runs a schedule in a bubble of synthetic time.
type rig struct {
	*snapshots
	board board
	mu    sync.Mutex
	takes []time.Duration // since the start
	begun time.Time
	take  func(context.Context) error
}

func newRig(t *testing.T, text string, take func(context.Context) error) *rig {
	t.Helper()
	schedule, err := ParseSchedule(text)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{begun: time.Now(), take: take}
	r.board.status = Status{Phase: Running, Ready: true, Snapshots: &SnapshotStatus{}}
	r.snapshots = &snapshots{cfg: Snapshotting{Schedule: schedule}, log: zerolog.Nop(), board: &r.board, served: make(chan struct{}, 1),
		take: func(ctx context.Context) (snapshot.Manifest, error) {
			r.mu.Lock()
			r.takes = append(r.takes, time.Since(r.begun))
			r.mu.Unlock()
			return snapshot.Manifest{Key: "k", Generation: 1}, r.take(ctx)
		}}
	return r
}

// during runs the schedule for a while and returns when snapshots began.
func (r *rig) during(t *testing.T, d time.Duration, meanwhile func()) []time.Duration {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx) })
	if meanwhile != nil {
		meanwhile()
	}
	time.Sleep(d)
	synctest.Wait()
	cancel()
	running.Wait()
	return r.takes
}

func TestSnapshotsAreTakenByTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "1h", func(context.Context) error { return nil })
		got := r.during(t, 3*time.Hour+30*time.Minute, nil)
		if want := []time.Duration{time.Hour, 2 * time.Hour, 3 * time.Hour}; !slices.Equal(got, want) {
			t.Errorf("taken at %v, want %v", got, want)
		}
		if st := r.board.read().Snapshots; st.Taken != 3 || st.LastKey != "k" || st.Running || st.LastAt.IsZero() {
			t.Errorf("status %+v", st)
		}
	})
}

// One at a time: a slow store must not pile up streams on etcd. What was due meanwhile is counted.
func TestSnapshotsNeverOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "1h", func(context.Context) error { time.Sleep(150 * time.Minute); return nil })
		got := r.during(t, 6*time.Hour+time.Minute, nil)
		if want := []time.Duration{time.Hour, 4 * time.Hour}; !slices.Equal(got, want) {
			t.Errorf("taken at %v, want %v", got, want)
		}
		if st := r.board.read().Snapshots; st.Skipped != 4 {
			t.Errorf("skipped %d, want 4", st.Skipped)
		}
	})
}

// After a failure the next try is a matter of minutes, not of the next night.
func TestFailedSnapshotIsTriedAgainWithinMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 4
		r := newRig(t, "24h", func(context.Context) error {
			if left--; left >= 0 {
				return errors.New("no")
			}
			return nil
		})
		got := r.during(t, 25*time.Hour, nil)
		day, m := 24*time.Hour, time.Minute
		if want := []time.Duration{day, day + m, day + 3*m, day + 7*m, day + 12*m}; !slices.Equal(got, want) {
			t.Errorf("tried at %v, want %v", got, want)
		}
		if st := r.board.read().Snapshots; st.Failed != 4 || st.Taken != 1 || st.LastError != "" {
			t.Errorf("status %+v", st)
		}
	})
}

// What only a hand can repair is not tried every minute.
func TestSnapshotWithoutAGenerationWaitsForTheNextTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "1h", func(context.Context) error { return snapshot.ErrInvalid })
		if got := r.during(t, 2*time.Hour+time.Minute, nil); len(got) != 2 {
			t.Errorf("tried at %v, want twice", got)
		}
	})
}

// Nothing is taken from an etcd that is not serving, or not ours.
func TestSnapshotsAreTakenOnlyWhileServingAsOwner(t *testing.T) {
	tests := []struct {
		name   string
		status Status
		want   int
	}{
		{"serving", Status{Phase: Running, Ready: true}, 1},
		{"not ready", Status{Phase: Running}, 0},
		{"stopping", Status{Phase: Stopping, Ready: true}, 0},
		{"owner", Status{Phase: Running, Ready: true, Owner: &OwnerStatus{State: string(ownership.Owner)}}, 1},
		{"suspect", Status{Phase: Running, Ready: true, Owner: &OwnerStatus{State: string(ownership.Suspect)}}, 1},
		{"fencing", Status{Phase: Running, Ready: true, Owner: &OwnerStatus{State: string(ownership.Fencing)}}, 0},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, "1h", func(context.Context) error { return nil })
			tt.status.Snapshots = &SnapshotStatus{}
			r.board.status = tt.status
			if got := r.during(t, 61*time.Minute, nil); len(got) != tt.want {
				t.Errorf("%s: %d taken, want %d", tt.name, len(got), tt.want)
			}
			if st := r.board.read().Snapshots; st.Skipped != 1-tt.want {
				t.Errorf("%s: skipped %d", tt.name, st.Skipped)
			}
		})
	}
}

// etcd lingers for seconds when it is told to end while it streams: the stream is ended first, and that is no failure.
func TestInterruptEndsTheSnapshotUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "1h", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		got := r.during(t, 30*time.Minute, func() {
			time.Sleep(time.Hour + time.Minute)
			r.interrupt()
			synctest.Wait()
			if st := r.board.read().Snapshots; st.Running {
				t.Error("it goes on")
			}
		})
		st := r.board.read().Snapshots
		if len(got) != 1 || st.Failed != 0 || st.Skipped != 1 {
			t.Errorf("taken at %v, status %+v", got, st)
		}
	})
	var none *snapshots // no store
	none.interrupt()
	none.begin()
}

// A store that is down when etcd begins to serve gets the entry later; etcd does not wait for it.
func TestGenerationIsOpenedWhenTheStoreComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "1000h", nil)
		tries := 0
		r.open = func(context.Context) error {
			if tries++; tries < 3 {
				return &snapshot.StoreError{Kind: snapshot.ErrUnavailable, Retry: true}
			}
			return nil
		}
		r.during(t, 10*time.Minute, r.begin)
		if tries != 3 {
			t.Errorf("%d tries, want 3", tries)
		}
	})
}

// Retention follows each success; its failure does not make a snapshot fail.
func TestPruneFollowsASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "1h", func(context.Context) error { return nil })
		r.cfg.Keep.Last = 3
		pruned := 0
		r.prune = func(_ context.Context, generation uint64) (snapshot.PruneResult, error) {
			pruned += int(generation)
			return snapshot.PruneResult{Deleted: 2}, errors.New("no")
		}
		r.during(t, 2*time.Hour+time.Minute, nil)
		if st := r.board.read().Snapshots; pruned != 2 || st.Taken != 2 || st.Failed != 0 {
			t.Errorf("pruned %d times, status %+v", pruned, st)
		}
	})
}

func TestSnapshottingRefusesWhatDoesNotBelongTogether(t *testing.T) {
	hourly, _ := ParseSchedule("1h")
	tests := []struct {
		n               Snapshotting
		store, endpoint bool
		want            string
	}{
		{Snapshotting{}, false, false, ""},
		{Snapshotting{Schedule: hourly}, true, true, ""},
		{Snapshotting{Schedule: hourly}, false, true, "without --store"},
		{Snapshotting{Schedule: hourly}, true, false, "is for etcd"},
		{Snapshotting{Keep: snapshot.Retention{Last: 1}}, true, true, "without --snapshot-schedule"},
		{Snapshotting{Schedule: hourly, Keep: snapshot.Retention{Last: -1}}, true, true, "--keep-last"},
		{Snapshotting{Schedule: hourly, Jitter: -1}, true, true, "--snapshot-jitter"},
	}
	for _, tt := range tests {
		err := tt.n.Validate(tt.store, tt.endpoint)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want %q", tt.n, err, tt.want)
		}
	}
}
