package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inDelegatedCgroup starts the warden in a cgroup that is marked as systemd marks a delegated one. The second value is
// its path.
func inDelegatedCgroup(t *testing.T) (option, string) {
	t.Helper()
	needRoot(t, "a cgroup")
	root := cgroupRoot()
	if root == "" {
		t.Skip("cgroup v2 is not mounted")
	}
	dir, err := os.MkdirTemp(root, "warden-test-")
	if err != nil {
		t.Skipf("no cgroup to be had: %v", err)
	}
	t.Cleanup(func() {
		eventually(t, "the cgroup can be removed: it is empty", func() bool { return os.Remove(dir) == nil })
	})
	if err := unix.Setxattr(dir, "user.delegate", []byte("1"), 0); err != nil {
		t.Skipf("cannot mark a cgroup as delegated: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil {
		t.Skip("cgroup.kill needs Linux 5.14")
	}
	return func(c *exec.Cmd) {
		c.Args = append([]string{"sh", "-c", fmt.Sprintf(`echo $$ > %s/cgroup.procs; exec "$0" "$@"`, dir), c.Path}, c.Args[1:]...)
		c.Path = "/bin/sh"
	}, dir
}

// In a delegated cgroup each child has its own, from its first instruction on; what is left in it is killed at once, and
// the cgroup is removed.
func TestAChildHasItsOwnCgroup(t *testing.T) {
	in, dir := inDelegatedCgroup(t)
	w := startInit(t, append([]string{"-grace", "300ms", "-rest-grace", "20ms"}, shell(`setsid "$0" @child stubborn & grep ^0:: /proc/self/cgroup; exec "$0" @child signals`, testBinary(t))...), in)
	if got := w.line("0::"); !strings.HasPrefix(got, "/"+filepath.Base(dir)+"/etcd-warden.") {
		t.Errorf("the child is in %s", got)
	}
	w.ready()
	w.ready()
	w.signal(unix.SIGTERM)
	if got := w.code(); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
	w.all()
	eventually(t, "our cgroups are removed", func() bool {
		left, _ := filepath.Glob(filepath.Join(dir, "etcd-warden.*"))
		return len(left) == 0
	})
}

// If the warden is killed, the parent-death signal ends its child; the guard ends all others.
func TestAKilledWardenTakesGrandchildrenAlong(t *testing.T) {
	in, dir := inDelegatedCgroup(t)
	w := startInit(t, shell(`setsid "$0" @child stubborn & exec "$0" @child stubborn`, testBinary(t)), in)
	first, _ := w.ready()
	second, _ := w.ready()
	w.signal(unix.SIGKILL)
	eventually(t, "child and grandchild are gone", func() bool { return gone(first) && gone(second) })
	eventually(t, "our cgroups are removed", func() bool {
		left, _ := filepath.Glob(filepath.Join(dir, "etcd-warden.*"))
		return len(left) == 0
	})
}

// Without delegation nothing is made: the tree belongs to somebody else.
func TestNoCgroupWithoutDelegation(t *testing.T) {
	if tree, err := openCgroupTree(); err == nil {
		tree.close()
		t.Skip("the tests themselves run in a delegated cgroup")
	}
	var none *cgroup
	none.kill()
	none.remove()
	if none.populated() || len(none.members()) != 0 {
		t.Error("a cgroup that is none has members")
	}
}
