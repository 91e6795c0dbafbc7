package supervisor

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// progressEvery is how often a handover shows that it lives: in the log while it uploads, to the service manager always.
	progressEvery = 5 * time.Second
	// progressGrace is what the service manager is asked to wait from then on.
	progressGrace = 6 * progressEvery
)

// showProgress tells the log and the service manager how a handover goes, until the function returned is called.
func (s *Supervisor) showProgress(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var showing sync.WaitGroup
	showing.Go(func() {
		every := time.NewTicker(progressEvery)
		defer every.Stop()
		told := int64(0)
		for {
			h := s.board.read().Handover
			s.tellManager(h)
			if h != nil && h.PlainBytes > told {
				told = h.PlainBytes
				s.log.Info().Int64("plain_bytes", h.PlainBytes).Int64("stored_bytes", h.StoredBytes).Int64("total_bytes", h.TotalBytes).
					Int64("bytes_per_s", h.BytesPerS).Int64("left_ms", h.LeftMS).Msg("final snapshot on its way")
			}
			select {
			case <-every.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); showing.Wait() }
}

// tellManager asks for more time: systemd would otherwise kill a stop, and the final snapshot with it, after 90 s.
func (s *Supervisor) tellManager(h *HandoverStatus) {
	step := "handover"
	if h != nil {
		step += ": " + h.Step
		if h.TotalBytes > 0 {
			step += fmt.Sprintf(", %d of %d MB", h.PlainBytes>>20, h.TotalBytes>>20)
		}
	}
	s.notified(s.init.Notifier().Extend(progressGrace))
	s.notified(s.init.Notifier().Status(step))
}

// progress publishes how far an upload of total bytes is (0: unknown), with its rate and what it will still take.
func (s *Supervisor) progress(total int64) func(plain, stored int64) {
	began := time.Now()
	return func(plain, stored int64) {
		if stored > 0 {
			s.made("uploading")
		}
		rate, left := estimate(plain, total, time.Since(began))
		s.board.update(func(st *Status) {
			h := st.Handover
			h.TotalBytes, h.PlainBytes, h.StoredBytes, h.BytesPerS, h.LeftMS = total, plain, stored, rate, left.Milliseconds()
		})
	}
}

// estimate is the mean rate so far, in bytes a second, and the time that the rest takes at that rate.
func estimate(done, total int64, took time.Duration) (bytesPerS int64, left time.Duration) {
	if done <= 0 || took <= 0 {
		return 0, 0
	}
	rate := float64(done) / took.Seconds()
	return int64(rate), time.Duration(float64(max(0, total-done)) / rate * float64(time.Second))
}
