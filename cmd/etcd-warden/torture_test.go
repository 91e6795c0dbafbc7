package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// The ways in which an etcd ends under load.
var tortureEnds = []string{"KILL", "handover", "SEGV", "TERM", "STOP+KILL", "full disk", "ABRT", "warden KILL"}

// TestTortureFinalIsExact ends a real etcd under load in every way there is, and compares what the final snapshot makes of
// it with everything that was acknowledged. `make torture N=200 SEED=7` runs many rounds; a seed replays the choices of
// each round (not the scheduler's). TORTURE_ETCD names another etcd than the pinned one.
func TestTortureFinalIsExact(t *testing.T) {
	rounds, err := strconv.Atoi(orElse("TORTURE_N", "2"))
	if err != nil {
		t.Fatalf("TORTURE_N: %v", err)
	}
	seed, err := strconv.ParseUint(orElse("TORTURE_SEED", strconv.FormatInt(time.Now().UnixNano()%1e9, 10)), 10, 64)
	if err != nil {
		t.Fatalf("TORTURE_SEED: %v", err)
	}
	t.Logf("replay with: make torture N=%d SEED=%d", rounds, seed)
	for n := range rounds {
		end := tortureEnds[(uint64(n)+seed)%uint64(len(tortureEnds))]
		if only := os.Getenv("TORTURE_END"); only != "" {
			end = only
		}
		t.Run(fmt.Sprintf("%d %s", n, end), func(t *testing.T) { t.Parallel(); torture(t, rand.New(rand.NewPCG(seed, uint64(n))), end) })
	}
}

func orElse(variable, value string) string {
	if v := os.Getenv(variable); v != "" {
		return v
	}
	return value
}

func torture(t *testing.T, rng *rand.Rand, end string) {
	s := newStory(t)
	s.etcd = orElse("TORTURE_ETCD", s.etcd)
	wanted, auth := int64(300+rng.IntN(2500)), rng.IntN(3) == 0
	seed := rng.Uint64()
	if end == "full disk" {
		smallDisk(t, filepath.Join(s.dir, siteA))
	}
	a := s.start(siteA, "--new-cluster")
	etcd := int(s.await(siteA, "etcd started").Fields["pid"].(float64))
	s.await(siteA, "etcd serving")
	l := newLoad(a.client, 16, seed)
	if auth {
		enableAuth(t, s.ctx, l)
	}
	if end == "full disk" {
		l.padding, wanted = 16<<10, 1<<40
	}
	t.Logf("auth %v, end by %s after %d acknowledged operations", auth, end, wanted)
	loading, cancel := context.WithCancel(s.ctx)
	enough := make(chan struct{})
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() {
		if err := l.run(loading, wanted, enough); err != nil {
			t.Error(err)
		}
	})
	if end != "full disk" {
		select {
		case <-enough:
		case <-s.ctx.Done():
			t.Fatalf("only %d operations acknowledged", l.acked.Load())
		}
	}
	s.endEtcd(a, etcd, end)
	s.await(siteA, "final journalled")
	running.Wait()
	s.stopAll()
	s.compareFinal(l)
}

// stopAll ends what runs of the old site: its directory is looked into next.
func (s *story) stopAll() {
	for _, life := range s.running {
		life.stop(s.ctx, 20*time.Second)
	}
}

// endEtcd ends the old site's etcd in the way asked for, and has a warden find out that the cluster is owned elsewhere.
func (s *story) endEtcd(a *site, etcd int, end string) {
	s.test.Helper()
	kill := func(pid int, sig syscall.Signal) {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			s.test.Fatal(err)
		}
	}
	switch end {
	case "handover":
		s.move(siteB)
		return
	case "warden KILL":
		kill(a.cmd.Process.Pid, syscall.SIGKILL)
	case "TERM":
		kill(etcd, syscall.SIGTERM)
	case "KILL":
		kill(etcd, syscall.SIGKILL)
	case "STOP+KILL":
		kill(etcd, syscall.SIGSTOP)
		kill(etcd, syscall.SIGKILL)
	case "ABRT":
		kill(etcd, syscall.SIGABRT)
	case "SEGV":
		kill(etcd, syscall.SIGSEGV)
	case "full disk": // it ends by itself
	default:
		s.test.Fatalf("unknown end %q", end)
	}
	select {
	case <-a.ended:
	case <-s.ctx.Done():
		s.test.Fatalf("the warden outlives its etcd that ended by %s", end)
	}
	awaitGone(s.test, s.ctx, etcd)
	s.move(siteB)
	s.demo.t = testTimeline(s.test)
	s.start(siteA)
}

