package snapshot_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
	"github.com/google/go-cmp/cmp"
)

func exampleManifest() snapshot.Manifest {
	at := time.Date(2026, 12, 1, 17, 1, 33, 250e6, time.UTC)
	return snapshot.Manifest{
		Version: 1, Generation: 1, Kind: snapshot.KindFull, Final: true, Captured: snapshot.CapturedFencedRestart,
		Key: snapshot.SnapshotKey(1, 1234, at), Revision: 1234, RaftIndex: 1300, RaftTerm: 4, MemberID: 0x8e9e05c52164694d, ClusterID: 0xcdf818194e3a8c32,
		EtcdVersion: "3.6.16", PlainBytes: 20512, PlainSHA256: strings.Repeat("0123456789abcdef", 4), StoredBytes: 4711, StoredSHA256: strings.Repeat("fedcba9876543210", 4),
		Compression: snapshot.CompressionZstd, Encryption: snapshot.EncryptionNone, CreatedAt: at, TookMS: 1650,
		StepsMS: map[string]int64{"restart": 1200, "upload": 400},
	}
}

// Lost if it fails: every snapshot written by an earlier release. Change the file only together with the format version.
func TestManifestFormatIsFrozen(t *testing.T) {
	got, err := snapshot.EncodeManifest(exampleManifest())
	if err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/manifest.json"
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("manifest (-want +got):\n%s", diff)
	}
	read, err := snapshot.DecodeManifest(bytes.NewReader(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(exampleManifest(), read); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
}

func TestBadManifestsAreRefusedWithAReason(t *testing.T) {
	good, err := snapshot.EncodeManifest(exampleManifest())
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, new string) string {
		if !strings.Contains(string(good), old) {
			t.Fatalf("the example does not hold %s", old)
		}
		return strings.Replace(string(good), old, new, 1)
	}
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "unexpected end"},
		{"cut", string(good[:100]), "unexpected end"},
		{"no JSON", "<html>", "invalid character"},
		{"two of them", string(good) + string(good), "after top-level value"},
		{"huge", `{"x":"` + strings.Repeat("x", 1<<20) + `"}`, "larger than"},
		{"no version", `{}`, "no version"},
		{"later version with other fields", `{"version": 2, "new": true}`, "version 2 is unknown"},
		{"unknown field", replace(`"final"`, `"finale"`), "finale"},
		{"wrong type", replace(`1234,`, `"1234",`), "cannot unmarshal"},
		{"no revision", replace(`"revision": 1234`, `"revision": 0`), "revision"},
		{"other kind", replace(`"full"`, `"delta"`), "kind"},
		{"other capture", replace(`"fenced-restart"`, `"magic"`), "captured"},
		{"upper-case hash", replace(`0123456789abcdef`, `0123456789ABCDEF`), "plain_sha256"},
		{"short hash", replace(`fedcba98`, ``), "stored_sha256"},
		{"negative size", replace(`20512`, `-1`), "plain_size_bytes"},
		{"encrypted", replace(`"encryption": "none"`, `"encryption": "age"`), "encryption"},
		{"foreign key", replace(`generations/0000000001`, `../0000000001`), "key"},
		{"key of another generation", replace(`generations/0000000001`, `generations/0000000002`), "generation 1"},
		{"bad id", replace(`8e9e05c52164694d`, `xyz`), "hexadecimal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := snapshot.DecodeManifest(strings.NewReader(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// A bucket holds what it holds: foreign objects, leftovers of uploads, damaged manifests. None hides the good ones.
func TestListingTellsGoodDamagedAndForeignApart(t *testing.T) {
	store := storetest.NewMemory()
	first := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 5, Captured: snapshot.CapturedLive}, []byte("one"))
	second := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 9, Captured: snapshot.CapturedLive}, []byte("two"))
	upload(t, store, snapshot.Manifest{Generation: 2, Revision: 1, Captured: snapshot.CapturedLive}, []byte("other"))
	orphan := snapshot.SnapshotKey(1, 99, time.Now())
	put(t, store, orphan, "no manifest")
	put(t, store, "generations/0000000001/notes.txt", "hello")
	damaged := snapshot.SnapshotName{Generation: 1, Revision: 7, At: time.Now(), Kind: snapshot.KindFull}.ManifestKey()
	put(t, store, damaged, "{")
	stray := snapshot.SnapshotName{Generation: 1, Revision: 8, At: time.Now(), Kind: snapshot.KindFull}.ManifestKey()
	text, err := snapshot.EncodeManifest(first)
	if err != nil {
		t.Fatal(err)
	}
	put(t, store, stray, string(text)) // speaks of another snapshot

	got, err := snapshot.ListManifests(t.Context(), store, 1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]snapshot.Manifest{first, second}, got.Manifests); diff != "" {
		t.Errorf("good ones (-want +got):\n%s", diff)
	}
	if len(got.Damaged) != 2 || got.Damaged[0].Key != damaged || got.Damaged[1].Key != stray {
		t.Errorf("damaged: %v, want %s and %s", got.Damaged, damaged, stray)
	}
	if got.Foreign != 2 {
		t.Errorf("foreign: %d, want 2", got.Foreign)
	}
	if g, err := snapshot.Generations(t.Context(), store); err != nil || !cmp.Equal(g, []uint64{1, 2}) {
		t.Errorf("generations %v, error %v; want 1 and 2", g, err)
	}
}

// Lost if it fails: the writes between the damaged newest snapshot and the one before it, silently.
func TestDamagedNewestIsNotPassedOver(t *testing.T) {
	store := storetest.NewMemory()
	_, err := snapshot.NewestManifest(t.Context(), store, 1)
	wantIs(t, err, snapshot.ErrNotFound)
	upload(t, store, snapshot.Manifest{Generation: 1, Revision: 5, Captured: snapshot.CapturedLive}, []byte("one"))
	newest := upload(t, store, snapshot.Manifest{Generation: 1, Revision: 16, Captured: snapshot.CapturedLive}, []byte("two"))
	if got, err := snapshot.NewestManifest(t.Context(), store, 1); err != nil || got.Revision != 16 {
		t.Errorf("got revision %d, error %v; want 16", got.Revision, err)
	}
	store.Corrupt(newest.ManifestKey(), func(b []byte) []byte { return b[:len(b)/2] })
	_, err = snapshot.NewestManifest(t.Context(), store, 1)
	wantDamage(t, err, snapshot.DamageManifest)
}

// An outage must not be taken for a damaged manifest, which is for ever.
func TestOutageWhileListingIsNoDamage(t *testing.T) {
	store := storetest.NewMemory()
	upload(t, store, snapshot.Manifest{Generation: 1, Revision: 5, Captured: snapshot.CapturedLive}, []byte("one"))
	store.Inject(func(op, _ string) (error, error) {
		if op == "get" {
			return snapshot.ErrUnavailable, nil
		}
		return nil, nil
	})
	_, err := snapshot.ListManifests(context.Background(), store, 1)
	wantIs(t, err, snapshot.ErrUnavailable)
}
