package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"github.com/etcd-warden/etcd-warden/ownership"
)

// Marker is the warden's memory on disk. It is advice, never a precondition of a kill: a full or dying disk must not
// keep etcd alive, and a warden without a marker asks DNS and the journal as if it were new.
type Marker struct {
	Version    int             `json:"version"`
	Phase      ownership.Phase `json:"phase"`
	Generation uint64          `json:"generation"` // of the data in the directory, 0 unknown
	Instance   string          `json:"instance"`
	Reason     string          `json:"reason,omitempty"`
	At         time.Time       `json:"at"`
}

const markerVersion = 1

// ReadMarker returns the zero Marker where there is none. A marker that cannot be read is an error: serving on a guess
// would break the promise that a lost generation is never served again.
func (d *StateDir) ReadMarker() (Marker, error) {
	file := d.markerFile()
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Marker{}, nil
	}
	if err != nil {
		return Marker{}, fmt.Errorf("read marker: %w", err)
	}
	var m Marker
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return Marker{}, fmt.Errorf("marker %s is damaged (%w): look at the journal in the store to see who owns the data, then remove the file", file, err)
	}
	if m.Version != markerVersion {
		return Marker{}, fmt.Errorf("marker %s has format version %d, this program knows %d: use the etcd-warden that wrote it", file, m.Version, markerVersion)
	}
	return m, nil
}

// WriteMarker replaces the marker durably: file and directory are synced before it returns.
func (d *StateDir) WriteMarker(m Marker) error {
	m.Version, m.Instance = markerVersion, d.instance
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode marker: %w", err)
	}
	if err := writeFileDurably(d.markerFile(), append(b, '\n')); err != nil {
		return fmt.Errorf("write marker: %w", err)
	}
	return nil
}

func (d *StateDir) markerFile() string { return filepath.Join(d.path, "marker.json") }

// boot is what the marker means to the ownership machine.
func (m Marker) boot() ownership.Boot {
	return ownership.Boot{
		Generation: m.Generation,
		Lost:       m.Phase == ownership.PhaseLost || m.Phase == ownership.PhaseSuperseded,
		Isolated:   m.Phase == ownership.PhaseIsolated,
		Finalized:  m.Phase == ownership.PhaseFinalized,
		HadOpen:    m.Phase == ownership.PhaseServing,
		Claiming:   m.Phase == ownership.PhaseClaiming,
	}
}

// scribe writes markers one after another, off the loop: a hanging disk must hold up nothing. Only the newest matters,
// so a marker that is not written yet is replaced by the next one.
type scribe struct {
	dir  *StateDir
	log  zerolog.Logger
	next chan Marker // capacity 1
}

// write asks for m to be written; it never blocks. Only one goroutine at a time may call it.
func (s *scribe) write(m Marker) {
	select {
	case <-s.next: // superseded before it was written
	default:
	}
	s.next <- m
}

// run writes until ctx ends, and then what is still asked for.
func (s *scribe) run(ctx context.Context) {
	for {
		select {
		case m := <-s.next:
			s.put(m)
		case <-ctx.Done():
			select {
			case m := <-s.next:
				s.put(m)
			default:
			}
			return
		}
	}
}

func (s *scribe) put(m Marker) {
	if err := s.dir.WriteMarker(m); err != nil {
		s.log.Error().Err(err).Str("marker", string(m.Phase)).Msg("marker not written")
		return
	}
	s.log.Debug().Str("marker", string(m.Phase)).Uint64("generation", m.Generation).Msg("marker written")
}