// compareFinal restores the final as a user would and compares it with what was acknowledged, and with what etcd itself
// makes of the old directory.
func (s *story) compareFinal(l *load) {
	t := s.test
	t.Helper()
	restored := filepath.Join(s.dir, "restored")
	cmd := exec.CommandContext(s.ctx, s.self, "restore", "--store", s.store.url, "--data-dir", restored, "--name", "r",
		"--initial-cluster", "r=http://127.0.0.1:1", "--initial-advertise-peer-urls", "http://127.0.0.1:1")
	cmd.Env = append(os.Environ(), s.store.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("restore: %v: %s", err, out)
	}
	final := s.plainEtcd("r", restored, "--initial-cluster=r=http://127.0.0.1:1", "--initial-advertise-peer-urls=http://127.0.0.1:1")
	old := s.plainEtcd(siteA, s.roomyCopy(filepath.Join(s.dir, siteA, "etcd")))
	client := func(endpoint string) *clientv3.Client {
		c, err := l.dial(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	fc, oc := client(final), client(old)
	l.compare(t, s.ctx, fc)
	if l.user != "" {
		compareAuth(t, s.ctx, fc)
	}
	// etcd may have a compaction to finish after its start: what differs for that reason is equal a moment later.
	var ours, theirs *clientv3.HashKVResponse
	for deadline := time.Now().Add(20 * time.Second); ; {
		var err1, err2 error
		ours, err1 = fc.HashKV(s.ctx, final, 0)
		theirs, err2 = oc.HashKV(s.ctx, old, 0)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if ours.Hash == theirs.Hash && ours.Header.Revision == theirs.Header.Revision || time.Now().After(deadline) {
			break
		}
		<-time.After(100 * time.Millisecond)
	}
	if ours.Hash != theirs.Hash || ours.Header.Revision != theirs.Header.Revision || ours.CompactRevision != theirs.CompactRevision {
		t.Errorf("the final has hash %d at revision %d (compacted %d), etcd itself makes %d at revision %d (compacted %d) of the old directory",
			ours.Hash, ours.Header.Revision, ours.CompactRevision, theirs.Hash, theirs.Header.Revision, theirs.CompactRevision)
	}
}

// roomyCopy is a directory itself, or, on the small disk, a copy elsewhere that etcd can start on.
func (s *story) roomyCopy(dir string) string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) > 256<<20 {
		return dir
	}
	roomy := filepath.Join(s.dir, "roomy")
	if out, err := exec.Command("cp", "-a", dir, roomy).CombinedOutput(); err != nil {
		s.test.Fatalf("copy: %v: %s", err, out)
	}
	return roomy
}

// plainEtcd starts an etcd of the same version on a directory and returns its endpoint once it serves.
func (s *story) plainEtcd(name, dir string, flags ...string) string {
	t := s.test
	t.Helper()
	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	var log strings.Builder
	cmd := exec.Command(s.etcd, append([]string{"--name", name, "--data-dir", dir, "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--log-level", "error"}, flags...)...)
	cmd.Stderr = &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if s.plain == nil {
		s.plain = map[string]func(){}
	}
	s.plain[client] = sync.OnceFunc(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
		if t.Failed() {
			t.Logf("etcd on %s: %s", dir, log.String())
		}
	})
	t.Cleanup(s.plain[client])
	if err := awaitTCP(s.ctx, strings.TrimPrefix(client, "http://")); err != nil {
		t.Fatalf("etcd on %s: %v", dir, err)
	}
	return client
}

// smallDisk mounts a file system that the load fills within seconds: etcd reserves 128 MB for its log.
func smallDisk(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=150m"); err != nil {
		t.Skipf("no small disk can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

const rootPassword = "torture"

// enableAuth makes users and roles and turns authentication on; the load goes on as root, whom the warden does not know.
func enableAuth(t testing.TB, ctx context.Context, l *load) {
	t.Helper()
	c, err := l.dial(l.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.UserAdd(ctx, "root", rootPassword))
	must(c.RoleAdd(ctx, "root"))
	must(c.UserGrantRole(ctx, "root", "root"))
	must(c.RoleAdd(ctx, "reader"))
	must(c.RoleGrantPermission(ctx, "reader", "torture/", clientv3.GetPrefixRangeEnd("torture/"), clientv3.PermissionType(clientv3.PermRead)))
	must(c.UserAdd(ctx, "alice", "secret"))
	must(c.UserGrantRole(ctx, "alice", "reader"))
	must(c.AuthEnable(ctx))
	l.user, l.password = "root", rootPassword
}

func compareAuth(t testing.TB, ctx context.Context, c *clientv3.Client) {
	t.Helper()
	alice, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints(), Username: "alice", Password: "secret", DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatalf("alice is not known, or authentication is off: %v", err)
	}
	defer alice.Close()
	if _, err := alice.Get(ctx, "torture/", clientv3.WithPrefix(), clientv3.WithLimit(1)); err != nil {
		t.Errorf("alice may not read what her role allows: %v", err)
	}
	if _, err := alice.Put(ctx, "torture/alice", "x"); err == nil {
		t.Error("alice may write though her role only reads")
	}
	role, err := c.RoleGet(ctx, "reader")
	if err != nil || len(role.Perm) != 1 || string(role.Perm[0].Key) != "torture/" {
		t.Errorf("role reader is %v (%v)", role, err)
	}
}

// stopPlain ends an etcd of plainEtcd and returns when it is gone.
func (s *story) stopPlain(endpoint string) { s.plain[endpoint]() }
