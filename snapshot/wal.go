package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNoWAL is wrapped by ReadWAL and OpenOffline when there is no write-ahead log where it should be.
var ErrNoWAL = errors.New("no write-ahead log")

// WALCorruptError says where a write-ahead log is broken. A torn tail, the usual trace of a crash, is not an error: see
// WALSummary.Torn.
type WALCorruptError struct {
	Segment string // path of the segment file
	Offset  int64  // of the broken record in it, bytes
	Reason  string
}

func (e *WALCorruptError) Error() string {
	return fmt.Sprintf("write-ahead log %s is corrupt at byte %d: %s", e.Segment, e.Offset, e.Reason)
}

// WALEntry is one raft log entry. Data is valid only during the call that hands it out.
type WALEntry struct {
	Type        uint64 // 0 normal, 1 and 2 configuration change (raftpb.EntryType)
	Term, Index uint64
	Data        []byte
}

// WALSummary is what a write-ahead log says of itself.
type WALSummary struct {
	NodeID, ClusterID   uint64
	FirstIndex          uint64 // of the entries read, 0 when there was none
	LastIndex, LastTerm uint64 // of the last entry, or of a snapshot mark beyond it
	HardTerm, Commit    uint64 // the last persisted hard state; acknowledged entries may lie beyond Commit
	SnapIndex, SnapTerm uint64 // newest snapshot mark
	Torn                bool   // the last record was written in part; etcd cuts it off at its next start
	Entries             int    // read, counting those that a later leader overwrote
	Overwritten         int    // entries replaced by a later one of the same index
	Segments            int    // in the directory; leading ones that hold nothing new are not read
	SizeBytes           int64  // of the records read
}

// ReadWAL reads the write-ahead log in dir, written by etcd 3.4 to 3.7, without changing it and in constant memory: one
// buffer as large as the largest record, which a segment bounds (64 MB). Leading segments that hold only entries below
// index from are skipped. each, if not nil, is called for every entry read.
//
// The error wraps ErrNoWAL or is a *WALCorruptError, besides those of each and of the operating system.
func ReadWAL(dir string, from uint64, each func(WALEntry) error) (WALSummary, error) {
	segments, err := walSegments(dir)
	if err != nil {
		return WALSummary{}, err
	}
	first := 0
	for i, s := range segments {
		if s.index <= from {
			first = i
		}
	}
	r := walReader{each: each, sum: WALSummary{Segments: len(segments)}}
	if segments[first].index > from+1 {
		return r.sum, &WALCorruptError{Segment: segments[first].path,
			Reason: fmt.Sprintf("the log begins at entry %d, entries from %d on are missing", segments[first].index, from+1)}
	}
	for i := first; i < len(segments); i++ {
		if err := r.readSegment(segments[i].path, i == len(segments)-1); err != nil {
			return r.sum, err
		}
	}
	return r.sum, nil
}

// walSegment is a segment file; its name holds its sequence number and the index of the first entry it may contain.
type walSegment struct {
	path       string
	seq, index uint64
}

// walSegments lists the segments of dir in order and checks that none is missing between the first and the last. Files
// of other names (preallocated 0.tmp, *.wal.broken) are not segments.
func walSegments(dir string) ([]walSegment, error) {
	entries, err := os.ReadDir(dir) // sorted by name, which sorts by sequence number
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s does not exist", ErrNoWAL, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read write-ahead log directory: %w", err)
	}
	var segments []walSegment
	for _, e := range entries {
		s, ok := parseSegmentName(e.Name())
		if !ok {
			continue
		}
		s.path = filepath.Join(dir, e.Name())
		if n := len(segments); n > 0 && s.seq != segments[n-1].seq+1 {
			return nil, &WALCorruptError{Segment: s.path, Reason: fmt.Sprintf("segment %d is missing before it", segments[n-1].seq+1)}
		}
		segments = append(segments, s)
	}
	if len(segments) == 0 {
		return nil, fmt.Errorf("%w: %s holds no segment (*.wal)", ErrNoWAL, dir)
	}
	return segments, nil
}

// parseSegmentName reads "<sequence, 16 hex digits>-<index, 16 hex digits>.wal".
func parseSegmentName(name string) (walSegment, bool) {
	base, ok := strings.CutSuffix(name, ".wal")
	if !ok || len(base) != 33 || base[16] != '-' {
		return walSegment{}, false
	}
	seq, errSeq := strconv.ParseUint(base[:16], 16, 64)
	index, errIndex := strconv.ParseUint(base[17:], 16, 64)
	return walSegment{seq: seq, index: index}, errSeq == nil && errIndex == nil
}
