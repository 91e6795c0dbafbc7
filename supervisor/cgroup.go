package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupTree is a cgroup v2 of our own below the one that we run in, with one more in it for each child. It is made
// only where the place is ours to divide. A nil tree makes no cgroups.
type cgroupTree struct {
	path string

	mu   sync.Mutex // guards what follows
	next int
	life *os.File // the guard reads the end of it when we die, however that happens; nil: no guard yet
}

// cgroup is the cgroup of one child. A nil cgroup is none: its methods do nothing.
type cgroup struct {
	path string
	dir  *os.File
}

// cgroupRoot is where cgroup v2 is mounted: alone, or beside v1.
func cgroupRoot() string {
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(root, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return root
		}
	}
	return ""
}

// openCgroupTree makes our own cgroup. The error says why there is none, which is ordinary in a container.
func openCgroupTree() (*cgroupTree, error) {
	root := cgroupRoot()
	if root == "" {
		return nil, errors.New("cgroup v2 is not mounted")
	}
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var own string
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			own = filepath.Join(root, strings.TrimSpace(rest))
		}
	}
	if own == "" || !delegated(own) {
		return nil, fmt.Errorf("cgroup %q is not delegated to us", own)
	}
	path, err := os.MkdirTemp(own, "etcd-warden.")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(path, "cgroup.kill")); err != nil {
		return nil, errors.Join(fmt.Errorf("cgroup.kill needs Linux 5.14: %w", err), os.Remove(path))
	}
	return &cgroupTree{path: path}, nil
}

// delegated says whether a cgroup is ours to divide: systemd marks it so (Delegate=yes), or it belongs to our user.
func delegated(path string) bool {
	value := make([]byte, 8)
	for _, mark := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(path, mark, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	var st unix.Stat_t
	return os.Geteuid() != 0 && unix.Stat(path, &st) == nil && int(st.Uid) == os.Geteuid()
}

// child makes the cgroup of one child.
func (t *cgroupTree) child() (*cgroup, error) {
	if t == nil {
		return nil, nil
	}
	t.mu.Lock()
	t.next++
	c := &cgroup{path: filepath.Join(t.path, strconv.Itoa(t.next))}
	t.mu.Unlock()
	if err := os.Mkdir(c.path, 0o755); err != nil {
		return nil, err
	}
	var err error
	if c.dir, err = os.Open(c.path); err != nil {
		return nil, errors.Join(err, os.Remove(c.path))
	}
	return c, nil
}

// close removes the tree, which is empty once every child has been stopped.
func (t *cgroupTree) close() {
	if t == nil {
		return
	}
	if t.life != nil {
		t.life.Close()
	}
	os.Remove(t.path) // busy: something survived, and stays findable there
}

func (c *cgroup) fd() int { return int(c.dir.Fd()) }

// kill kills all processes in it at once, forks in flight included.
func (c *cgroup) kill() {
	if c != nil {
		os.WriteFile(filepath.Join(c.path, "cgroup.kill"), []byte("1"), 0) // whoever is left is killed one by one besides
	}
}

// populated says whether a living process is in it.
func (c *cgroup) populated() bool {
	if c == nil {
		return false
	}
	events, err := os.ReadFile(filepath.Join(c.path, "cgroup.events"))
	return err == nil && bytes.Contains(events, []byte("populated 1"))
}

// members are the PIDs in it.
func (c *cgroup) members() map[int]bool {
	members := map[int]bool{}
	if c == nil {
		return members
	}
	b, _ := os.ReadFile(filepath.Join(c.path, "cgroup.procs")) // without it the process group must do
	for line := range strings.Lines(string(b)) {
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			members[pid] = true
		}
	}
	return members
}

// remove removes it, if it is empty.
func (c *cgroup) remove() {
	if c == nil {
		return
	}
	c.dir.Close()
	os.Remove(c.path)
}

// cgroupRefused says whether a fork failed for the cgroup's sake: clone3 filtered or unknown, the cgroup gone or busy.
func cgroupRefused(err error) bool {
	for _, refusal := range []syscall.Errno{unix.ENOSYS, unix.EPERM, unix.EINVAL, unix.ENODEV, unix.EBUSY, unix.EOPNOTSUPP, unix.EBADF} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

// startGuard starts the process that empties the tree when this one is killed: the parent-death signal reaches our own
// children only. As PID 1 we need none, as the kernel kills the namespace with us.
func (i *Init) startGuard(ctx context.Context) error {
	t := i.cgroups
	if t == nil || self() == 1 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.life != nil {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start guard: %w", err)
	}
	defer r.Close()
	kill, err := os.OpenFile(filepath.Join(t.path, "cgroup.kill"), os.O_WRONLY, 0)
	if err != nil {
		return errors.Join(fmt.Errorf("start guard: %w", err), w.Close())
	}
	defer kill.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return errors.Join(fmt.Errorf("start guard: %w", err), w.Close())
	}
	defer null.Close()
	_, err = i.fork(ctx, spawn{path: selfExe, args: []string{guardName, t.path}, attr: &syscall.ProcAttr{Dir: "/", Env: []string{},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), r.Fd(), kill.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}}})
	if err != nil {
		return errors.Join(fmt.Errorf("start guard: %w", err), w.Close())
	}
	t.life = w
	return nil
}

// guard waits on descriptor 3 for the end of the warden, then kills what is left in its tree by descriptor 4, and
// removes the tree. After an orderly end there is nothing left to kill.
func guard(tree string) int {
	signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT)
	io.Copy(io.Discard, os.NewFile(3, "life")) // whatever ends it, the warden is not there any more
	if _, err := unix.Write(4, []byte("1")); err != nil {
		return 1
	}
	for range 100 { // until the killed have left
		cgroups, _ := filepath.Glob(filepath.Join(tree, "*/cgroup.kill"))
		for _, c := range cgroups {
			os.Remove(filepath.Dir(c))
		}
		if err := os.Remove(tree); err == nil || errors.Is(err, os.ErrNotExist) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return 0
}
