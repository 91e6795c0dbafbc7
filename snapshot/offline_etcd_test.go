package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// realTool returns the path of one of etcd's own programs, or skips the test.
func realTool(t *testing.T, name string) string {
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
	path := filepath.Join(dir, "bin", name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is absent: run make tools", path)
	}
	return path
}

// realEtcd is a running etcd that listens on sockets only, so that no two tests want the same port.
type realEtcd struct {
	cmd      *exec.Cmd
	data     string
	endpoint string
	output   bytes.Buffer // read after the end only
	gone     chan struct{}
}

func startRealEtcd(t *testing.T, data string, extra ...string) *realEtcd {
	t.Helper()
	cwd := t.TempDir()
	e := &realEtcd{data: data, endpoint: "unix://" + cwd + "/c:1", gone: make(chan struct{})}
	args := append([]string{"--name=m0", "--data-dir=" + data,
		"--listen-client-urls=unix://c:1", "--advertise-client-urls=http://localhost:2379",
		"--listen-peer-urls=unix://p:1", "--initial-cluster=m0=http://localhost:2380",
		"--log-level=warn"}, extra...)
	e.cmd = exec.Command(realTool(t, "etcd"), args...)
	e.cmd.Dir = cwd
	e.cmd.Stdout, e.cmd.Stderr = &e.output, &e.output
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(e.gone)
		e.cmd.Wait() // how it ended is in ProcessState
	}()
	t.Cleanup(func() { e.end(t, syscall.SIGKILL) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := AwaitServing(ctx, e.endpoint); err != nil {
		e.end(t, syscall.SIGKILL)
		t.Fatalf("etcd does not serve: %v\n%s", err, e.output.Bytes())
	}
	return e
}

// end sends a signal and waits for the process to be gone.
func (e *realEtcd) end(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := e.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	<-e.gone
}

func (e *realEtcd) client(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := dialEtcd(e.endpoint, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// writeUnderLoad writes from many clients until enough writes are acknowledged, calls strike in the middle of the
// load, and returns every acknowledged key with its mod revision once the writers have seen etcd's end.
func (e *realEtcd) writeUnderLoad(t *testing.T, enough int, strike func()) map[string]int64 {
	t.Helper()
	var (
		mu      sync.Mutex
		acked   = map[string]int64{}
		reached = make(chan struct{})
		writers sync.WaitGroup
	)
	for w := range 32 {
		c := e.client(t)
		writers.Go(func() {
			for i := 0; ; i++ {
				key := fmt.Sprintf("key-%02d-%06d", w, i)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				r, err := c.Put(ctx, key, key)
				cancel()
				if err != nil {
					return
				}
				mu.Lock()
				acked[key] = r.Header.Revision
				if len(acked) == enough {
					close(reached)
				}
				mu.Unlock()
			}
		})
	}
	select {
	case <-reached:
	case <-e.gone:
		t.Fatalf("etcd ended under load\n%s", e.output.Bytes())
	}
	strike()
	writers.Wait()
	return acked
}

// missingFrom returns the acknowledged keys that etcd does not have at their mod revision.
func (e *realEtcd) missingFrom(t *testing.T, acked map[string]int64) []string {
	t.Helper()
	c := e.client(t)
	r, err := c.Get(t.Context(), "key-", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]int64{}
	for _, kv := range r.Kvs {
		if string(kv.Value) == string(kv.Key) {
			have[string(kv.Key)] = kv.ModRevision
		}
	}
	var missing []string
	for key, revision := range acked {
		if have[key] != revision {
			missing = append(missing, key)
		}
	}
	return missing
}

// filledDataDir is the directory of an etcd that ended cleanly, with the revision it had.
func filledDataDir(t *testing.T) (dir string, revision int64) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	e := startRealEtcd(t, dir)
	c := e.client(t)
	for i := range 50 {
		if _, err := c.Put(t.Context(), fmt.Sprintf("key-%d", i), "value"); err != nil {
			t.Fatal(err)
		}
	}
	r, err := c.Delete(t.Context(), "key-7")
	if err != nil {
		t.Fatal(err)
	}
	e.end(t, syscall.SIGTERM)
	return dir, r.Header.Revision
}

// captureFile writes the snapshot file of a dead etcd.
func captureFile(t *testing.T, data string) (string, Proof) {
	t.Helper()
	o, err := OpenOffline(t.Context(), DataDirs{Data: data}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "snapshot.db")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := o.WriteTo(f)
	if err := errors.Join(err, f.Close(), o.Close()); err != nil {
		t.Fatal(err)
	}
	if n != o.Size() {
		t.Errorf("wrote %d bytes, announced were %d", n, o.Size())
	}
	return path, o.Proof()
}
