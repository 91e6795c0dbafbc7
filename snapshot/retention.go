package snapshot

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Retention says which ordinary snapshots of a generation are kept. The zero value keeps everything. Each rule keeps what it names; a snapshot goes when no rule
// keeps it. A period without a snapshot does not count: three daily ones are those of the last three days that have any. Periods are those of UTC, weeks are
// ISO 8601's.
type Retention struct {
	Last                           int // this many, whatever their age
	Hourly, Daily, Weekly, Monthly int // the newest one of each of this many periods
	Within                         time.Duration
}

// Empty tells whether no rule is set, so that nothing is ever deleted.
func (r Retention) Empty() bool { return r == Retention{} }

// Validate refuses what cannot be meant.
func (r Retention) Validate() error {
	for _, rule := range r.rules() {
		if rule.n < 0 {
			return fmt.Errorf("--keep-%s must not be negative", rule.name)
		}
	}
	if r.Within < 0 {
		return errors.New("--keep-within must not be negative")
	}
	return nil
}

type retentionRule struct {
	name   string
	n      int
	period func(time.Time) string
}

func (r Retention) rules() []retentionRule {
	return []retentionRule{
		{"last", r.Last, nil},
		{"hourly", r.Hourly, func(t time.Time) string { return t.Format("2006-01-02 15") }},
		{"daily", r.Daily, func(t time.Time) string { return t.Format("2006-01-02") }},
		{"weekly", r.Weekly, func(t time.Time) string { year, week := t.ISOWeek(); return fmt.Sprintf("%d-W%02d", year, week) }},
		{"monthly", r.Monthly, func(t time.Time) string { return t.Format("2006-01") }},
	}
}

// RetentionDecision is what becomes of one snapshot. Reasons say why it is kept; there is none for one that goes.
type RetentionDecision struct {
	Manifest Manifest
	Keep     bool
	Reasons  []string
}

// Decide applies the rules to the snapshots of one generation, given from the oldest to the newest as ListManifests has them, at a time. Whatever the rules
// say, it keeps every final, the newest snapshot, and what is of another generation.
func (r Retention) Decide(generation uint64, oldestFirst []Manifest, now time.Time) []RetentionDecision {
	decisions := make([]RetentionDecision, len(oldestFirst))
	rules := r.rules()
	used, seen := make([]int, len(rules)), make([]string, len(rules))
	newest := true
	for i := len(oldestFirst) - 1; i >= 0; i-- {
		d := &decisions[i]
		d.Manifest = oldestFirst[i]
		keep := func(reason string) { d.Keep, d.Reasons = true, append(d.Reasons, reason) }
		if d.Manifest.Generation != generation {
			keep("another generation")
			continue
		}
		if newest {
			keep("newest")
			newest = false
		}
		if d.Manifest.Final {
			keep("final")
		}
		if r.Empty() {
			keep("no rule")
		}
		at := d.Manifest.CreatedAt.UTC()
		for k, rule := range rules {
			if used[k] == rule.n {
				continue
			}
			if rule.period != nil {
				period := rule.period(at)
				if period == seen[k] {
					continue // its newest one is kept already
				}
				seen[k] = period
			}
			used[k]++
			keep(fmt.Sprintf("%s %d of %d", rule.name, used[k], rule.n))
		}
		if r.Within > 0 && now.Sub(at) <= r.Within {
			keep("within " + r.Within.String())
		}
	}
	return decisions
}

// orphanAge is the age from which a snapshot without a manifest is the rest of a failed upload, and not one under way.
const orphanAge = 24 * time.Hour

// PruneResult is what Prune did, or would do.
type PruneResult struct {
	Decisions []RetentionDecision // from the oldest to the newest
	Orphans   []string            // keys of snapshots without a manifest, older than a day: they go too
	Damaged   []*CorruptError     // manifests that cannot be read: they stay, for people to judge
	Deleted   int                 // objects
	Freed     int64               // bytes
}

// Prune deletes what the rules do not keep from one generation, and nothing else. Besides what Decide keeps, the newest snapshot that is restorable, by what
// the store says of its size, stays; when there is none, everything stays. A manifest goes before its snapshot: an interrupted Prune leaves an orphan
// for the next one. With dryRun it deletes nothing.
func Prune(ctx context.Context, store Store, generation uint64, r Retention, now time.Time, dryRun bool) (PruneResult, error) {
	if err := r.Validate(); err != nil {
		return PruneResult{}, err
	}
	list, err := ListManifests(ctx, store, generation)
	if err != nil {
		return PruneResult{}, fmt.Errorf("prune: %w", err)
	}
	res := PruneResult{Decisions: r.Decide(generation, list.Manifests, now), Damaged: list.Damaged}
	if err := protectRestorable(ctx, store, res.Decisions); err != nil {
		return res, fmt.Errorf("prune: %w", err)
	}
	if res.Orphans, err = orphans(ctx, store, generation, now); err != nil {
		return res, fmt.Errorf("prune: %w", err)
	}
	if dryRun || r.Empty() {
		return res, nil
	}
	for _, d := range res.Decisions {
		if d.Keep {
			continue
		}
		for _, key := range []string{d.Manifest.ManifestKey(), d.Manifest.Key} {
			if err := store.Delete(ctx, key); err != nil {
				return res, fmt.Errorf("prune: %w", err)
			}
			res.Deleted++
		}
		res.Freed += d.Manifest.StoredBytes
	}
	for _, key := range res.Orphans {
		if err := store.Delete(ctx, key); err != nil {
			return res, fmt.Errorf("prune: %w", err)
		}
		res.Deleted++
	}
	return res, nil
}

// protectRestorable keeps the newest snapshot whose bytes the store still has.
func protectRestorable(ctx context.Context, store Store, decisions []RetentionDecision) error {
	for i := len(decisions) - 1; i >= 0; i-- {
		d := &decisions[i]
		object, err := store.Stat(ctx, d.Manifest.Key)
		switch {
		case err == nil && object.SizeBytes == d.Manifest.StoredBytes:
			d.Keep, d.Reasons = true, append(d.Reasons, "newest restorable")
			return nil
		case err != nil && !errors.Is(err, ErrNotFound):
			return err
		}
	}
	for i := range decisions {
		decisions[i].Keep, decisions[i].Reasons = true, append(decisions[i].Reasons, "none is restorable")
	}
	return nil
}

// orphans lists the snapshots of a generation that have no manifest and are too old to get one.
func orphans(ctx context.Context, store Store, generation uint64, now time.Time) ([]string, error) {
	owned := map[string]bool{}
	var data []Object
	for object, err := range store.List(ctx, GenerationPrefix(generation)) {
		if err != nil {
			return nil, err
		}
		if name, ok := ParseManifestKey(object.Key); ok {
			owned[name.DataKey()] = true // whether it can be read or not
		} else if _, ok := ParseSnapshotKey(object.Key); ok {
			data = append(data, object)
		}
	}
	var keys []string
	for _, object := range data {
		if !owned[object.Key] && now.Sub(object.ModTime) > orphanAge {
			keys = append(keys, object.Key)
		}
	}
	return keys, nil
}
