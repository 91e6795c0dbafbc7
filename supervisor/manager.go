package supervisor

import (
	"context"
	"time"
)

// What the service manager is told besides what the child says itself: sd_notify(3). Nothing of it is needed for the
// supervision, so a manager that does not listen is a debug line.
func (s *Supervisor) notified(err error) {
	if err != nil {
		s.log.Debug().Err(err).Msg("service manager not notified")
	}
}

// notifyStop says that the stop has begun and how long it may take.
func (s *Supervisor) notifyStop() {
	s.notified(s.init.Notifier().Stopping())
	s.notified(s.init.Notifier().Extend(s.cfg.Grace + restGrace + stopMargin))
}

// stopMargin is what a stop takes besides the waits that are configured.
const stopMargin = 5 * time.Second

// watchdog ticks when the service manager wants a sign of life; nil when it does not.
func (s *Supervisor) watchdog() (tick <-chan time.Time, stop func()) {
	interval := s.init.Notifier().WatchdogInterval()
	if interval <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(interval)
	return t.C, t.Stop
}

// signOfLife is given while the loop turns and, once etcd has served, while it answers. A member of several may be without
// a quorum through no fault of its own: there the loop's word is enough.
func (s *Supervisor) signOfLife(ctx context.Context) {
	st := s.board.read()
	asked := st.Phase == Running && st.Ready && s.cfg.Serving != nil && s.cfg.Etcd != nil && s.cfg.Etcd.Members <= 1
	if !asked {
		s.notified(s.init.Notifier().Watchdog())
		return
	}
	s.do(ctx, func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, s.init.Notifier().WatchdogInterval())
		defer cancel()
		if err := s.cfg.Serving(ctx); err != nil {
			s.log.Error().Err(err).Msg("etcd does not answer; the service manager is given no sign of life")
			return nil
		}
		s.notified(s.init.Notifier().Watchdog())
		return nil
	})
}

// reload has the configuration read again, beside the loop: its file may be on a file system that hangs. The service
// manager is told only what it can take: a READY=1 before the first one would end the start too early.
func (s *Supervisor) reload(ctx context.Context) {
	if s.cfg.Reload == nil {
		s.log.Info().Msg("reload requested; there is nothing to reload")
		return
	}
	tell := s.begun || s.board.read().Ready
	if tell {
		s.notified(s.init.Notifier().Reloading())
	}
	s.do(ctx, func(context.Context) func() {
		if err := s.cfg.Reload(); err != nil {
			s.log.Error().Err(err).Msg("configuration not reloaded; the one before stays in force")
		} else {
			s.log.Info().Msg("configuration reloaded")
		}
		if tell {
			s.notified(s.init.Notifier().Ready())
		}
		return nil
	})
}
