package signals

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// BecomeSubreaper makes this process the parent of its orphaned descendants, as PID 1 is anyway. A refusal (an old
// kernel, a seccomp filter) costs the reaping of orphans and nothing else: worth a warning.
func BecomeSubreaper() error {
	if os.Getpid() == 1 {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	return nil
}
