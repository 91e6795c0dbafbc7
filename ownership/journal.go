package ownership

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// EntryKind is what a journal entry does to a generation.
type EntryKind string

// A generation is one unbroken history of one data directory. It is begun by the first Open or a Claim, may be
// confirmed by further Opens, and is ended by a Final or an Abandoned.
const (
	Open      EntryKind = "open"      // the instance serves this generation (first or again)
	Final     EntryKind = "final"     // closed: the snapshot holds every acknowledged write
	Abandoned EntryKind = "abandoned" // closed by another, without the holder's final
	Claim     EntryKind = "claim"     // a new generation, restored from a snapshot of an earlier one
)

// EntryVersion is the format that this program writes, and the only one that it reads.
const EntryVersion = 1

// MaxEntrySize bounds an encoded entry; a longer one is refused unread.
const MaxEntrySize = 64 << 10

// SnapshotRef names a stored snapshot and pins its bytes.
type SnapshotRef struct {
	Key       string `json:"key"`
	Manifest  string `json:"manifest"`
	SHA256    string `json:"sha256"` // of the plain snapshot file, hex
	Revision  int64  `json:"revision"`
	SizeBytes int64  `json:"size_bytes"` // of the plain snapshot file
}

// Entry is one write-once object of the journal. The entry is the commit: what it names was stored before it.
type Entry struct {
	Version    int          `json:"version"`
	Seq        uint64       `json:"seq"` // 1, 2, 3 … without a gap
	Generation uint64       `json:"generation"`
	Kind       EntryKind    `json:"kind"`
	Owner      string       `json:"owner"`              // owner id of the writer
	Instance   string       `json:"instance"`           // the writer's nonce, one for each data directory
	At         time.Time    `json:"at"`                 // wall time, for people only
	Snapshot   *SnapshotRef `json:"snapshot,omitempty"` // final: the final snapshot; claim: what was restored
	From       uint64       `json:"from,omitempty"`     // claim: the generation that the restored snapshot belongs to
	Reason     string       `json:"reason,omitempty"`

	// Damaged, of a final, says that its snapshot is no snapshot but the files of an etcd that could not be captured, and
	// what is known to be missing. Nothing is restored from it; somebody must decide.
	Damaged string `json:"damaged,omitempty"`
}

// Head is the last entry of a journal, or Empty.
type Head struct {
	Entry
	Empty bool
}

// Author is who writes an entry.
type Author struct{ Owner, Instance string }

// IllegalAppendError says that an entry may not follow the head of the journal. It is returned by the Next functions:
// the caller's knowledge is old, or it has no right to the entry.
type IllegalAppendError struct {
	Kind EntryKind
	Head Head
	Why  string
}

func (e *IllegalAppendError) Error() string {
	return fmt.Sprintf("append %s after %s: %s", e.Kind, e.Head.Describe(), e.Why)
}

// EntryError says what is wrong with the bytes or fields of one entry.
type EntryError struct {
	Seq uint64 // 0 unknown
	Why string
}

func (e *EntryError) Error() string {
	if e.Seq == 0 {
		return "journal entry: " + e.Why
	}
	return fmt.Sprintf("journal entry %d: %s", e.Seq, e.Why)
}

// Describe is a phrase for people: kind, generation, who, and sequence number.
func (h Head) Describe() string {
	if h.Empty {
		return "an empty journal"
	}
	kind := string(h.Kind)
	if h.Damaged != "" {
		kind = "damaged " + kind
	}
	return fmt.Sprintf("%s of generation %d by %s (instance %s, entry %d)", kind, h.Generation, h.Owner, h.Instance, h.Seq)
}

// Closed reports whether the generation of the head is ended, so that only a claim may follow.
func (h Head) Closed() bool { return !h.Empty && (h.Kind == Final || h.Kind == Abandoned) }

// Held reports whether the head gives its generation to a holder.
func (h Head) Held() bool { return !h.Empty && (h.Kind == Open || h.Kind == Claim) }

// HeldBy reports whether the head gives its generation to this instance.
func (h Head) HeldBy(instance string) bool { return h.Held() && h.Instance == instance }

