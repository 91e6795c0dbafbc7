package supervisor

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// onTerminal starts the warden on a new terminal, below a shell that is the session's leader and does job control. The
// returned file is the user's side. The shell prints "job PID" for the warden and waits for it.
func onTerminal(t *testing.T, background bool, args ...string) (*warden, *os.File) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash for job control")
	}
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("no terminal to be had: %v", err)
	}
	user := os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { user.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	side, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer side.Close()
	run := `"$@" 2>&3 3>&-; echo "ended $?"; echo fg; fg; echo "ended $?"`
	if background {
		run = `"$@" 2>&3 3>&- & wait`
	}
	w := startInit(t, args, func(c *exec.Cmd) {
		c.Args = append([]string{bash, "--norc", "--noprofile", "-mc", run, "bash", c.Path}, c.Args[1:]...)
		c.Path = bash
		c.Stdin, c.Stderr, c.ExtraFiles = side, side, []*os.File{c.Stderr.(*os.File)} // bash looks for its terminal on stderr
		c.SysProcAttr.Setctty, c.SysProcAttr.Ctty = true, 0
	})
	go func() { // what the terminal shows is not looked at, but must be read
		for s := bufio.NewScanner(user); s.Scan(); {
		}
	}()
	return w, user
}

func foregroundOf(t *testing.T, user *os.File) (group int) {
	t.Helper()
	raw, err := user.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) })
	if err != nil {
		t.Fatal(err)
	}
	return group
}

func parentOf(t *testing.T, pid int) int {
	t.Helper()
	p, err := readProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p.parent
}

// The child can read the terminal, and Ctrl-C reaches it once.
func TestTheChildHasTheTerminal(t *testing.T) {
	w, user := onTerminal(t, false, visible(t, "stubborn")...)
	pid, group := w.ready()
	if pid != group {
		t.Errorf("the child is in group %d, want its own, %d", group, pid)
	}
	if got := foregroundOf(t, user); got != group {
		t.Errorf("the foreground is %d, want the child's group %d", got, group)
	}
	user.Write([]byte{3})
	w.line("got SIGINT")
	unix.Kill(pid, unix.SIGUSR1)
	w.line("got SIGUSR1")
	if n := strings.Count(strings.Join(w.seen, "\n"), "got "); n != 2 {
		t.Errorf("the child got %d signals, want one SIGINT and ours", n)
	}
}

// Ctrl-Z gives the shell its terminal back, and fg resumes the child. The child forks nothing: a shell that is stopped
// between vfork and exec of its own child does not stop.
func TestCtrlZAndFg(t *testing.T) {
	for name, flags := range map[string][]string{"command": nil, "etcd": {"-etcd"}} {
		t.Run(name, func(t *testing.T) {
			w, user := onTerminal(t, false, append(flags, shell(`echo ready $$ 0; exec sleep 600`)...)...)
			pid, _ := w.ready()
			warden := parentOf(t, pid)
			user.Write([]byte{26})
			w.line("ended") // the shell is back: both are stopped
			w.line("fg")
			eventually(t, "both run again", func() bool { return !inState(pid, 'T') && !inState(warden, 'T') })
			want := pid
			if name == "etcd" {
				want = warden
			}
			eventually(t, "the foreground is as before", func() bool { return foregroundOf(t, user) == want })
		})
	}
}

// Started in the background, the warden leaves the terminal alone.
func TestTheBackgroundStealsNoTerminal(t *testing.T) {
	w, user := onTerminal(t, true, visible(t, "signals")...)
	_, group := w.ready()
	if got := foregroundOf(t, user); got == group {
		t.Error("the child took the foreground")
	}
}

// A closed terminal ends etcd in good order instead of killing it by HUP.
func TestALostTerminalStopsEtcdInOrder(t *testing.T) {
	w, user := onTerminal(t, false, append([]string{"-etcd"}, visible(t, "signals")...)...)
	pid, _ := w.ready()
	user.Close()
	if got := w.line("got "); got != "SIGTERM" && got != "SIGCONT" {
		t.Errorf("etcd got %s first, want SIGTERM", got)
	}
	eventually(t, "etcd is gone", func() bool { return gone(pid) })
}

// Any other command hears of the hangup itself.
func TestALostTerminalReachesTheCommand(t *testing.T) {
	w, user := onTerminal(t, false, visible(t, "stubborn")...)
	w.ready()
	user.Close()
	w.line("got SIGHUP")
}
