package supervisor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience bounds every wait of these tests; it decides nothing but how long a failure takes.
const patience = 30 * time.Second

// warden is a running @init with its child's output.
type warden struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin *os.File    // the write end of the child's stdin
	lines chan string // of stdout and stderr; closed at the end of it
	seen  []string
	tag   string        // in the environment of all that it starts
	done  chan struct{} // it has ended
}

// option changes how a warden is started.
type option func(*exec.Cmd)

func withEnv(env ...string) option { return func(c *exec.Cmd) { c.Env = append(c.Env, env...) } }

func inDir(dir string) option { return func(c *exec.Cmd) { c.Dir = dir } }

// asPID1 starts the warden as PID 1 of a PID namespace with its own /proc. PIDs in its output are those inside.
func asPID1(t *testing.T) option {
	t.Helper()
	needRoot(t, "a PID namespace")
	return func(c *exec.Cmd) {
		c.SysProcAttr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS
		script := `mount --make-rprivate / && mount -t proc proc /proc && exec "$0" "$@"`
		c.Args = append([]string{"sh", "-c", script, c.Path}, c.Args[1:]...)
		c.Path = "/bin/sh"
	}
}

func needRoot(t *testing.T, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("%s needs root", what)
	}
}

// startInit starts `@init args`; the command comes after "--" in args.
func startInit(t *testing.T, args []string, options ...option) *warden {
	t.Helper()
	w := &warden{t: t, tag: fmt.Sprintf("WARDEN_TEST=%s.%d", t.Name(), os.Getpid()), lines: make(chan string, 4096), done: make(chan struct{})}
	w.cmd = exec.Command(testBinary(t), append([]string{"@init"}, args...)...)
	w.cmd.Env = append(os.Environ(), w.tag, "GORACE=atexit_sleep_ms=0") // the detector sleeps a second at each exit otherwise
	// A session of its own: no signal of the terminal that the tests run on, and no way back from a test to it.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.cmd.Stdout, w.cmd.Stderr = out, out
	in, stdin, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.cmd.Stdin, w.stdin = in, stdin
	for _, o := range options {
		o(w.cmd)
	}
	err = w.cmd.Start()
	out.Close()
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() { w.cmd.Wait(); close(w.done) }()
	go func() {
		defer close(w.lines)
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			w.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		w.clearAway()
		<-w.done
		w.stdin.Close()
		if t.Failed() {
			t.Logf("output:\n%s", strings.Join(w.seen, "\n"))
		}
	})
	return w
}

// clearAway kills whatever carries the warden's tag in its environment: all that it started, also what has lost its
// parents since, so that a test leaves nothing behind, however it ended.
func (w *warden) clearAway() {
	w.cmd.Process.Kill() // os.ErrProcessDone: it has been waited for
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		if env, err := os.ReadFile(file); err == nil && bytes.Contains(env, []byte(w.tag)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func testBinary(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// visible is the command line of a visible child.
func visible(t *testing.T, args ...string) []string {
	return append([]string{"--", testBinary(t), "@child"}, args...)
}

func shell(script string, args ...string) []string {
	return append([]string{"--", "/bin/sh", "-c", script}, args...)
}

// line waits for a line that starts with prefix and returns the rest of it.
func (w *warden) line(prefix string) string {
	w.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case l, ok := <-w.lines:
			if !ok {
				w.t.Fatalf("output ended without %q", prefix)
			}
			w.seen = append(w.seen, l)
			if rest, ok := strings.CutPrefix(l, prefix); ok {
				return strings.TrimSpace(rest)
			}
		case <-timeout:
			w.t.Fatalf("no line %q", prefix)
		}
	}
}

// ready waits for the visible child and returns its PID and group.
func (w *warden) ready() (pid, group int) {
	w.t.Helper()
	fmt.Sscan(w.line("ready "), &pid, &group)
	if pid == 0 {
		w.t.Fatal("the child did not say its PID")
	}
	return pid, group
}

func (w *warden) signal(sig unix.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(sig); err != nil {
		w.t.Fatalf("send %v: %v", sig, err)
	}
}

// code waits for the warden's end and returns its exit code, minus the signal if one ended it.
func (w *warden) code() int {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		w.t.Fatal("the warden did not end")
	}
	if ws := w.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return -int(ws.Signal())
	}
	return w.cmd.ProcessState.ExitCode()
}

// all waits for the end of the output and returns the lines that no other call has taken.
func (w *warden) all() (lines []string) {
	w.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case l, ok := <-w.lines:
			if !ok {
				return lines
			}
			w.seen, lines = append(w.seen, l), append(lines, l)
		case <-timeout:
			w.t.Fatal("the output does not end: somebody still holds it")
		}
	}
}

// eventually waits until ok, looking again and again: for what gives no notice (another process's state).
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// gone says whether a process does not live any more.
func gone(pid int) bool {
	p, err := readProcess(pid)
	return err != nil || p.zombie()
}

func inState(pid int, state byte) bool {
	p, err := readProcess(pid)
	return err == nil && p.state == state
}

// dieOf ends this process by sig, as a program does that raises it again.
func dieOf(sig unix.Signal) {
	signal.Reset(sig)
	unix.Kill(os.Getpid(), sig)
	select {}
}

func sendDatagrams(lines []string) error {
	c, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return err
	}
	defer c.Close()
	for _, l := range lines {
		if _, err := io.WriteString(c, strings.ReplaceAll(l, `\n`, "\n")); err != nil {
			return err
		}
	}
	return nil
}

// sendBarrier does what sd_notify_barrier(3) does, and prints "barrier" when the receiver has closed the descriptor.
func sendBarrier() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	err = unix.Sendmsg(s, []byte("BARRIER=1"), unix.UnixRights(int(w.Fd())), &unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")}, 0)
	w.Close()
	if err != nil {
		return err
	}
	_, err = r.Read(make([]byte, 1))
	fmt.Println("barrier", errors.Is(err, io.EOF))
	return nil
}

// refusePrctl makes PR_SET_CHILD_SUBREAPER fail with EPERM for this process, as a container runtime's filter may.
func refusePrctl() error {
	const args0 = 16 // offset of the first argument in seccomp_data, low half
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PRCTL, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: args0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PR_SET_CHILD_SUBREAPER, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	return seccomp(filter)
}

func seccomp(filter []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const tsync = 1 // all threads
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, 1, tsync, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}
