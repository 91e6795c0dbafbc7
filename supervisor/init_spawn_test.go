package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// withActivation passes n descriptors as a service manager does for sockets. The shell sets LISTEN_PID to its own PID and
// becomes the warden.
func withActivation(t *testing.T, n int) option {
	t.Helper()
	var files []*os.File
	for range n {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		files = append(files, f)
	}
	return func(c *exec.Cmd) {
		c.ExtraFiles = files
		c.Env = append(c.Env, fmt.Sprintf("LISTEN_FDS=%d", n), "LISTEN_PIDFDID=1")
		c.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, c.Path}, c.Args[1:]...)
		c.Path = "/bin/sh"
	}
}

// procStatus runs the warden around cat and returns the named field of the child's /proc/self/status.
func procStatus(t *testing.T, field string, prepare string) string {
	t.Helper()
	w := startInit(t, []string{"--", "cat", "/proc/self/status"}, func(c *exec.Cmd) {
		if prepare != "" {
			c.Args = append([]string{"sh", "-c", prepare + ` exec "$0" "$@"`, c.Path}, c.Args[1:]...)
			c.Path = "/bin/sh"
		}
	})
	return w.line(field + ":")
}

// etcd behind a warden must find what it would find without one.
func TestTheChildInheritsSignalsAsTheyWere(t *testing.T) {
	bit := func(sig unix.Signal) string { return fmt.Sprintf("%016x", uint64(1)<<(sig-1)) }
	const none = "0000000000000000"
	for _, c := range []struct{ name, field, prepare, want string }{
		{"no mask", "SigBlk", "", none},
		{"nothing ignored", "SigIgn", "", none},
		{"nohup", "SigIgn", "trap '' HUP;", bit(unix.SIGHUP)},
		{"background job's INT", "SigIgn", "trap '' INT;", bit(unix.SIGINT)},
		{"systemd's IgnoreSIGPIPE is not kept: docs/init.md", "SigIgn", "trap '' PIPE;", none},
		{"job control off", "SigIgn", "trap '' TSTP TTIN TTOU;", fmt.Sprintf("%016x", 7<<(unix.SIGTSTP-1))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := procStatus(t, c.field, c.prepare); got != c.want {
				t.Errorf("got %s %s, want %s", c.field, got, c.want)
			}
		})
	}
}

// The same through the trampoline of socket activation, which is one more Go program on the way.
func TestASocketActivatedChildInheritsTheSame(t *testing.T) {
	w := startInit(t, []string{"--", "cat", "/proc/self/status"}, withActivation(t, 1), func(c *exec.Cmd) {
		c.Args[2] = "trap '' HUP TSTP; " + c.Args[2]
	})
	want := fmt.Sprintf("%016x", 1<<(unix.SIGHUP-1)|1<<(unix.SIGTSTP-1))
	if got := w.line("SigBlk:"); got != "0000000000000000" {
		t.Errorf("got mask %s", got)
	}
	if got := w.line("SigIgn:"); got != want {
		t.Errorf("got SigIgn %s, want %s", got, want)
	}
}

// A descriptor that leaks into etcd keeps locks and sockets of ours alive for as long as it runs.
func TestNoDescriptorLeaksIntoTheChild(t *testing.T) {
	f, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := startInit(t, []string{"--", "ls", "/proc/self/fd"}, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{f, f} })
	// ls holds one more, the directory itself.
	if got := w.all(); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Errorf("got descriptors %q, want 0, 1, 2 and ls's own", got)
	}
}

// A socket-activated child needs its own PID in LISTEN_PID, and the warden must not keep its sockets open.
func TestSocketActivationIsPassedOn(t *testing.T) {
	w := startInit(t, shell(`echo "pid=$$ listen=$LISTEN_PID fds=$LISTEN_FDS id=$LISTEN_PIDFDID"; readlink /proc/self/fd/3 /proc/self/fd/4
		echo open=$(ls /proc/self/fd | wc -l); echo ready $$ 0; exec sleep 1000`), withActivation(t, 2))
	var pid, listen, fds int
	fmt.Sscanf(w.line(""), "pid=%d listen=%d fds=%d id=", &pid, &listen, &fds)
	if pid == 0 || pid != listen || fds != 2 || !strings.HasSuffix(w.seen[0], "id=") {
		t.Errorf("got %s", w.seen[0])
	}
	if a, b := w.line(""), w.line(""); a != os.DevNull || b != os.DevNull {
		t.Errorf("got descriptors %s, %s", a, b)
	}
	w.ready()
	eventually(t, "the warden closed its copies", func() bool {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", w.cmd.Process.Pid))
		open := 0
		for _, l := range links {
			if to, _ := os.Readlink(l); to == os.DevNull && filepath.Base(l) != "0" {
				open++
			}
		}
		return open == 0
	})
}

