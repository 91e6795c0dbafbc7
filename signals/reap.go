package signals

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// strangerPatience is how long a dead child that is not ours is left to whoever started it. A library that runs a
// program by os/exec waits for it in a thread of its own and takes the status within microseconds; an orphan that looks
// like that has to wait this long.
const strangerPatience = 200 * time.Millisecond

// reapBatch is how many statuses are taken before others get a turn at the lock.
const reapBatch = 64

// Reaper is the only wait of the program. Children are started through Spawn, and their statuses come out of their
// Process; every other child of this process is an orphan that was reparented here and is reaped without notice.
//
// Children that a library starts by itself (os/exec) are told from orphans by their process group, ours: a dead child
// in it that was not spawned here is given to its own waiter first and is reaped only if it is still there after a while.
// Everything is driven by SIGCHLD; an idle Reaper does not wake up. It is safe for concurrent use.
type Reaper struct {
	children <-chan os.Signal
	group    int // our own process group
	patience time.Duration

	mu        sync.Mutex // guards what follows; held over every fork and every wait
	processes map[int]*Process
	strangers map[int]time.Time // dead ones in our group, and since when we know
	changed   chan struct{}     // closed at the next change of our children
}

// NewReaper makes a Reaper that is driven by the inbox's SIGCHLD. Its Run must be running for statuses to come.
func NewReaper(in *Inbox) *Reaper {
	return &Reaper{children: in.Children(), group: unix.Getpgrp(), patience: strangerPatience,
		processes: map[int]*Process{}, strangers: map[int]time.Time{}, changed: make(chan struct{})}
}

// Process is a child that was started through Spawn, the leader of a process group of its own.
type Process struct {
	reaper  *Reaper
	pid     int
	exited  chan struct{}
	stopped chan unix.Signal
	status  unix.WaitStatus // set before exited is closed
}

// Spawn calls fork, which starts a process as the leader of a new group and returns its PID, and registers the process
// before anything can be reaped. The error is fork's own.
func (r *Reaper) Spawn(fork func() (pid int, err error)) (*Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return nil, err
	}
	p := &Process{reaper: r, pid: pid, exited: make(chan struct{}), stopped: make(chan unix.Signal, 1)}
	r.processes[pid] = p
	return p, nil
}

// PID is the process's ID, also after its end.
func (p *Process) PID() int { return p.pid }

// Exited is closed when the process has been reaped. Its group may still live.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Status is how the process ended. It is valid once Exited is closed.
func (p *Process) Status() unix.WaitStatus { return p.status }

// Stopped has the last signal that stopped the process (job control), until somebody reads it.
func (p *Process) Stopped() <-chan unix.Signal { return p.stopped }

// Signal sends sig to the process and nobody else: it is not reaped, and its PID not given away, before that is done.
// The error is os.ErrProcessDone when it has been reaped already.
func (p *Process) Signal(sig unix.Signal) error { return p.send(p.pid, sig) }

// SignalGroup sends sig to the process's group, as long as the process itself has not been reaped.
func (p *Process) SignalGroup(sig unix.Signal) error { return p.send(-p.pid, sig) }

func (p *Process) send(to int, sig unix.Signal) error {
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	if p.reaper.processes[p.pid] != p {
		return os.ErrProcessDone
	}
	if err := unix.Kill(to, sig); err != nil {
		return fmt.Errorf("send %s to %d: %w", Name(sig), to, err)
	}
	return nil
}

