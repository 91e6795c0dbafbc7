package supervisor

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/signals"
)

// Child is a command that Init.Start started: the leader of a process group, and of a cgroup where there is one. It is
// safe for concurrent use.
type Child struct {
	init    *Init
	process *signals.Process
	cgroup  *cgroup // nil: none
	private bool
	stopped atomic.Bool // a stop was sent while it lived
	killed  atomic.Bool // so was SIGKILL
	empty   atomic.Bool // nothing is left of it: from then on its PID, and its group's number, may be somebody else's
}

// PID is the leader's process ID.
func (c *Child) PID() int { return c.process.PID() }

// Exited is closed when the leader has been reaped. Others of its group may still live: Stop ends them.
func (c *Child) Exited() <-chan struct{} { return c.process.Exited() }

// Exit says how the leader ended. It is valid once Exited is closed.
func (c *Child) Exit() Exit {
	select {
	case <-c.Exited():
	default:
		return Exit{PID: c.PID()}
	}
	e := exitOf(c.PID(), c.process.Status())
	e.Stopped, e.Killed = c.stopped.Load(), c.killed.Load()
	return e
}

// Signal sends sig to the leader. The error is os.ErrProcessDone once it has been reaped.
func (c *Child) Signal(sig unix.Signal) error { return c.process.Signal(sig) }

// Stop ends the child: TERM to the leader alone, so that it can end its own children in order, then CONT, as a stopped
// process cannot act on TERM. Once the leader is dead, what is left of its group gets TERM and CONT too. At the end of
// grace, or as soon as escalate is closed or receives, everything gets SIGKILL, again each second.
//
// Stop returns only when the leader is reaped and its group (and cgroup) is empty. It may be called on a child that is dead
// already: then it clears away what the child left; and again: then it does nothing. A grace of 0 kills what is left at
// once. If ctx ends first the error wraps ErrAlive.
func (c *Child) Stop(ctx context.Context, grace time.Duration, escalate <-chan struct{}) (Exit, error) {
	if c.empty.Load() {
		return c.Exit(), nil
	}
	if err := c.init.end(ctx, &childRemains{c}, grace, escalate); err != nil {
		return c.Exit(), fmt.Errorf("stop process %d: %w", c.PID(), err)
	}
	c.empty.Store(true)
	c.init.forget(c)
	return c.Exit(), nil
}

// alive says whether the leader has not been reaped.
func (c *Child) alive() bool {
	select {
	case <-c.Exited():
		return false
	default:
		return true
	}
}

// forget drops a child whose processes are all gone.
func (i *Init) forget(c *Child) {
	c.cgroup.remove()
	i.mu.Lock()
	defer i.mu.Unlock()
	for n, other := range i.children {
		if other == c {
			i.children = append(i.children[:n], i.children[n+1:]...)
			return
		}
	}
}

// childRemains is a child's leader while it lives, then the rest of its group and cgroup.
type childRemains struct{ *Child }

func (r *childRemains) look() (left []process, known bool) {
	if r.alive() {
		return []process{{pid: r.PID(), leader: r.Child}}, true
	}
	populated := r.cgroup.populated()
	if !populated && unix.Kill(-r.PID(), 0) == unix.ESRCH {
		return nil, true // the kernel knows of no such group: nothing to search for
	}
	all, err := descendants()
	if err != nil || !r.init.adopts {
		return nil, false // its orphans are not below us: only the group as a whole can be addressed
	}
	members := r.cgroup.members()
	for _, p := range all {
		if !p.zombie() && (p.group == r.PID() || members[p.pid]) {
			left = append(left, p)
		}
	}
	return left, true
}

func (r *childRemains) cgroups() []*cgroup { return []*cgroup{r.cgroup} }

func (r *childRemains) groups() []int { return []int{r.PID()} }

// everything is whatever is left after the main child: orphans in other groups and sessions. Helpers that run (Private
// children, the guard) and what libraries of this program started are not part of it.
type everything struct{ *Init }

func (e everything) look() (left []process, known bool) {
	if e.reaper.Empty() {
		return nil, true
	}
	all, err := descendants()
	if err != nil {
		return nil, false
	}
	spared := e.spared(all)
	for _, p := range all {
		// A dead orphan is counted: it is ours to reap, and is gone in a moment.
		if !spared[p.pid] && (!p.zombie() || p.parent == self()) {
			left = append(left, p)
		}
	}
	return left, true
}

// spared are the processes, and all below them, that StopRest leaves alone: running helpers, and programs that a library
// of ours started. The latter are told by being our direct children, in our own process group.
func (i *Init) spared(all []process) map[int]bool {
	own := unix.Getpgrp()
	spared := map[int]bool{}
	i.reaper.Hold(func(registered func(int) bool) {
		for _, p := range all { // parents come before their children
			if spared[p.parent] || (p.parent == self() && (registered(p.pid) || p.group == own)) {
				spared[p.pid] = true
			}
		}
	})
	return spared
}

func (e everything) cgroups() (all []*cgroup) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.children {
		if !c.alive() {
			all = append(all, c.cgroup)
		}
	}
	return all
}

func (e everything) groups() (all []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.children {
		if !c.alive() {
			all = append(all, c.PID())
		}
	}
	return all
}
