package ownership

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func testTime() time.Time { return time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC) }

func testSnapshot(n byte) SnapshotRef {
	return SnapshotRef{Key: "generations/0000000001/00000000000004d2-20300102T030405Z-full.db.zst", Manifest: "generations/0000000001/00000000000004d2-20300102T030405Z-full.json",
		SHA256: strings.Repeat(string(rune('0'+n)), 64), Revision: 1234, SizeBytes: 98304}
}

// history is a journal with every kind of entry: A opens and returns, hands over to B, whose generation A abandons.
func history(t *testing.T) []Entry {
	a, b := Author{"seed-a/1", "instance-a"}, Author{"seed-b/1", "instance-b"}
	h := Head{Empty: true}
	var all []Entry
	add := func(e Entry, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		all, h = append(all, e), Head{Entry: e}
	}
	add(NextOpen(h, a, testTime(), "first generation"))
	add(NextOpen(h, a, testTime(), "started again"))
	add(NextFinal(h, a, testTime(), testSnapshot(1)))
	add(NextClaim(h, b, testTime(), 1, testSnapshot(1)))
	add(NextAbandoned(h, a, testTime(), "no final within 30m0s in which the record was ours"))
	add(NextClaim(h, a, testTime(), 1, testSnapshot(1)))
	return all
}

// TestEntryFormatIsStable: an older or newer warden at the other site reads what this one writes.
func TestEntryFormatIsStable(t *testing.T) {
	var got []byte
	for _, e := range history(t) {
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, b...)
		back, err := DecodeEntry(b)
		if err != nil {
			t.Fatalf("decode what was encoded: %v", err)
		}
		if d := cmp.Diff(e, back); d != "" {
			t.Fatalf("entry %d changed on the way:\n%s", e.Seq, d)
		}
	}
	golden := filepath.Join("testdata", "journal.golden")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Fatalf("the format changed (old journals must stay readable):\n%s", d)
	}
}

func TestBrokenEntriesAreRefusedClearly(t *testing.T) {
	good, err := history(t)[2].Encode()
	if err != nil {
		t.Fatal(err)
	}
	replace := func(old, new string) string {
		s := strings.Replace(string(good), old, new, 1)
		if s == string(good) {
			t.Fatalf("%q is not in the entry", old)
		}
		return s
	}
	for name, tt := range map[string]struct{ in, want string }{
		"newer version":   {replace(`"version": 1`, `"version": 2, "colour": "red"`), "format version 2"},
		"no version":      {replace(`"version": 1,`, ``), "format version 0"},
		"unknown field":   {replace(`"seq"`, `"colour": "red", "seq"`), `unknown field "colour"`},
		"unknown kind":    {replace(`"final"`, `"finale"`), `unknown kind "finale"`},
		"wrong type":      {replace(`"seq": 3`, `"seq": "3"`), "JSON"},
		"two objects":     {string(good) + "{}", "after top-level value"},
		"cut":             {string(good[:len(good)/2]), "not a JSON object"},
		"empty":           {"", "not a JSON object"},
		"no seq":          {replace(`"seq": 3`, `"seq": 0`), "no sequence number"},
		"no generation":   {replace(`"generation": 1`, `"generation": 0`), "no generation"},
		"no owner":        {replace(`"seed-a/1"`, `""`), "no owner"},
		"no instance":     {replace(`"instance-a"`, `""`), "no instance"},
		"bad hash":        {replace(strings.Repeat("1", 64), "XYZ"), "SHA-256"},
		"no size":         {replace("98304", "0"), "size 0"},
		"no revision":     {replace("1234", "0"), "revision 0"},
		"no key":          {replace(`"key": "gen`, `"key": "", "manifest": "gen`), "without a key"},
		"final that from": {replace(`"at"`, `"from": 1, "at"`), "which only a claim does"},
		"too long":        {strings.Repeat(" ", MaxEntrySize+1), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeEntry([]byte(tt.in))
			var bad *EntryError
			if !errors.As(err, &bad) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v, want one line of an EntryError with %q", err, tt.want)
			}
		})
	}
}

