package supervisor

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal on stdin, where we were its foreground at the start. A nil terminal is none.
type terminal struct {
	fd   int
	lent int // the child's group, while it is the foreground; 0: it is not lent
}

// openTerminal returns nil when stdin is no terminal of ours, or when we were started in the background.
func openTerminal() *terminal {
	if foreground, err := unix.IoctlGetInt(unix.Stdin, unix.TIOCGPGRP); err != nil || foreground != unix.Getpgrp() {
		return nil
	}
	return &terminal{fd: unix.Stdin}
}

// ours says whether our group is the foreground now.
func (t *terminal) ours() bool { return t != nil && t.foreground() == unix.Getpgrp() }

func (t *terminal) foreground() int {
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// gone says whether the terminal that we had has hung up.
func (t *terminal) gone() bool {
	if t == nil {
		return false
	}
	_, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err != nil
}

// give makes a group the foreground. From the background that raises SIGTTOU, unless the calling thread blocks it.
func (t *terminal) give(group int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var block, before unix.Sigset_t
	block.Val[0] = 1 << (unix.SIGTTOU - 1)
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &block, &before); err != nil {
		return err
	}
	err := unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
	return errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
}

// lend notes that the child was started as the foreground, or makes it so.
func (t *terminal) lend(group int) {
	if t == nil {
		return
	}
	if t.ours() && t.give(group) != nil {
		return
	}
	if t.foreground() == group {
		t.lent = group
	}
}

// takeBack makes us the foreground again, if the child was.
func (t *terminal) takeBack() {
	if t == nil || t.lent == 0 {
		return
	}
	if t.foreground() == t.lent {
		t.give(unix.Getpgrp()) // a terminal that is gone needs no foreground
	}
	t.lent = 0
}

// aShellWaits says whether a process outside our group, in our session, can resume us when we stop: a shell with job
// control. Without one, a stop would be for ever.
func aShellWaits() bool {
	parent := os.Getppid() // 0, which stands for ourselves below, when it is outside our PID namespace
	group, err := unix.Getpgid(parent)
	return os.Getpid() != 1 && err == nil && group != unix.Getpgrp() && sameSession(parent)
}

func sameSession(pid int) bool {
	theirs, err := unix.Getsid(pid)
	ours, err2 := unix.Getsid(0)
	return err == nil && err2 == nil && theirs == ours
}
