package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func restoreConfig(file, target string) RestoreConfig {
	return RestoreConfig{File: file, DataDir: target, Name: "m0", InitialCluster: "m0=http://localhost:2380",
		PeerURLs: []string{"http://localhost:2380"}}
}

// tree lists all that lies below dir, to show that nothing was changed.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		b.WriteString(path + " " + info.Mode().String() + " " + info.ModTime().String() + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// A directory that holds something is only ever renamed, and only when told so.
func TestRestoreNeverLosesWhatWasThere(t *testing.T) {
	data, revision := filledDataDir(t)
	file, _ := captureFile(t, data)
	parent := t.TempDir()
	target := filepath.Join(parent, "etcd")
	if err := os.CopyFS(target, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	before := tree(t, parent)
	if _, err := Restore(t.Context(), restoreConfig(file, target)); !errors.Is(err, ErrTargetNotEmpty) {
		t.Fatalf("got %v, want ErrTargetNotEmpty", err)
	}
	if after := tree(t, target); !strings.Contains(before, after) {
		t.Errorf("a refused restore changed the target:\n%s\nbefore:\n%s", after, before)
	}
	if got := entries(t, parent); len(got) != 1 {
		t.Errorf("a refused restore left %v", got)
	}

	cfg := restoreConfig(file, target)
	cfg.ForceRename = true
	cfg.Revision = revision
	res, err := Restore(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := entries(t, parent); len(got) != 2 || !strings.HasPrefix(res.Replaced, target+".replaced-") {
		t.Errorf("got %v, replaced %q; want the target and what it was", got, res.Replaced)
	}
	if _, old := captureFile(t, res.Replaced); old.Revision != revision {
		t.Errorf("the replaced directory has revision %d, want %d", old.Revision, revision)
	}
	if st, err := os.Stat(target); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the restored directory has mode %v, error %v; want 0700", st.Mode(), err)
	}
	if res.Proof.Revision != revision || !res.Proof.Exact() {
		t.Errorf("got %+v, want an exact directory of revision %d", res.Proof, revision)
	}
}

// A bad file must be seen before the old directory has left its place.
func TestRestoreRefusesABadSnapshotAndTouchesNothing(t *testing.T) {
	data, revision := filledDataDir(t)
	file, _ := captureFile(t, data)
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(good)
	flipped[len(good)/2] ^= 1
	cases := []struct {
		name    string
		content []byte
		change  func(*RestoreConfig)
		want    error
	}{
		{"flipped byte", flipped, nil, ErrBadSnapshot},
		{"cut at a page", good[:8<<10], nil, ErrBadSnapshot},
		{"cut anywhere", good[:len(good)-1000], nil, ErrBadSnapshot},
		{"without trailer", good[:len(good)-32], nil, ErrBadSnapshot},
		{"empty", nil, nil, ErrBadSnapshot},
		{"not a backend", append(make([]byte, 4096), sha256Of(make([]byte, 4096))...), nil, ErrBadSnapshot},
		{"another revision", good, func(c *RestoreConfig) { c.Revision = revision + 1 }, ErrBadSnapshot},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			parent := t.TempDir()
			target := filepath.Join(parent, "etcd")
			if err := os.CopyFS(target, os.DirFS(data)); err != nil {
				t.Fatal(err)
			}
			before := tree(t, target)
			cfg := restoreConfig("", target)
			cfg.ForceRename = true
			cfg.Source = func(_ context.Context, w io.Writer) error { _, err := w.Write(c.content); return err }
			if c.change != nil {
				c.change(&cfg)
			}
			if _, err := Restore(t.Context(), cfg); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if after := tree(t, target); after != before {
				t.Errorf("the target was changed:\n%s\nbefore:\n%s", after, before)
			}
			if got := entries(t, parent); len(got) != 1 {
				t.Errorf("left behind: %v", got)
			}
		})
	}
}

