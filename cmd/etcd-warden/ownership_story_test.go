package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/ownership/ownertest"
	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
	"github.com/etcd-warden/etcd-warden/supervisor"
)

// sees is a condition on an event of a site.
type sees func(event) bool

func message(m string) sees { return func(e event) bool { return e.Message == m } }

func alarm(code ownership.AlarmCode) sees {
	return func(e event) bool { return e.Fields["alarm"] == string(code) }
}

func state(of ownership.State) sees {
	return func(e event) bool { return e.Message == "ownership changed" && e.Fields["state"] == string(of) }
}

// now is a place in the timeline, for awaitFrom.
func (s *story) now() int {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	return len(s.t.events)
}

// awaitFrom returns the first event of who after a place in the timeline that the condition holds for.
func (s *story) awaitFrom(from int, who, what string, holds sees) event {
	s.test.Helper()
	for next := from; ; {
		s.t.mu.Lock()
		events, more := s.t.events[next:], s.t.more
		s.t.mu.Unlock()
		for _, e := range events {
			switch {
			case e.Who != who:
			case holds(e):
				return e
			case e.Message == siteEnded:
				s.test.Fatalf("%s ended before %s: %v", who, what, e.Fields["why"])
			}
		}
		next += len(events)
		select {
		case <-more:
		case <-s.ctx.Done():
			s.test.Fatalf("wait for %s of %s: %v", what, who, s.ctx.Err())
		}
	}
}

func (s *story) awaitState(from int, who string, st ownership.State) {
	s.test.Helper()
	s.awaitFrom(from, who, "state "+string(st), state(st))
}

// kill ends a warden as a crash does, waits until its etcd is gone too, and returns the place in the timeline after that.
func (s *story) kill(of *site) int {
	s.test.Helper()
	of.cmd.Process.Kill()
	<-of.ended
	for _, pid := range s.etcds(of.name) {
		awaitGone(s.test, s.ctx, pid)
	}
	s.refusesClients(of)
	return s.now()
}

// etcds are the process ids of all etcds that a site ever started for clients.
func (s *story) etcds(who string) (pids []int) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	for _, e := range s.t.events {
		if pid, ok := e.Fields["pid"].(float64); ok && e.Who == who && e.Message == "etcd started" {
			pids = append(pids, int(pid))
		}
	}
	return pids
}

// served counts the starts of an etcd for clients since a place in the timeline.
func (s *story) served(from int, who string) (n int) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	for _, e := range s.t.events[from:] {
		if e.Who == who && e.Message == "etcd started" {
			n++
		}
	}
	return n
}

// journal returns all entries of a store, as "kind generation owner".
func (s *story) journal(store snapshot.Store) (entries []string) {
	s.test.Helper()
	j := supervisor.Journal{Store: store}
	head, err := j.Head(s.ctx)
	if err != nil {
		s.test.Fatal(err)
	}
	for seq := uint64(1); seq <= head.Seq; seq++ {
		e, err := j.Entry(s.ctx, seq)
		if err != nil {
			s.test.Fatal(err)
		}
		entries = append(entries, fmt.Sprintf("%s %d %s", e.Kind, e.Generation, e.Owner))
	}
	return entries
}

func (s *story) openStore(opt snapshot.OpenOptions) snapshot.Store {
	s.test.Helper()
	store, err := snapshot.OpenStore(s.ctx, s.store.url, opt)
	if err != nil {
		s.test.Fatal(err)
	}
	return store
}

// record starts a name server of a site's own, so that it can be cut off alone.
func (s *story) record(owner string) *ownertest.Server {
	s.test.Helper()
	dns, err := ownertest.Listen(demoRecord)
	if err != nil {
		s.test.Fatal(err)
	}
	s.test.Cleanup(func() { dns.Close() })
	dns.SetOwner(owner, storyOwner.RecordTTL)
	return dns
}

// disk is a file system of a site's warden that can be made to hang.
type disk struct {
	test testing.TB
	path string
}

// stateDisk puts the warden's own directory of a site on a file system that can be frozen. It is nil, with a line in the log, where
// the test may not mount.
func (s *story) stateDisk(of string) *disk {
	s.test.Helper()
	if os.Geteuid() != 0 {
		s.test.Log("the disk is left out: only root may mount and freeze one")
		return nil
	}
	image := filepath.Join(s.dir, "disk.img")
	d := &disk{s.test, filepath.Join(s.dir, of, "etcd.warden")}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		s.test.Fatal(err)
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		s.test.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		s.test.Fatal(err)
	}
	d.command("mkfs.ext4", "-q", image)
	d.command("mount", "-o", "loop", image, d.path)
	s.test.Cleanup(func() { d.command("umount", d.path) })
	return d
}

func (d *disk) command(name string, args ...string) {
	d.test.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.test.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}

// freeze makes every write hang, uninterruptibly, until thaw is called. The test's end thaws.
func (d *disk) freeze() (thaw func()) {
	if d == nil {
		return func() {}
	}
	d.command("fsfreeze", "--freeze", d.path)
	frozen := true
	thaw = func() {
		if frozen {
			frozen = false
			d.command("fsfreeze", "--unfreeze", d.path)
		}
	}
	d.test.Cleanup(thaw)
	return thaw
}

