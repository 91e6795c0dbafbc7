package supervisor

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// RunOptions says how RunCommand treats its command.
type RunOptions struct {
	Restart   RestartPolicy // zero: never
	Grace     time.Duration // from TERM to SIGKILL
	RestGrace time.Duration // the same for what the command leaves behind
}

// extendBy is what is asked of the service manager beyond our own grace periods.
const extendBy = 5 * time.Second

// RunCommand runs a command as PID 1 would, with Init's Run beside it, until it ended for good or a stop was asked for. It
// returns the exit code that the program should end with. When it returns, nothing is left of the command.
func RunCommand(ctx context.Context, i *Init, c Command, o RunOptions) (code int, err error) {
	running, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // Init must outlive the stop
	var parts sync.WaitGroup
	defer parts.Wait()
	defer cancel(nil)
	parts.Go(func() {
		if err := i.Run(running); err != nil {
			cancel(err)
		}
	})
	exit, err := i.runToEnd(ctx, running, c, o)
	if err != nil {
		return 1, err
	}
	return exit.Status(), i.StopRest(running, o.RestGrace)
}

// runToEnd starts the command, again as the policy says, until it is to end.
func (i *Init) runToEnd(ctx, running context.Context, c Command, o RunOptions) (Exit, error) {
	for failures := 0; ; {
		started := time.Now()
		child, err := i.Start(running, c)
		if err != nil {
			return Exit{}, err
		}
		if stop, err := i.awaitEnd(ctx, running, child); err != nil || stop {
			if err != nil {
				return Exit{}, err
			}
			return i.stopInOrder(running, child, o)
		}
		again := o.Restart.Decide(failures, child.Exit(), time.Since(started), rand.Float64())
		if !again.Again {
			return child.Exit(), nil
		}
		if exit, err := child.Stop(running, o.RestGrace, i.Escalated()); err != nil { // nothing of it may live beside its successor
			return exit, err
		}
		failures = again.Failures
		i.log.Warn().Stringer("exit", child.Exit()).Dur("delay_ms", again.Delay).Int("restarts", failures).Msg("child is started again")
		if stop, err := i.pauseFor(ctx, running, again.Delay); err != nil || stop {
			return Exit{Stopped: true}, err
		}
	}
}

// awaitEnd waits for the child's end or for a request to stop.
func (i *Init) awaitEnd(ctx, running context.Context, child *Child) (stop bool, err error) {
	for {
		select {
		case <-child.Exited():
			return false, nil
		case e := <-i.Events():
			if e.Kind == StopRequested {
				i.log.Info().Str("reason", e.Reason).Int("pid", child.PID()).Msg("stop requested")
				return true, nil
			}
		case <-ctx.Done():
			return true, nil
		case <-running.Done():
			return false, context.Cause(running)
		}
	}
}

func (i *Init) stopInOrder(running context.Context, child *Child, o RunOptions) (Exit, error) {
	if err := errors.Join(i.notifier.Stopping(), i.notifier.Extend(o.Grace+o.RestGrace+extendBy)); err != nil {
		i.log.Warn().Err(err).Msg("service manager not told")
	}
	exit, err := child.Stop(running, o.Grace, i.Escalated())
	i.log.Info().Stringer("exit", exit).Bool("killed", exit.Killed).Msg("child ended")
	return exit, err
}

// pauseFor waits before a restart, and says whether a stop was asked for meanwhile.
func (i *Init) pauseFor(ctx, running context.Context, delay time.Duration) (stop bool, err error) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return false, nil
		case e := <-i.Events():
			if e.Kind == StopRequested {
				return true, nil
			}
		case <-ctx.Done():
			return true, nil
		case <-running.Done():
			return false, context.Cause(running)
		}
	}
}
