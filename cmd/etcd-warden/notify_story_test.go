package main

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// A service that waits for its store is up. One that never says so holds up the boot of the machine, and is killed and
// started again by systemd every 90 s.
func TestServiceIsReadyWhileTheStoreIsAway(t *testing.T) {
	dir := t.TempDir()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: filepath.Join(dir, "notify")})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	cmd := exec.CommandContext(t.Context(), selfPath(t), "run", "--http", "", "--log-level", "error",
		"--store", "s3://bucket/cluster?endpoint=http://127.0.0.1:1&region=r", "--owner-name", demoRecord, "--owner-id", siteA, "--owner-servers", "127.0.0.1:1",
		"--", storetest.Tool(t, "etcd", "tools"), "--data-dir", filepath.Join(dir, "etcd"))
	cmd.Env = append(cmd.Environ(), "NOTIFY_SOCKET="+socket.LocalAddr().String(), "AWS_ACCESS_KEY_ID=k", "AWS_SECRET_ACCESS_KEY=s")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		socket.Close() // whoever still waits for a word
	}()
	if err := socket.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 4096)
	for said := ""; !strings.Contains(said, "READY=1"); {
		n, err := socket.Read(message)
		if err != nil {
			cmd.Process.Kill()
			t.Fatalf("no READY=1: %v; the warden: %v", err, <-ended)
		}
		said = string(message[:n])
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("stopped while it waits: %v, want exit code 0", err)
	}
}
