package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/supervisor"
)

// listedSnapshot is one line of `snapshot list`.
type listedSnapshot struct {
	snapshot.Manifest
	Role     string `json:"role"` // full, final, late, damaged
	Verified string `json:"verified"`
	Problem  string `json:"problem,omitempty"`
}

// The values of listedSnapshot.Verified.
const (
	notVerified = "unknown"
	verified    = "yes"
	unsound     = "no"
)

func snapshotList(ctx context.Context, c *cli.Context, log zerolog.Logger) error {
	if c.Args().Present() {
		return badConfig("unexpected argument %q", c.Args().First())
	}
	store, err := needStore(c, log, "snapshot list")
	if err != nil {
		return err
	}
	generations := []uint64{c.Uint64("generation")}
	if generations[0] == 0 {
		if generations, err = allGenerations(ctx, store); err != nil {
			return err
		}
	}
	lines, foreign := []listedSnapshot{}, 0
	for _, g := range generations {
		found, others, err := listGeneration(ctx, store, g)
		if err != nil {
			return err
		}
		lines, foreign = append(lines, found...), foreign+others
	}
	if c.Bool("verify") {
		if err := verifyListed(ctx, store, lines, log); err != nil {
			return err
		}
	}
	if foreign > 0 {
		log.Info().Int("count", foreign).Msg("objects that are not ours, or have no manifest")
	}
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(lines)
	}
	return printListed(c.App.Writer, lines, time.Now())
}

// allGenerations are those with snapshots and those that the journal's entries lead to.
func allGenerations(ctx context.Context, store snapshot.Store) ([]uint64, error) {
	generations, err := snapshot.Generations(ctx, store)
	if err != nil {
		return nil, err
	}
	head, err := supervisor.Journal{Store: store}.Head(ctx)
	if err == nil && !head.Empty && !slices.Contains(generations, head.Generation) {
		generations = append(generations, head.Generation) // its finals may all lie under late/
	}
	return generations, err
}

func listGeneration(ctx context.Context, store snapshot.Store, generation uint64) (lines []listedSnapshot, foreign int, err error) {
	for _, late := range []bool{false, true} {
		load := snapshot.ListManifests
		if late {
			load = snapshot.ListLate
		}
		list, err := load(ctx, store, generation)
		if err != nil {
			return nil, 0, err
		}
		for _, m := range list.Manifests {
			role := either(m.Final, "final", string(m.Kind))
			lines = append(lines, listedSnapshot{Manifest: m, Role: either(late, "late", role), Verified: notVerified})
		}
		for _, d := range list.Damaged {
			lines = append(lines, listedSnapshot{Manifest: snapshot.Manifest{Generation: generation, Key: d.Key}, Role: "damaged", Verified: unsound, Problem: d.Error()})
		}
		foreign += list.Foreign
	}
	return lines, foreign, nil
}

func verifyListed(ctx context.Context, store snapshot.Store, lines []listedSnapshot, log zerolog.Logger) error {
	for i := range lines {
		l := &lines[i]
		if l.Role == "damaged" {
			continue
		}
		err := snapshot.Verify(ctx, store, l.Manifest, progressLog(log, l.PlainBytes))
		var corrupt *snapshot.CorruptError
		switch {
		case err == nil:
			l.Verified = verified
		case errors.As(err, &corrupt), errors.Is(err, snapshot.ErrNotFound):
			l.Verified, l.Problem = unsound, err.Error()
		default:
			return err
		}
	}
	return nil
}

func printListed(out io.Writer, lines []listedSnapshot, now time.Time) error {
	if len(lines) == 0 {
		_, err := fmt.Fprintln(out, "no snapshots")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "GENERATION\tREVISION\tKIND\tCAPTURED\tAGE\tSIZE\tSTORED\tETCD\tVERIFIED\tKEY")
	for _, l := range lines {
		if l.Role == "damaged" {
			fmt.Fprintf(w, "%d\t-\t%s\t-\t-\t-\t-\t-\t%s\t%s\n", l.Generation, l.Role, l.Verified, l.Key)
			continue
		}
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Generation, l.Revision, l.Role, l.Captured, age(now.Sub(l.CreatedAt)), size(l.PlainBytes),
			size(l.StoredBytes), l.EtcdVersion, l.Verified, l.Key)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, l := range lines {
		if l.Problem != "" {
			fmt.Fprintln(out, l.Problem)
		}
	}
	return nil
}

func printPruned(out io.Writer, res snapshot.PruneResult, now time.Time) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, d := range res.Decisions {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", either(d.Keep, "keep", "delete"), age(now.Sub(d.Manifest.CreatedAt)), d.Manifest.Key,
			either(d.Keep, strings.Join(d.Reasons, ", "), "no rule keeps it"))
	}
	for _, key := range res.Orphans {
		fmt.Fprintf(w, "delete\t-\t%s\t%s\n", key, "the rest of a failed upload")
	}
	w.Flush() // what cannot be printed is logged nowhere else
}

// age is a duration as people say it, in its largest unit or two.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "in the future"
	case d < time.Minute:
		return d.Truncate(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// size is a number of bytes as people say it.
func size(bytes int64) string {
	v, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && v >= 1024 {
		v, units = v/1024, units[1:]
	}
	if units[0] == "B" {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", v, units[0])
}

// progressEvery is how often long work says how far it is.
const progressEvery = 5 * time.Second

// progressLog logs how far a transfer is, every few seconds.
func progressLog(log zerolog.Logger, total int64) func(plain, stored int64) {
	last := time.Now()
	return func(plain, stored int64) {
		if time.Since(last) < progressEvery {
			return
		}
		last = time.Now()
		e := log.Info().Int64("size_bytes", plain).Int64("stored_bytes", stored)
		if total > 0 {
			e = e.Int64("percent", plain*100/total)
		}
		e.Msg("under way")
	}
}
