package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/supervisor"
)

// keepFlags are the rules of retention.
func keepFlags() []cli.Flag {
	return []cli.Flag{
		intFlag(catStore, "keep-last", 0, "keep the last `N` ordinary snapshots of the generation; with no --keep-… nothing is ever deleted"),
		intFlag(catStore, "keep-hourly", 0, "keep the newest snapshot of each of the last `N` hours that have one"),
		intFlag(catStore, "keep-daily", 0, "the same for days (of UTC)"),
		intFlag(catStore, "keep-weekly", 0, "the same for weeks"),
		intFlag(catStore, "keep-monthly", 0, "the same for months"),
		durationFlag(catStore, "keep-within", 0, "keep all snapshots that are younger than this"),
	}
}

func etcdUserFlags() []cli.Flag {
	return []cli.Flag{
		stringFlag(catStore, "etcd-user", "", "with etcd's authentication on: a `USER` with the role root, for snapshots of the running etcd"),
		stringFlag(catStore, "etcd-password-file", "", "`FILE` with that user's password, read anew for each snapshot"),
	}
}

// scheduleFlags are those of `run` for snapshots while etcd runs.
func scheduleFlags() []cli.Flag {
	return slices.Concat([]cli.Flag{
		stringFlag(catStore, "snapshot-schedule", "", "take full snapshots while etcd runs: an `INTERVAL` (6h), a name (@daily) or five fields of cron (15 3 * * *)"),
		durationFlag(catStore, "snapshot-jitter", time.Minute, "a scheduled snapshot begins up to this much later (an interval: also earlier), at random"),
	}, keepFlags(), etcdUserFlags())
}

func retention(c *cli.Context) (snapshot.Retention, error) {
	r := snapshot.Retention{Last: c.Int("keep-last"), Hourly: c.Int("keep-hourly"), Daily: c.Int("keep-daily"), Weekly: c.Int("keep-weekly"),
		Monthly: c.Int("keep-monthly"), Within: c.Duration("keep-within")}
	if err := r.Validate(); err != nil {
		return r, badConfig("%w", err)
	}
	return r, nil
}

// snapshotting is the configuration of scheduled snapshots.
func snapshotting(c *cli.Context) (supervisor.Snapshotting, error) {
	schedule, err := supervisor.ParseSchedule(c.String("snapshot-schedule"))
	if err != nil {
		return supervisor.Snapshotting{}, badConfig("--snapshot-schedule: %w", err)
	}
	keep, err := retention(c)
	return supervisor.Snapshotting{Schedule: schedule, Jitter: c.Duration("snapshot-jitter"), Keep: keep}, err
}

func (p *program) snapshotCommand() *cli.Command {
	flags := func(own ...cli.Flag) []cli.Flag { return slices.Concat(commonFlags(), storeFlags(), own) }
	generation := &cli.Uint64Flag{Name: "generation", Usage: "of this `GENERATION` (default: the newest that has any)", Category: catStore}
	own := &cli.Uint64Flag{Name: "generation", Usage: "the `GENERATION` (default: the one that the journal says is open)", Category: catStore}
	return group("snapshot", "take, list, verify, fetch and delete snapshots",
		&cli.Command{
			Name: "take", Usage: "stream a snapshot of a running etcd into the store", ArgsUsage: "[-- etcd flags that endpoint and certificates are taken from]",
			Flags: slices.Concat(flags(own,
				&cli.StringFlag{Name: "endpoint", Usage: "client `URL` of the etcd", DefaultText: "http://127.0.0.1:2379, or as etcd's flags say"},
				&cli.StringFlag{Name: "cacert", Usage: "`FILE` with the authority of etcd's certificate"},
				&cli.StringFlag{Name: "cert", Usage: "`FILE` with our certificate"},
				&cli.StringFlag{Name: "key", Usage: "`FILE` with its key"}), etcdUserFlags()),
			Action: p.oneShot(snapshotTake),
		},
		&cli.Command{
			Name: "list", Usage: "list the snapshots of the store, the oldest first", Flags: flags(
				&cli.Uint64Flag{Name: "generation", Usage: "of this `GENERATION` alone", Category: catStore},
				&cli.BoolFlag{Name: "verify", Usage: "read every one, and say whether it is sound"}, jsonFlag()),
			Action: p.oneShot(snapshotList),
		},
		&cli.Command{
			Name: "verify", Usage: "read snapshots back and check size and hashes", ArgsUsage: "[KEY…]", Flags: flags(generation,
				&cli.BoolFlag{Name: "all", Usage: "all of the generation, not only the newest"},
				&cli.BoolFlag{Name: "deep", Usage: "also restore into a scratch directory, start an etcd on it that nobody can reach, and compare revision and keys"},
				&cli.StringFlag{Name: "scratch", Usage: "`DIRECTORY` for --deep, with room for twice the plain size", Value: os.TempDir()},
				&cli.StringFlag{Name: "etcd", Usage: "`PROGRAM` for --deep", Value: "etcd"}),
			Action: p.oneShot(snapshotVerify),
		},
		&cli.Command{
			Name: "fetch", Usage: "write a snapshot to a file that etcdutl takes", ArgsUsage: "[KEY] FILE", Flags: flags(generation),
			Action: p.oneShot(snapshotFetch),
		},
		&cli.Command{
			Name: "prune", Usage: "delete the ordinary snapshots of one generation that no rule keeps", Flags: slices.Concat(flags(own), keepFlags(), []cli.Flag{
				&cli.BoolFlag{Name: "dry-run", Usage: "say what would be kept and deleted, and why; delete nothing"}}),
			Action: p.oneShot(snapshotPrune),
		},
	)
}

