package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is one process as /proc shows it. It is comparable.
type process struct {
	pid, parent, group int
	state              byte
	start              uint64 // in clock ticks after boot: tells two processes with one PID apart
	leader             *Child // set when it is a child of Init.Start that has not been reaped
}

func (p process) zombie() bool { return p.state == 'Z' || p.state == 'X' }

// key is what stays the same during a process's life.
func (p process) key() process { return process{pid: p.pid, start: p.start} }

func self() int { return os.Getpid() }

// readProcess reads /proc/PID/stat. The name in it may hold anything, spaces and parentheses too: the last one ends it.
func readProcess(pid int) (process, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return process{}, fmt.Errorf("stat of process %d: unknown form", pid)
	}
	p := process{pid: pid, state: f[0][0]}
	p.parent, _ = strconv.Atoi(string(f[1]))
	p.group, _ = strconv.Atoi(string(f[2]))
	p.start, _ = strconv.ParseUint(string(f[19]), 10, 64)
	return p, nil
}

// descendants are all processes below this one, parents before their children.
func descendants() ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	below := map[int][]process{}
	seen := false
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		seen = true
		if p, err := readProcess(pid); err == nil { // otherwise it has just ended
			below[p.parent] = append(below[p.parent], p)
		}
	}
	if !seen {
		return nil, errors.New("/proc is not mounted")
	}
	all := below[self()]
	for n := 0; n < len(all); n++ {
		all = append(all, below[all[n].pid]...)
	}
	return all, nil
}

// signalProcess sends sig to p if its PID still means the same process. For our direct children that is certain, as
// nothing is reaped meanwhile; for those deeper down a pidfd makes it so.
func (i *Init) signalProcess(p process, sig unix.Signal) error {
	if p.leader != nil {
		return p.leader.process.Signal(sig)
	}
	err := os.ErrProcessDone
	i.reaper.Hold(func(func(int) bool) {
		fd, noPidfd := unix.PidfdOpen(p.pid, 0)
		if noPidfd == nil {
			defer unix.Close(fd)
		}
		if now, gone := readProcess(p.pid); gone != nil || now.start != p.start {
			return
		}
		if noPidfd == nil {
			err = unix.PidfdSendSignal(fd, sig, nil, 0)
		}
		if noPidfd != nil || errors.Is(err, unix.ENOSYS) {
			err = unix.Kill(p.pid, sig)
		}
	})
	if err == nil || errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return fmt.Errorf("send signal %d to process %d: %w", sig, p.pid, err)
}

// fate is a process's state in /proc, and whether its cgroup is frozen, which SIGKILL does not overcome in cgroup v1.
func fate(pid int) (state string, frozen bool) {
	p, err := readProcess(pid)
	if err != nil {
		return "unknown", false
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(b)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		switch controllers {
		case "":
			events, _ := os.ReadFile(filepath.Join(cgroupRoot(), path, "cgroup.events"))
			frozen = frozen || bytes.Contains(events, []byte("frozen 1"))
		case "freezer":
			now, _ := os.ReadFile(filepath.Join("/sys/fs/cgroup/freezer", path, "freezer.state"))
			frozen = frozen || bytes.HasPrefix(now, []byte("FR")) // FROZEN or FREEZING
		}
	}
	return string(p.state), frozen
}
