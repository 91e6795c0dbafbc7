package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Listing is what a generation holds.
type Listing struct {
	Manifests []Manifest      // oldest first: by revision, then by time
	Damaged   []*CorruptError // manifests that cannot be read; each may be the newest
	Foreign   int             // objects that are not ours, or have no manifest
}

// LoadManifest reads and checks one manifest. An unreadable one is a *CorruptError, an absent one ErrNotFound.
func LoadManifest(ctx context.Context, store Store, key string) (Manifest, error) {
	bad := func(detail string, err error) (Manifest, error) {
		return Manifest{}, &CorruptError{Key: key, Damage: DamageManifest, Detail: detail, Err: err}
	}
	if _, ok := ParseManifestKey(key); !ok {
		return bad("it is not the key of a manifest", nil)
	}
	body, object, err := store.Get(ctx, key, 0)
	if err != nil {
		return Manifest{}, fmt.Errorf("load manifest: %w", err)
	}
	reader := &storeReader{r: body}
	m, err := DecodeManifest(reader)
	err = errors.Join(err, body.Close())
	switch {
	case reader.err != nil:
		return Manifest{}, fmt.Errorf("load manifest %s: %w", key, reader.err)
	case err != nil:
		return bad(fmt.Sprintf("%d bytes", object.SizeBytes), err)
	case m.ManifestKey() != key:
		return bad(fmt.Sprintf("it speaks of %s", m.Key), nil)
	}
	return m, nil
}

// ListManifests reads every manifest of a generation. Foreign objects are counted, not read; damaged manifests are reported beside the good ones.
func ListManifests(ctx context.Context, store Store, generation uint64) (Listing, error) {
	return listManifests(ctx, store, GenerationPrefix(generation))
}

// ListLate is ListManifests for the finals of a generation that came too late.
func ListLate(ctx context.Context, store Store, generation uint64) (Listing, error) {
	return listManifests(ctx, store, LatePrefix(generation))
}

func listManifests(ctx context.Context, store Store, prefix string) (Listing, error) {
	var l Listing
	data := make(map[string]bool)
	var keys []string
	for object, err := range store.List(ctx, prefix) {
		if err != nil {
			return Listing{}, fmt.Errorf("list manifests: %w", err)
		}
		if _, ok := ParseManifestKey(object.Key); ok {
			keys = append(keys, object.Key)
		} else if _, ok := ParseSnapshotKey(object.Key); ok {
			data[object.Key] = true
		} else {
			l.Foreign++
		}
	}
	for _, key := range keys {
		m, err := LoadManifest(ctx, store, key)
		if damage, ok := errors.AsType[*CorruptError](err); ok {
			l.Damaged = append(l.Damaged, damage)
			continue
		}
		if errors.Is(err, ErrNotFound) {
			continue // deleted since it was listed
		}
		if err != nil {
			return Listing{}, fmt.Errorf("list manifests: %w", err)
		}
		delete(data, m.Key)
		l.Manifests = append(l.Manifests, m)
	}
	l.Foreign += len(data)
	return l, nil
}

// NewestManifest returns the manifest of the newest snapshot of a generation, or ErrNotFound. When the newest one is damaged it returns that damage as a
// *CorruptError: to go back to an older one loses writes, which is for the operator to decide.
func NewestManifest(ctx context.Context, store Store, generation uint64) (Manifest, error) {
	newest := ""
	for object, err := range store.List(ctx, GenerationPrefix(generation)) {
		if err != nil {
			return Manifest{}, fmt.Errorf("find newest manifest: %w", err)
		}
		if _, ok := ParseManifestKey(object.Key); ok {
			newest = object.Key // keys are sorted by revision, then by time
		}
	}
	if newest == "" {
		return Manifest{}, fmt.Errorf("find newest manifest of generation %d: %w", generation, ErrNotFound)
	}
	return LoadManifest(ctx, store, newest)
}

// Generations lists the generations that have any object, in ascending order.
func Generations(ctx context.Context, store Store) ([]uint64, error) {
	var generations []uint64
	for object, err := range store.List(ctx, generationsPrefix) {
		if err != nil {
			return nil, fmt.Errorf("list generations: %w", err)
		}
		if g, ok := ParseGeneration(object.Key); ok && !slices.Contains(generations, g) {
			generations = append(generations, g)
		}
	}
	slices.Sort(generations)
	return generations, nil
}

// storeReader keeps the store's own read error apart from what a decoder makes of the bytes.
type storeReader struct {
	r   io.Reader
	err error
}

func (s *storeReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}