// openGeneration is the one that is meant, or else the one that the journal says is open.
func openGeneration(ctx context.Context, c *cli.Context, store snapshot.Store) (uint64, error) {
	if g := c.Uint64("generation"); g > 0 {
		return g, nil
	}
	head, err := supervisor.Journal{Store: store}.Head(ctx)
	switch {
	case err != nil:
		return 0, err
	case !head.Held():
		return 0, fmt.Errorf("%s: no generation is open, the store has %s; start the etcd under etcd-warden with this store, or say --generation: %w", store, head.Describe(), snapshot.ErrNotFound)
	}
	return head.Generation, nil
}

// chosenSnapshots are those that the arguments name, by the key of the snapshot or of its manifest; without arguments the newest one, or all, of the
// generation.
func chosenSnapshots(ctx context.Context, c *cli.Context, store snapshot.Store, keys []string, all bool) ([]snapshot.Manifest, error) {
	var chosen []snapshot.Manifest
	for _, key := range keys {
		if m := snapshot.ManifestKey(key); m != "" {
			key = m
		}
		m, err := snapshot.LoadManifest(ctx, store, key)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, m)
	}
	if len(keys) > 0 {
		return chosen, nil
	}
	generation := c.Uint64("generation")
	if generation == 0 {
		generations, err := snapshot.Generations(ctx, store)
		if err != nil {
			return nil, err
		}
		if len(generations) == 0 {
			return nil, fmt.Errorf("%s holds no snapshot: %w", store, snapshot.ErrNotFound)
		}
		generation = generations[len(generations)-1]
	}
	if !all {
		m, err := snapshot.NewestManifest(ctx, store, generation)
		return []snapshot.Manifest{m}, err
	}
	list, err := snapshot.ListManifests(ctx, store, generation)
	if err != nil {
		return nil, err
	}
	var damaged error
	for _, d := range list.Damaged {
		damaged = errors.Join(damaged, d)
	}
	if len(list.Manifests) == 0 && damaged == nil {
		return nil, fmt.Errorf("generation %d has no snapshot: %w", generation, snapshot.ErrNotFound)
	}
	return list.Manifests, damaged
}

func snapshotFetch(ctx context.Context, c *cli.Context, log zerolog.Logger) error {
	args := c.Args().Slice()
	if len(args) < 1 || len(args) > 2 {
		return badConfig("want a file to write, and before it the key of a snapshot where it is not the newest: etcd-warden snapshot fetch [KEY] FILE")
	}
	store, err := needStore(c, log, "snapshot fetch")
	if err != nil {
		return err
	}
	file := args[len(args)-1]
	chosen, err := chosenSnapshots(ctx, c, store, args[:len(args)-1], false)
	if err != nil {
		return err
	}
	m := chosen[0]
	err = snapshot.FetchFile(ctx, store, m, file, progressLog(log, m.PlainBytes))
	if errors.Is(err, os.ErrExist) {
		return badConfig("%s is there already; it is not replaced", file)
	}
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s: revision %d, %s, SHA-256 %s\n", abs, m.Revision, size(m.PlainBytes), m.PlainSHA256)
	return err
}

func snapshotPrune(ctx context.Context, c *cli.Context, log zerolog.Logger) error {
	if c.Args().Present() {
		return badConfig("unexpected argument %q", c.Args().First())
	}
	rules, err := retention(c)
	if err != nil {
		return err
	}
	if rules.Empty() {
		return badConfig("snapshot prune needs at least one --keep-… that says what stays")
	}
	store, err := needStore(c, log, "snapshot prune")
	if err != nil {
		return err
	}
	generation, err := openGeneration(ctx, c, store)
	if err != nil {
		return err
	}
	dry := c.Bool("dry-run")
	res, err := snapshot.Prune(ctx, store, generation, rules, time.Now(), dry)
	printPruned(c.App.Writer, res, time.Now())
	for _, d := range res.Damaged {
		log.Warn().Err(d).Msg("manifest cannot be read; it is left alone")
	}
	if err != nil {
		return err
	}
	if dry {
		_, err = fmt.Fprintf(c.App.Writer, "generation %d: nothing was deleted (--dry-run)\n", generation)
	} else {
		_, err = fmt.Fprintf(c.App.Writer, "generation %d: %d objects deleted, %s freed\n", generation, res.Deleted, size(res.Freed))
	}
	return err
}
