package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/etcd-warden/etcd-warden/supervisor"
)

// initRun is a real `etcd-warden run` of any command, below a test.
type initRun struct {
	test  testing.TB
	ctx   context.Context
	cmd   *exec.Cmd
	lines *bufio.Scanner // of what its stdout is connected to
	ended chan struct{}
}

// runInit starts it. Its stdout, the child's too, is read by line; setup changes the rest.
func runInit(t testing.TB, setup func(*exec.Cmd), args ...string) *initRun {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), storyPatience)
	r := &initRun{test: t, ctx: ctx, cmd: exec.Command(selfPath(t), append([]string{"run"}, args...)...), ended: make(chan struct{})}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.lines = bufio.NewScanner(out)
	r.cmd.Stdout = w
	r.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	setup(r.cmd)
	err = r.cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() { defer close(r.ended); r.cmd.Wait() }()
	stop := context.AfterFunc(ctx, func() { r.cmd.Process.Kill() }) // ends every wait for a line; the child dies with it
	t.Cleanup(func() {
		stop()
		r.cmd.Process.Signal(syscall.SIGTERM) // os.ErrProcessDone: it has ended
		select {
		case <-r.ended:
		case <-time.After(20 * time.Second):
			r.cmd.Process.Kill()
			<-r.ended
		}
		cancel()
		out.Close()
	})
	return r
}

// line waits for a line that starts with prefix and returns the rest.
func (r *initRun) line(prefix string) string {
	r.test.Helper()
	for r.lines.Scan() {
		if rest, ok := strings.CutPrefix(r.lines.Text(), prefix); ok {
			return strings.TrimSpace(rest)
		}
	}
	r.test.Fatalf("the output ended without %q", prefix)
	return ""
}

func (r *initRun) signal(sig syscall.Signal) {
	r.test.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.test.Fatal(err)
	}
}

func (r *initRun) code() int {
	r.test.Helper()
	select {
	case <-r.ended:
		return r.cmd.ProcessState.ExitCode()
	case <-r.ctx.Done():
		r.test.Fatal("the warden does not end")
		return -1
	}
}

// eventually looks again and again, for what gives no notice.
func eventually(t testing.TB, ctx context.Context, what string, holds func() bool) {
	t.Helper()
	for !holds() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

// zombies counts the dead children of a process that are not reaped.
func zombies(pid int) (n int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		children, _ := os.ReadFile(list) // a thread may end meanwhile
		for child := range strings.FieldsSeq(string(children)) {
			if stat, err := os.ReadFile("/proc/" + child + "/stat"); err == nil && strings.Contains(string(stat), ") Z ") {
				n++
			}
		}
	}
	return n
}

// A full pipe behind stderr, which a stuck log collector leaves, must hold up neither the reaping nor the stop, and the
// end no longer than the last words may take.
func TestFullStderrHoldsNothingUp(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fillPipe(t, w)
	script := `trap 'echo bye; exit 0' TERM
		i=0; while [ $i -lt 100 ]; do (sleep 0 &); i=$((i+1)); done
		echo orphaned; while :; do sleep 0.02; done`
	warden := runInit(t, func(c *exec.Cmd) { c.Stderr = w }, "--log-level", "debug", "--http", "", "--", "/bin/sh", "-c", script)
	warden.line("orphaned")
	eventually(t, warden.ctx, "all orphans are reaped", func() bool { return zombies(warden.cmd.Process.Pid) == 0 })
	warden.signal(syscall.SIGTERM)
	warden.line("bye")
	if code := warden.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}

	unknown := runInit(t, func(c *exec.Cmd) { c.Stderr = w }, "--", "/does/not/exist")
	if code := unknown.code(); code != exitNotFound {
		t.Errorf("an error that cannot be printed: exit code %d, want %d", code, exitNotFound)
	}
}

// fillPipe writes into a pipe until it takes no more.
func fillPipe(t *testing.T, w *os.File) {
	t.Helper()
	raw, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		for block := make([]byte, 4096); err == nil; {
			_, err = unix.Write(int(fd), block) // Go's pipes do not block
		}
	})
	if err != unix.EAGAIN {
		t.Fatalf("fill a pipe: %v", err)
	}
}

// An idle warden must not wake up: on a small machine a hundred of them are as cheap as one. The child marks the time. What
// follows a start (the garbage collector's own clearing up, for one) may take a while, so that one interval without a
// single wake-up is wanted; something that polls has none.
func TestIdleWardenDoesNotWakeUp(t *testing.T) {
	warden := runInit(t, func(*exec.Cmd) {}, "--http", "127.0.0.1:0", "--", "/bin/sh", "-c", "while :; do echo mark; sleep 2; done")
	var seen []int
	for range 8 {
		warden.line("mark")
		seen = append(seen, wakeUps(t, warden.cmd.Process.Pid))
		if last := len(seen) - 1; last > 0 && seen[last] == seen[last-1] {
			return
		}
	}
	t.Errorf("voluntary switches of all threads, every 2 s: %d", seen)
}

func wakeUps(t *testing.T, pid int) (total int) {
	t.Helper()
	for _, file := range globAll(t, fmt.Sprintf("/proc/%d/task/*/status", pid)) {
		status, _ := os.ReadFile(file) // a thread may end meanwhile
		for line := range strings.Lines(string(status)) {
			if n, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				count, err := strconv.Atoi(strings.TrimSpace(n))
				if err != nil {
					t.Fatal(err)
				}
				total += count
			}
		}
	}
	return total
}

