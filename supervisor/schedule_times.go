package supervisor

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

// Schedule says when full snapshots are due. The zero value never is.
type Schedule struct {
	text  string
	every time.Duration // an interval; 0: cron has it
	cron  cron.Schedule
}

// minInterval keeps a typing error from keeping etcd busy for good.
const minInterval = time.Second

// ParseSchedule reads an interval ("1h30m", "@every 1h30m"), a name ("@hourly", "@daily", "@weekly", "@monthly") or the five fields of cron ("15 3 * * *"),
// which are of the local time zone unless they begin with one ("CRON_TZ=Europe/Berlin 15 3 * * *"). Empty means never.
func ParseSchedule(text string) (Schedule, error) {
	text = strings.TrimSpace(text)
	s := Schedule{text: text}
	if text == "" {
		return s, nil
	}
	if every, err := time.ParseDuration(strings.TrimPrefix(text, "@every ")); err == nil {
		if every < minInterval {
			return Schedule{}, fmt.Errorf("schedule %q: an interval below %s", text, minInterval)
		}
		s.every = every
		return s, nil
	}
	if zone, rest, ok := strings.Cut(text, " "); strings.Contains(zone, "TZ=") && (!ok || strings.TrimSpace(rest) == "") {
		return Schedule{}, fmt.Errorf("schedule %q: nothing follows the time zone", text) // the parser would panic
	}
	var err error
	if s.cron, err = cron.ParseStandard(text); err != nil {
		return Schedule{}, fmt.Errorf("schedule %q: want an interval (6h), a name (@daily) or five fields of cron (15 3 * * *): %w", text, err)
	}
	if s.cron.Next(time.Now()).IsZero() {
		return Schedule{}, fmt.Errorf("schedule %q: no such day ever comes", text)
	}
	return s, nil
}

// String is the schedule as it was written.
func (s Schedule) String() string { return s.text }

// Never tells whether nothing is ever due.
func (s Schedule) Never() bool { return s.text == "" }

// next is when the first snapshot after a moment is due, moved by a part of the jitter: forth for cron, which names the earliest moment, both ways for an
// interval, which is a mean. random is from 0 up to but not including 1.
func (s Schedule) next(after time.Time, jitter time.Duration, random float64) time.Time {
	if s.every == 0 {
		return s.cron.Next(after).Add(time.Duration(random * float64(jitter)))
	}
	jitter = min(jitter, s.every/2)
	return after.Add(s.every + time.Duration((2*random-1)*float64(jitter)))
}

// Snapshotting is the configuration of snapshots while etcd runs. The zero value takes none.
type Snapshotting struct {
	Schedule Schedule
	Jitter   time.Duration // see Schedule; several clusters that share a store or a line should not begin at the same second
	Keep     snapshot.Retention
}

// Validate checks what belongs together.
func (n Snapshotting) Validate(haveStore, haveEndpoint bool) error {
	switch {
	case n.Jitter < 0:
		return errors.New("--snapshot-jitter must not be negative")
	case n.Schedule.Never():
		if !n.Keep.Empty() {
			return errors.New("--keep-… without --snapshot-schedule: nothing would be deleted; use `etcd-warden snapshot prune`, or set a schedule")
		}
		return nil
	case !haveStore:
		return errors.New("--snapshot-schedule without --store: say where the snapshots go")
	case !haveEndpoint:
		return errors.New("--snapshot-schedule is for etcd, and the command after -- is something else")
	}
	return n.Keep.Validate()
}
