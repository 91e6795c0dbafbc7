package main

import (
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// serviceManager keeps what it is told through NOTIFY_SOCKET, in order. It is safe for concurrent use.
type serviceManager struct {
	path string

	mu    sync.Mutex // guards told
	told  []string
	fresh chan struct{} // has a value after something was told
}

// startManager listens and has all sites of the story that start from now on talk to it.
func (s *story) startManager() *serviceManager {
	s.test.Helper()
	m := &serviceManager{path: filepath.Join(s.dir, "notify"), fresh: make(chan struct{}, 1)}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: m.path})
	if err != nil {
		s.test.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for b := make([]byte, 8<<10); ; {
			n, err := conn.Read(b)
			if err != nil {
				return // closed
			}
			m.mu.Lock()
			m.told = append(m.told, string(b[:n]))
			m.mu.Unlock()
			select {
			case m.fresh <- struct{}{}:
			default:
			}
		}
	})
	s.test.Cleanup(func() { conn.Close(); reading.Wait() })
	s.store.env = append(s.store.env, "NOTIFY_SOCKET="+m.path, "WATCHDOG_USEC=1000000")
	return m
}

// now is how much was told so far.
func (m *serviceManager) now() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.told)
}

// since is what was told from there on.
func (m *serviceManager) since(from int) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.told[from:])
}

// tells waits for a notification with that beginning, told from there on, and returns what comes after it.
func (s *story) tells(m *serviceManager, from int, beginning string) (next int) {
	s.test.Helper()
	for {
		for i, told := range m.since(from) {
			if strings.HasPrefix(told, beginning) {
				return from + i + 1
			}
		}
		select {
		case <-m.fresh:
		case <-s.ctx.Done():
			s.test.Fatalf("the service manager was never told %q: %q", beginning, m.since(0))
		}
	}
}

func (s *story) awaitCount(who, message string, n int) {
	s.test.Helper()
	if _, err := s.t.awaitNth(s.ctx, who, message, n); err != nil {
		s.test.Fatal(err)
	}
}

// The service manager hears of a start, a reload and a stop, and gets a sign of life only while etcd answers: a frozen etcd
// must look dead to it, or nobody ever restarts it.
func TestServiceManagerIsToldTheTruth(t *testing.T) {
	s := newStory(t)
	m := s.startManager()
	a := s.alone(siteA, "--new-cluster")
	s.tells(m, 0, "STATUS=running")
	ready := s.tells(m, 0, "READY=1")
	s.await(siteA, "etcd serving")
	etcd := s.status(a).Child.PID
	s.tells(m, s.tells(m, ready, "WATCHDOG=1"), "WATCHDOG=1")

	if err := syscall.Kill(etcd, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	const silent = "etcd does not answer; the service manager is given no sign of life"
	s.awaitCount(siteA, silent, 2) // whatever was on its way before has arrived
	frozen := m.now()
	s.awaitCount(siteA, silent, 4)
	if told := m.since(frozen); slices.Contains(told, "WATCHDOG=1") {
		t.Errorf("a sign of life while etcd is frozen: %q", told)
	}
	if err := syscall.Kill(etcd, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	alive := s.tells(m, m.now(), "WATCHDOG=1")

	a.cmd.Process.Signal(syscall.SIGHUP)
	s.tells(m, s.tells(m, alive, "RELOADING=1\nMONOTONIC_USEC="), "READY=1")

	stop := m.now()
	a.cmd.Process.Signal(syscall.SIGTERM)
	s.tells(m, stop, "STOPPING=1")
	s.tells(m, stop, "EXTEND_TIMEOUT_USEC=")
	<-a.ended
	if code := a.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
