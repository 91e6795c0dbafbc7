package supervisor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

var (
	here  = ownership.Author{Owner: "site-a", Instance: strings.Repeat("a", 32)}
	there = ownership.Author{Owner: "site-b", Instance: strings.Repeat("b", 32)}
	when  = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
)

func someSnapshot(generation uint64, revision int64) ownership.SnapshotRef {
	key := snapshot.SnapshotKey(generation, revision, when)
	return ownership.SnapshotRef{Key: key, Manifest: snapshot.ManifestKey(key), SHA256: strings.Repeat("0", 64), Revision: revision, SizeBytes: 512}
}

// must returns the entry of a Next function that cannot fail here.
func must(t *testing.T) func(ownership.Entry, error) ownership.Entry {
	return func(e ownership.Entry, err error) ownership.Entry {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
}

func appendAll(t *testing.T, j Journal, entries ...ownership.Entry) {
	t.Helper()
	for _, e := range entries {
		if err := j.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

func headOf(t *testing.T, j Journal) ownership.Head {
	t.Helper()
	h, err := j.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Two that append at the same place: the store decides, and the loser learns who won. Without it both would serve.
func TestJournalTakesOneEntryForEachPlace(t *testing.T) {
	j := Journal{Store: storetest.NewMemory()}
	if h := headOf(t, j); !h.Empty {
		t.Fatalf("a new journal has the head %+v", h)
	}
	mine := must(t)(ownership.NextOpen(ownership.Head{Empty: true}, here, when, "first"))
	theirs := must(t)(ownership.NextOpen(ownership.Head{Empty: true}, there, when, "first"))
	appendAll(t, j, mine)
	if err := j.Append(t.Context(), theirs); !errors.Is(err, ErrEntryExists) || !strings.Contains(err.Error(), "site-a") {
		t.Errorf("second at the same place: got %v, want ErrEntryExists that names site-a", err)
	}
	if h := headOf(t, j); h.Instance != here.Instance || h.Seq != 1 {
		t.Errorf("head is %+v, want the first entry", h)
	}
}

// An entry whose answer was lost is ours: taking it for somebody else's would fence a healthy owner.
func TestJournalRecognisesItsOwnEntry(t *testing.T) {
	store := storetest.NewMemory()
	j := Journal{Store: store}
	e := must(t)(ownership.NextOpen(ownership.Head{Empty: true}, here, when, "first"))
	appendAll(t, j, e, e)
	if h := headOf(t, j); h.Seq != 1 {
		t.Errorf("the same entry twice made %d entries", h.Seq)
	}
}

// A journal with a hole is not a shorter journal: what stood there may have given the generation away.
func TestJournalWithAHoleHasNoHead(t *testing.T) {
	store := storetest.NewMemory()
	j := Journal{Store: store}
	open := must(t)(ownership.NextOpen(ownership.Head{Empty: true}, here, when, "first"))
	appendAll(t, j, open, must(t)(ownership.NextOpen(ownership.Head{Entry: open}, here, when, "again")))
	if err := store.Delete(t.Context(), snapshot.JournalKey(1)); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Head(t.Context()); err == nil || !strings.Contains(err.Error(), "entry 1 is missing") {
		t.Errorf("got %v, want an error that says which entry is missing", err)
	}
}

// A damaged entry must stop everything that reads it, with its key in the message.
func TestJournalRefusesADamagedEntry(t *testing.T) {
	store := storetest.NewMemory()
	j := Journal{Store: store}
	appendAll(t, j, must(t)(ownership.NextOpen(ownership.Head{Empty: true}, here, when, "first")))
	store.Corrupt(snapshot.JournalKey(1), func(b []byte) []byte { return b[:len(b)/2] })
	if _, err := j.Head(t.Context()); err == nil || !strings.Contains(err.Error(), snapshot.JournalKey(1)) {
		t.Errorf("got %v, want an error with the entry's key", err)
	}
}

func TestJournalFindsTheEndOfAGeneration(t *testing.T) {
	j := Journal{Store: storetest.NewMemory()}
	final := func(generation uint64) (ownership.Entry, bool) {
		t.Helper()
		e, ok, err := j.Final(t.Context(), generation)
		if err != nil {
			t.Fatal(err)
		}
		return e, ok
	}
	if _, ok := final(0); ok {
		t.Error("an empty journal has a final")
	}
	open := must(t)(ownership.NextOpen(ownership.Head{Empty: true}, here, when, "first"))
	first := must(t)(ownership.NextFinal(ownership.Head{Entry: open}, here, when, someSnapshot(1, 10)))
	claim := must(t)(ownership.NextClaim(ownership.Head{Entry: first}, there, when, 1, someSnapshot(1, 10)))
	second := must(t)(ownership.NextFinal(ownership.Head{Entry: claim}, there, when, someSnapshot(2, 20)))
	appendAll(t, j, open)
	if _, ok := final(0); ok {
		t.Error("an open generation has a final")
	}
	appendAll(t, j, first, claim)
	if e, ok := final(1); !ok || e.Snapshot.Revision != 10 {
		t.Errorf("final of generation 1: %+v, %v", e, ok)
	}
	if _, ok := final(0); ok {
		t.Error("the newest generation is open, yet it has a final: a destination would start from the one before")
	}
	if _, ok := final(2); ok {
		t.Error("generation 2 is open, yet it has a final")
	}
	appendAll(t, j, second)
	if e, ok := final(0); !ok || e.Snapshot.Revision != 20 {
		t.Errorf("newest final: %+v, %v", e, ok)
	}
}
