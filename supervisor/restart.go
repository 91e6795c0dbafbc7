package supervisor

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// RestartMode says after which ends a child is started again.
type RestartMode string

// The restart modes.
const (
	RestartNever     RestartMode = "never"
	RestartOnFailure RestartMode = "on-failure" // status other than 0, or a signal
	RestartAlways    RestartMode = "always"
)

// RestartPolicy decides whether, and after what delay, a child that ended by itself is started again. A stop that was
// asked for is never followed by a restart.
type RestartPolicy struct {
	Mode    RestartMode
	First   time.Duration // delay of the first restart
	Longest time.Duration // the delay doubles up to this
	Jitter  float64       // each delay is changed by up to this share, either way; 0 to 1
	GoodRun time.Duration // a run of at least this length forgets the failures before it
	Burst   int           // restarts without a good run before it is given up; 0: never given up
}

// DefaultRestartPolicy restarts after failures, from 1 s to 1 min apart, for as long as it takes.
func DefaultRestartPolicy() RestartPolicy {
	return RestartPolicy{Mode: RestartOnFailure, First: time.Second, Longest: time.Minute, Jitter: 0.2, GoodRun: 2 * time.Minute}
}

// ParseRestart is the default policy in the given mode: "never", "on-failure" or "always".
func ParseRestart(mode string) (RestartPolicy, error) {
	p := DefaultRestartPolicy()
	p.Mode = RestartMode(mode)
	return p, p.Validate()
}

// Validate refuses what cannot be meant.
func (p RestartPolicy) Validate() error {
	switch p.Mode {
	case RestartNever:
		return nil
	case RestartOnFailure, RestartAlways:
	default:
		return fmt.Errorf("restart %q: want never, on-failure or always", p.Mode)
	}
	switch {
	case p.First <= 0:
		return fmt.Errorf("restart delay %s: want more than 0", p.First)
	case p.Longest < p.First:
		return fmt.Errorf("longest restart delay %s: want at least the first, %s", p.Longest, p.First)
	case p.Jitter < 0 || p.Jitter > 1:
		return fmt.Errorf("restart jitter %g: want 0 to 1", p.Jitter)
	case p.GoodRun < 0:
		return fmt.Errorf("length of a good run %s: want 0 or more", p.GoodRun)
	case p.Burst < 0:
		return fmt.Errorf("restart burst %d: want 0 (no bound) or more", p.Burst)
	}
	return nil
}

// Restart is a decision about a child that ended.
type Restart struct {
	Again    bool
	Delay    time.Duration // when Again
	Failures int           // restarts in a row without a good run, this one included
	Reason   string        // when not Again
}

// Decide is a pure function: failures is what the last decision said (0 at first), ran how long the child had lived, and
// random a number from 0 up to 1 for the jitter.
func (p RestartPolicy) Decide(failures int, e Exit, ran time.Duration, random float64) Restart {
	if ran >= p.GoodRun && p.GoodRun > 0 {
		failures = 0
	}
	switch {
	case e.Stopped:
		return Restart{Reason: "the stop was asked for"}
	case p.Mode != RestartAlways && p.Mode != RestartOnFailure:
		return Restart{Reason: "restart is off"}
	case p.Mode == RestartOnFailure && e.Signal == 0 && e.Code == 0:
		return Restart{Reason: "it ended well"}
	case p.Mode == RestartOnFailure && e.Signal == unix.SIGINT:
		return Restart{Reason: "it was interrupted"} // Ctrl-C reaches a child that has the terminal directly
	case p.Burst > 0 && failures >= p.Burst:
		return Restart{Failures: failures, Reason: fmt.Sprintf("it ended %d times in a row without a good run", failures+1)}
	}
	delay := p.First
	for range failures {
		if delay = min(2*delay, p.Longest); delay == p.Longest {
			break
		}
	}
	delay += time.Duration(float64(delay) * p.Jitter * (2*random - 1))
	return Restart{Again: true, Delay: delay, Failures: failures + 1}
}
