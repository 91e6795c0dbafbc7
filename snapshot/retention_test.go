package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// newest is when the last snapshot of a series was taken: a Tuesday.
var newest = time.Date(2026, 12, 1, 17, 0, 0, 0, time.UTC)

// series is snapshots every so often, up to newest.
func series(n int, every time.Duration) []snapshot.Manifest {
	list := make([]snapshot.Manifest, n)
	for i := range list {
		at := newest.Add(-time.Duration(n-1-i) * every)
		list[i] = snapshot.Manifest{Generation: 4, Revision: int64(i + 1), CreatedAt: at, Captured: snapshot.CapturedLive}
	}
	return list
}

func tableOf(decisions []snapshot.RetentionDecision) string {
	var b strings.Builder
	for _, d := range decisions {
		verdict := "delete"
		if d.Keep {
			verdict = "keep"
		}
		fmt.Fprintln(&b, strings.TrimSpace(fmt.Sprintf("%s %3d %-6s %s", d.Manifest.CreatedAt.Format("Mon 2006-01-02 15:04"), d.Manifest.Revision, verdict, strings.Join(d.Reasons, ", "))))
	}
	return b.String()
}

// What is kept decides what can be restored: each policy's table is read by people once, and compared ever after. UPDATE_GOLDEN=1 writes them anew.
func TestRetentionKeepsWhatItsTablesSay(t *testing.T) {
	withFinal := series(8, time.Hour)
	withFinal[2].Final = true
	mixed := series(6, time.Hour)
	mixed[0].Generation, mixed[5].Generation = 3, 5
	tests := []struct {
		name   string
		policy snapshot.Retention
		list   []snapshot.Manifest
	}{
		{"last", snapshot.Retention{Last: 3}, series(6, time.Hour)},
		{"hourly", snapshot.Retention{Hourly: 4}, series(12, 25*time.Minute)},
		{"daily-weekly-monthly", snapshot.Retention{Daily: 3, Weekly: 3, Monthly: 4}, series(26, 101*time.Hour)},
		{"within", snapshot.Retention{Within: 3 * time.Hour}, series(6, time.Hour)},
		{"within-keeps-the-newest", snapshot.Retention{Within: time.Minute}, series(3, time.Hour)},
		{"final", snapshot.Retention{Last: 2}, withFinal},
		{"other-generations", snapshot.Retention{Last: 1}, mixed},
		{"no-rule", snapshot.Retention{}, series(3, time.Hour)},
		{"year-end", snapshot.Retention{Weekly: 3}, func() []snapshot.Manifest {
			list := series(8, 24*time.Hour)
			for i := range list {
				list[i].CreatedAt = time.Date(2026, 12, 28+i, 1, 0, 0, 0, time.UTC)
			}
			return list
		}()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tableOf(tt.policy.Decide(4, tt.list, newest.Add(30*time.Minute)))
			golden := filepath.Join("testdata", "retention", tt.name+".txt")
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// fill stores small snapshots, as an upload would.
func fill(t *testing.T, store snapshot.Store, generation uint64, n int) (keys []string) {
	t.Helper()
	for i := range n {
		m, err := snapshot.Upload(t.Context(), store, snapshot.ReaderSource(strings.NewReader(fmt.Sprint("content ", i))),
			snapshot.Manifest{Generation: generation, Revision: int64(i + 1), Captured: snapshot.CapturedLive}, snapshot.UploadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, m.Key)
	}
	return keys
}

func keysOf(t *testing.T, store snapshot.Store) (keys []string) {
	t.Helper()
	for object, err := range store.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, object.Key)
	}
	return keys
}

// Retention works below its own generation only, and says the same dry and in earnest.
func TestPruneStaysInItsGeneration(t *testing.T) {
	store := storetest.NewMemory()
	fill(t, store, 1, 3)
	own := fill(t, store, 2, 4)
	fill(t, store, 3, 3)
	before := keysOf(t, store)
	dry, err := snapshot.Prune(t.Context(), store, 2, snapshot.Retention{Last: 1}, time.Now(), true)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, keysOf(t, store)); diff != "" {
		t.Errorf("a dry run changed the store:\n%s", diff)
	}
	res, err := snapshot.Prune(t.Context(), store, 2, snapshot.Retention{Last: 1}, time.Now(), false)
	if err != nil || res.Deleted != 6 {
		t.Fatalf("deleted %d objects, error %v; want 6", res.Deleted, err)
	}
	if diff := cmp.Diff(dry.Decisions, res.Decisions); diff != "" {
		t.Errorf("dry and in earnest differ:\n%s", diff)
	}
	var want []string
	for _, key := range before {
		if !slices.ContainsFunc(own[:3], func(gone string) bool { return key == gone || key == snapshot.ManifestKey(gone) }) {
			want = append(want, key)
		}
	}
	if diff := cmp.Diff(want, keysOf(t, store)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// When the newest snapshots have lost their bytes, the newest one that has them is all there is: no rule may take it.
func TestPruneNeverDeletesTheNewestRestorableSnapshot(t *testing.T) {
	store := storetest.NewMemory()
	keys := fill(t, store, 1, 5)
	if err := store.Delete(t.Context(), keys[4]); err != nil {
		t.Fatal(err)
	}
	store.Corrupt(keys[3], func(b []byte) []byte { return b[:1] })
	res, err := snapshot.Prune(t.Context(), store, 1, snapshot.Retention{Last: 1}, time.Now(), false)
	if err != nil {
		t.Fatal(err)
	}
	if !res.Decisions[2].Keep || res.Decisions[1].Keep {
		t.Errorf("decisions:\n%swant the third one kept, the second one not", tableOf(res.Decisions))
	}
	if _, err := store.Stat(t.Context(), keys[2]); err != nil {
		t.Errorf("the newest restorable snapshot: %v", err)
	}
	for _, key := range keys[2:3] {
		if err := store.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	res, err = snapshot.Prune(t.Context(), store, 1, snapshot.Retention{Last: 1}, time.Now(), false)
	if err != nil || res.Deleted != 0 {
		t.Errorf("none is restorable: deleted %d, error %v; want nothing deleted", res.Deleted, err)
	}
}

// A store that does not say whether it has a snapshot is no reason to delete another one.
func TestPruneStopsAtAnUnansweredQuestion(t *testing.T) {
	store := &failingStat{Memory: storetest.NewMemory()}
	fill(t, store, 1, 3)
	store.fail = true
	before := keysOf(t, store)
	if _, err := snapshot.Prune(t.Context(), store, 1, snapshot.Retention{Last: 1}, time.Now(), false); !errors.Is(err, snapshot.ErrUnavailable) {
		t.Errorf("got error %v, want unavailable", err)
	}
	if diff := cmp.Diff(before, keysOf(t, store)); diff != "" {
		t.Errorf("it deleted all the same:\n%s", diff)
	}
}

type failingStat struct {
	*storetest.Memory
	fail bool
}

func (f *failingStat) Stat(ctx context.Context, key string) (snapshot.Object, error) {
	if f.fail {
		return snapshot.Object{}, snapshot.ErrUnavailable
	}
	return f.Memory.Stat(ctx, key)
}

// The rest of a failed upload goes once it is old; foreign objects and manifests that cannot be read stay.
func TestPruneSweepsOldOrphansOnly(t *testing.T) {
	store := storetest.NewMemory()
	fill(t, store, 1, 2)
	put := func(key, content string) {
		if _, err := store.Put(t.Context(), key, io.Reader(bytes.NewReader([]byte(content))), snapshot.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	orphan := snapshot.SnapshotKey(1, 9, time.Now())
	unreadable := snapshot.SnapshotKey(1, 10, time.Now())
	put(orphan, "half")
	put(unreadable, "whole")
	put(snapshot.ManifestKey(unreadable), "{")
	put(snapshot.GenerationPrefix(1)+"README", "hands off")
	if res, err := snapshot.Prune(t.Context(), store, 1, snapshot.Retention{Last: 5}, time.Now(), false); err != nil || res.Deleted != 0 {
		t.Errorf("fresh: deleted %d, error %v; want an upload under way left alone", res.Deleted, err)
	}
	res, err := snapshot.Prune(t.Context(), store, 1, snapshot.Retention{Last: 5}, time.Now().Add(25*time.Hour), false)
	if err != nil || len(res.Damaged) != 1 {
		t.Fatalf("damaged %v, error %v; want one damaged manifest", res.Damaged, err)
	}
	if diff := cmp.Diff([]string{orphan}, res.Orphans); diff != "" || res.Deleted != 1 {
		t.Errorf("deleted %d; orphans (-want +got):\n%s", res.Deleted, diff)
	}
}
