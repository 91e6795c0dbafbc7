package snapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"google.golang.org/protobuf/encoding/protowire"
)

// Record types of etcd's write-ahead log (server/storage/wal/wal.go).
const (
	walMetadata = 1
	walEntry    = 2
	walState    = 3
	walCRC      = 4
	walSnapshot = 5
)

const (
	walFrameBytes  = 8   // little-endian length before each record; its top byte tells the padding
	walSectorBytes = 512 // what a disk writes whole; the unit of a torn write
)

// walReader reads segments one after the other. The CRC rolls on from record to record and across segments.
type walReader struct {
	each func(WALEntry) error
	sum  WALSummary
	crc  uint32
	buf  []byte // reused for every record

	file    *os.File
	in      *bufio.Reader
	path    string
	size    int64 // of the segment file
	off     int64 // of the record being read
	last    bool  // the last segment, the only one that may end in a torn record
	records int   // read in this segment
}

// How readRecord ends a segment: where its written part ends, or at a record that was never written whole.
var (
	errWALEnd  = errors.New("end of segment")
	errWALTorn = errors.New("torn record")
)

func (r *walReader) readSegment(path string, last bool) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open write-ahead log: %w", err)
	}
	defer f.Close() // read only: nothing can be lost
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open write-ahead log: %w", err)
	}
	r.file, r.path, r.size, r.off, r.last, r.records = f, path, st.Size(), 0, last, 0
	if r.in == nil {
		r.in = bufio.NewReaderSize(f, 64<<10)
	}
	r.in.Reset(f)
	for err == nil {
		err = r.readRecord()
	}
	r.sum.SizeBytes += r.off
	switch {
	case errors.Is(err, errWALTorn):
		r.sum.Torn = true
	case !errors.Is(err, errWALEnd):
		return err
	}
	if r.records == 0 {
		return r.corrupt("it holds no record")
	}
	return nil
}

// readRecord reads one record. It returns errWALEnd at the end of the segment or of its written part, errWALTorn at a torn
// tail, and a *WALCorruptError for anything else that etcd did not write.
func (r *walReader) readRecord() error {
	if r.size-r.off < walFrameBytes {
		return r.endOfFile()
	}
	var frame [walFrameBytes]byte
	if _, err := io.ReadFull(r.in, frame[:]); err != nil {
		return fmt.Errorf("read write-ahead log %s: %w", r.path, err)
	}
	n, pad := decodeWALFrame(frame)
	switch {
	case n == 0 && pad == 0:
		return errWALEnd // preallocated space
	case n > r.size-r.off-walFrameBytes-pad:
		return r.broken("the record reaches beyond the end of the file", nil, r.off+walFrameBytes)
	}
	if int64(cap(r.buf)) < n+pad {
		r.buf = make([]byte, n+pad)
	}
	r.buf = r.buf[:n+pad]
	if _, err := io.ReadFull(r.in, r.buf); err != nil {
		return fmt.Errorf("read write-ahead log %s: %w", r.path, err)
	}
	end := r.off + walFrameBytes + n + pad
	rec, err := parseWALRecord(r.buf[:n])
	if err != nil {
		return r.broken(err.Error(), r.buf, end)
	}
	if err := r.checkCRC(rec); err != nil {
		return r.broken(err.Error(), r.buf, end)
	}
	if err := r.apply(rec); err != nil {
		return err
	}
	r.off = end
	r.records++
	return nil
}

// endOfFile judges the few bytes, if any, that remain after the last whole record.
func (r *walReader) endOfFile() error {
	if r.size == r.off {
		return errWALEnd
	}
	return r.broken("the file ends inside a record", nil, r.size)
}

// broken tells a torn tail from a corrupt log. etcd itself takes any half-zero record in the last segment for torn and
// cuts the log there; it would drop acknowledged entries when whole records follow. Here they make it corrupt.
func (r *walReader) broken(reason string, body []byte, next int64) error {
	if !r.last || r.records == 0 {
		return r.corrupt(reason)
	}
	if body != nil && !hasZeroSector(body, r.off+walFrameBytes) {
		return r.corrupt(reason)
	}
	follows, err := r.recordAfter(next)
	if err != nil {
		return err
	}
	if follows >= 0 {
		return r.corrupt(fmt.Sprintf("%s, and whole records follow at byte %d", reason, follows))
	}
	return errWALTorn
}

func (r *walReader) corrupt(reason string) error {
	return &WALCorruptError{Segment: r.path, Offset: r.off, Reason: reason}
}

// recordAfter looks for something that parses as a record at or after offset from (frames are 8 byte aligned), and
// returns its offset, or -1.
func (r *walReader) recordAfter(from int64) (int64, error) {
	from = min((from+walFrameBytes-1)/walFrameBytes*walFrameBytes, r.size)
	in := bufio.NewReaderSize(io.NewSectionReader(r.file, from, r.size-from), 64<<10)
	var frame [walFrameBytes]byte
	for off := from; off+walFrameBytes <= r.size; off += walFrameBytes {
		if _, err := io.ReadFull(in, frame[:]); err != nil {
			return -1, fmt.Errorf("read write-ahead log %s: %w", r.path, err)
		}
		n, pad := decodeWALFrame(frame)
		// The shortest record has a type and a checksum; a frame is padded to 8 bytes, by 7 at most.
		if n < 4 || (n+pad)%8 != 0 || n > r.size-off-walFrameBytes-pad {
			continue
		}
		head, err := in.Peek(int(min(n, 16)))
		if err != nil {
			return -1, fmt.Errorf("read write-ahead log %s: %w", r.path, err)
		}
		if head[0] != 0x08 || head[1] < walMetadata || head[1] > walSnapshot || head[2] != 0x10 {
			continue // field 1 is the type, field 2 the checksum, both varints
		}
		body := make([]byte, n)
		if _, err := r.file.ReadAt(body, off+walFrameBytes); err != nil {
			return -1, fmt.Errorf("read write-ahead log %s: %w", r.path, err)
		}
		if _, err := parseWALRecord(body); err == nil {
			return off, nil
		}
	}
	return -1, nil
}

