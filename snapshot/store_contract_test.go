package snapshot_test

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

func TestMemoryKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(*testing.T) snapshot.Store { return storetest.NewMemory() })
}

func TestDirectoryKeepsTheContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) snapshot.Store { return openStore(t, "file://"+t.TempDir(), snapshot.OpenOptions{}) })
}

func openStore(t *testing.T, url string, opt snapshot.OpenOptions) snapshot.Store {
	t.Helper()
	store, err := snapshot.OpenStore(t.Context(), url, opt)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return store
}

func TestS3KeepsTheContract(t *testing.T) {
	server := httptest.NewServer(storetest.NewS3Server("test"))
	defer server.Close()
	runOnS3(t, server.URL, snapshot.Credentials{AccessKeyID: "k", SecretAccessKey: "s"})
}

func TestS3OnVersityGWKeepsTheContract(t *testing.T) {
	gw := storetest.StartS3(t)
	runOnS3(t, gw.Endpoint, gw.Credentials)
}

// Servers of both kinds exist. Without the server's decision two writers may both win a race, but no sequence of writes overwrites anything.
func TestS3WithoutIfAbsentKeepsTheContract(t *testing.T) {
	for name, support := range map[string]storetest.IfAbsentSupport{"ignored": storetest.IfAbsentIgnored, "refused": storetest.IfAbsentRefused} {
		t.Run(name, func(t *testing.T) {
			handler := storetest.NewS3Server("test")
			handler.IfAbsent = support
			server := httptest.NewServer(handler)
			defer server.Close()
			runOnS3(t, server.URL, snapshot.Credentials{AccessKeyID: "k", SecretAccessKey: "s"})
		})
	}
}

// runOnS3 gives each test a prefix of its own.
func runOnS3(t *testing.T, endpoint string, creds snapshot.Credentials) {
	n := 0
	storetest.Run(t, func(t *testing.T) snapshot.Store {
		n++
		return openStore(t, storetest.S3URL(endpoint, "test", fmt.Sprintf("run/%d", n)), snapshot.OpenOptions{Credentials: &creds})
	})
}
