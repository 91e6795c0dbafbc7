package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// alone begins a site without ownership.
func (s *story) alone(id string, flags ...string) *site {
	s.test.Helper()
	life, err := startSite(id, s.demo, append([]string{"--store", s.store.url, "--owner-id", ""}, flags...))
	if err != nil {
		s.test.Fatal(err)
	}
	s.test.Cleanup(func() { life.stop(s.ctx, 20*time.Second) })
	return life
}

// command runs the program, wants an exit code, and returns what it printed.
func (s *story) command(code int, args ...string) (stdout, stderr string) {
	s.test.Helper()
	cmd := exec.CommandContext(s.ctx, s.self, args...)
	cmd.Env = append(os.Environ(), s.store.env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	got := 0
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		s.test.Fatal(err)
	}
	if got != code {
		s.test.Fatalf("%s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, &out, &errs)
	}
	return out.String(), errs.String()
}

// listed is what `snapshot list` says.
func (s *story) listed(flags ...string) (lines []listedSnapshot) {
	s.test.Helper()
	out, _ := s.command(0, append([]string{"snapshot", "list", "--json", "--store", s.store.url}, flags...)...)
	if err := json.Unmarshal([]byte(out), &lines); err != nil {
		s.test.Fatalf("%v in %s", err, out)
	}
	return lines
}

// An ordinary etcd with a store and nothing else gets a generation, snapshots by a schedule, and the commands that look after them.
func TestSnapshotsOfAnEtcdWithoutOwnership(t *testing.T) {
	s := newStory(t)
	etcdutl := storetest.Tool(t, "etcdutl", "tools")
	a := s.alone(siteA, "--new-cluster", "--snapshot-schedule", "1s", "--snapshot-jitter", "0s", "--keep-last", "2")
	s.await(siteA, "journal entry made")
	stop := s.write(a, 300)
	s.await(siteA, "old snapshots deleted")
	stop()
	store := []string{"--store", s.store.url}
	taken, _ := s.command(0, append([]string{"snapshot", "take", "--endpoint", a.client}, store...)...)
	if !strings.Contains(taken, "generation 1, revision ") {
		t.Errorf("take printed %q", taken)
	}
	if st := s.status(a); st.Snapshots == nil || st.Snapshots.Taken == 0 || st.Snapshots.LastKey == "" {
		t.Errorf("status of snapshots: %+v", st.Snapshots)
	}
	a.stop(s.ctx, 20*time.Second)
	for _, l := range s.listed("--verify") {
		if l.Generation != 1 || l.Final || l.Role != "full" || l.Captured != "live" || l.Verified != verified {
			t.Errorf("listed: %+v", l)
		}
	}

	deep, _ := s.command(0, append([]string{"snapshot", "verify", "--all", "--deep", "--etcd", s.etcd, "--scratch", t.TempDir()}, store...)...)
	if n := strings.Count(deep, "ok  generations/0000000001/"); n < 2 || !strings.Contains(deep, "restored: ") {
		t.Errorf("verify --deep printed\n%s", deep)
	}

	file := filepath.Join(t.TempDir(), "out.db")
	s.command(0, append(append([]string{"snapshot", "fetch"}, store...), file)...)
	s.command(exitUsage, append(append([]string{"snapshot", "fetch"}, store...), file)...) // nothing is replaced
	if out, err := exec.Command(etcdutl, "snapshot", "status", file).CombinedOutput(); err != nil {
		t.Errorf("etcdutl does not take the fetched file: %v\n%s", err, out)
	}

	before := s.listed()
	dry, _ := s.command(0, append([]string{"snapshot", "prune", "--keep-last", "1", "--dry-run"}, store...)...)
	if strings.Count(dry, "delete ") != len(before)-1 || !strings.Contains(dry, "newest") || len(s.listed()) != len(before) {
		t.Errorf("dry run of %d snapshots:\n%s", len(before), dry)
	}
	s.command(0, append([]string{"snapshot", "prune", "--keep-last", "1"}, store...)...)
	left := s.listed()
	if len(left) != 1 || left[0].Key != before[len(before)-1].Key {
		t.Errorf("left: %+v; want the newest", left)
	}
}

// A snapshot that is damaged in the store is named, with its own exit code, and nothing is written.
func TestDamagedSnapshotIsNamedByEveryCommand(t *testing.T) {
	s := newStory(t)
	a := s.alone(siteA, "--new-cluster")
	s.await(siteA, "journal entry made")
	store := []string{"--store", s.store.url}
	s.command(0, append([]string{"snapshot", "take", "--endpoint", a.client}, store...)...)
	key := s.listed()[0].Key
	path := filepath.Join(strings.TrimPrefix(s.store.url, "file://"), filepath.FromSlash(key))
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs := s.command(exitData, append([]string{"snapshot", "verify"}, store...)...)
	if !strings.Contains(out, "BAD "+key) || !strings.Contains(errs, "corrupted") {
		t.Errorf("verify printed %q and %q", out, errs)
	}
	if l := s.listed("--verify"); l[0].Verified != unsound || l[0].Problem == "" {
		t.Errorf("listed: %+v", l[0])
	}
	dir := t.TempDir()
	s.command(exitData, append(append([]string{"snapshot", "fetch"}, store...), key, filepath.Join(dir, "out.db"))...)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("fetch left %v behind (%v)", left, err)
	}
}

