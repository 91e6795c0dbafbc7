package snapshot_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

// "store not there: store not there: directory X is gone" was what an operator once read.
func TestStoreErrorSaysItsKindOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, "file://"+dir, snapshot.OpenOptions{})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	_, err := store.Stat(t.Context(), "k")
	wantIs(t, err, snapshot.ErrNoStore)
	if n := strings.Count(err.Error(), snapshot.ErrNoStore.Error()); n != 1 {
		t.Errorf("it is said %d times: %v", n, err)
	}

	bare := &snapshot.StoreError{Kind: snapshot.ErrUnavailable, Code: "SlowDown", HTTP: 503, Err: fmt.Errorf("%w: twice", snapshot.ErrUnavailable)}
	if got, want := bare.Error(), "store unavailable (SlowDown, HTTP 503): twice"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	named := &snapshot.StoreError{Op: "put", Key: "k", Store: "s3://b", Kind: snapshot.ErrDenied, Err: errors.New("no"), Hint: "ask"}
	if got, want := named.Error(), "put k (s3://b): access denied: no: ask"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