// An operator must see that a child is restarted over and over, and a stop must end the wait for the next try.
func TestRestartsAreVisible(t *testing.T) {
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + strconv.Itoa(ports[0])
	warden := runInit(t, func(c *exec.Cmd) { c.Stderr = c.Stdout }, "--http", address, "--restart", "always", "--", "/bin/sh", "-c", "exit 3")
	get := func(path string) []byte {
		resp, err := http.Get("http://" + address + path)
		if err != nil {
			return nil // it does not listen yet
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	go func() { // the log must be read
		for warden.lines.Scan() {
		}
	}()
	eventually(t, warden.ctx, "the warden backs off after a restart", func() bool {
		var st supervisor.Status
		if json.Unmarshal(get("/status"), &st) != nil {
			return false
		}
		return st.Phase == supervisor.BackingOff && st.Child.Restarts >= 1 && st.Child.LastExit == "exit status 3"
	})
	eventually(t, warden.ctx, "the metrics say the same", func() bool {
		body := string(get("/metrics"))
		return !strings.Contains(body, "etcd_warden_child_restarts_total 0\n") && strings.Contains(body, `etcd_warden_phase{phase="backing-off"} 1`) &&
			strings.Contains(body, `etcd_warden_child_exits_total{status="3"}`)
	})
	warden.signal(syscall.SIGTERM)
	if code := warden.code(); code != 0 {
		t.Errorf("stopped while it waited for the next try: exit code %d, want 0", code)
	}
}

// SIGHUP kills an etcd without grace. Here it reads the configuration again: the log level follows, what has to wait for a
// restart is named, and a broken file changes nothing.
func TestHangupReloadsAndLeavesEtcdAlive(t *testing.T) {
	s := newStory(t)
	file := filepath.Join(s.dir, "config.yaml")
	configure := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure("log-level: error\nstop-grace: 10s\n")
	a := s.alone(siteA, "--config", file, "--new-cluster")
	awaitServing(t, s.ctx, a)
	etcd := s.status(a).Child.PID

	configure("log-level: info\nstop-grace: 11s\n")
	a.cmd.Process.Signal(syscall.SIGHUP)
	s.await(siteA, "configuration reloaded") // an info line: the level was taken over
	if e := s.await(siteA, "changed settings need a restart of the warden"); fmt.Sprint(e.Fields["settings"]) != "[stop-grace]" {
		t.Errorf("settings said to need a restart: %v", e.Fields["settings"])
	}
	configure("log-levle: debug\n")
	a.cmd.Process.Signal(syscall.SIGHUP)
	if e := s.await(siteA, "configuration not reloaded; the one before stays in force"); !strings.Contains(fmt.Sprint(e.Fields["error"]), "log-levle") {
		t.Errorf("the error does not name the line: %v", e.Fields["error"])
	}
	if now := s.status(a).Child; now.PID != etcd || now.Restarts != 0 || !alive(etcd) {
		t.Errorf("etcd after SIGHUP: %+v, want PID %d alive", now, etcd)
	}
	awaitServing(t, s.ctx, a)
}

// etcdCommand is a plain etcd of one member that says little.
func (s *story) etcdCommand() (argv []string, on *site) {
	s.test.Helper()
	ports, err := freePorts(2)
	if err != nil {
		s.test.Fatal(err)
	}
	on = &site{name: siteA, client: urlOf(ports[0])}
	peer := urlOf(ports[1])
	return []string{s.etcd, "--data-dir", filepath.Join(s.dir, "plain"), "--listen-client-urls", on.client, "--advertise-client-urls", on.client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer, "--log-level", "error"}, on
}

// A hung etcd is asked for its goroutines by QUIT, as without a warden.
func TestQuitGivesEtcdsGoroutines(t *testing.T) {
	s := newStory(t)
	etcd, on := s.etcdCommand()
	var said bytes.Buffer
	warden := runInit(t, func(c *exec.Cmd) { c.Stderr = &said }, append([]string{"--http", "", "--"}, etcd...)...)
	awaitServing(t, s.ctx, on)
	warden.signal(syscall.SIGQUIT)
	if code := warden.code(); code != 2 {
		t.Errorf("exit code %d, want etcd's 2", code)
	}
	for _, want := range []string{"SIGQUIT: quit", "goroutine 1 ", "etcdserver.(*raftNode)"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("the dump lacks %q", want)
		}
	}
}

// Whoever runs it in a terminal ends it with Ctrl-C. etcd must not get the signal beside our stop, and the exit is clean.
func TestCtrlCStopsEtcdCleanly(t *testing.T) {
	s := newStory(t)
	user, side := openTerminal(t)
	etcd, on := s.etcdCommand()
	warden := runInit(t, func(c *exec.Cmd) {
		c.Stdin, c.Stderr, c.Stdout = side, side, side
		c.SysProcAttr.Setctty, c.SysProcAttr.Ctty = true, 0
	}, append([]string{"--http", "", "--log-format", "json", "--"}, etcd...)...)
	side.Close()
	shown := make(chan string, 1)
	go func() { all, _ := io.ReadAll(user); shown <- string(all) }() // ends with EIO when the last has closed it
	awaitServing(t, s.ctx, on)
	if _, err := user.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	if code := warden.code(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	log := <-shown
	if !strings.Contains(log, `"signal":"SIGINT"`) || strings.Contains(log, "SIGKILL sent") || !strings.Contains(log, `"killed":false`) {
		t.Errorf("not an orderly stop:\n%s", log)
	}
}

// openTerminal is a new terminal: the user's side, and the programs'.
func openTerminal(t *testing.T) (user, side *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("no terminal to be had: %v", err)
	}
	user = os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { user.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if side, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return user, side
}