// Store, disk and DNS all hang, from the second answer on that names another. etcd is dead within the bound all the same, and the
// handover is finished once they are back.
func TestNothingBeforeTheDeathWaitsForStoreDiskOrDNS(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	bucket := s.overS3()
	dns, state := s.record(siteA), s.stateDisk(siteA)
	a := s.start(siteA, "--new-cluster", "--owner-servers", dns.Addr())
	s.await(siteA, "etcd serving")
	s.write(a, 500)

	bucket.SetMode(storetest.BlackHole)
	thaw := state.freeze()
	moved := s.move(siteB) // for the other site, later
	dns.SetOwnerAndFallSilent(siteB, storyOwner.RecordTTL)
	dead := s.await(siteA, "etcd dead")
	s.withinBound(moved, dead)
	s.refusesClients(a)
	if st := s.status(a); st.Ready || st.Child.PID != 0 {
		t.Errorf("while everything hangs: ready %v, child %d; want neither", st.Ready, st.Child.PID)
	}

	if marker, err := os.ReadFile(filepath.Join(s.dir, siteA, "etcd.warden", "marker.json")); state != nil && !strings.Contains(string(marker), `"serving"`) {
		t.Errorf("the marker was written (%s, %v): the disk did not hang", marker, err)
	}

	thaw()
	bucket.SetMode(storetest.Pass)
	dns.SetOwner(siteB, storyOwner.RecordTTL)
	b := s.start(siteB)
	s.await(siteA, "final journalled")
	s.await(siteB, "etcd serving")
	s.noneLost(b, dead.At)
}

// DNS cannot tell two wardens with one id apart; the journal can. The second must not serve beside the first, and must say who
// is there.
func TestSecondWardenWithTheSameIDRefusesAndSaysWhoHolds(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	a := s.start(siteA, "--new-cluster")
	s.await(siteA, "etcd serving")
	s.write(a, 100)
	twin := s.start("twin", "--owner-id", siteA)
	said := s.awaitFrom(0, "twin", "alarm held-by-twin", alarm(ownership.AlarmHeldByTwin)).Message
	first := s.status(a)
	for _, want := range []string{first.Owner.Instance, siteA, "generation 1", "--take-over"} {
		if !strings.Contains(said, want) {
			t.Errorf("the second says %q, want %q in it", said, want)
		}
	}
	st := s.status(twin)
	if st.Ready || st.Child.PID != 0 || !strings.Contains(st.Owner.Reason, first.Owner.Instance) {
		t.Errorf("the second: ready %v, child %d, reason %q; want it idle, with the holder named", st.Ready, st.Child.PID, st.Owner.Reason)
	}
	if !first.Ready || first.Owner.State != string(ownership.Owner) || s.starts(siteA) != 1 {
		t.Errorf("the first: ready %v, state %s, %d starts; want it to serve undisturbed", first.Ready, first.Owner.State, s.starts(siteA))
	}
	if first.Owner.Verdict == "" || first.Owner.VerdictAt.IsZero() || first.Owner.LeaseLeftMS <= 0 || !strings.Contains(first.Owner.Head, "open of generation 1 by site-a") {
		t.Errorf("/status lacks what it promises: %+v", first.Owner)
	}
}

// There and back again, with writes on both sites: each move is a generation, and every write is there at the end.
func TestClusterGoesToAnotherSiteAndBack(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	a := s.start(siteA, "--new-cluster")
	s.await(siteA, "etcd serving")
	b := s.start(siteB)
	stop := s.write(a, 300)
	s.move(siteB)
	there := s.await(siteA, "etcd dead")
	s.await(siteB, "etcd serving")
	stop()
	s.noneLost(b, there.At)
	if _, err := newGateway(b.client).put(s.ctx, "written", "on the other site"); err != nil {
		t.Fatal(err)
	}

	from := s.now()
	s.move(siteA)
	s.awaitFrom(from, siteA, "the return", message("etcd serving"))
	s.noneLost(a, there.At)
	found := ""
	if err := newGateway(a.client).each(s.ctx, "written", "written0", func(_, value string, _ int64) { found = value }); err != nil || found == "" {
		t.Errorf("the other site's write came back as %q (%v)", found, err)
	}
	s.refusesClients(b)
	want := []string{"open 1 site-a", "final 1 site-a", "claim 2 site-b", "final 2 site-b", "claim 3 site-a"}
	if got := s.journal(s.openStore(snapshot.OpenOptions{})); !slices.Equal(got, want) {
		t.Errorf("the journal has %q, want %q", got, want)
	}
}