// A source that fails, and a stop in the middle, leave nothing.
func TestRestoreCleansUpAfterAFailedSource(t *testing.T) {
	data, _ := filledDataDir(t)
	file, _ := captureFile(t, data)
	parent := t.TempDir()
	broken := errors.New("store went away")
	cfg := restoreConfig("", filepath.Join(parent, "etcd"))
	cfg.Source = func(context.Context, io.Writer) error { return broken }
	if _, err := Restore(t.Context(), cfg); !errors.Is(err, broken) {
		t.Errorf("got %v, want the source's error", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if _, err := Restore(ctx, restoreConfig(file, cfg.DataDir)); !errors.Is(err, broken) {
		t.Errorf("got %v, want the cause of the end", err)
	}
	if got := entries(t, parent); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

// Scratch directories of crashed restores fill the disk if nobody removes them; other people's must stay.
func TestRestoreRemovesOnlyItsOwnLeftovers(t *testing.T) {
	data, _ := filledDataDir(t)
	file, _ := captureFile(t, data)
	parent := t.TempDir()
	for _, name := range []string{".etcd.restoring-123", ".other.restoring-123", "etcd.replaced-20260101T000000Z"} {
		if err := os.MkdirAll(filepath.Join(parent, name, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Restore(t.Context(), restoreConfig(file, filepath.Join(parent, "etcd"))); err != nil {
		t.Fatal(err)
	}
	want := ".other.restoring-123 etcd etcd.replaced-20260101T000000Z"
	if got := strings.Join(entries(t, parent), " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// An empty directory, reached through a symbolic link, is a target like any other; the link stays one.
func TestRestoreFollowsASymbolicLink(t *testing.T) {
	data, _ := filledDataDir(t)
	file, _ := captureFile(t, data)
	parent := t.TempDir()
	real, link := filepath.Join(parent, "real"), filepath.Join(parent, "link")
	if err := errors.Join(os.Mkdir(real, 0o700), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	res, err := Restore(t.Context(), restoreConfig(file, link))
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, error %v", st, err)
	}
	if _, err := os.Stat(filepath.Join(real, "member")); err != nil || res.Replaced != "" {
		t.Errorf("got error %v, replaced %q; want a restored directory and nothing replaced", err, res.Replaced)
	}
}

// A mount point cannot be renamed: what etcd keeps in it is exchanged instead.
func TestRestoreExchangesInsideAMountPoint(t *testing.T) {
	data, revision := filledDataDir(t)
	file, _ := captureFile(t, data)
	target := filepath.Join(t.TempDir(), "etcd")
	if err := os.Mkdir(target, 0o700); err != nil {
		t.Fatal(err)
	}
	// A bind mount on itself has the same device number as its parent: the hard case.
	if err := syscall.Mount(target, target, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.CopyFS(target, os.DirFS(data)), os.Mkdir(filepath.Join(target, "lost+found"), 0o700), os.Mkdir(filepath.Join(target, ".warden"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), restoreConfig(file, target)); !errors.Is(err, ErrTargetNotEmpty) {
		t.Errorf("got %v, want ErrTargetNotEmpty", err)
	}
	cfg := restoreConfig(file, target)
	cfg.ForceRename = true
	res, err := Restore(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := entries(t, target); len(got) != 4 || !strings.HasPrefix(res.Replaced, filepath.Join(target, "member.replaced-")) {
		t.Errorf("got %v, replaced %q; want member, what it was, and the rest", got, res.Replaced)
	}
	if _, p := captureFile(t, target); p.Revision != revision {
		t.Errorf("restored revision %d, want %d", p.Revision, revision)
	}
	startRealEtcd(t, target) // etcd is content with what else lies there
	if got, err := isMountPoint(filepath.Dir(target)); err != nil || got {
		t.Errorf("the parent passes for a mount point, error %v", err)
	}
}

// "Refuse what cannot start": etcd 3.6 and later do not run on a newer storage version, 3.4 and 3.5 do not look at it.
func TestRestoreKnowsWhichEtcdRunsWhat(t *testing.T) {
	cases := []struct {
		storage, etcd string
		want          error
	}{
		{"3.7.0", "3.6.16", ErrCannotRun},
		{"3.7.0", "3.7.3", nil},
		{"3.7.0", "3.5.35", nil},
		{"3.7.0", "3.4.23", nil},
		{"3.6.0", "3.7.3", nil},
		{"3.6.0", "3.6.0", nil},
		{"", "3.6.16", nil},
		{"3.7.0", "", nil},
	}
	for _, c := range cases {
		if err := checkVersions(c.storage, c.etcd); !errors.Is(err, c.want) {
			t.Errorf("storage %q on etcd %q: got %v, want %v", c.storage, c.etcd, err, c.want)
		}
	}
}

func TestRestoreConfigSaysWhatIsMissing(t *testing.T) {
	cases := []struct {
		name   string
		change func(*RestoreConfig)
		want   string
	}{
		{"no snapshot", func(c *RestoreConfig) { c.File = "" }, "snapshot file"},
		{"no target", func(c *RestoreConfig) { c.DataDir = "" }, "--data-dir"},
		{"log elsewhere", func(c *RestoreConfig) { c.WALDir = "/wal" }, "/wal"},
		{"no name", func(c *RestoreConfig) { c.Name = "" }, "--name"},
		{"no peer URL", func(c *RestoreConfig) { c.PeerURLs = nil }, "--initial-advertise-peer-urls"},
		{"no cluster", func(c *RestoreConfig) { c.InitialCluster = "" }, "--initial-cluster"},
	}
	for _, c := range cases {
		cfg := restoreConfig("file", "dir")
		c.change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want a message with %q", c.name, err, c.want)
		}
	}
}

// etcd's restore code logs and panics where it could return: that must not end the warden.
func TestRestoreTurnsEtcdsRefusalIntoAnError(t *testing.T) {
	data, _ := filledDataDir(t)
	file, _ := captureFile(t, data)
	target := filepath.Join(t.TempDir(), "etcd")
	for _, change := range []func(*RestoreConfig){
		func(c *RestoreConfig) { c.InitialCluster = "other=http://localhost:2380" },
		func(c *RestoreConfig) { c.PeerURLs = []string{"http://127.0.0.2:2380"} },
		func(c *RestoreConfig) { c.InitialCluster = "no cluster" },
	} {
		cfg := restoreConfig(file, target)
		change(&cfg)
		if _, err := Restore(t.Context(), cfg); err == nil {
			t.Errorf("got no error for %+v", cfg)
		}
		if _, err := os.Stat(target); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the target exists after a refusal, error %v", err)
		}
	}
}

func sha256Of(b []byte) []byte { s := sha256.Sum256(b); return s[:] }

// An etcd of another user must be able to read what root restored for it.
func TestRestoreKeepsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may give files away")
	}
	data, _ := filledDataDir(t)
	file, _ := captureFile(t, data)
	target := filepath.Join(t.TempDir(), "etcd")
	if err := errors.Join(os.Mkdir(target, 0o700), os.Chown(target, 12345, 54321)); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), restoreConfig(file, target)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{target, DataDirs{Data: target}.DB(), DataDirs{Data: target}.Log()} {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if owner := st.Sys().(*syscall.Stat_t); owner.Uid != 12345 || owner.Gid != 54321 {
			t.Errorf("%s belongs to %d:%d, want 12345:54321", path, owner.Uid, owner.Gid)
		}
	}
}

// A service that may write to its data directory and not beside it can restore all the same.
func TestRestoreWorksInsideWhereItMayNotWriteBeside(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	data, revision := filledDataDir(t)
	file, _ := captureFile(t, data)
	parent := t.TempDir()
	target := filepath.Join(parent, "etcd")
	if err := errors.Join(os.CopyFS(target, os.DirFS(data)), os.Chmod(parent, 0o500)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(parent, 0o700) })
	cfg := restoreConfig(file, target)
	cfg.ForceRename = true
	res, err := Restore(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(res.Replaced) != target || len(entries(t, target)) != 2 {
		t.Errorf("replaced %q, the target holds %v; want member and what it was", res.Replaced, entries(t, target))
	}
	if _, p := captureFile(t, target); p.Revision != revision {
		t.Errorf("restored revision %d, want %d", p.Revision, revision)
	}
}

// A crash between the two renames leaves no directory in place: the next restore must succeed and keep the old one.
func TestRestoreRecoversFromACrashBetweenTheRenames(t *testing.T) {
	data, _ := filledDataDir(t)
	file, _ := captureFile(t, data)
	parent := t.TempDir()
	old := filepath.Join(parent, "etcd.replaced-20260101T000000Z")
	if err := errors.Join(os.CopyFS(old, os.DirFS(data)), os.CopyFS(filepath.Join(parent, ".etcd.restoring-1", "data"), os.DirFS(data))); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), restoreConfig(file, filepath.Join(parent, "etcd"))); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(entries(t, parent), " "); got != "etcd "+filepath.Base(old) {
		t.Errorf("got %s, want the restored and the old directory", got)
	}
}