// TestOnlyLegalEntriesFollow: each kind after each kind of head, by the holder and by another.
func TestOnlyLegalEntriesFollow(t *testing.T) {
	holder, stranger := Author{"a", "n-a"}, Author{"b", "n-b"}
	snap := testSnapshot(1)
	heads := map[string]Head{
		"empty":     {Empty: true},
		"open":      {Entry: Entry{Version: 1, Seq: 4, Generation: 2, Kind: Open, Owner: "a", Instance: "n-a"}},
		"claim":     {Entry: Entry{Version: 1, Seq: 4, Generation: 2, Kind: Claim, Owner: "a", Instance: "n-a", From: 1, Snapshot: &snap}},
		"final":     {Entry: Entry{Version: 1, Seq: 4, Generation: 2, Kind: Final, Owner: "a", Instance: "n-a", Snapshot: &snap}},
		"abandoned": {Entry: Entry{Version: 1, Seq: 4, Generation: 2, Kind: Abandoned, Owner: "b", Instance: "n-b"}},
	}
	// The generation that a legal entry gets, by head, kind and author.
	legal := map[string]uint64{
		"empty open holder": 1, "empty open stranger": 1,
		"open open holder": 2, "open final holder": 2, "open abandoned holder": 2, "open abandoned stranger": 2,
		"claim open holder": 2, "claim final holder": 2, "claim abandoned holder": 2, "claim abandoned stranger": 2,
		"final claim holder": 3, "final claim stranger": 3,
		"abandoned claim holder": 3, "abandoned claim stranger": 3,
	}
	for headName, h := range heads {
		for _, k := range []EntryKind{Open, Final, Abandoned, Claim} {
			for who, by := range map[string]Author{"holder": holder, "stranger": stranger} {
				var e Entry
				var err error
				switch k {
				case Open:
					e, err = NextOpen(h, by, testTime(), "")
				case Final:
					e, err = NextFinal(h, by, testTime(), snap)
				case Abandoned:
					e, err = NextAbandoned(h, by, testTime(), "")
				case Claim:
					e, err = NextClaim(h, by, testTime(), 2, snap)
				}
				name := headName + " " + string(k) + " " + who
				want, ok := legal[name]
				var refused *IllegalAppendError
				switch {
				case !ok && !errors.As(err, &refused):
					t.Errorf("%s: got %+v, %v; want an IllegalAppendError", name, e, err)
				case ok && (err != nil || e.Generation != want || e.Seq != h.Seq+1 || e.Instance != by.Instance):
					t.Errorf("%s: got %+v, %v; want generation %d, entry %d", name, e, err, want, h.Seq+1)
				}
			}
		}
	}
}

// TestAFinalIsRestoredAndNothingElse: a claim after a final that took another snapshot would lose acknowledged writes.
func TestAFinalIsRestoredAndNothingElse(t *testing.T) {
	snap := testSnapshot(1)
	h := Head{Entry: Entry{Version: 1, Seq: 4, Generation: 2, Kind: Final, Owner: "a", Instance: "n-a", Snapshot: &snap}}
	by := Author{"b", "n-b"}
	for name, try := range map[string]func() error{
		"another snapshot":     func() error { _, err := NextClaim(h, by, testTime(), 2, testSnapshot(2)); return err },
		"an older generation":  func() error { _, err := NextClaim(h, by, testTime(), 1, snap); return err },
		"no generation":        func() error { _, err := NextClaim(h, by, testTime(), 0, snap); return err },
		"a generation to come": func() error { _, err := NextClaim(h, by, testTime(), 3, snap); return err },
	} {
		if try() == nil {
			t.Errorf("a claim with %s was allowed", name)
		}
	}
}

func TestJournalWithAnyEntryMissingIsRefused(t *testing.T) {
	all := history(t)
	h, err := CheckJournal(all)
	if err != nil || h.Seq != 6 || h.Generation != 3 {
		t.Fatalf("whole journal: head %s, %v", h.Describe(), err)
	}
	if h, err := CheckJournal(nil); err != nil || !h.Empty {
		t.Fatalf("empty journal: %+v, %v", h, err)
	}
	for i := range all[:len(all)-1] {
		cut := append(append([]Entry(nil), all[:i]...), all[i+1:]...)
		if _, err := CheckJournal(cut); err == nil {
			t.Errorf("journal without entry %d was accepted", i+1)
		}
		swapped := append([]Entry(nil), all...)
		swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
		if _, err := CheckJournal(swapped); err == nil {
			t.Errorf("journal with entries %d and %d swapped was accepted", i+1, i+2)
		}
	}
	two := append(append([]Entry(nil), all[:3]...), all[2])
	two[3].Seq = 4
	if _, err := CheckJournal(two); err == nil {
		t.Error("a second final of one generation was accepted")
	}
	wrong := append([]Entry(nil), all...)
	wrong[3].Generation = 9
	if _, err := CheckJournal(wrong); err == nil {
		t.Error("a claim that skips generations was accepted")
	}
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte(`{"version":1,"seq":1,"generation":1,"kind":"open","owner":"a","instance":"n","at":"2030-01-02T03:04:05Z"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeEntry(b)
		if err != nil {
			return
		}
		if _, err := CheckJournal([]Entry{e}); err == nil && (e.Seq != 1 || e.Kind != Open) {
			t.Fatalf("a journal that begins with %+v was accepted", e)
		}
	})
}
