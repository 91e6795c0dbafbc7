package snapshot

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// With authentication on, a fenced etcd whose users we do not know must still be seen to serve, or no final snapshot
// could be taken of it.
func TestAwaitServingNeedsNoCredentials(t *testing.T) {
	e := startRealEtcd(t, filepath.Join(t.TempDir(), "data"))
	c := e.client(t)
	ctx := t.Context()
	_, errRole := c.RoleAdd(ctx, "root")
	_, errUser := c.UserAdd(ctx, "root", "secret")
	_, errGrant := c.UserGrantRole(ctx, "root", "root")
	_, errAuth := c.AuthEnable(ctx)
	if err := errors.Join(errRole, errUser, errGrant, errAuth); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(ctx, "k"); !errors.Is(err, rpctypes.ErrUserEmpty) {
		t.Fatalf("authentication is not on: a stranger's read got %v", err)
	}
	if err := AwaitServing(ctx, e.endpoint); err != nil {
		t.Error(err)
	}
	if err := Serving(ctx, e.endpoint, nil); err != nil {
		t.Error(err)
	}
}

// A stopped etcd accepts connections and answers nothing: that is not serving.
func TestServingIsFalseForAFrozenEtcd(t *testing.T) {
	e := startRealEtcd(t, filepath.Join(t.TempDir(), "data"))
	if err := e.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := Serving(ctx, e.endpoint, nil); err == nil {
		t.Error("a frozen etcd serves")
	}
	if err := e.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := AwaitServing(t.Context(), e.endpoint); err != nil {
		t.Error(err)
	}
}

// The wait ends with its context and says both why and what was last seen.
func TestAwaitServingEndsWithItsContext(t *testing.T) {
	cause := errors.New("etcd ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	err := AwaitServing(ctx, "unix://"+filepath.Join(t.TempDir(), "absent"))
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "last answer") {
		t.Errorf("got %v, want the cause and the last answer", err)
	}
}

// A data directory may lie deeper than the 107 bytes that a socket path may have.
func TestASocketPathMayBeLongerThanTheKernelAllows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l, err := net.Listen("unix", filepath.Join("/proc/self/fd", fdName(f), "c:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	network, address, err := splitEndpoint("unix://" + dir + "/c:1")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := dialEndpoint(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestEndpointsThatCannotBeAreRefused(t *testing.T) {
	for _, endpoint := range []string{"", "localhost:2379", "http://localhost", "ftp://localhost:21", "unix://", "http://[::1:2379"} {
		if err := Serving(t.Context(), endpoint, nil); err == nil || !strings.Contains(err.Error(), "want http") {
			t.Errorf("%q: got %v, want what an endpoint looks like", endpoint, err)
		}
	}
}

func fdName(f *os.File) string { return strconv.FormatUint(uint64(f.Fd()), 10) }

// An alarm must not keep a fenced etcd from being seen to serve: its data is as final as any.
func TestAwaitServingDespiteAlarms(t *testing.T) {
	e := startRealEtcd(t, filepath.Join(t.TempDir(), "data"))
	c := e.client(t)
	for _, alarm := range []etcdserverpb.AlarmType{etcdserverpb.AlarmType_NOSPACE, etcdserverpb.AlarmType_CORRUPT} {
		_, err := etcdserverpb.NewMaintenanceClient(c.ActiveConnection()).Alarm(t.Context(),
			&etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: alarm})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Put(t.Context(), "k", "v"); err == nil {
			t.Errorf("%s: the alarm is not on", alarm)
		}
		if err := AwaitServing(t.Context(), e.endpoint); err != nil {
			t.Errorf("%s: %v", alarm, err)
		}
	}
	e.end(t, syscall.SIGTERM)
	again := startRealEtcd(t, e.data) // waits for it to serve
	again.end(t, syscall.SIGTERM)
	if _, proof := captureFile(t, e.data); !proof.Exact() {
		t.Errorf("not exact: %+v", proof)
	}
}
