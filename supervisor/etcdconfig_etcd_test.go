package supervisor

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

// Every write that etcd acknowledged before it was killed must be in the final snapshot, and nobody may reach the etcd
// that brings them back, whatever the user configured.
func TestFencedRestartBringsEveryAcknowledgedWriteBackUnseen(t *testing.T) {
	for try := range 5 { // once in ten times a killed etcd has just saved everything
		base := t.TempDir()
		data := filepath.Join(base, "data")
		wal := filepath.Join(base, "wal")
		dir := shortTempDir(t)
		args := []string{"--name=m0", "--data-dir=" + data, "--wal-dir=" + wal, "--listen-client-urls=unix://c:1",
			"--listen-peer-urls=unix://p:1", "--initial-cluster=m0=http://localhost:2380",
			"--advertise-client-urls=http://site-a:2379", "--log-level=warn"}
		env := append(os.Environ(), "ETCD_LISTEN_METRICS_URLS=http://127.0.0.1:0")
		cfg, err := ParseEtcd(args, env)
		if err != nil {
			t.Fatal(err)
		}
		dirs := snapshot.DataDirs{Data: cfg.DataDir, WAL: cfg.WALDir}

		e := startTestEtcd(t, dir, append([]string{"etcd"}, args...), env, "unix://"+dir+"/c:1")
		if n := tcpListeners(t, e.cmd.Process.Pid); n == 0 {
			t.Fatal("the metrics listener is not seen: the check below would see nothing either")
		}
		acked := e.putUntilKilled(t, 500)
		before := proofOf(t, dirs)
		if before.Exact() {
			continue
		}
		if before.LastIndex < uint64(len(acked)) {
			t.Fatalf("the log ends at entry %d, but %d writes were acknowledged", before.LastIndex, len(acked))
		}

		fenced := cfg.Fenced(shortTempDir(t))
		f := startTestEtcd(t, fenced.Dir, fenced.Args, fenced.Env, fenced.Endpoint)
		if n := tcpListeners(t, f.cmd.Process.Pid); n != 0 {
			t.Errorf("the fenced etcd has %d TCP listeners", n)
		}
		f.stop(t, syscall.SIGTERM)
		after := proofOf(t, dirs)
		if !after.Exact() || after.LastIndex < before.LastIndex {
			t.Fatalf("not exact after the fenced restart: %+v, before: %+v", after, before)
		}
		if after.MemberID != before.MemberID || after.ClusterID != before.ClusterID || after.Members != 1 {
			t.Errorf("the membership changed: %+v, before: %+v", after, before)
		}
		t.Logf("try %d: behind by %d entries before, 0 after", try, before.LastIndex-before.ConsistentIndex)
		checkRestored(t, dirs, after, acked)
		return
	}
	t.Error("5 of 5 kills under load left an exact backend: the proof cannot be right")
}

// Where the data is gone the fenced etcd must fail: a new, empty cluster would become the final snapshot.
func TestFencedRestartMakesNoNewCluster(t *testing.T) {
	base := t.TempDir()
	cfg, err := ParseEtcd([]string{"--data-dir=" + filepath.Join(base, "data")}, os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	fenced := cfg.Fenced(shortTempDir(t))
	e := launchTestEtcd(t, fenced.Dir, fenced.Args, fenced.Env)
	select {
	case <-e.gone:
	case <-time.After(time.Minute):
		t.Fatal("etcd still runs on nothing after a minute")
	}
	if !strings.Contains(e.output.String(), "cannot fetch cluster info") {
		t.Errorf("etcd ended for another reason:\n%s", e.output.Bytes())
	}
	if e.cmd.ProcessState.Success() {
		t.Errorf("etcd ended well on nothing:\n%s", e.output.Bytes())
	}
	if _, err := os.Stat(filepath.Join(base, "data", "member", "wal")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a log now, error %v", err)
	}
}

func checkRestored(t *testing.T, dirs snapshot.DataDirs, proof snapshot.Proof, acked map[string]int64) {
	t.Helper()
	o, err := snapshot.OpenOffline(t.Context(), dirs, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	target := filepath.Join(t.TempDir(), "restored")
	res, err := snapshot.Restore(t.Context(), snapshot.RestoreConfig{
		Source:  func(_ context.Context, w io.Writer) error { _, err := o.WriteTo(w); return err },
		DataDir: target, Name: "m1", InitialCluster: "m1=http://localhost:2380", PeerURLs: []string{"http://localhost:2380"},
		Revision: proof.Revision, EtcdVersion: "3.6.16",
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := shortTempDir(t)
	e := startTestEtcd(t, dir, []string{"etcd", "--name=m1", "--data-dir=" + res.DataDir, "--listen-client-urls=unix://c:1",
		"--listen-peer-urls=unix://p:1", "--advertise-client-urls=http://localhost:2379", "--log-level=warn"}, os.Environ(), "unix://"+dir+"/c:1")
	have := e.revisions(t)
	missing := 0
	for key, revision := range acked {
		if have[key] != revision {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("%d of %d acknowledged writes are not there with their mod revision", missing, len(acked))
	}
}

// testEtcd is a real etcd whose client listener is a socket. Its JSON gateway serves, as no etcd package is imported here.
type testEtcd struct {
	cmd    *exec.Cmd
	http   *http.Client
	output bytes.Buffer // read after the end only
	gone   chan struct{}
}

// launchTestEtcd starts etcd in dir and ends it with the test.
func launchTestEtcd(t *testing.T, dir string, argv, env []string) *testEtcd {
	t.Helper()
	e := &testEtcd{gone: make(chan struct{})}
	e.http = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", dir+"/c:1")
		}}}
	e.cmd = &exec.Cmd{Path: etcdTool(t), Args: argv, Env: env, Dir: dir, Stdout: &e.output, Stderr: &e.output}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(e.gone)
		e.cmd.Wait() // how it ended is in ProcessState
	}()
	t.Cleanup(func() {
		e.http.CloseIdleConnections()
		e.stop(t, syscall.SIGKILL)
	})
	return e
}

// startTestEtcd launches etcd and waits until it serves.
func startTestEtcd(t *testing.T, dir string, argv, env []string, endpoint string) *testEtcd {
	t.Helper()
	e := launchTestEtcd(t, dir, argv, env)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ctx, dead := context.WithCancel(ctx)
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		select {
		case <-e.gone:
			dead()
		case <-ctx.Done():
		}
	}()
	defer func() { dead(); <-watch }()
	if err := snapshot.AwaitServing(ctx, endpoint); err != nil {
		e.stop(t, syscall.SIGKILL)
		t.Fatalf("etcd does not serve: %v\n%s", err, e.output.Bytes())
	}
	return e
}