// NextOpen is the entry by which an instance begins generation 1, or says that it serves the generation that it holds again.
func NextOpen(h Head, by Author, at time.Time, reason string) (Entry, error) {
	switch {
	case h.Empty:
		return h.next(Open, 1, by, at, reason), nil
	case h.Closed():
		return Entry{}, illegal(Open, h, "the generation is closed; the way back is a claim")
	case !h.HeldBy(by.Instance):
		return Entry{}, illegal(Open, h, "the generation is held by another instance")
	}
	return h.next(Open, h.Generation, by, at, reason), nil
}

// NextFinal is the entry by which the holder closes its generation with its final snapshot.
func NextFinal(h Head, by Author, at time.Time, snap SnapshotRef) (Entry, error) {
	switch {
	case h.Empty:
		return Entry{}, illegal(Final, h, "no generation was opened")
	case h.Closed():
		return Entry{}, illegal(Final, h, "the generation is closed already")
	case !h.HeldBy(by.Instance):
		return Entry{}, illegal(Final, h, "only the holder of a generation can end it with a final")
	}
	e := h.next(Final, h.Generation, by, at, "")
	e.Snapshot = &snap
	return checkedEntry(e)
}

// NextAbandoned is the entry by which someone who waited long enough closes the generation of a holder that left no final.
func NextAbandoned(h Head, by Author, at time.Time, reason string) (Entry, error) {
	switch {
	case h.Empty:
		return Entry{}, illegal(Abandoned, h, "no generation was opened")
	case h.Closed():
		return Entry{}, illegal(Abandoned, h, "the generation is closed already")
	}
	return h.next(Abandoned, h.Generation, by, at, reason), nil
}

// NextClaim is the entry by which an instance that has restored and verified a snapshot of generation from begins the next one.
func NextClaim(h Head, by Author, at time.Time, from uint64, snap SnapshotRef) (Entry, error) {
	switch {
	case h.Empty:
		return Entry{}, illegal(Claim, h, "there is nothing to claim; a first generation is opened")
	case !h.Closed():
		return Entry{}, illegal(Claim, h, "the generation is not closed")
	case from == 0 || from > h.Generation:
		return Entry{}, illegal(Claim, h, fmt.Sprintf("it cannot restore from generation %d", from))
	case h.Kind == Final && h.Damaged == "" && (from != h.Generation || h.Snapshot == nil || h.Snapshot.SHA256 != snap.SHA256):
		return Entry{}, illegal(Claim, h, "a generation that ended with a final is restored from that final and nothing else")
	}
	e := h.next(Claim, h.Generation+1, by, at, "")
	e.From, e.Snapshot = from, &snap
	return checkedEntry(e)
}

// CheckJournal checks a whole journal, first entry first, and returns its head. The error is an [*EntryError] that names the
// first entry that is wrong: a gap, an order that no rule allows, two ends of one generation.
func CheckJournal(entries []Entry) (Head, error) {
	h := Head{Empty: true}
	for i, e := range entries {
		if want := uint64(i) + 1; e.Seq != want {
			return h, &EntryError{Seq: e.Seq, Why: fmt.Sprintf("found where entry %d was expected: the journal has a gap or a repetition", want)}
		}
		if err := e.Validate(); err != nil {
			return h, err
		}
		if err := follows(h, e); err != nil {
			return h, &EntryError{Seq: e.Seq, Why: err.Error()}
		}
		h = Head{Entry: e}
	}
	return h, nil
}

// follows reports why e may not come after h: it builds what the rules allow and compares.
func follows(h Head, e Entry) error {
	by := Author{Owner: e.Owner, Instance: e.Instance}
	var want Entry
	var err error
	switch e.Kind {
	case Open:
		want, err = NextOpen(h, by, e.At, e.Reason)
	case Final:
		want, err = NextFinal(h, by, e.At, *e.Snapshot)
	case Abandoned:
		want, err = NextAbandoned(h, by, e.At, e.Reason)
	case Claim:
		want, err = NextClaim(h, by, e.At, e.From, *e.Snapshot)
	}
	if err != nil {
		return err
	}
	if want.Generation != e.Generation {
		return fmt.Errorf("%s of generation %d after %s: expected generation %d", e.Kind, e.Generation, h.Describe(), want.Generation)
	}
	return nil
}