// Certificates on both sides: given by flags, or read off etcd's own. Without them nothing is taken, and nothing is left in the store.
func TestTakeWithCertificates(t *testing.T) {
	s := newStory(t)
	dir := t.TempDir()
	cert, key, err := storetest.WriteCertificate(dir)
	if err != nil {
		t.Fatal(err)
	}
	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	client := strings.Replace(urlOf(ports[0]), "http:", "https:", 1)
	flags := []string{"--name", "m", "--data-dir", filepath.Join(dir, "data"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", urlOf(ports[1]), "--initial-advertise-peer-urls", urlOf(ports[1]), "--initial-cluster", "m=" + urlOf(ports[1]), "--log-level", "error",
		"--cert-file", cert, "--key-file", key, "--trusted-ca-file", cert, "--client-cert-auth"}
	etcd := exec.CommandContext(s.ctx, s.etcd, flags...)
	etcd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := etcd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Process.Kill(); _ = etcd.Wait() })
	take := []string{"snapshot", "take", "--generation", "1", "--store", s.store.url}
	own := append(slices.Clone(take), append([]string{"--", "etcd"}, flags...)...)
	s.eventually(own...)
	s.command(0, append(slices.Clone(take), "--endpoint", client, "--cacert", cert, "--cert", cert, "--key", key)...)
	s.command(exitFailure, append(slices.Clone(take), "--endpoint", client, "--cacert", cert)...)
	if n := len(s.listed()); n != 2 {
		t.Errorf("%d snapshots, want 2", n)
	}
}

// eventually repeats a command until it succeeds.
func (s *story) eventually(args ...string) {
	s.test.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := exec.CommandContext(s.ctx, s.self, args...).CombinedOutput()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			s.test.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// The data of one cluster must not become the newest state of another's generation.
func TestTakeRefusesAnotherCluster(t *testing.T) {
	s := newStory(t)
	a := s.alone(siteA, "--new-cluster")
	s.await(siteA, "journal entry made")
	store := []string{"--store", s.store.url}
	s.command(0, append([]string{"snapshot", "take", "--endpoint", a.client}, store...)...)
	own := s.store
	other, err := directoryStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.store = other
	b := s.alone(siteB, "--new-cluster")
	s.await(siteB, "etcd serving")
	s.store = own
	_, errs := s.command(exitUsage, append([]string{"snapshot", "take", "--endpoint", b.client}, store...)...)
	if !strings.Contains(errs, "check --endpoint and --store") {
		t.Errorf("it says %q", errs)
	}
}

// Snapshots that were taken while etcd ran are never what a handover hands over: the successor starts from the final one, and has all.
func TestScheduledSnapshotIsNeverTakenForTheFinal(t *testing.T) {
	s := newStory(t)
	a := s.start(siteA, "--new-cluster", "--snapshot-schedule", "1s", "--snapshot-jitter", "0s")
	s.await(siteA, "etcd serving")
	b := s.start(siteB, "--snapshot-schedule", "1s", "--keep-last", "1", "--snapshot-jitter", "0s")
	s.write(a, 300)
	if _, err := s.t.awaitNth(s.ctx, siteA, "snapshot taken", 2); err != nil {
		t.Fatal(err)
	}
	s.move(siteB)
	dead := s.await(siteA, "etcd dead")
	final := s.await(siteA, "final journalled")
	s.await(siteB, "etcd serving")
	s.noneLost(b, dead.At)
	s.await(siteB, "old snapshots deleted")
	finals, ordinary := 0, 0
	for _, l := range s.listed("--generation", "1") {
		switch {
		case l.Role == "final":
			finals++
			if l.Key != final.Fields["key"] || l.Captured == "live" {
				t.Errorf("the final is %+v, journalled was %v", l, final.Fields["key"])
			}
		case l.Captured == "live":
			ordinary++
		default:
			t.Errorf("listed: %+v", l)
		}
	}
	if finals != 1 || ordinary < 2 {
		t.Errorf("generation 1 has %d finals and %d ordinary snapshots; want 1 and at least 2, whatever the successor deletes in its own", finals, ordinary)
	}
}

// A store that hangs while a snapshot streams leaves etcd with an open stream, which it would wait for when told to end: the kill must not.
func TestSnapshotUnderWayDoesNotDelayTheKill(t *testing.T) {
	s := newStory(t)
	bucket := s.overS3()
	a := s.start(siteA, "--new-cluster", "--snapshot-schedule", "2s", "--snapshot-jitter", "0s")
	s.await(siteA, "etcd serving")
	var hang atomic.Bool
	bucket.Inject(storetest.Fault{Mode: storetest.Hang, Times: 1000, Match: func(r *http.Request) bool {
		return hang.Load() && r.Method == http.MethodPut && strings.Contains(r.URL.RawQuery, "partNumber")
	}})
	filler := newGateway(a.client)
	random := rand.NewChaCha8([32]byte{1})
	for i := range 36 { // more than all buffers between etcd and the store hold
		value := make([]byte, 900_000)
		_, _ = random.Read(value)
		if _, err := filler.put(s.ctx, fmt.Sprint("fill/", i), string(value)); err != nil {
			t.Fatal(err)
		}
	}
	hang.Store(true)
	s.awaitHung(bucket, 3) // as many parts as are sent at a time: nothing more is taken from etcd
	moved := s.move(siteB)
	dead := s.await(siteA, "etcd dead")
	s.withinBound(moved, dead)
	if took, _ := dead.Fields["took_ms"].(float64); took > 5000 {
		t.Errorf("the kill took %v ms: it waited for the stream", took)
	}
	hang.Store(false)
	s.await(siteA, "final journalled")
	if st := s.status(a); st.Snapshots.Failed != 0 {
		t.Errorf("an interrupted snapshot counts as failed: %+v", st.Snapshots)
	}
}

// awaitHung waits until n requests hang.
func (s *story) awaitHung(bucket *storetest.FaultProxy, n int) {
	s.test.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for bucket.Hits(storetest.Hang) < n {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			s.test.Fatal("no upload hangs")
		}
	}
}
