package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// StopRest ends whatever is left once the main child is dead: its orphans, also those in sessions of their own. They get
// TERM and CONT, up to grace, then SIGKILL until nothing is left; running helpers are spared. With nothing left it returns
// at once. If ctx ends first the error wraps ErrAlive.
func (i *Init) StopRest(ctx context.Context, grace time.Duration) error {
	if err := i.end(ctx, everything{i}, grace, i.escalated); err != nil {
		return fmt.Errorf("stop what the child left: %w", err)
	}
	i.mu.Lock()
	children := append([]*Child(nil), i.children...)
	i.mu.Unlock()
	for _, c := range children {
		if !c.alive() {
			i.forget(c)
		}
	}
	return nil
}

// remains are the processes that are to be ended.
type remains interface {
	// look finds those that are left. known is false where that cannot be told (no /proc).
	look() (left []process, known bool)
	// groups are process groups whose members are all meant, for where they cannot be told one by one.
	groups() []int
	cgroups() []*cgroup
}

// The pause between two looks while processes are being ended. Their end is noticed at once when they are our children;
// only what dies deeper down gives no notice.
const (
	lookAgainFirst = 2 * time.Millisecond
	lookAgainMost  = 100 * time.Millisecond
)

// end is the one way in which processes are ended: TERM and CONT to each once, SIGKILL when the time is up.
func (i *Init) end(ctx context.Context, r remains, grace time.Duration, escalate <-chan struct{}) error {
	told := map[process]bool{}
	k := killing{now: grace <= 0, killed: map[process]bool{}}
	defer k.stop()
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	pause := lookAgainFirst
	for {
		changed := i.reaper.Changed() // before the look, so that no change is missed between look and wait
		left, known := r.look()
		if known && len(left) == 0 {
			return nil
		}
		switch {
		case k.due(left):
			k.begin(i)
			i.kill(r, left, known)
		case !k.began():
			i.terminate(r, left, known, told)
		}
		again := time.NewTimer(pause)
		pause = min(2*pause, lookAgainMost)
		select {
		case <-changed:
		case <-again.C:
		case <-k.again():
			k.now = true
		case <-k.overdue():
			i.reportUndying(left)
		case <-escalate:
			escalate = nil
			k.now = !k.began()
		case <-deadline.C:
			k.now = !k.began()
		case <-ctx.Done():
			again.Stop()
			return fmt.Errorf("%w (%d left): %w", ErrAlive, len(left), context.Cause(ctx))
		}
		again.Stop()
	}
}

// killing is the phase after the grace period.
type killing struct {
	now    bool // SIGKILL is due for all
	killed map[process]bool
	every  *time.Ticker // nil before the first SIGKILL
	alarm  *time.Timer
}

func (k *killing) began() bool { return k.every != nil }

// due says whether to send SIGKILL now: at the end of grace, each second after, and at once to whoever appears later.
func (k *killing) due(left []process) (due bool) {
	due = k.now
	if !k.now && !k.began() {
		return false
	}
	for _, p := range left {
		if !k.killed[p.key()] {
			k.killed[p.key()], due = true, true
		}
	}
	return due
}

func (k *killing) begin(i *Init) {
	k.now = false
	if k.every == nil {
		k.every, k.alarm = time.NewTicker(i.cfg.KillEvery), time.NewTimer(i.cfg.AlarmTime)
	}
}

func (k *killing) again() <-chan time.Time {
	if k.every == nil {
		return nil
	}
	return k.every.C
}

func (k *killing) overdue() <-chan time.Time {
	if k.alarm == nil {
		return nil
	}
	return k.alarm.C
}

func (k *killing) stop() {
	if k.every != nil {
		k.every.Stop()
		k.alarm.Stop()
	}
}

// terminate sends TERM, then CONT, to those that have not had them.
func (i *Init) terminate(r remains, left []process, known bool, told map[process]bool) {
	for _, p := range left {
		if told[p.key()] {
			continue
		}
		told[p.key()] = true
		if p.leader != nil {
			p.leader.stopped.Store(true)
		}
		for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGCONT} {
			if err := i.signalProcess(p, sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
				i.log.Warn().Err(err).Msg("signal not sent")
			}
		}
		i.log.Info().Int("pid", p.pid).Msg("TERM sent")
	}
	if !known && !told[process{}] {
		told[process{}] = true
		i.signalBlindly(r, unix.SIGTERM)
		i.signalBlindly(r, unix.SIGCONT)
	}
}

// kill sends SIGKILL to all that is left. It is the only function of the program that does so.
func (i *Init) kill(r remains, left []process, known bool) {
	for _, cg := range r.cgroups() {
		cg.kill() // atomic, also against forks; what it cannot do, the rest does
	}
	for _, p := range left {
		if p.leader != nil {
			p.leader.stopped.Store(true)
			p.leader.killed.Store(true)
			p.leader.process.SignalGroup(unix.SIGKILL) // refused once reaped: then its group is looked through instead
		}
		if err := i.signalProcess(p, unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
			i.log.Warn().Err(err).Msg("signal not sent")
		}
	}
	if !known {
		i.signalBlindly(r, unix.SIGKILL)
	}
	i.log.Warn().Int("processes", len(left)).Msg("SIGKILL sent")
}

// signalBlindly is for where there is no /proc: as PID 1 everybody else is a descendant, else the groups must do.
func (i *Init) signalBlindly(r remains, sig unix.Signal) {
	if _, all := r.(everything); all && self() == 1 {
		unix.Kill(-1, sig) // fails only when nobody is left
		return
	}
	for _, group := range r.groups() {
		unix.Kill(-group, sig)
	}
}

// reportUndying says, once, why a process may survive SIGKILL.
func (i *Init) reportUndying(left []process) {
	for _, p := range left {
		state, frozen := fate(p.pid)
		i.log.Error().Int("pid", p.pid).Str("state", state).Bool("frozen", frozen).
			Msg("child not dying; it is waited for (state D: look at its disk or NFS server; frozen: thaw its cgroup)")
	}
}
