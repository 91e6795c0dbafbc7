package snapshot

import (
	"context"
	"fmt"
	"io"
	"iter"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rs/zerolog"
)

// Store is what the program needs of an object store. Keys are slash-separated paths below the store's own prefix; see CheckKey for what a key may hold.
//
// All methods are safe for concurrent use, return soon after ctx ends (within a second, even while a source or the network hangs), and make a small,
// bounded number of attempts of their own. Waiting out a long outage is the caller's part: Retryable tells whether an error is worth that.
type Store interface {
	// Put stores all of r, whose length need not be known, under key; readers see the whole object or none of it. With opt.IfAbsent an existing object is
	// left alone and the error is ErrExists; a write of our own whose answer was lost is recognised and is not an error. A failing read of r is returned
	// wrapped and stores nothing. A Put that fails closes r when it is an io.Closer, as nothing else ends a read that hangs.
	Put(ctx context.Context, key string, r io.Reader, opt PutOptions) (Object, error)

	// Get opens the object from byte offset on; the caller closes it. Object describes the whole object. An offset equal to the size reads nothing.
	// A reader that breaks is resumed by another Get: compare Object.ETag to be sure that it is the same object. An absent object is ErrNotFound.
	Get(ctx context.Context, key string, offset int64) (io.ReadCloser, Object, error)

	// Stat describes the object, or returns ErrNotFound.
	Stat(ctx context.Context, key string) (Object, error)

	// List yields the objects whose keys start with prefix (a plain string prefix, empty for all), sorted by key, byte for byte. The sequence ends after
	// an error. Metadata is not filled in. Objects whose keys CheckKey refuses are not ours and are left out.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]

	// Delete removes the object. An absent one is not an error.
	Delete(ctx context.Context, key string) error

	// SweepUploads removes what writes of keys that start with prefix left behind, if they began longer than olderThan ago and never ended, and counts it.
	SweepUploads(ctx context.Context, prefix string, olderThan time.Duration) (int, error)

	// Probe finds out what this store really does by writing and removing a small object below "probe/".
	Probe(ctx context.Context) (Capabilities, error)

	// String names the store in messages. It holds no secrets.
	String() string
}

// PutOptions says how an object is stored. The zero value overwrites and knows nothing of the stream.
type PutOptions struct {
	IfAbsent    bool
	ContentType string            // application/octet-stream when empty
	Metadata    map[string]string // kept by object stores, dropped by directories; lower-case keys
	Size        int64             // bytes to come, to save memory for small objects; 0 when unknown. A stream of another length is an error.
}

// Object describes a stored object.
type Object struct {
	Key       string
	SizeBytes int64
	ModTime   time.Time
	ETag      string            // changes whenever the content does; compare it, nothing else
	Metadata  map[string]string // lower-case keys; nil from List and from directories
}

// Capabilities is what Probe found out.
type Capabilities struct {
	IfAbsent          bool          // a create-only write of a small object is decided by the store itself
	IfAbsentMultipart bool          // the same for an object that is uploaded in parts
	Deletes           bool          // our credentials may delete
	ClockOffset       time.Duration // the store's clock minus ours, to the second; 0 where there is only one clock
	Took              time.Duration
}

// OpenOptions is what a URL does not say. The zero value is complete.
type OpenOptions struct {
	Logger      zerolog.Logger // retries are logged here, for debugging: what fails for good is returned; the zero value is silent
	Credentials *Credentials   // nil: environment, shared files, web identity, container and instance roles, in this order
	Limits      Limits
}

// Credentials are static S3 credentials.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string // empty for a long-lived key
}

// Limits bounds the waits inside a store. Zero fields take the default.
type Limits struct {
	Dial       time.Duration // to connect, and again for TLS: 5 s
	Stall      time.Duration // without one byte moving, or for an answer: 30 s
	Complete   time.Duration // for the answer to "assemble these parts", which large objects make slow: 2 min
	Attempts   int           // tries of a call that is not a part: 4
	PartBudget time.Duration // spent on retries of one part before the upload is given up: 5 min
	Backoff    time.Duration // first wait between tries, doubled up to 30 s, with jitter: 200 ms
}

func (l Limits) withDefaults() Limits {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&l.Dial, 5*time.Second)
	def(&l.Stall, 30*time.Second)
	def(&l.Complete, 2*time.Minute)
	def(&l.PartBudget, 5*time.Minute)
	def(&l.Backoff, 200*time.Millisecond)
	if l.Attempts <= 0 {
		l.Attempts = 4
	}
	return l
}

const (
	maxKeyBytes     = 512 // below S3's 1,024, so that the store's prefix fits too
	maxSegmentBytes = 200 // a file name holds 255
)

// CheckKey says why a key is refused by every store, or returns nil. A key is 1 to 512 bytes of printable UTF-8 in segments of at most 200 bytes, joined by
// single slashes; a segment never begins with a dot (so no "..", and temporary files of the directory store cannot collide with a key).
func CheckKey(key string) error {
	refuse := func(why string) error { return fmt.Errorf("%w: key %q %s", ErrInvalid, key, why) }
	switch {
	case key == "":
		return refuse("is empty")
	case len(key) > maxKeyBytes:
		return refuse(fmt.Sprintf("is longer than %d bytes", maxKeyBytes))
	case !utf8.ValidString(key):
		return refuse("is not UTF-8")
	case strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) || r == '\\' }):
		return refuse("holds a control character or a backslash")
	}
	for segment := range strings.SplitSeq(key, "/") {
		switch {
		case segment == "":
			return refuse("has an empty segment")
		case strings.HasPrefix(segment, "."):
			return refuse("has a segment that begins with a dot")
		case len(segment) > maxSegmentBytes:
			return refuse(fmt.Sprintf("has a segment longer than %d bytes", maxSegmentBytes))
		}
	}
	return nil
}

// OpenStore opens the store that rawURL names:
//
//	file:///var/backups/etcd                                     a directory that exists
//	s3://bucket/prefix?endpoint=https://host:port&region=…       anything that speaks S3; see docs/store.md for the parameters
//
// Nothing is written and the network is not touched: call Probe for that. Every refusal is one line that says what is wrong with the URL and what to do, and
// wraps ErrInvalid, or ErrNoStore when the directory is not there. No error holds a secret.
func OpenStore(ctx context.Context, rawURL string, opt OpenOptions) (Store, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	where, err := parseStoreURL(rawURL)
	if err != nil {
		return nil, err
	}
	if where.dir != "" {
		return openDirStore(where.dir)
	}
	return openS3Store(where.s3, opt)
}
