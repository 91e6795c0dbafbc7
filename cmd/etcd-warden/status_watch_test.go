package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/etcd-warden/etcd-warden/supervisor"
)

// A watch that ends because the warden is away for a moment is of no use in a handover. An interrupt is its good end.
func TestWatchedStatusGoesOnUntilInterrupted(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if n := asked.Add(1); n == 2 || n == 3 { // the client repeats the first by itself
			panic(http.ErrAbortHandler)
		}
		json.NewEncoder(w).Encode(supervisor.Status{Version: "v0", Phase: supervisor.Waiting, Why: "not ours"})
	}))
	defer server.Close()
	cmd := exec.CommandContext(t.Context(), selfPath(t), "status", "--watch", "--http", strings.TrimPrefix(server.URL, "http://"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	views, away := 0, 0
	for lines := bufio.NewScanner(out); views < 2 && lines.Scan(); {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "why") && strings.HasSuffix(line, "not ours"):
			views++
		case strings.HasPrefix(line, "no warden answers"):
			away++
		}
	}
	if views != 2 || away == 0 {
		t.Errorf("saw %d views and %d times that nobody answers, want 2 and at least 1", views, away)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v, want exit code 0", err)
	}
}
