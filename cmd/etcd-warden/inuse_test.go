package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// refused runs the program and returns its exit code and what it said.
func refused(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), selfPath(t), args...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("%q: %v, want a refusal; it said: %s", args, err, out)
	}
	return exit.ExitCode(), string(out)
}

// A second warden on a data directory, or a warden on the directory of an etcd that it did not start, must not wait for a
// lock for ever, and must not touch what the first one does.
func TestDataDirectoryInUseIsRefused(t *testing.T) {
	s := newStory(t)
	a := s.start(siteA, "--new-cluster")
	started := s.await(siteA, "etcd started")
	s.await(siteA, "etcd serving")
	dir := filepath.Join(s.dir, siteA, "etcd")

	code, said := refused(t, "run", "--http", "", "--", s.etcd, "--data-dir", dir)
	if code != exitNoDirectory || !strings.Contains(said, "in use by another etcd-warden (pid ") {
		t.Errorf("second warden: exit code %d, %q", code, said)
	}
	if !alive(int(started.Fields["pid"].(float64))) {
		t.Error("the first warden's etcd is gone")
	}
	a.stop(s.ctx, 20*time.Second)

	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	client, peer := urlOf(ports[0]), urlOf(ports[1])
	stranger := exec.Command(s.etcd, "--data-dir", dir, "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--log-level", "error")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stranger.Process.Signal(syscall.SIGKILL); stranger.Wait() })
	awaitServing(t, s.ctx, &site{name: "stranger", client: client})
	code, said = refused(t, "run", "--http", "", "--", s.etcd, "--data-dir", dir)
	if code != exitNoDirectory || !strings.Contains(said, "in use by a running etcd") {
		t.Errorf("warden beside a strange etcd: exit code %d, %q", code, said)
	}
}

// A directory that cannot be looked into must not be taken for an empty one.
func TestUnreadableDataDirectoryIsRefused(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	dir := filepath.Join(t.TempDir(), "etcd")
	if err := os.Mkdir(dir, 0o000); err != nil {
		t.Fatal(err)
	}
	code, said := refused(t, "run", "--http", "", "--data-dir", dir, "--", "true")
	if code != exitNoDirectory || !strings.Contains(said, dir) {
		t.Errorf("exit code %d, %q", code, said)
	}
}
