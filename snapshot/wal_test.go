package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
)

// walBuilder makes segments by hand, byte for byte as etcd does.
type walBuilder struct {
	buf  bytes.Buffer
	crc  uint32
	ends []int // of each record
}

func (w *walBuilder) record(kind uint64, data []byte) {
	if kind != walCRC {
		w.crc = crc32.Update(w.crc, crc32.MakeTable(crc32.Castagnoli), data)
	}
	rec := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), kind)
	rec = protowire.AppendVarint(protowire.AppendTag(rec, 2, protowire.VarintType), uint64(w.crc))
	if data != nil {
		rec = protowire.AppendBytes(protowire.AppendTag(rec, 3, protowire.BytesType), data)
	}
	length := uint64(len(rec))
	if pad := (8 - len(rec)%8) % 8; pad > 0 {
		length |= uint64(0x80|pad) << 56
		rec = append(rec, make([]byte, pad)...)
	}
	w.buf.Write(binary.LittleEndian.AppendUint64(nil, length))
	w.buf.Write(rec)
	w.ends = append(w.ends, w.buf.Len())
}

func numbers(values ...uint64) []byte {
	var b []byte
	for i, v := range values {
		b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(i+1), protowire.VarintType), v)
	}
	return b
}

// head is what each segment begins with. The checksum rolls on from the segment before.
func (w *walBuilder) head() {
	w.record(walCRC, nil)
	w.record(walMetadata, numbers(0xabc, 0xdef))
}

func (w *walBuilder) entry(term, index uint64, payload []byte) {
	b := numbers(0, term, index)
	if payload != nil {
		b = protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), payload)
	}
	w.record(walEntry, b)
}

func (w *walBuilder) state(term, commit uint64) { w.record(walState, numbers(term, 0xabc, commit)) }

// next begins a segment that continues this one.
func (w *walBuilder) next() *walBuilder {
	n := &walBuilder{crc: w.crc}
	n.head()
	return n
}

func writeSegment(t *testing.T, dir string, seq, index uint64, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprintf("%016x-%016x.wal", seq, index))
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// oneSegment has entries 1 to n of term 2, each larger than a sector, in preallocated space.
func oneSegment(n uint64) *walBuilder {
	w := &walBuilder{}
	w.head()
	w.record(walSnapshot, numbers(0, 0))
	for i := uint64(1); i <= n; i++ {
		w.entry(2, i, bytes.Repeat([]byte{byte(i)}, 1500))
		w.state(2, i)
	}
	return w
}

func preallocated(b []byte) []byte { return append(bytes.Clone(b), make([]byte, 64<<10)...) }

