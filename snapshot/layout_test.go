package snapshot_test

import (
	"slices"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

func TestKeysAreWhatTheDesignSays(t *testing.T) {
	at := time.Date(2026, 12, 1, 18, 1, 33, 250e6, time.FixedZone("", 3600))
	key := snapshot.SnapshotKey(1, 1234, at)
	late := snapshot.SnapshotName{Generation: 2, Late: true, Revision: 1234, At: at, Kind: snapshot.KindFull}
	for _, tt := range []struct{ got, want string }{
		{snapshot.JournalKey(1), "journal/0000000001.json"},
		{snapshot.JournalKey(12345678901), "journal/12345678901.json"},
		{snapshot.GenerationPrefix(7), "generations/0000000007/"},
		{snapshot.LatePrefix(7), "late/0000000007/"},
		{key, "generations/0000000001/00000000000004d2-20261201T170133.250Z-full.db.zst"},
		{snapshot.ManifestKey(key), "generations/0000000001/00000000000004d2-20261201T170133.250Z-full.json"},
		{late.DataKey(), "late/0000000002/00000000000004d2-20261201T170133.250Z-full.db.zst"},
		{snapshot.ManifestKey("journal/0000000001.json"), ""},
	} {
		if tt.got != tt.want {
			t.Errorf("got  %s\nwant %s", tt.got, tt.want)
		}
		if tt.got != "" && tt.got[len(tt.got)-1] != '/' {
			if err := snapshot.CheckKey(tt.got); err != nil {
				t.Error(err)
			}
		}
	}
}

// Lost if it fails: the newest snapshot is not the newest.
func TestKeysSortByRevisionThenTime(t *testing.T) {
	at := time.Date(2026, 12, 1, 17, 0, 0, 0, time.UTC)
	keys := []string{
		snapshot.SnapshotKey(1, 9, at.Add(time.Hour)), snapshot.SnapshotKey(1, 10, at), snapshot.SnapshotKey(1, 255, at),
		snapshot.SnapshotKey(1, 256, at.Add(-time.Hour)), snapshot.SnapshotKey(1, 256, at.Add(time.Millisecond)), snapshot.SnapshotKey(1, 1<<40, at),
		snapshot.SnapshotKey(2, 1, at), snapshot.SnapshotKey(10, 1, at),
	}
	if !slices.IsSorted(keys) {
		t.Errorf("not sorted: %q", keys)
	}
}

func TestParsersTakeExactlyWhatTheMakersMake(t *testing.T) {
	name := snapshot.SnapshotName{Generation: 3, Revision: 77, At: time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC), Kind: snapshot.KindFull}
	for _, late := range []bool{false, true} {
		name.Late = late
		if got, ok := snapshot.ParseSnapshotKey(name.DataKey()); !ok || got != name {
			t.Errorf("got %+v %t, want %+v", got, ok, name)
		}
		if got, ok := snapshot.ParseManifestKey(name.ManifestKey()); !ok || got != name {
			t.Errorf("got %+v %t, want %+v", got, ok, name)
		}
	}
	if seq, ok := snapshot.ParseJournalKey(snapshot.JournalKey(42)); !ok || seq != 42 {
		t.Errorf("got %d %t, want 42", seq, ok)
	}
	if g, ok := snapshot.ParseGeneration("generations/0000000005/anything"); !ok || g != 5 {
		t.Errorf("got generation %d %t, want 5", g, ok)
	}
	for _, key := range []string{
		"", "journal/", "journal/1.json", "journal/0000000000.json", "journal/00000000001.json", "journal/0000000001.json.tmp", "journal/000000000x.json",
		"journal/+000000001.json", "x/journal/0000000001.json", "generations/0000000001", "generations/1/x",
		"generations/0000000001/00000000000004D2-20261201T170133.250Z-full.db.zst", "generations/0000000001/4d2-20261201T170133.250Z-full.db.zst",
		"generations/0000000001/00000000000004d2-20261201T170133Z-full.db.zst", "generations/0000000001/00000000000004d2-20261301T170133.250Z-full.db.zst",
		"generations/0000000001/00000000000004d2-20261201T170133.250Z-delta.db.zst", "generations/0000000001/-0000000000004d2-20261201T170133.250Z-full.db.zst",
		"generations/0000000001/sub/00000000000004d2-20261201T170133.250Z-full.db.zst", "other/0000000001/00000000000004d2-20261201T170133.250Z-full.db.zst",
	} {
		if _, ok := snapshot.ParseJournalKey(key); ok {
			t.Errorf("%q is taken for a journal entry", key)
		}
		if _, ok := snapshot.ParseSnapshotKey(key); ok {
			t.Errorf("%q is taken for a snapshot", key)
		}
		if _, ok := snapshot.ParseManifestKey(key); ok {
			t.Errorf("%q is taken for a manifest", key)
		}
	}
}