func (e *testEtcd) stop(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := e.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	<-e.gone
}

// call asks the JSON gateway.
func (e *testEtcd) call(ctx context.Context, path string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// putUntilKilled writes from many clients, kills etcd in the middle once enough writes are acknowledged, and returns
// the acknowledged keys with their mod revisions.
func (e *testEtcd) putUntilKilled(t *testing.T, enough int) map[string]int64 {
	t.Helper()
	var (
		mu      sync.Mutex
		acked   = map[string]int64{}
		reached = make(chan struct{})
		writers sync.WaitGroup
	)
	for w := range 32 {
		writers.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("key-%02d-%06d", w, i)
				var answer struct {
					Header struct{ Revision string }
				}
				if err := e.call(t.Context(), "/v3/kv/put", map[string]string{"key": b64(key), "value": b64(key)}, &answer); err != nil {
					return
				}
				revision, err := strconv.ParseInt(answer.Header.Revision, 10, 64)
				if err != nil {
					return
				}
				mu.Lock()
				acked[key] = revision
				if len(acked) == enough {
					close(reached)
				}
				mu.Unlock()
			}
		})
	}
	select {
	case <-reached:
		e.stop(t, syscall.SIGKILL)
	case <-e.gone:
		t.Errorf("etcd ended under load\n%s", e.output.Bytes())
	}
	writers.Wait()
	return acked
}

// revisions returns all keys with their mod revisions.
func (e *testEtcd) revisions(t *testing.T) map[string]int64 {
	t.Helper()
	var answer struct {
		KVs []struct {
			Key      []byte
			Revision string `json:"mod_revision"`
		}
	}
	if err := e.call(t.Context(), "/v3/kv/range", map[string]any{"key": b64("key-"), "range_end": b64("key."), "keys_only": true}, &answer); err != nil {
		t.Fatal(err)
	}
	have := map[string]int64{}
	for _, kv := range answer.KVs {
		revision, err := strconv.ParseInt(kv.Revision, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		have[string(kv.Key)] = revision
	}
	return have
}

func proofOf(t *testing.T, d snapshot.DataDirs) snapshot.Proof {
	t.Helper()
	o, err := snapshot.OpenOffline(t.Context(), d, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	return o.Proof()
}

// tcpListeners counts the listening TCP sockets that a process has open.
func tcpListeners(t *testing.T, pid int) int {
	t.Helper()
	listening := map[string]bool{}
	for _, family := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, family))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" { // TCP_LISTEN
				listening["socket:["+f[9]+"]"] = true
			}
		}
	}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("descriptors of process %d: %d, error %v", pid, len(fds), err)
	}
	n := 0
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && listening[target] {
			n++
		}
	}
	return n
}

func etcdTool(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
	}
	path := filepath.Join(dir, "bin", "etcd")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is absent: run make tools", path)
	}
	return path
}

// shortTempDir is a directory whose sockets fit the kernel's limit; t.TempDir has the test's name in it.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "warden")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// The warden asks its own etcd and nobody else, also where the certificate says nothing of this machine.
func TestClientEndpointPinsTheCertificateOfItsOwnEtcd(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	dir := shortTempDir(t)
	args := []string{"--data-dir=" + data, "--listen-client-urls=unixs://" + dir + "/c:1", "--listen-peer-urls=unix://p:1",
		"--advertise-client-urls=https://localhost:2379", "--auto-tls", "--log-level=error"}
	cfg, err := ParseEtcd(args, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := launchTestEtcd(t, dir, append([]string{"etcd"}, args...), os.Environ())
	endpoint, tlsConfig, err := cfg.ClientEndpoint()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for err = snapshot.Serving(ctx, endpoint, tlsConfig); err != nil && ctx.Err() == nil; {
		err = snapshot.Serving(ctx, endpoint, tlsConfig) // it starts
	}
	if err != nil {
		e.stop(t, syscall.SIGKILL)
		t.Fatalf("%v\n%s", err, e.output.Bytes())
	}
	// The same listener, but the certificate that we know is another one.
	b, err := os.ReadFile(filepath.Join(data, "fixtures", "client", "cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	block.Bytes[len(block.Bytes)-1] ^= 1
	other := filepath.Join(t.TempDir(), "cert.pem")
	if err := os.WriteFile(other, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.ClientTLS.CertFile = other
	if _, tlsConfig, err = cfg.ClientEndpoint(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := snapshot.Serving(ctx, endpoint, tlsConfig); err == nil {
		t.Error("an etcd with another certificate passes for ours")
	}
}
