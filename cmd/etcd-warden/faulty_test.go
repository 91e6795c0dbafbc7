package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// Every kind of call to the store fails in a handover: first its answer is lost after the server did what was asked, then
// it is refused more often than the client tries by itself. The end is the same as ever: one final, nothing lost.
func TestStoreFailsAtEveryCallOfTheHandover(t *testing.T) {
	s := newStory(t)
	bucket := s.overS3()
	for _, credential := range s.store.env { // for the look at the end
		name, value, _ := strings.Cut(credential, "=")
		t.Setenv(name, value)
	}
	a := s.start(siteA, "--new-cluster")
	s.await(siteA, "etcd serving")
	b := s.start(siteB)
	s.write(a, 500)

	calls := map[string]func(*http.Request) bool{
		"list": func(r *http.Request) bool { return r.Method == http.MethodGet && r.URL.Query().Has("list-type") },
		"read entry": func(r *http.Request) bool {
			return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/journal/")
		},
		"write entry": func(r *http.Request) bool {
			return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/journal/")
		},
		"write snapshot": func(r *http.Request) bool { return r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, ".zst") },
		"read back": func(r *http.Request) bool {
			return r.Method == http.MethodHead && strings.HasSuffix(r.URL.Path, ".zst")
		},
		"write manifest": func(r *http.Request) bool {
			return r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/generations/") && strings.HasSuffix(r.URL.Path, ".json")
		},
		"read snapshot": func(r *http.Request) bool { return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, ".zst") },
	}
	for _, match := range calls {
		bucket.Inject(storetest.Fault{Mode: storetest.LoseAnswer, Match: match, Times: 1})
		bucket.Inject(storetest.Fault{Mode: storetest.Refuse503, Match: match, Times: 5})
	}
	s.move(siteB)
	dead := s.await(siteA, "etcd dead")
	s.await(siteB, "etcd serving")
	if lost, refused := bucket.Hits(storetest.LoseAnswer), bucket.Hits(storetest.Refuse503); lost != len(calls) || refused < 4*len(calls) {
		t.Errorf("%d answers lost and %d calls refused, want %d and at least %d: the story did not happen", lost, refused, len(calls), 4*len(calls))
	}
	s.refusesClients(a)
	s.handedOver(b, dead.At)
}

// A disk that the kernel has made read-only takes neither a marker nor an etcd's log. Its acknowledged writes are handed
// over all the same: the log is replayed on a copy.
func TestFinalFromAReadOnlyDisk(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	disk := filepath.Join(s.dir, siteA)
	smallDisk(t, disk)
	death := s.killedBehind()
	if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	scratch := t.TempDir()
	s.store.env = append(s.store.env, "TMPDIR="+scratch)
	a := s.start(siteA)
	b := s.start(siteB)
	if how := s.await(siteA, "final capture").Fields["how"]; how != "fenced-restart" {
		t.Errorf("captured by %v: the story did not happen", how)
	}
	s.await(siteB, "etcd serving")
	s.handedOverOnce(b, death)
	a.stop(s.ctx, 20*time.Second)
	b.stop(s.ctx, 20*time.Second)
	if left := globAll(t, filepath.Join(scratch, "*")); len(left) > 0 {
		t.Errorf("copies are left behind: %v", left)
	}
}
