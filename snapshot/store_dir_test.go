package snapshot_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

// Lost if it fails: every snapshot since the mount went missing, on the wrong disk.
func TestAbsentDirectoryIsRefusedAndNeverMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "mounted")
	_, err := snapshot.OpenStore(t.Context(), "file://"+dir, snapshot.OpenOptions{})
	wantIs(t, err, snapshot.ErrNoStore)
	if _, err := os.Lstat(filepath.Dir(dir)); err == nil {
		t.Error("a directory was made")
	}
}

// The same, when it goes missing later: a new directory in its place stands for the bare mount point.
func TestReplacedDirectoryIsNoStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, "file://"+dir, snapshot.OpenOptions{})
	put(t, store, "a/b", "x")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	check := func(what string) {
		t.Helper()
		_, err := store.Stat(t.Context(), "a/b")
		wantIs(t, err, snapshot.ErrNoStore)
		_, err = store.Put(t.Context(), "a/c", strings.NewReader("x"), snapshot.PutOptions{})
		wantIs(t, err, snapshot.ErrNoStore)
		listed := false
		for _, err := range store.List(t.Context(), "") {
			listed = true
			wantIs(t, err, snapshot.ErrNoStore)
		}
		if !listed {
			t.Errorf("%s: list says that the store is empty", what)
		}
	}
	check("gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	check("replaced")
}

func TestFilesAreForUsAlone(t *testing.T) {
	dir := t.TempDir()
	put(t, openStore(t, "file://"+dir, snapshot.OpenOptions{}), "a/b/c", "x")
	for name, want := range map[string]fs.FileMode{"a": 0o700, "a/b": 0o700, "a/b/c": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
}

// A link that someone planted must neither be read through nor written through.
func TestLinksLeadNowhere(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"dir": outside, "file": filepath.Join(outside, "secret")} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	store := openStore(t, "file://"+dir, snapshot.OpenOptions{})
	for _, key := range []string{"dir/secret", "file"} {
		if body, _, err := store.Get(t.Context(), key, 0); err == nil {
			_ = body.Close()
			t.Errorf("%s was read", key)
		}
	}
	if _, err := store.Put(t.Context(), "dir/new", strings.NewReader("x"), snapshot.PutOptions{}); err == nil {
		t.Error("dir/new was written")
	}
	for object := range store.List(t.Context(), "") {
		t.Errorf("%s is listed", object.Key)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
		t.Errorf("outside the store: %v, error %v", entries, err)
	}
}

// What a killed writer leaves is no object, and is swept when it is old.
func TestLeftoverOfAKilledWriterIsSweptWhenOld(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, "file://"+dir, snapshot.OpenOptions{})
	put(t, store, "a/b", "x")
	old, young := filepath.Join(dir, "a", ".warden-OLD"), filepath.Join(dir, "a", ".warden-YOUNG")
	for _, name := range []string{old, young} {
		if err := os.WriteFile(name, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	for object := range store.List(t.Context(), "") {
		if object.Key != "a/b" {
			t.Errorf("%s is listed", object.Key)
		}
	}
	if n, err := store.SweepUploads(t.Context(), "", 24*time.Hour); n != 1 || err != nil {
		t.Errorf("swept %d, error %v; want 1", n, err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("a write that may be under way was swept: %v", err)
	}
}

func TestDirectoryErrorsHaveTheRightKind(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	dir := t.TempDir()
	store := openStore(t, "file://"+dir, snapshot.OpenOptions{})
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	_, err := store.Put(t.Context(), "a", strings.NewReader("x"), snapshot.PutOptions{})
	wantIs(t, err, snapshot.ErrDenied)
}