// The codes of a shell also where the program is executed by the trampoline.
func TestASocketActivatedCommandThatCannotBeExecuted(t *testing.T) {
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, []byte("\x7fELF junk"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := startInit(t, []string{"--", junk}, withActivation(t, 1)).code(); got != 126 {
		t.Errorf("got %d, want 126", got)
	}
}

// Everything else that a process inherits.
func TestTheChildInheritsItsSurroundings(t *testing.T) {
	w := startInit(t, shell(`echo $(pwd) $(umask) $(nice) $(ulimit -n) $(ulimit -Hn)`), inDir("/usr"), func(c *exec.Cmd) {
		c.Args = append([]string{"sh", "-c", `umask 027; ulimit -Sn 1000; ulimit -Hn 5000; exec nice -n 3 "$0" "$@"`, c.Path}, c.Args[1:]...)
		c.Path = "/bin/sh"
	})
	if got, want := w.line(""), "/usr 0027 3 1000 5000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A wrapper that edits the environment turns flags of etcd on or off.
func TestTheEnvironmentIsPassedByteForByte(t *testing.T) {
	env := []string{"PATH=" + os.Getenv("PATH"), "A=1", "EMPTY=", "ODD=x=y\tz", "UTF8=\xff\xfe", "ETCD_NAME=m1", "WATCHDOG_USEC=5"}
	w := startInit(t, []string{"--", "cat", "/proc/self/environ"}, func(c *exec.Cmd) { c.Env = env })
	got := strings.Split(strings.TrimRight(strings.Join(w.all(), "\n"), "\x00"), "\x00")
	if diff := cmp.Diff(env, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

// The child writes to our own descriptors: no pipe, no copy, no reordering.
func TestTheChildHasOurOwnStdio(t *testing.T) {
	w := startInit(t, shell(`readlink /proc/self/fd/1 /proc/self/fd/2 /proc/$PPID/fd/1 /proc/$PPID/fd/2`))
	if got := w.all(); len(got) != 4 || got[0] != got[1] || got[1] != got[2] || got[2] != got[3] {
		t.Errorf("got %q", got)
	}
}

// A mount that the warden was started on can be unmounted while it runs.
func TestTheWardenPinsNoDirectory(t *testing.T) {
	w := startInit(t, append([]string{"-leave-dir"}, shell("pwd; echo ready $$ 0; exec sleep 1000")...), inDir("/usr"))
	if got := w.line("/"); got != "usr" {
		t.Errorf("the child runs in /%s, want /usr", got)
	}
	w.ready()
	eventually(t, "the warden is in /", func() bool {
		dir, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", w.cmd.Process.Pid))
		return dir == "/"
	})
}

// A helper beside the main child shares nothing with it that could be mistaken for it.
func TestAPrivateChildIsKeptApart(t *testing.T) {
	w := startInit(t, append([]string{"-private"}, shell(`readlink /proc/self/fd/0; env | grep -c -e LISTEN_ -e WATCHDOG_ -e NOTIFY_; ls /proc/self/fd | wc -l`)...),
		withEnv("NOTIFY_SOCKET=/nonexistent", "WATCHDOG_USEC=1000"), withActivation(t, 1))
	if got, want := w.all(), []string{"/dev/null", "0", "4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A warden whose log goes nowhere, or into a pipe that nobody reads, still does its work.
func TestABrokenStderrCostsNothing(t *testing.T) {
	r, broken, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer broken.Close()
	w := startInit(t, append([]string{"-grace", "1h", "-no-subreaper"}, visible(t, "signals")...), func(c *exec.Cmd) { c.Stderr = broken })
	w.ready()
	w.signal(unix.SIGUSR1)
	w.line("got SIGUSR1")
	w.signal(unix.SIGTERM)
	if got := w.code(); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
}

// The warden runs with few privileges and few processes: another user, no_new_privs, a process limit.
func TestAnUnprivilegedWarden(t *testing.T) {
	needRoot(t, "becoming another user")
	dir, err := os.MkdirTemp("/tmp", "warden-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	b, err := os.ReadFile(testBinary(t))
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "warden")
	if err := os.WriteFile(binary, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := startInit(t, shell(`sleep 1000 & (setsid sleep 1000 &) ; trap 'exit 0' TERM; echo ready $$ 0; while :; do sleep 0.01; done`), inDir("/"), func(c *exec.Cmd) {
		c.Path = binary
		c.SysProcAttr.Credential = &syscall.Credential{Uid: 61234, Gid: 61234}
		c.Args = append([]string{"setpriv", "--no-new-privs", "prlimit", "--nproc=24", binary}, c.Args[1:]...)
		if c.Path, err = exec.LookPath("setpriv"); err != nil {
			t.Skip("needs setpriv")
		}
	})
	w.ready()
	w.signal(unix.SIGTERM)
	if got := w.code(); got != 0 {
		t.Errorf("got %d, want 0", got)
	}
	w.all()
}

// Without /proc there is less to see, and the same to do.
func TestWithoutProc(t *testing.T) {
	needRoot(t, "hiding /proc")
	for _, as := range []string{"PID 1", "subprocess"} {
		t.Run(as, func(t *testing.T) {
			w := startInit(t, append([]string{"-grace", "300ms", "-rest-grace", "20ms"}, shell(`trap 'exit 0' TERM; (trap '' TERM; while :; do sleep 1000; done) & echo ready $$ 0; while :; do sleep 0.01; done`)...), func(c *exec.Cmd) {
				c.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
				if as == "PID 1" {
					c.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID
				}
				c.Args = append([]string{"sh", "-c", `mount --make-rprivate / && mount -t tmpfs none /proc && exec "$0" "$@"`, c.Path}, c.Args[1:]...)
				c.Path = "/bin/sh"
			})
			w.ready()
			w.signal(unix.SIGTERM)
			if got := w.code(); got != 0 {
				t.Errorf("got %d, want 0", got)
			}
			w.all()
		})
	}
}
