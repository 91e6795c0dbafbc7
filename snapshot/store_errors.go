package snapshot

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// What a caller of a Store branches on. Every error of a Store wraps one of these, the error of the context, or that of the caller's own reader.
var (
	// ErrExists: a Put with IfAbsent found another's object under the key.
	ErrExists = errors.New("object exists already")
	// ErrNotFound: no object under the key. It is only said when the store itself (bucket, directory) is known to be there.
	ErrNotFound = errors.New("no such object")
	// ErrNoStore: the bucket, or the store's directory, is not there (any more). It must never be taken for an empty store.
	ErrNoStore = errors.New("store not there")
	// ErrDenied: credentials missing, wrong, expired or not allowed to do this.
	ErrDenied = errors.New("access denied")
	// ErrUnavailable: the store does not answer, answers with a server error, or the line broke. Trying again later is the remedy.
	ErrUnavailable = errors.New("store unavailable")
	// ErrFull: the store has no room.
	ErrFull = errors.New("store full")
	// ErrInvalid: the URL, a key or a configuration cannot work as it is.
	ErrInvalid = errors.New("invalid")
)

// ThrottledError says that the store asked us to slow down. It comes wrapped together with ErrUnavailable.
type ThrottledError struct {
	After time.Duration // as the store asked for; 0 when it did not say
}

func (e *ThrottledError) Error() string {
	if e.After > 0 {
		return fmt.Sprintf("throttled by the store, which asks for %s", e.After)
	}
	return "throttled by the store"
}

// SkewError says that the store refuses requests because the clocks differ. It comes wrapped together with ErrDenied.
type SkewError struct {
	Offset time.Duration // the store's clock minus ours
}

func (e *SkewError) Error() string {
	return fmt.Sprintf("the store's clock differs from ours by %s", e.Offset.Round(time.Second))
}

// StoreError is the error of one call to a store.
type StoreError struct {
	Op    string // put, get, stat, list, delete, sweep, probe
	Key   string // empty when the call is not about one key
	Store string // Store.String()
	Kind  error  // one of the sentinels above
	Code  string // the server's own word, such as SlowDown; may be empty
	HTTP  int    // the status of the server's answer; 0 without one
	Hint  string // what to do about it; may be empty
	Retry bool   // worth trying again later, unchanged
	Err   error  // the cause; may be nil
}

func (e *StoreError) Error() string {
	var b strings.Builder
	if e.Op != "" { // not yet completed by the store's method
		b.WriteString(e.Op)
		if e.Key != "" {
			b.WriteString(" " + e.Key)
		}
		fmt.Fprintf(&b, " (%s): ", e.Store)
	}
	what := e.Kind.Error()
	switch {
	case e.Code != "" && e.HTTP != 0:
		what += fmt.Sprintf(" (%s, HTTP %d)", e.Code, e.HTTP)
	case e.Code != "":
		what += fmt.Sprintf(" (%s)", e.Code)
	case e.HTTP != 0:
		what += fmt.Sprintf(" (HTTP %d)", e.HTTP)
	}
	if e.Err != nil {
		// The cause may begin with the kind already, as in "store not there: directory X is gone": once is enough.
		what += ": " + strings.TrimPrefix(e.Err.Error(), e.Kind.Error()+": ")
	}
	b.WriteString(what)
	if e.Hint != "" {
		b.WriteString(": " + e.Hint)
	}
	return b.String()
}

// Unwrap makes both the kind and the cause visible to errors.Is and errors.As.
func (e *StoreError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// SourceError says that what was to be uploaded could not be read. The store is not to blame and retrying it does not help.
type SourceError struct {
	Err error
}

func (e *SourceError) Error() string { return "read what is to be uploaded: " + e.Err.Error() }

// Unwrap returns the source's own error.
func (e *SourceError) Unwrap() error { return e.Err }

// Retryable tells whether the same call may succeed later with nothing changed by anyone: the store was unavailable, throttled us, or a credential has to be
// renewed. It is false for everything that needs a decision or a repair (exists, not found, denied, full, invalid, corrupt, a broken source, an ended
// context). A handover that must not lose its snapshot goes on trying in those cases as well, only more slowly and with an alarm.
func Retryable(err error) bool {
	var source *SourceError
	var corrupt *CorruptError
	if err == nil || errors.As(err, &source) || errors.As(err, &corrupt) {
		return false
	}
	var call *StoreError
	if errors.As(err, &call) {
		return call.Retry
	}
	return errors.Is(err, ErrUnavailable)
}

// ThrottledFor returns how long the store asked to be left alone, or 0.
func ThrottledFor(err error) time.Duration {
	if t, ok := errors.AsType[*ThrottledError](err); ok {
		return t.After
	}
	return 0
}

func isSourceError(err error) bool {
	_, ok := errors.AsType[*SourceError](err)
	return ok
}