// checkCRC verifies the record and rolls the checksum on.
func (r *walReader) checkCRC(rec walRecord) error {
	if rec.kind == walCRC {
		// The first record of each segment repeats the checksum so far; the first segment read has no "so far".
		if r.sum.SizeBytes+r.off > 0 && rec.crc != r.crc {
			return fmt.Errorf("the segment does not continue the one before it (checksum %08x, want %08x)", rec.crc, r.crc)
		}
		r.crc = rec.crc
		return nil
	}
	if r.records == 0 {
		return errors.New("the segment does not begin with a checksum record")
	}
	crc := crc32.Update(r.crc, crc32.MakeTable(crc32.Castagnoli), rec.data)
	if crc != rec.crc {
		return fmt.Errorf("checksum mismatch (stored %08x, computed %08x)", rec.crc, crc)
	}
	r.crc = crc
	return nil
}

func (r *walReader) apply(rec walRecord) error {
	switch rec.kind {
	case walMetadata:
		f, _, err := varints(rec.data)
		if err != nil {
			return r.corrupt("metadata: " + err.Error())
		}
		if r.sum.NodeID != 0 && (r.sum.NodeID != f[1] || r.sum.ClusterID != f[2]) {
			return r.corrupt("metadata of another member")
		}
		r.sum.NodeID, r.sum.ClusterID = f[1], f[2]
	case walState:
		f, _, err := varints(rec.data)
		if err != nil {
			return r.corrupt("hard state: " + err.Error())
		}
		r.sum.HardTerm, r.sum.Commit = f[1], f[3]
	case walSnapshot:
		f, _, err := varints(rec.data)
		if err != nil {
			return r.corrupt("snapshot mark: " + err.Error())
		}
		if f[1] > r.sum.SnapIndex {
			r.sum.SnapIndex, r.sum.SnapTerm = f[1], f[2]
		}
		if f[1] > r.sum.LastIndex { // the leader sent a snapshot: the log starts anew behind it
			r.sum.LastIndex, r.sum.LastTerm = f[1], f[2]
		}
	case walEntry:
		return r.applyEntry(rec.data)
	}
	return nil
}

func (r *walReader) applyEntry(data []byte) error {
	f, payload, err := varints(data)
	if err != nil {
		return r.corrupt("entry: " + err.Error())
	}
	e := WALEntry{Type: f[1], Term: f[2], Index: f[3], Data: payload}
	switch {
	case r.sum.FirstIndex == 0: // a snapshot mark may stand before the first entry read, and be much older
		r.sum.FirstIndex = e.Index
	case e.Index > r.sum.LastIndex+1:
		return r.corrupt(fmt.Sprintf("entry %d follows entry %d", e.Index, r.sum.LastIndex))
	case e.Index <= r.sum.LastIndex:
		r.sum.Overwritten++
	}
	r.sum.LastIndex, r.sum.LastTerm = e.Index, e.Term
	r.sum.Entries++
	if r.each == nil {
		return nil
	}
	return r.each(e)
}

// decodeWALFrame splits a length field: the size in the lower 56 bits, the padding in the top byte if its sign bit is set.
func decodeWALFrame(frame [walFrameBytes]byte) (n, pad int64) {
	l := binary.LittleEndian.Uint64(frame[:])
	if l>>63 == 1 {
		pad = int64(l>>56) & 7
	}
	return int64(l &^ (0xff << 56)), pad
}

// hasZeroSector reports whether some sector's share of a record at offset off is all zero: a write that reached the file
// only in part.
func hasZeroSector(body []byte, off int64) bool {
	for len(body) > 0 {
		n := min(int64(len(body)), walSectorBytes-off%walSectorBytes)
		zero := true
		for _, b := range body[:n] {
			zero = zero && b == 0
		}
		if zero {
			return true
		}
		body, off = body[n:], off+n
	}
	return false
}

// walRecord is walpb.Record.
type walRecord struct {
	kind uint64
	crc  uint32
	data []byte
}

func parseWALRecord(b []byte) (walRecord, error) {
	f, data, err := varintsAndBytes(b, 3)
	if err != nil {
		return walRecord{}, err
	}
	if f[1] < walMetadata || f[1] > walSnapshot {
		return walRecord{}, fmt.Errorf("unknown record type %d", f[1])
	}
	return walRecord{kind: f[1], crc: uint32(f[2]), data: data}, nil
}

// varints decodes the small messages of the log: numbers in fields 1 to 3, the payload of an entry in field 4.
func varints(b []byte) ([4]uint64, []byte, error) { return varintsAndBytes(b, 4) }

// varintsAndBytes decodes a protobuf message: varint fields 1 to 3, and the bytes of field payload. Others are skipped.
func varintsAndBytes(b []byte, payload protowire.Number) (f [4]uint64, data []byte, err error) {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return f, nil, errors.New("not a record")
		}
		b = b[n:]
		switch {
		case kind == protowire.VarintType && num <= 3:
			f[num], n = protowire.ConsumeVarint(b)
		case kind == protowire.BytesType && num == payload:
			data, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, kind, b)
		}
		if n < 0 {
			return f, nil, errors.New("not a record")
		}
		b = b[n:]
	}
	return f, data, nil
}