// Validate checks the fields of one entry by themselves. The error is an [*EntryError].
func (e Entry) Validate() error {
	bad := func(format string, args ...any) error {
		return &EntryError{Seq: e.Seq, Why: fmt.Sprintf(format, args...)}
	}
	switch {
	case e.Version != EntryVersion:
		return bad("format version %d; this program knows only %d (a newer etcd-warden wrote it: upgrade this one)", e.Version, EntryVersion)
	case e.Seq == 0:
		return bad("no sequence number")
	case e.Generation == 0:
		return bad("no generation")
	case e.Owner == "":
		return bad("no owner")
	case e.Instance == "":
		return bad("no instance")
	}
	if e.Damaged != "" && e.Kind != Final {
		return bad("%s says that it is damaged, which only a final can be", e.Kind)
	}
	switch e.Kind {
	case Open, Abandoned:
		if e.Snapshot != nil || e.From != 0 {
			return bad("%s names a snapshot, which only final and claim do", e.Kind)
		}
		return nil
	case Final:
		if e.From != 0 {
			return bad("final names a generation to restore from, which only a claim does")
		}
	case Claim:
		if e.From == 0 || e.From >= e.Generation {
			return bad("claim of generation %d restores from generation %d", e.Generation, e.From)
		}
	default:
		return bad("unknown kind %q", e.Kind)
	}
	if e.Snapshot == nil {
		return bad("%s without a snapshot", e.Kind)
	}
	if err := e.Snapshot.check(); err != nil {
		return bad("%s: %v", e.Kind, err)
	}
	return nil
}

func (s SnapshotRef) check() error {
	switch {
	case s.Key == "":
		return errors.New("snapshot without a key")
	case s.Manifest == "":
		return errors.New("snapshot without a manifest key")
	case len(s.SHA256) != 64 || !isHex(s.SHA256):
		return fmt.Errorf("snapshot hash %q is not a SHA-256 in lower-case hex", s.SHA256)
	case s.Revision < 1:
		return fmt.Errorf("snapshot revision %d is not positive", s.Revision)
	case s.SizeBytes < 1:
		return fmt.Errorf("snapshot size %d is not positive", s.SizeBytes)
	}
	return nil
}

// Encode is the entry's object: indented JSON with a final newline, byte for byte the same for equal entries.
func (e Entry) Encode() ([]byte, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	e.At = e.At.UTC().Truncate(time.Second)
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode journal entry %d: %w", e.Seq, err)
	}
	return append(b, '\n'), nil
}

// DecodeEntry reads one entry: strict JSON, no unknown field, nothing after it. The error is an [*EntryError].
func DecodeEntry(b []byte) (Entry, error) {
	if len(b) > MaxEntrySize {
		return Entry{}, &EntryError{Why: fmt.Sprintf("%d bytes, more than the %d that an entry may have", len(b), MaxEntrySize)}
	}
	// The version first: an entry of a newer format must say so, not complain of a field.
	var v struct {
		Version int    `json:"version"`
		Seq     uint64 `json:"seq"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return Entry{}, &EntryError{Why: "not a JSON object: " + err.Error()}
	}
	if v.Version != EntryVersion {
		return Entry{}, Entry{Version: v.Version, Seq: v.Seq}.Validate()
	}
	var e Entry
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		return Entry{}, &EntryError{Seq: v.Seq, Why: err.Error()}
	}
	if err := e.Validate(); err != nil {
		return Entry{}, err
	}
	return e, nil
}

func (h Head) next(k EntryKind, generation uint64, by Author, at time.Time, reason string) Entry {
	seq := uint64(1)
	if !h.Empty {
		seq = h.Seq + 1
	}
	return Entry{Version: EntryVersion, Seq: seq, Generation: generation, Kind: k, Owner: by.Owner, Instance: by.Instance, At: at, Reason: reason}
}

func checkedEntry(e Entry) (Entry, error) {
	if err := e.Validate(); err != nil {
		return Entry{}, err
	}
	return e, nil
}

func illegal(k EntryKind, h Head, why string) error {
	return &IllegalAppendError{Kind: k, Head: h, Why: why}
}

func isHex(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
