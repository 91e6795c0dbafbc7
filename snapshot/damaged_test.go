package snapshot_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// The archive is what a repair by hand begins with: every file byte for byte, a separate log included, and a manifest that
// says what is known.
func TestDamagedFilesAreStoredByteForByte(t *testing.T) {
	dirs := snapshot.DataDirs{Data: t.TempDir(), WAL: t.TempDir()}
	files := map[string][]byte{
		"member/snap/db": bytes.Repeat([]byte("not a database "), 20000),
		"wal/0000000000000000-0000000000000000.wal":     append([]byte("not a log"), make([]byte, 100_000)...),
		"member/snap/0000000000000001-0000000000000001": nil,
	}
	for name, content := range files {
		path := filepath.Join(dirs.Data, name)
		if below, err := filepath.Rel("wal", name); err == nil && filepath.IsLocal(below) {
			path = filepath.Join(dirs.WAL, below)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := snapshot.ExamineDamaged(t.Context(), dirs, errors.New("etcd does not start"))
	if found.Revision != 0 || found.LogWhole || found.Missing == "" {
		t.Errorf("of files that nobody can read is said: %+v", found)
	}
	store := storetest.NewMemory()
	m, err := snapshot.UploadDamaged(t.Context(), store, dirs, 7, found, nil)
	if err != nil {
		t.Fatal(err)
	}
	var stored snapshot.DamagedManifest
	if err := json.Unmarshal(get(t, store, m.ManifestKey()), &stored); err != nil || stored.Key != m.Key || stored.Missing != found.Missing {
		t.Errorf("the manifest is %+v, error %v", stored, err)
	}
	plain, err := zstd.NewReader(bytes.NewReader(get(t, store, m.Key)))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for archive := tar.NewReader(plain); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		want, ok := files[h.Name]
		if !ok || !bytes.Equal(content, want) {
			t.Errorf("the archive has %d bytes under %s, want %d", len(content), h.Name, len(want))
		}
		delete(files, h.Name)
	}
	for name := range files {
		t.Errorf("the archive lacks %s", name)
	}
}

func get(t *testing.T, store snapshot.Store, key string) []byte {
	t.Helper()
	body, _, err := store.Get(t.Context(), key, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	b, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