// cutOff are numbers with a lease that a test can wait for. wait-final is the least that they allow.
func cutOff() (flags []string) {
	s := storyOwner
	s.Interval, s.PollTimeout, s.MaxGap, s.Lease, s.TermGrace = 200*time.Millisecond, 500*time.Millisecond, 2*time.Second, 4*time.Second, 500*time.Millisecond
	s.WaitFinal = s.Lease + s.RecordTTL + s.TermGrace + 30*time.Second
	return []string{"--owner-interval", s.Interval.String(), "--owner-poll-timeout", s.PollTimeout.String(), "--owner-max-gap", s.MaxGap.String(),
		"--owner-lease", s.Lease.String(), "--owner-term-grace", s.TermGrace.String(), "--wait-final", s.WaitFinal.String()}
}

// A site that is cut off from store and DNS stops serving by its lease; the other gives its generation up after its wait. What the
// first alone has is kept: it is no part of the history any more, and it lies under late/.
func TestFinalThatComesTooLateGoesToLate(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	server := storetest.StartS3(t)
	link, err := storetest.StartFaultProxy(server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { link.Close() })
	s.store = &demoStore{url: server.StoreURL("test", "cluster"), env: server.Env(), stop: func() {}}
	a := s.start(siteA, append(cutOff(), "--new-cluster")...)
	s.await(siteA, "etcd serving")
	// The site that will be cut off takes over first: the generation before has a final to fall back to.
	dns := s.record(siteB)
	remote := append(cutOff(), "--store", storetest.S3URL(link.URL(), "test", "cluster"), "--owner-servers", dns.Addr())
	b := s.start(siteB, remote...)
	s.move(siteB)
	s.await(siteB, "etcd serving")
	s.write(b, 300)

	link.SetMode(storetest.BlackHole)
	dns.Misbehave(ownertest.Silent)
	moved := s.now()
	s.move(siteA)
	s.awaitState(moved, siteB, ownership.Isolated)
	s.refusesClients(b)
	s.awaitFrom(moved, siteA, "giving the generation up", alarm(ownership.AlarmAbandoning))
	s.awaitFrom(moved, siteA, "the takeover", message("etcd serving"))

	link.SetMode(storetest.Pass)
	dns.Misbehave(ownertest.Proper)
	dns.SetOwner(siteA, storyOwner.RecordTTL)
	s.awaitState(moved, siteB, ownership.Superseded)
	s.awaitFrom(moved, siteB, "the upload", message("final snapshot uploaded"))
	again := s.kill(b)
	b = s.start(siteB, remote...)
	s.awaitState(again, siteB, ownership.Superseded)
	s.refusesClients(b)
	if n := s.served(moved, siteB); n != 0 {
		t.Errorf("the old site started its etcd %d times after it was cut off", n)
	}
	store := s.openStore(snapshot.OpenOptions{Credentials: &server.Credentials})
	late, err := snapshot.ListLate(s.ctx, store, 2)
	if err != nil || len(late.Manifests) != 1 {
		t.Fatalf("late/ has %d snapshots (%v), want one", len(late.Manifests), err)
	}
	if last := s.writer.lastRevision(); late.Manifests[0].Revision < last {
		t.Errorf("late/ has revision %d, acknowledged was %d", late.Manifests[0].Revision, last)
	}
	want := []string{"open 1 site-a", "final 1 site-a", "claim 2 site-b", "abandoned 2 site-a", "claim 3 site-a"}
	if got := s.journal(store); !slices.Equal(got, want) {
		t.Errorf("the journal has %q, want %q", got, want)
	}
	if !s.status(a).Ready {
		t.Error("the site that took over does not serve")
	}
}

// lastRevision is that of the last acknowledged write.
func (w *writer) lastRevision() (last int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.acks {
		last = max(last, a.rev)
	}
	return last
}

// Without create-only writes two destinations could claim one generation. A site that could only begin by a claim says so at
// once, in one line, and changes nothing.
func TestStoreThatCannotArbitrateIsRefusedWhereAClaimIsNeeded(t *testing.T) {
	for name, support := range map[string]storetest.IfAbsentSupport{"ignored": storetest.IfAbsentIgnored, "refused": storetest.IfAbsentRefused} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bucket := storetest.NewS3Server("test")
			bucket.IfAbsent = support
			server := httptest.NewServer(bucket)
			t.Cleanup(server.Close)
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), selfPath(t), "run", "--http", "", "--log-level", "error", "--owner-name", demoRecord, "--owner-id", siteB, "--owner-servers", "127.0.0.1:1",
				"--store", storetest.S3URL(server.URL, "test", "cluster"), "--", storetest.Tool(t, "etcd", "tools"), "--data-dir", filepath.Join(dir, "etcd"))
			cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret")
			out, err := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != exitUsage {
				t.Errorf("exit code %d (%v), want %d", code, err, exitUsage)
			}
			if said := string(out); strings.Count(said, "\n") != 1 || !strings.Contains(said, "create-only writes") || !strings.Contains(said, "use a store that has them") {
				t.Errorf("said %q, want one line that says what to do", said)
			}
			if _, err := os.Stat(filepath.Join(dir, "etcd")); !os.IsNotExist(err) {
				t.Errorf("the data directory was made (%v)", err)
			}
		})
	}
}
