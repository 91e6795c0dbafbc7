package ownership

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// BootTime is a moment on the kernel's CLOCK_BOOTTIME, counted from boot. Unlike Go's own monotonic clock it runs
// on while the machine is suspended, and unlike wall time nobody can set it. Moments of different boots do not compare.
type BootTime time.Duration

// Sub returns t-u.
func (t BootTime) Sub(u BootTime) time.Duration { return time.Duration(t - u) }

// Add returns t+d.
func (t BootTime) Add(d time.Duration) BootTime { return t + BootTime(d) }

// Clock says what time it is. It must never run backwards; it is safe for concurrent use.
type Clock func() BootTime

// BootClock is the real clock: clock_gettime(2) with CLOCK_BOOTTIME, Linux 2.6.39 and later. A kernel without it cannot
// run any etcd that this program supervises, so an error is a broken invariant and panics.
func BootClock() BootTime {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err))
	}
	return BootTime(ts.Nano())
}
