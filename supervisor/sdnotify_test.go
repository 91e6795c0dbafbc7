package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// manager is a service manager's end of the notify socket.
type manager struct {
	t    *testing.T
	conn *net.UnixConn
	path string
}

type notification struct {
	text string
	from int
	fds  []int
}

func newManager(t *testing.T) *manager {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := setsockopt(conn, unix.SO_PASSCRED, 1); err != nil {
		t.Fatal(err)
	}
	return &manager{t, conn, path}
}

func (m *manager) next() notification {
	m.t.Helper()
	m.conn.SetReadDeadline(time.Now().Add(patience))
	b, oob := make([]byte, 4096), make([]byte, 4096)
	n, on, _, _, err := m.conn.ReadMsgUnix(b, oob)
	if err != nil {
		m.t.Fatalf("no notification: %v", err)
	}
	sender, fds := decodeControl(oob[:on])
	return notification{string(b[:n]), int(sender.Pid), fds}
}

// systemd drops what does not come from the main PID: every line of the child has to come from us, whole, and none of them
// may make the child the main process.
func TestTheChildsNotificationsComeFromTheMainPID(t *testing.T) {
	m := newManager(t)
	sent := []string{"READY=1", `STATUS=one two\nREADY=1`, `MAINPID=77\nSTATUS=kept`, "MAINPID=77", "RELOADING=1\\nMONOTONIC_USEC=5",
		"EXTEND_TIMEOUT_USEC=9", "WATCHDOG=1", "STOPPING=1", "X_OWN=1"}
	want := []string{"READY=1", "STATUS=one two\nREADY=1", "STATUS=kept", "RELOADING=1\nMONOTONIC_USEC=5",
		"EXTEND_TIMEOUT_USEC=9", "WATCHDOG=1", "STOPPING=1", "X_OWN=1"}
	w := startInit(t, visible(t, append([]string{"notify"}, sent...)...), withEnv("NOTIFY_SOCKET="+m.path))
	for _, text := range want {
		got := m.next()
		if got.text != text || got.from != w.cmd.Process.Pid {
			t.Errorf("got %q from %d, want %q from %d", got.text, got.from, text, w.cmd.Process.Pid)
		}
	}
	w.ready()
	w.signal(unix.SIGTERM)
	for _, text := range []string{"STOPPING=1", "EXTEND_TIMEOUT_USEC="} { // the warden's own
		if got := m.next().text; !strings.HasPrefix(got, text) {
			t.Errorf("got %q, want %s…", got, text)
		}
	}
	w.code()
}

// sd_notify_barrier waits until the manager closes the descriptor: a copy kept here would hold the child for ever.
func TestABarrierPasses(t *testing.T) {
	m := newManager(t)
	w := startInit(t, visible(t, "barrier"), withEnv("NOTIFY_SOCKET="+m.path))
	got := m.next()
	if got.text != "BARRIER=1" || len(got.fds) != 1 {
		t.Fatalf("got %q with %d descriptors", got.text, len(got.fds))
	}
	unix.Close(got.fds[0])
	if got := w.line("barrier "); got != "true" {
		t.Errorf("got %s", got)
	}
}

// The watchdog's PID is ours; with it in its environment, a child would think that it is not meant.
func TestTheChildsEnvironmentLeadsToUs(t *testing.T) {
	m := newManager(t)
	w := startInit(t, shell("echo $NOTIFY_SOCKET:$WATCHDOG_PID:$WATCHDOG_USEC"), withEnv("NOTIFY_SOCKET="+m.path, "WATCHDOG_PID=1", "WATCHDOG_USEC=5"))
	if got := w.line("@"); !strings.HasSuffix(got, "::5") {
		t.Errorf("got @%s", got)
	}
}

// Without a service manager nothing is sent, and nothing fails.
func TestWithoutAServiceManagerTheNotifierDoesNothing(t *testing.T) {
	n, err := newNotifier("", false)
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"Ready": n.Ready(), "Status": n.Status("x"), "Stopping": n.Stopping(),
		"Reloading": n.Reloading(), "Extend": n.Extend(time.Second), "Watchdog": n.Watchdog()} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n.childSocket() != "" || n.WatchdogInterval() != 0 {
		t.Error("it speaks for somebody")
	}
}

func TestTheWardensOwnNotifications(t *testing.T) {
	m := newManager(t)
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	n, err := newNotifier(m.path, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.in.Close(); unix.Close(n.out) })
	for _, c := range []struct {
		send func() error
		want string
	}{
		{n.Ready, "READY=1"}, {n.Stopping, "STOPPING=1"}, {n.Watchdog, "WATCHDOG=1"},
		{func() error { return n.Status("two\nlines") }, "STATUS=two lines"},
		{func() error { return n.Extend(1500 * time.Millisecond) }, "EXTEND_TIMEOUT_USEC=1500000"},
		{n.Reloading, "RELOADING=1\nMONOTONIC_USEC="},
	} {
		if err := c.send(); err != nil {
			t.Fatal(err)
		}
		if got := m.next().text; !strings.HasPrefix(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if got := n.WatchdogInterval(); got != 1500*time.Millisecond {
		t.Errorf("got watchdog interval %s, want half of 3 s", got)
	}
	t.Setenv("WATCHDOG_PID", "1")
	if got := n.WatchdogInterval(); got != 0 {
		t.Errorf("got watchdog interval %s for another PID, want 0", got)
	}
}

// A socket without a path has no permissions: the sender's user decides.
func TestStrangersCannotSpeakForTheService(t *testing.T) {
	for _, c := range []struct {
		from *unix.Ucred
		want bool
	}{{nil, false}, {&unix.Ucred{Uid: 0}, true}, {&unix.Ucred{Uid: uint32(os.Geteuid())}, true}, {&unix.Ucred{Uid: 54321}, false}} {
		if got := allowed(c.from); got != c.want {
			t.Errorf("%+v: got %v, want %v", c.from, got, c.want)
		}
	}
}

// The loop, its jobs and the child's proxy notify at the same time. An address that they shared was written by each of them.
func TestNotificationsMayBeSentAtTheSameTime(t *testing.T) {
	m := newManager(t)
	n, err := newNotifier(m.path, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.in.Close(); unix.Close(n.out) })
	const each = 50
	var senders sync.WaitGroup
	for range 4 {
		senders.Go(func() {
			for range each {
				if err := n.Watchdog(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 4 * each {
		m.next()
	}
	senders.Wait()
}

// A change of phase, the one to a kill too, does not wait for a service manager that does not read.
func TestStatusDoesNotWaitForTheServiceManager(t *testing.T) {
	m := newManager(t) // reads nothing
	n, err := newNotifier(m.path, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.in.Close(); unix.Close(n.out) })
	for err == nil { // until its queue is full
		err = n.Status("running")
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Errorf("got %v, want EAGAIN at once", err)
	}
	var patience unix.Timeval // what a blocking send would wait: the error would be the same
	if err := unix.SetsockoptTimeval(n.out, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		t.Fatal(err)
	}
	if err := n.Status("stopping"); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("got %v from a socket that waits for ever, want EAGAIN", err)
	}
}
