package snapshot

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The keys of a store, all relative to its prefix. Numbers are padded so that the order of keys is the order of numbers.
//
//	journal/0000000001.json
//	generations/0000000001/00000000000004d2-20261201T170133.250Z-full.db.zst
//	generations/0000000001/00000000000004d2-20261201T170133.250Z-full.json
//	late/0000000001/…                                          finals that came after another's; never restored by themselves
//	damaged/0000000001/20261201T170133.250Z.tar.zst            files of an etcd that could not be captured, as they were; a .json beside each
const (
	JournalPrefix     = "journal/"
	generationsPrefix = "generations/"
	latePrefix        = "late/"
	dataSuffix        = ".db.zst"
	manifestSuffix    = ".json"
	keyTimeLayout     = "20060102T150405.000Z"
	keyNumberDigits   = 10
	keyRevisionDigits = 16
)

// Kind is the kind of a snapshot.
type Kind string

// KindFull is a whole database, exactly etcd's own snapshot file.
const KindFull Kind = "full"

// SnapshotName is what the key of a snapshot or of its manifest says.
type SnapshotName struct {
	Generation uint64
	Late       bool
	Revision   int64
	At         time.Time // UTC, to the millisecond
	Kind       Kind
}

// JournalKey is the key of a journal entry. Entries are counted from 1.
func JournalKey(seq uint64) string { return JournalPrefix + keyNumber(seq) + manifestSuffix }

// ParseJournalKey returns the number of a journal entry, and false for a key that is not exactly what JournalKey makes.
func ParseJournalKey(key string) (seq uint64, ok bool) {
	name, ok := strings.CutPrefix(key, JournalPrefix)
	if !ok {
		return 0, false
	}
	if name, ok = strings.CutSuffix(name, manifestSuffix); !ok {
		return 0, false
	}
	seq, ok = parseKeyNumber(name)
	return seq, ok && JournalKey(seq) == key
}

// GenerationPrefix is the prefix of all keys of a generation. Generations are counted from 1.
func GenerationPrefix(generation uint64) string {
	return generationsPrefix + keyNumber(generation) + "/"
}

// LatePrefix is the prefix for finals of a generation that another one was faster to end.
func LatePrefix(generation uint64) string { return latePrefix + keyNumber(generation) + "/" }

// ParseGeneration returns the generation that a key below generations/ belongs to.
func ParseGeneration(key string) (generation uint64, ok bool) {
	rest, ok := strings.CutPrefix(key, generationsPrefix)
	if !ok {
		return 0, false
	}
	number, _, ok := strings.Cut(rest, "/")
	if !ok {
		return 0, false
	}
	generation, ok = parseKeyNumber(number)
	return generation, ok && strings.HasPrefix(key, GenerationPrefix(generation))
}

// SnapshotKey is the key of a full snapshot of a generation. Revision is etcd's, at is when the upload began.
func SnapshotKey(generation uint64, revision int64, at time.Time) string {
	return SnapshotName{Generation: generation, Revision: revision, At: at, Kind: KindFull}.DataKey()
}

// ManifestKey is the key of the manifest that belongs to a snapshot's key. It is empty when the key is not one of a snapshot.
func ManifestKey(snapshotKey string) string {
	if _, ok := ParseSnapshotKey(snapshotKey); !ok {
		return ""
	}
	return strings.TrimSuffix(snapshotKey, dataSuffix) + manifestSuffix
}

// DataKey is the key of the snapshot itself.
func (n SnapshotName) DataKey() string { return n.stem() + dataSuffix }

// ManifestKey is the key of its manifest.
func (n SnapshotName) ManifestKey() string { return n.stem() + manifestSuffix }

func (n SnapshotName) stem() string {
	prefix := GenerationPrefix(n.Generation)
	if n.Late {
		prefix = LatePrefix(n.Generation)
	}
	return fmt.Sprintf("%s%0*x-%s-%s", prefix, keyRevisionDigits, n.Revision, n.At.UTC().Format(keyTimeLayout), n.Kind)
}

// ParseSnapshotKey takes the key of a snapshot apart. It is false for any key that DataKey does not make.
func ParseSnapshotKey(key string) (SnapshotName, bool) { return parseSnapshotName(key, dataSuffix) }

// ParseManifestKey takes the key of a manifest apart. It is false for any key that SnapshotName.ManifestKey does not make.
func ParseManifestKey(key string) (SnapshotName, bool) {
	return parseSnapshotName(key, manifestSuffix)
}

func parseSnapshotName(key, suffix string) (SnapshotName, bool) {
	var n SnapshotName
	rest, ok := strings.CutPrefix(key, generationsPrefix)
	if !ok {
		if rest, n.Late = strings.CutPrefix(key, latePrefix); !n.Late {
			return SnapshotName{}, false
		}
	}
	number, name, ok := strings.Cut(rest, "/")
	if !ok {
		return SnapshotName{}, false
	}
	if n.Generation, ok = parseKeyNumber(number); !ok {
		return SnapshotName{}, false
	}
	name, ok = strings.CutSuffix(name, suffix)
	fields := strings.Split(name, "-")
	if !ok || len(fields) != 3 || len(fields[0]) != keyRevisionDigits {
		return SnapshotName{}, false
	}
	var errRevision, errTime error
	n.Revision, errRevision = strconv.ParseInt(fields[0], 16, 64)
	n.At, errTime = time.Parse(keyTimeLayout, fields[1])
	n.Kind = Kind(fields[2])
	// The round trip refuses what the parsers let through: signs, upper-case digits, unknown kinds of padding.
	ok = errRevision == nil && errTime == nil && n.Kind == KindFull && n.stem()+suffix == key
	return n, ok
}

func keyNumber(n uint64) string { return fmt.Sprintf("%0*d", keyNumberDigits, n) }

func parseKeyNumber(s string) (uint64, bool) {
	if len(s) < keyNumberDigits {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil && n > 0
}
