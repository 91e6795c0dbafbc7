package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/etcd-warden/etcd-warden/ownership"
)

func openStateDir(t *testing.T, data string) *StateDir {
	t.Helper()
	d, err := OpenStateDir(data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// Two wardens on one data directory would each believe that the other's etcd is a stranger.
func TestStateDirHasOneHolder(t *testing.T) {
	data := filepath.Join(t.TempDir(), "etcd")
	first := openStateDir(t, data)
	if _, err := OpenStateDir(data); !errors.Is(err, ErrDirInUse) {
		t.Fatalf("second open: got %v, want ErrDirInUse", err)
	}
	first.Close()
	if second := openStateDir(t, data); second.Instance() != first.Instance() {
		t.Errorf("the instance changed over a restart: %s, then %s", first.Instance(), second.Instance())
	}
}

// A damaged nonce must not be replaced in silence: with a new one the warden is a stranger to its own generation.
func TestStateDirRefusesADamagedInstance(t *testing.T) {
	data := filepath.Join(t.TempDir(), "etcd")
	d := openStateDir(t, data)
	d.Close()
	file := filepath.Join(d.Path(), "instance")
	if err := os.WriteFile(file, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStateDir(data); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want an error that names %s", err, file)
	}
}

// What a killed warden left in mid-write goes at the next start, and nothing else does.
func TestStateDirRemovesLeftoversOnly(t *testing.T) {
	data := filepath.Join(t.TempDir(), "etcd")
	d := openStateDir(t, data)
	if err := d.WriteMarker(Marker{Phase: ownership.PhaseServing, Generation: 3}); err != nil {
		t.Fatal(err)
	}
	d.Close()
	for _, name := range []string{".marker.json.123.tmp", fencedDirPrefix + "1/c:1"} {
		path := filepath.Join(d.Path(), name)
		os.MkdirAll(filepath.Dir(path), 0o700)
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	openStateDir(t, data)
	entries, err := os.ReadDir(d.Path())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if diff := cmp.Diff([]string{"instance", "lock", "marker.json"}, names); diff != "" {
		t.Errorf("left in the directory (-want +got):\n%s", diff)
	}
}

func TestMarkerSurvivesAndIsReadStrictly(t *testing.T) {
	d := openStateDir(t, filepath.Join(t.TempDir(), "etcd"))
	if m, err := d.ReadMarker(); err != nil || m != (Marker{}) {
		t.Fatalf("no marker: got %+v, %v", m, err)
	}
	want := Marker{Version: 1, Phase: ownership.PhaseLost, Generation: 7, Instance: d.Instance(), Reason: "the record names another",
		At: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)}
	if err := d.WriteMarker(want); err != nil {
		t.Fatal(err)
	}
	got, err := d.ReadMarker()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("marker (-want +got):\n%s", diff)
	}
	for name, content := range map[string]string{
		"cut short":     `{"version": 1, "phase": "lo`,
		"unknown field": `{"version": 1, "phase": "lost", "colour": "red"}`,
		"newer version": `{"version": 2, "phase": "lost"}`,
	} {
		if err := os.WriteFile(d.markerFile(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err := d.ReadMarker(); err == nil {
			t.Errorf("%s: read as %+v, want an error", name, m)
		}
	}
}

// A marker that says "lost" in any of its forms must never boot as an owner.
func TestMarkerBootsAsWhatItSays(t *testing.T) {
	for _, c := range []struct {
		phase ownership.Phase
		want  ownership.Boot
	}{
		{"", ownership.Boot{}},
		{ownership.PhaseServing, ownership.Boot{HadOpen: true}},
		{ownership.PhaseLost, ownership.Boot{Lost: true}},
		{ownership.PhaseSuperseded, ownership.Boot{Lost: true}},
		{ownership.PhaseIsolated, ownership.Boot{Isolated: true}},
		{ownership.PhaseFinalized, ownership.Boot{Finalized: true}},
		{ownership.PhaseClaiming, ownership.Boot{Claiming: true}},
	} {
		if got := (Marker{Phase: c.phase}).boot(); got != c.want {
			t.Errorf("marker %q: got %+v, want %+v", c.phase, got, c.want)
		}
	}
}
