package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

const (
	manifestVersion  = 1
	maxManifestBytes = 1 << 20
)

// Captured says how the bytes of a snapshot were obtained.
type Captured string

// The ways to capture a snapshot.
const (
	CapturedOffline       Captured = "offline"        // read from the files of a dead etcd whose db covers its whole log
	CapturedFencedRestart Captured = "fenced-restart" // the same, after a private restart had replayed the log
	CapturedLive          Captured = "live"           // streamed by a serving etcd
)

// The values of Manifest.Compression and Manifest.Encryption.
const (
	CompressionZstd = "zstd"
	CompressionNone = "none"
	EncryptionNone  = "none"
)

// HexID is one of etcd's ids, written as etcd writes them: in hexadecimal.
type HexID uint64

func (id HexID) String() string { return strconv.FormatUint(uint64(id), 16) }

// MarshalText writes the id as etcdctl does.
func (id HexID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (id *HexID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil {
		return fmt.Errorf("id %q is not a hexadecimal number of 64 bits", text)
	}
	*id = HexID(n)
	return nil
}

// Manifest describes one snapshot and commits it: it is written last, and a snapshot without a manifest does not exist. The JSON form is frozen by
// testdata/manifest.json; a change that old readers cannot take needs a new version.
type Manifest struct {
	Version      int              `json:"version"`
	Generation   uint64           `json:"generation"`
	Kind         Kind             `json:"kind"`
	Final        bool             `json:"final"` // captured after the fence; whether it is *the* final, the journal says
	Captured     Captured         `json:"captured"`
	Key          string           `json:"key"` // of the snapshot, relative to the store's prefix
	Revision     int64            `json:"revision"`
	RaftIndex    uint64           `json:"raft_index"`
	RaftTerm     uint64           `json:"raft_term"`
	MemberID     HexID            `json:"member_id"`
	ClusterID    HexID            `json:"cluster_id"`
	EtcdVersion  string           `json:"etcd_version"`
	PlainBytes   int64            `json:"plain_size_bytes"` // of etcd's snapshot file, its trailing SHA-256 included
	PlainSHA256  string           `json:"plain_sha256"`     // lower-case hexadecimal
	StoredBytes  int64            `json:"stored_size_bytes"`
	StoredSHA256 string           `json:"stored_sha256"`
	Compression  string           `json:"compression"` // zstd or none
	Encryption   string           `json:"encryption"`  // none
	CreatedAt    time.Time        `json:"created_at"`  // UTC, when the capture began
	TookMS       int64            `json:"took_ms"`     // from CreatedAt until the snapshot was stored
	StepsMS      map[string]int64 `json:"steps_ms,omitempty"`
}

// ManifestKey is where the manifest itself is stored. It is empty when Key is not a snapshot's.
func (m Manifest) ManifestKey() string { return ManifestKey(m.Key) }

// Validate says what is wrong with a manifest that is to be written or was read, all of it at once.
func (m Manifest) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(m.Version == manifestVersion, "version is %d; this program knows %d", m.Version, manifestVersion)
	check(m.Generation > 0, "generation is 0")
	check(m.Kind == KindFull, "kind %q is not %q", m.Kind, KindFull)
	switch m.Captured {
	case CapturedOffline, CapturedFencedRestart, CapturedLive:
	default:
		check(false, "captured %q is none of offline, fenced-restart, live", m.Captured)
	}
	check(m.Revision > 0, "revision is %d", m.Revision)
	check(m.PlainBytes > 0, "plain_size_bytes is %d", m.PlainBytes)
	check(m.StoredBytes > 0, "stored_size_bytes is %d", m.StoredBytes)
	check(isSHA256(m.PlainSHA256), "plain_sha256 %q is not 64 lower-case hexadecimal digits", m.PlainSHA256)
	check(isSHA256(m.StoredSHA256), "stored_sha256 %q is not 64 lower-case hexadecimal digits", m.StoredSHA256)
	check(m.Compression == CompressionZstd || m.Compression == CompressionNone, "compression %q is neither zstd nor none", m.Compression)
	check(m.Encryption == EncryptionNone, "encryption %q is not supported by this program", m.Encryption)
	check(!m.CreatedAt.IsZero(), "created_at is missing")
	name, ok := ParseSnapshotKey(m.Key)
	check(ok, "key %q is not the key of a snapshot", m.Key)
	check(!ok || name.Generation == m.Generation, "key %q is not of generation %d", m.Key, m.Generation)
	// A live capture learns its exact revision from the end of the stream, when the key has long been taken: the key tells the revision at its start.
	check(!ok || name.Revision == m.Revision || m.Captured == CapturedLive && name.Revision < m.Revision, "key %q is not of revision %d", m.Key, m.Revision)
	return errors.Join(errs...)
}

// EncodeManifest writes the JSON form of a valid manifest, ended by a newline.
func EncodeManifest(m Manifest) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	return append(data, '\n'), nil
}

// DecodeManifest reads one manifest of at most 1 MiB and nothing after it. A manifest of another version is refused as such, whatever else it holds; within
// our version unknown fields are refused, since they may change what the others mean.
func DecodeManifest(r io.Reader) (Manifest, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxManifestBytes+1))
	if err != nil {
		return Manifest{}, fmt.Errorf("read manifest: %w", err)
	}
	if len(data) > maxManifestBytes {
		return Manifest{}, fmt.Errorf("decode manifest: it is larger than %d bytes", maxManifestBytes)
	}
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Manifest{}, fmt.Errorf("decode manifest: %w", err)
	}
	switch {
	case head.Version == nil:
		return Manifest{}, errors.New("decode manifest: it has no version")
	case *head.Version != manifestVersion:
		return Manifest{}, fmt.Errorf("decode manifest: version %d is unknown to this program, which knows %d: use the release that wrote it", *head.Version, manifestVersion)
	}
	var m Manifest
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&m); err != nil {
		return Manifest{}, fmt.Errorf("decode manifest: %w", err)
	}
	if err := m.Validate(); err != nil {
		return Manifest{}, fmt.Errorf("decode manifest: %w", err)
	}
	return m, nil
}

func isSHA256(s string) bool {
	raw, err := hex.DecodeString(s)
	// Upper-case digits would compare unequal later.
	return err == nil && len(raw) == sha256.Size && hex.EncodeToString(raw) == s
}
