package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/snapshot"
)

// Journal is the store's write-once record of who owned which generation. The rules are ownership's; this type moves
// entries to and from the store. It is safe for concurrent use.
type Journal struct{ Store snapshot.Store }

// ErrEntryExists is returned by Append when another entry already stands at that place of the journal.
var ErrEntryExists = errors.New("the journal has another entry at this place")

// Head is the journal's last entry.
func (j Journal) Head(ctx context.Context) (ownership.Head, error) {
	last := uint64(0)
	for obj, err := range j.Store.List(ctx, snapshot.JournalPrefix) {
		if err != nil {
			return ownership.Head{}, fmt.Errorf("list journal: %w", err)
		}
		seq, ok := snapshot.ParseJournalKey(obj.Key)
		if !ok {
			continue
		}
		if seq != last+1 {
			return ownership.Head{}, fmt.Errorf("journal of %s: entry %d is missing before entry %d; the store lost it or somebody removed it", j.Store, last+1, seq)
		}
		last = seq
	}
	if last == 0 {
		return ownership.Head{Empty: true}, nil
	}
	e, err := j.Entry(ctx, last)
	return ownership.Head{Entry: e}, err
}

// Entry reads one entry. The error wraps snapshot.ErrNotFound where there is none.
func (j Journal) Entry(ctx context.Context, seq uint64) (ownership.Entry, error) {
	key := snapshot.JournalKey(seq)
	body, _, err := j.Store.Get(ctx, key, 0)
	if err != nil {
		return ownership.Entry{}, fmt.Errorf("read journal entry %d: %w", seq, err)
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, ownership.MaxEntrySize+1))
	if err != nil {
		return ownership.Entry{}, fmt.Errorf("read journal entry %d: %w", seq, err)
	}
	e, err := ownership.DecodeEntry(b)
	if err != nil {
		return ownership.Entry{}, fmt.Errorf("%s in %s: %w", key, j.Store, err)
	}
	if e.Seq != seq {
		return ownership.Entry{}, fmt.Errorf("%s in %s holds entry %d: somebody copied it there", key, j.Store, e.Seq)
	}
	return e, nil
}

// Final finds the entry that ended a generation, the newest one for generation 0. ok is false where no such generation
// has ended.
func (j Journal) Final(ctx context.Context, generation uint64) (e ownership.Entry, ok bool, err error) {
	head, err := j.Head(ctx)
	if err != nil || head.Empty {
		return ownership.Entry{}, false, err
	}
	for e = head.Entry; ; {
		ends := e.Kind == ownership.Final || e.Kind == ownership.Abandoned
		if ends && (generation == 0 || e.Generation == generation) {
			return e, true, nil
		}
		if e.Seq == 1 || e.Generation < generation || (generation == 0 && e.Kind == ownership.Claim) {
			return ownership.Entry{}, false, nil
		}
		if e, err = j.Entry(ctx, e.Seq-1); err != nil {
			return ownership.Entry{}, false, err
		}
	}
}

// Append writes e create-only. Nil means that e stands in the journal, whether this call wrote it or an earlier try
// whose answer was lost. The error wraps ErrEntryExists when somebody else was first.
func (j Journal) Append(ctx context.Context, e ownership.Entry) error {
	b, err := e.Encode()
	if err != nil {
		return err
	}
	_, err = j.Store.Put(ctx, snapshot.JournalKey(e.Seq), bytes.NewReader(b), snapshot.PutOptions{
		IfAbsent: true, ContentType: "application/json", Size: int64(len(b))})
	if err == nil {
		return nil
	}
	if !errors.Is(err, snapshot.ErrExists) {
		return fmt.Errorf("append %s to the journal: %w", e.Kind, err)
	}
	there, err := j.Entry(ctx, e.Seq)
	if err != nil {
		return err
	}
	if there.Instance == e.Instance && there.Kind == e.Kind && there.Generation == e.Generation {
		return nil // our own entry, from a try that we took for failed
	}
	return fmt.Errorf("%w: %s", ErrEntryExists, ownership.Head{Entry: there}.Describe())
}