func TestReadWALFindsTheLastEntryAcrossSegments(t *testing.T) {
	dir := t.TempDir()
	first := oneSegment(5)
	writeSegment(t, dir, 0, 0, first.buf.Bytes())
	second := first.next()
	second.state(3, 5)
	second.entry(3, 6, nil)
	second.entry(3, 7, []byte("lost by the leader of term 3"))
	second.entry(4, 7, []byte("what replaced it"))
	second.record(walSnapshot, numbers(4, 2))
	writeSegment(t, dir, 1, 6, preallocated(second.buf.Bytes()))
	for _, name := range []string{"0.tmp", "0000000000000001-0000000000000006.wal.broken"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("not a segment"), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	var indexes []uint64
	got, err := ReadWAL(dir, 0, func(e WALEntry) error { indexes = append(indexes, e.Index); return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := WALSummary{NodeID: 0xabc, ClusterID: 0xdef, FirstIndex: 1, LastIndex: 7, LastTerm: 4, HardTerm: 3, Commit: 5,
		SnapIndex: 4, SnapTerm: 2, Entries: 8, Overwritten: 1, Segments: 2, SizeBytes: int64(first.buf.Len() + second.buf.Len())}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]uint64{1, 2, 3, 4, 5, 6, 7, 7}, indexes); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestReadWALSkipsSegmentsThatHoldNothingNew(t *testing.T) {
	dir := t.TempDir()
	first := oneSegment(5)
	writeSegment(t, dir, 0, 0, []byte("unreadable, and of no interest"))
	second := first.next()
	// The mark is older than the first entry of the segment: no gap.
	second.record(walSnapshot, numbers(2, 2))
	second.entry(2, 6, nil)
	writeSegment(t, dir, 1, 6, second.buf.Bytes())

	got, err := ReadWAL(dir, 6, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.LastIndex != 6 || got.Entries != 1 || got.NodeID != 0xabc {
		t.Errorf("got %+v, want the one entry 6 of member abc", got)
	}
	if _, err := ReadWAL(dir, 5, nil); !errors.As(err, new(*WALCorruptError)) {
		t.Errorf("entries after 5 need the first segment: got %v, want a WALCorruptError", err)
	}
}

// A leader's snapshot moves a follower beyond its own log.
func TestReadWALCountsASnapshotMarkBeyondTheLastEntry(t *testing.T) {
	dir := t.TempDir()
	w := oneSegment(3)
	w.record(walSnapshot, numbers(1000, 7))
	writeSegment(t, dir, 0, 0, w.buf.Bytes())
	if got, err := ReadWAL(dir, 0, nil); err != nil || got.LastIndex != 1000 || got.LastTerm != 7 {
		t.Errorf("got last entry %d of term %d, error %v; want 1000 of term 7", got.LastIndex, got.LastTerm, err)
	}
}

// A torn tail is what a crash leaves: reading must go on without it, or a crashed etcd could not be captured.
func TestReadWALTakesATornTailForTheEnd(t *testing.T) {
	whole := oneSegment(4)
	entry4 := whole.ends[len(whole.ends)-3] // offset of the last entry
	cases := []struct {
		name    string
		content func(b []byte) []byte
	}{
		{"file ends in the length", func(b []byte) []byte { return b[:entry4+5] }},
		{"file ends in the record", func(b []byte) []byte { return b[:entry4+700] }},
		{"a page of the record is still zero", func(b []byte) []byte {
			b = preallocated(b[:entry4+1024])
			return b
		}},
		{"only the length is there", func(b []byte) []byte { return preallocated(b[:entry4+8]) }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			writeSegment(t, dir, 0, 0, c.content(bytes.Clone(whole.buf.Bytes())))
			got, err := ReadWAL(dir, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Torn || got.LastIndex != 3 {
				t.Errorf("got torn %v, last entry %d; want a torn tail after entry 3", got.Torn, got.LastIndex)
			}
		})
	}
}

// Corruption that passes for a torn tail would drop acknowledged writes without a word.
func TestReadWALTellsABrokenMiddleFromATornTail(t *testing.T) {
	whole := oneSegment(4)
	entry2 := whole.ends[4]               // offset of entry 2
	last := whole.ends[len(whole.ends)-2] // of the last record, a hard state
	cases := []struct {
		name   string
		break_ func(b []byte) []byte
		reason string
		offset int64
	}{
		{"flipped bit", func(b []byte) []byte { b[entry2+600] ^= 1; return b }, "checksum mismatch", int64(entry2)},
		{"zeroed sector before whole records", func(b []byte) []byte { clear(b[entry2+500 : entry2+1600]); return preallocated(b) },
			"whole records follow", int64(entry2)},
		{"length beyond the file before whole records", func(b []byte) []byte { b[entry2+5] = 0x7f; return preallocated(b) }, "whole records follow", int64(entry2)},
		{"flipped bit in the last record", func(b []byte) []byte { b[last+14] ^= 1; return preallocated(b) }, "checksum mismatch", int64(last)},
		{"unknown record type", func(b []byte) []byte { b[entry2+9] = 9; return b }, "unknown record type", int64(entry2)},
		{"nothing at all", func(b []byte) []byte { return make([]byte, 4096) }, "holds no record", 0},
		{"no checksum at the start", func(b []byte) []byte { return b[whole.ends[0]:] }, "does not begin", 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := writeSegment(t, dir, 0, 0, c.break_(bytes.Clone(whole.buf.Bytes())))
			got, err := ReadWAL(dir, 0, nil)
			var corrupt *WALCorruptError
			if !errors.As(err, &corrupt) {
				t.Fatalf("got %+v, error %v; want a WALCorruptError", got, err)
			}
			if corrupt.Segment != path || !strings.Contains(corrupt.Reason, c.reason) || (c.offset >= 0 && corrupt.Offset != c.offset) {
				t.Errorf("got %v; want %q at byte %d of %s", err, c.reason, c.offset, path)
			}
		})
	}
}

func TestReadWALTellsABrokenChainOfSegments(t *testing.T) {
	first := oneSegment(3)
	second := first.next()
	second.entry(2, 4, nil)
	foreign := &walBuilder{crc: first.crc}
	foreign.record(walCRC, nil)
	foreign.record(walMetadata, numbers(0x123, 0xdef))
	gap := first.next()
	gap.entry(2, 9, nil)
	cases := []struct {
		name          string
		first, second []byte
		seq           uint64
		reason        string
	}{
		{"segment missing", first.buf.Bytes(), second.buf.Bytes(), 2, "segment 1 is missing"},
		{"first segment cut", first.buf.Bytes()[:first.ends[len(first.ends)-1]-16], second.buf.Bytes(), 1, "beyond the end"},
		{"records missing at the end of the first", first.buf.Bytes()[:first.ends[len(first.ends)-3]], second.buf.Bytes(), 1, "does not continue"},
		{"another member's", first.buf.Bytes(), foreign.buf.Bytes(), 1, "another member"},
		{"entries missing", first.buf.Bytes(), gap.buf.Bytes(), 1, "entry 9 follows entry 3"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			writeSegment(t, dir, 0, 0, c.first)
			writeSegment(t, dir, c.seq, 4, c.second)
			_, err := ReadWAL(dir, 0, nil)
			var corrupt *WALCorruptError
			if !errors.As(err, &corrupt) || !strings.Contains(corrupt.Reason, c.reason) {
				t.Errorf("got %v; want a WALCorruptError that says %q", err, c.reason)
			}
		})
	}
}

func TestReadWALSaysThatThereIsNone(t *testing.T) {
	empty := t.TempDir()
	for _, dir := range []string{empty, filepath.Join(empty, "absent")} {
		if _, err := ReadWAL(dir, 0, nil); !errors.Is(err, ErrNoWAL) {
			t.Errorf("%s: got %v, want ErrNoWAL", dir, err)
		}
	}
}

// A capture must not need more memory for a longer log.
func TestReadWALNeedsConstantMemory(t *testing.T) {
	dir := t.TempDir()
	w := &walBuilder{}
	w.head()
	for i := uint64(1); i <= 20000; i++ {
		w.entry(2, i, make([]byte, 1000))
	}
	writeSegment(t, dir, 0, 0, w.buf.Bytes())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s, err := ReadWAL(dir, 0, nil)
	runtime.ReadMemStats(&after)
	if err != nil || s.Entries != 20000 {
		t.Fatalf("got %d entries, error %v", s.Entries, err)
	}
	if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(1<<20); got > limit {
		t.Errorf("allocated %d bytes to read %d; want at most %d", got, s.SizeBytes, limit)
	}
}

// Whatever the bytes, reading ends, with an error or a summary, and within the file.
func FuzzReadWAL(f *testing.F) {
	f.Add(oneSegment(2).buf.Bytes())
	f.Add(preallocated(oneSegment(1).buf.Bytes()))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		writeSegment(t, dir, 0, 0, content)
		s, err := ReadWAL(dir, 0, nil)
		if s.SizeBytes > int64(len(content)) {
			t.Errorf("read %d of %d bytes, error %v", s.SizeBytes, len(content), err)
		}
	})
}
