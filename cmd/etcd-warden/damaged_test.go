package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/supervisor"
)

// killedBehind is a site whose etcd was killed while its database lagged far behind its log, and the death's time. The
// record has moved, and no warden runs there.
func (s *story) killedBehind() time.Time {
	t := s.test
	t.Helper()
	a := s.start(siteA, "--new-cluster")
	started := s.await(siteA, "etcd started")
	s.await(siteA, "etcd serving")
	stop := s.write(a, 1000)
	if err := syscall.Kill(int(started.Fields["pid"].(float64)), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-a.ended
	death := time.Now()
	stop()
	s.move(siteB)
	s.demo.t = newTimeline(testWriter{t}, false)
	s.demo.t.all = true
	return death
}

// lastByte is the offset of the last byte of a preallocated file that was written.
func lastByte(t testing.TB, file string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return len(bytes.TrimRight(b, "\x00"))
}

// damageFile replaces bytes of a file in place.
func damageFile(t testing.TB, file string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, off); err != nil {
		t.Fatal(err)
	}
}

// damagedFinal waits for the entry by which the old site ended its generation and returns it with its manifest.
func (s *story) damagedFinal() (ownership.Entry, snapshot.DamagedManifest) {
	t := s.test
	t.Helper()
	s.await(siteA, "final journalled")
	store, err := snapshot.OpenStore(s.ctx, s.store.url, snapshot.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	head, err := supervisor.Journal{Store: store}.Head(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if head.Kind != ownership.Final || head.Damaged == "" {
		t.Fatalf("the journal ends with %+v, want a damaged final", head.Entry)
	}
	body, _, err := store.Get(s.ctx, head.Snapshot.Manifest, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	var m snapshot.DamagedManifest
	if err := json.NewDecoder(body).Decode(&m); err != nil {
		t.Fatal(err)
	}
	t.Logf("missing: %s", head.Damaged)
	return head.Entry, m
}

// A log whose middle is broken holds acknowledged writes that no etcd can replay. A restore that goes on without a word
// would lose them silently; a capture that is tried for ever would leave the operator without data and without a word.
func TestBrokenLogEndsInADamagedFinalThatNobodyRestoresUnasked(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.store.env = append(s.store.env, "ETCD_BACKEND_BATCH_INTERVAL=1h", "ETCD_BACKEND_BATCH_LIMIT=600")
	s.killedBehind()
	segments := globAll(t, filepath.Join(s.dir, siteA, "etcd/member/wal/*.wal"))
	log := segments[len(segments)-1]
	damageFile(t, log, int64(lastByte(t, log)*9/10), []byte("broken"))

	s.start(siteA)
	b := s.start(siteB)
	entry, m := s.damagedFinal()
	if m.Salvaged == "" || m.LogWhole || m.DBIndex == 0 || m.LogLast <= m.DBIndex || !strings.Contains(entry.Damaged, "behind it is not known") {
		t.Errorf("the manifest says %+v", m)
	}
	if refused := s.await(siteB, "snapshot not restored"); !strings.Contains(refused.Fields["error"].(string), "--accept-damaged 1") {
		t.Errorf("the new site says %v", refused.Fields["error"])
	}
	if n := s.starts(siteB); n != 0 {
		t.Errorf("the new site started its etcd %d times before anybody decided", n)
	}
	b.stop(s.ctx, 20*time.Second)

	s.demo.t = newTimeline(testWriter{t}, false)
	heir := s.start(siteB, "--accept-damaged", "1")
	s.await(siteB, "etcd serving")
	missing, _, err := s.writer.verify(s.ctx, newGateway(heir.client), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if have := s.writer.count() - missing; have < 300 {
		t.Errorf("only %d of %d writes are there: the database was not salvaged", have, s.writer.count())
	}
}

// A database that cannot be read leaves the log: it is kept for a repair by hand.
func TestUnreadableDatabaseIsStoredAsItIs(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.killedBehind()
	damageFile(t, filepath.Join(s.dir, siteA, "etcd/member/snap/db"), 0, make([]byte, 64<<10))
	s.start(siteA)
	_, m := s.damagedFinal()
	if m.Salvaged != "" || !m.LogWhole || m.LogFirst == 0 || m.LogLast < uint64(s.writer.count()) || !strings.Contains(m.Missing, "nothing can be read from the database") {
		t.Errorf("the manifest says %+v", m)
	}
}

// An etcd that refuses to start on files in which nothing is found wrong is asked a few times, not for ever.
func TestEtcdThatDoesNotStartEndsInADamagedFinal(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.store.env = append(s.store.env, "ETCD_BACKEND_BATCH_INTERVAL=1h", "ETCD_BACKEND_BATCH_LIMIT=600")
	s.killedBehind()
	s.etcd = filepath.Join(t.TempDir(), "etcd-that-refuses")
	if err := os.WriteFile(s.etcd, []byte("#!/bin/sh\necho refused >&2\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.start(siteA)
	_, m := s.damagedFinal()
	if m.Salvaged == "" || !m.LogWhole || m.LogLast <= m.DBIndex || !strings.Contains(m.Missing, "does not start on its own files") {
		t.Errorf("the manifest says %+v", m)
	}
}

// Files of two members, as after a mistake with --wal-dir, are no damage: the operator has the right ones somewhere.
// Nothing may be ended, and the next try with the right files ends well.
func TestForeignDatabaseIsToldAndEndsNothing(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	death := s.killedBehind()
	db := filepath.Join(s.dir, siteA, "etcd/member/snap/db")
	if err := os.Rename(db, db+".right"); err != nil {
		t.Fatal(err)
	}
	foreign, err := os.ReadFile(s.foreignDatabase())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(db, foreign, 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(siteA)
	b := s.start(siteB)
	if told := s.await(siteA, "final snapshot not stored"); !strings.Contains(told.Fields["error"].(string), "different members") {
		t.Errorf("the warden says %v", told.Fields["error"])
	}
	if err := os.Rename(db+".right", db); err != nil {
		t.Fatal(err)
	}
	s.await(siteA, "final journalled")
	s.await(siteB, "etcd serving")
	s.noneLost(b, death)
}

// foreignDatabase is the database of a member of another cluster.
func (s *story) foreignDatabase() string {
	dir := filepath.Join(s.dir, "foreign")
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	endpoint := s.plainEtcd("foreign", dir, "--initial-cluster=foreign=http://127.0.0.1:1", "--initial-advertise-peer-urls=http://127.0.0.1:1")
	g := newGateway(endpoint)
	for { // until it has a leader; a database that never applied an entry names no member
		if _, err := g.put(ctx, "x", "y"); err == nil {
			break
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			s.test.Fatal("the foreign etcd does not serve")
		}
	}
	s.stopPlain(endpoint)
	return filepath.Join(dir, "member/snap/db")
}
