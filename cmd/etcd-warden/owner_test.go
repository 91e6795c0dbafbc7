package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/ownership/ownertest"
)

// A watch that repeats itself hides the one line that matters; one that misses a change is worse.
func TestOwnerWatchPrintsEachChangeOnce(t *testing.T) {
	dns, err := ownertest.Listen("owner.test.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dns.Close() })
	dns.SetOwner("site-a", 10*time.Second)
	watch := exec.CommandContext(t.Context(), selfPath(t), "owner", "watch", "--json", "--owner-name", "owner.test.", "--owner-id", "site-a",
		"--owner-servers", dns.Addr(), "--owner-interval", "100ms", "--owner-suspect-interval", "100ms")
	watch.Stderr = os.Stderr
	out, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	change := func() (c changeReport) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the watch ended: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		return c
	}
	for _, step := range []struct {
		change func()
		want   ownership.VerdictKind
		value  string
	}{
		{func() {}, ownership.Mine, "site-a"},
		{func() { dns.SetOwner("site-b", 10*time.Second) }, ownership.Other, "site-b"},
		{func() { dns.SetOwner("site-c", 10*time.Second) }, ownership.Other, "site-c"},
		{func() { dns.Delete() }, ownership.None, ""},
		{func() { dns.Misbehave(ownertest.ServFail) }, ownership.Failed, ""},
		{func() { dns.SetOwner("site-a", 10*time.Second); dns.Misbehave(ownertest.Proper) }, ownership.Mine, "site-a"},
	} {
		asked := len(dns.Queries())
		for len(dns.Queries()) < asked+2 { // polls without a change print nothing
			time.Sleep(5 * time.Millisecond)
		}
		step.change()
		if got := change(); got.Verdict != step.want || got.Value != step.value || got.Reason == "" || got.Time.IsZero() {
			t.Fatalf("got %+v, want %s %q", got, step.want, step.value)
		}
	}
	if err := watch.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() {
		t.Errorf("one line too many: %s", lines.Text())
	}
	if err := watch.Wait(); err != nil {
		t.Errorf("a signal is the good end of a watch, got %v", err)
	}
}
