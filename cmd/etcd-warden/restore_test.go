package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The other side by hand: await-final and restore on a store that a real handover filled. A damaged snapshot is told from
// a good one before the target is touched.
func TestRestoreByHand(t *testing.T) {
	s := newStory(t)
	a := s.start(siteA, "--new-cluster")
	s.await(siteA, "etcd serving")
	stop := s.write(a, 200)
	s.move(siteB)
	s.await(siteA, "final journalled")
	stop()
	a.stop(s.ctx, 20*time.Second)

	out, err := exec.Command(s.self, "await-final", "--store", s.store.url, "--timeout", "10s").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "generation 1 ended at revision ") {
		t.Fatalf("await-final: %v, %s", err, out)
	}
	object := only(t, filepath.Join(s.dir, "store", "generations", "*", "*.db.zst"))
	manifest := only(t, filepath.Join(s.dir, "store", "generations", "*", "*.json"))
	target := filepath.Join(s.dir, "restored")
	for _, c := range []struct {
		name, file string
		damage     func([]byte) []byte
	}{
		{"cut short", object, func(b []byte) []byte { return b[:len(b)-100] }},
		{"flipped byte", object, func(b []byte) []byte { b[len(b)/2] ^= 1; return b }},
		{"unknown field in the manifest", manifest, func(b []byte) []byte { return bytes.Replace(b, []byte(`"raft_term"`), []byte(`"raft_terms"`), 1) }},
		{"manifest of another snapshot", manifest, func(b []byte) []byte {
			return regexp.MustCompile(`("plain_sha256": ")[0-9a-f]{8}`).ReplaceAll(b, []byte("${1}00000000"))
		}},
		{"manifest of other stored bytes", manifest, func(b []byte) []byte {
			return regexp.MustCompile(`("stored_sha256": ")[0-9a-f]{8}`).ReplaceAll(b, []byte("${1}00000000"))
		}},
	} {
		good, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		overwrite(t, c.file, c.damage(bytes.Clone(good)))
		code, said := refused(t, "restore", "--store", s.store.url, "--data-dir", target)
		if code != exitData || strings.Count(strings.TrimSpace(said), "\n") > 2 {
			t.Errorf("%s: exit code %d, want %d; it said: %s", c.name, code, exitData, said)
		}
		t.Logf("%s: %s", c.name, said)
		if left := globAll(t, filepath.Join(s.dir, "*restored*")); len(left) > 0 {
			t.Errorf("%s: it left %q", c.name, left)
		}
		overwrite(t, c.file, good)
	}

	if out, err := exec.Command(s.self, "restore", "--store", s.store.url, "--data-dir", target).CombinedOutput(); err != nil {
		t.Fatalf("restore: %v, %s", err, out)
	}
	code, said := refused(t, "restore", "--store", s.store.url, "--data-dir", target)
	if code != exitNoDirectory || !strings.Contains(said, "--force-rename") {
		t.Errorf("restore onto a directory that is not empty: exit code %d, %q", code, said)
	}
	out, err = exec.Command(s.self, "restore", "--store", s.store.url, "--data-dir", target, "--force-rename").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "what was there is now "+target+".replaced-") {
		t.Errorf("restore with --force-rename: %v, %s", err, out)
	}
	if missing, late, err := s.serveRestored(target); err != nil || missing != 0 || late != 0 {
		t.Errorf("on the restored directory %d acknowledged writes are missing, %d late, %v", missing, late, err)
	}
}

// serveRestored starts a plain etcd on a restored directory and counts what it lacks.
func (s *story) serveRestored(dir string) (missing, late int, err error) {
	s.test.Helper()
	ports, err := freePorts(2)
	if err != nil {
		return 0, 0, err
	}
	client := urlOf(ports[0])
	etcd := exec.Command(s.etcd, "--data-dir", dir, "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", urlOf(ports[1]), "--log-level", "error")
	if err := etcd.Start(); err != nil {
		return 0, 0, err
	}
	defer func() { etcd.Process.Kill(); etcd.Wait() }()
	awaitServing(s.test, s.ctx, &site{name: "restored", client: client})
	return s.writer.verify(s.ctx, newGateway(client), time.Now())
}

func only(t *testing.T, pattern string) string {
	t.Helper()
	found := globAll(t, pattern)
	if len(found) != 1 {
		t.Fatalf("%s: found %q, want one", pattern, found)
	}
	return found[0]
}

func overwrite(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