// Hold calls f while nothing is reaped: the PIDs of our children mean what they meant, dead or alive. registered tells
// the PIDs of spawned processes. f must be short and must not use the Reaper.
func (r *Reaper) Hold(f func(registered func(pid int) bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(func(pid int) bool { return r.processes[pid] != nil })
}

// Changed returns a channel that is closed at the next change: a child stopped or reaped. Take it before looking.
func (r *Reaper) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Empty says that there is no child left, alive or dead: the kernel's own word (ECHILD), not a look around.
func (r *Reaper) Empty() bool {
	_, err := peek(unix.P_ALL, 0)
	return errors.Is(err, unix.ECHILD)
}

// Run reaps until ctx ends.
func (r *Reaper) Run(ctx context.Context) error {
	again := time.NewTimer(0) // whoever died before Run is looked for at once
	defer again.Stop()
	for pause := time.Millisecond; ; {
		select {
		case <-r.children:
		case <-again.C:
		case <-ctx.Done():
			return nil
		}
		waiting, err := r.drain()
		if err != nil {
			return fmt.Errorf("reap: %w", err)
		}
		if !waiting {
			pause = time.Millisecond
			continue
		}
		again.Reset(pause)
		pause = min(2*pause, r.patience/4)
	}
}

// drain reaps all that is dead. waiting means that strangers were left to their own waiters and are to be looked at
// again soon: their end gives no SIGCHLD.
func (r *Reaper) drain() (waiting bool, err error) {
	for more := true; more && err == nil; {
		more, waiting, err = r.drainSome()
	}
	return waiting, err
}

// drainSome takes a batch, so that a storm of orphans does not keep Spawn and Signal waiting.
func (r *Reaper) drainSome() (more, waiting bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := 0
	defer func() {
		if taken > 0 {
			close(r.changed)
			r.changed = make(chan struct{})
		}
	}()
	// 1. Our own children and what is orphaned in their groups: never hidden behind a stranger.
	for pid := range r.processes {
		for _, who := range []int{pid, -pid} {
			for taken < reapBatch && r.take(who) {
				taken++
			}
		}
	}
	// 2. All others, one at a time: the kernel always shows the first dead one.
	for taken < reapBatch {
		pid, err := peek(unix.P_ALL, 0)
		if errors.Is(err, unix.ECHILD) || (err == nil && pid == 0) {
			clear(r.strangers)
			return false, false, nil
		}
		if err != nil {
			return false, false, err
		}
		if r.processes[pid] == nil && r.leaveToItsWaiter(pid) {
			return false, true, nil
		}
		if r.take(pid) {
			taken++
		}
	}
	return true, false, nil
}

// leaveToItsWaiter says whether the dead child pid may still be wanted by whoever in this program started it.
func (r *Reaper) leaveToItsWaiter(pid int) bool {
	group, err := unix.Getpgid(pid)
	if err != nil || group != r.group {
		return false // an orphan: what a library starts is in our group
	}
	since, known := r.strangers[pid]
	if !known {
		r.strangers[pid] = time.Now()
		return true
	}
	if time.Since(since) < r.patience {
		return true
	}
	delete(r.strangers, pid)
	r.noteOtherStrangers() // an orphan after all, of a stranger: where there is one there are more
	return false
}

// noteOtherStrangers has the patience with all dead strangers begin now. The kernel shows only the first of them, so
// that many would otherwise be waited for one after the other. Without /proc they are.
func (r *Reaper) noteOtherStrangers() {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is constant and well-formed
	for _, list := range lists {
		b, _ := os.ReadFile(list) // a thread that has ended has no children
		for field := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(field)
			if err != nil || r.processes[pid] != nil {
				continue
			}
			if group, err := unix.Getpgid(pid); err != nil || group != r.group {
				continue
			}
			if dead, err := peek(unix.P_PID, pid); err != nil || dead == 0 {
				continue
			}
			if _, known := r.strangers[pid]; !known {
				r.strangers[pid] = time.Now()
			}
		}
	}
}

// take waits for one process (or one of a group, if negative) without blocking and says whether there was a change.
func (r *Reaper) take(who int) bool {
	var status unix.WaitStatus
	pid, err := wait4(who, &status, unix.WNOHANG|unix.WUNTRACED)
	if err != nil || pid <= 0 {
		return false
	}
	p := r.processes[pid]
	switch {
	case status.Stopped() && p != nil:
		select {
		case <-p.stopped: // the newer one counts
		default:
		}
		p.stopped <- status.StopSignal()
	case !status.Stopped() && p != nil:
		delete(r.processes, pid)
		p.status = status
		close(p.exited)
	}
	return true
}

func wait4(who int, status *unix.WaitStatus, options int) (int, error) {
	for {
		pid, err := unix.Wait4(who, status, options, nil)
		if !errors.Is(err, unix.EINTR) {
			return pid, err
		}
	}
}

// peek returns the PID of a dead child without reaping it, 0 if all live, ECHILD if there is none at all. It looks at all
// children (unix.P_ALL, 0) or at one (unix.P_PID, its PID).
func peek(which, id int) (int, error) {
	var info struct {
		unix.Siginfo
		_ [0]uintptr
	}
	for {
		err := unix.Waitid(which, id, &info.Siginfo, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, err
		}
		// si_pid follows si_signo, si_errno and si_code, at the union's alignment.
		const at = (12 + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)
		return int(*(*int32)(unsafe.Add(unsafe.Pointer(&info), at))), nil
	}
}
