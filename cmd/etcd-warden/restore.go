package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/supervisor"
)

func (p *program) restoreCommand() *cli.Command {
	return &cli.Command{
		Name:      "restore",
		Usage:     "make a data directory from a snapshot in the store, or from a snapshot file",
		ArgsUsage: "[-- etcd flags that name, cluster and peer URLs are taken from]",
		Flags: slices.Concat(commonFlags(), storeFlags(), []cli.Flag{
			stringFlag(catChild, "data-dir", "", "target `DIRECTORY`"),
			&cli.StringFlag{Name: "file", Usage: "restore this plain snapshot `FILE` (of etcdctl or etcdutl) instead of one in the store", Category: catStore},
			&cli.StringFlag{Name: "snapshot", Usage: "`KEY` of the snapshot's manifest in the store (default: the newest final)", Category: catStore},
			&cli.Uint64Flag{Name: "generation", Usage: "restore the final of this `GENERATION`", Category: catStore},
			&cli.StringFlag{Name: "name", Usage: "member `NAME`", Category: catChild},
			&cli.StringFlag{Name: "initial-cluster", Usage: "as etcd's flag", Category: catChild},
			&cli.StringFlag{Name: "initial-cluster-token", Usage: "as etcd's flag", Category: catChild},
			&cli.StringSliceFlag{Name: "initial-advertise-peer-urls", Usage: "as etcd's flag", Category: catChild},
			&cli.BoolFlag{Name: "force-rename", Usage: "a target that is not empty is renamed, and the new directory takes its place", Category: catChild},
		}),
		Action: p.oneShot(restore),
	}
}

func restore(ctx context.Context, c *cli.Context, log zerolog.Logger) error {
	cfg, err := restoreTarget(c)
	if err != nil {
		return err
	}
	switch file, store := c.String("file"), c.String("store"); {
	case file != "" && store != "":
		return badConfig("--file and --store: give one of them")
	case file != "":
		cfg.File = file
	case store != "":
		if err := restoreSource(ctx, c, log, &cfg); err != nil {
			return err
		}
	default:
		return badConfig("nothing to restore from: give --store URL or --file FILE")
	}
	if err := cfg.Validate(); err != nil {
		return badConfig("%w", err)
	}
	began := time.Now()
	res, err := snapshot.Restore(ctx, cfg)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.App.Writer, "restored revision %d to %s in %s\n", res.Revision, res.DataDir, time.Since(began).Round(time.Millisecond))
	if res.Replaced != "" {
		fmt.Fprintf(c.App.Writer, "what was there is now %s\n", res.Replaced)
	}
	return nil
}

// restoreTarget takes member and cluster from our flags or, where one is missing, from etcd's.
func restoreTarget(c *cli.Context) (snapshot.RestoreConfig, error) {
	args := c.Args().Slice()
	if len(args) > 0 && filepath.Base(args[0]) == "etcd" {
		args = args[1:]
	}
	e, err := supervisor.ParseEtcd(args, os.Environ())
	if err != nil {
		return snapshot.RestoreConfig{}, badConfig("etcd's flags: %w", err)
	}
	set := func(to *string, flag string) {
		if v := c.String(flag); v != "" {
			*to = v
		}
	}
	set(&e.DataDir, "data-dir")
	set(&e.Name, "name")
	set(&e.InitialCluster, "initial-cluster")
	set(&e.InitialClusterToken, "initial-cluster-token")
	if urls := c.StringSlice("initial-advertise-peer-urls"); len(urls) > 0 {
		e.InitialAdvertisePeerURLs = urls
	}
	if c.String("data-dir") == "" && len(args) == 0 && os.Getenv("ETCD_DATA_DIR") == "" {
		return snapshot.RestoreConfig{}, badConfig("no target: give --data-dir DIRECTORY, or etcd's own flags after --")
	}
	return snapshot.RestoreConfig{
		DataDir: e.DataDir, WALDir: e.WALDir, Name: e.Name, InitialCluster: e.InitialCluster, InitialClusterToken: e.InitialClusterToken,
		PeerURLs: e.InitialAdvertisePeerURLs, ForceRename: c.Bool("force-rename"),
	}, nil
}

// restoreSource finds the snapshot in the store: the one named, or the final of a generation, by default the newest.
func restoreSource(ctx context.Context, c *cli.Context, log zerolog.Logger, cfg *snapshot.RestoreConfig) error {
	store, err := openStore(c, log)
	if err != nil {
		return err
	}
	var m snapshot.Manifest
	if key := c.String("snapshot"); key != "" {
		m, err = snapshot.LoadManifest(ctx, store, key)
	} else {
		m, err = finalOf(ctx, store, c.Uint64("generation"))
	}
	if err != nil {
		return err
	}
	log.Info().Uint64("generation", m.Generation).Int64("revision", m.Revision).Str("key", m.Key).Bool("final", m.Final).Msg("snapshot chosen")
	cfg.Revision = m.Revision
	cfg.Source = func(ctx context.Context, w io.Writer) error { return snapshot.Download(ctx, store, m, w, nil) }
	return nil
}

func finalOf(ctx context.Context, store snapshot.Store, generation uint64) (snapshot.Manifest, error) {
	entry, ok, err := supervisor.Journal{Store: store}.Final(ctx, generation)
	switch {
	case err != nil:
		return snapshot.Manifest{}, err
	case !ok && generation == 0:
		return snapshot.Manifest{}, fmt.Errorf("%s has no generation that was ended; wait for it with `etcd-warden await-final`, or name a snapshot with --snapshot: %w", store, snapshot.ErrNotFound)
	case !ok:
		return snapshot.Manifest{}, fmt.Errorf("%s: generation %d was not ended: %w", store, generation, snapshot.ErrNotFound)
	}
	return supervisor.Newest(ctx, store, ownership.Head{Entry: entry})
}

func (p *program) awaitFinalCommand() *cli.Command {
	return &cli.Command{
		Name:  "await-final",
		Usage: "wait until a generation is ended by its final snapshot, and print it",
		Flags: slices.Concat(commonFlags(), storeFlags(), []cli.Flag{
			&cli.Uint64Flag{Name: "generation", Usage: "the `GENERATION` (default: the one that the journal ends with)"},
			&cli.DurationFlag{Name: "timeout", Usage: "give up after this long with exit code 124 (0: never)"},
			&cli.DurationFlag{Name: "every", Value: 2 * time.Second, Usage: "between two looks at the journal"},
		}),
		Action: p.oneShot(awaitFinal),
	}
}

func awaitFinal(ctx context.Context, c *cli.Context, log zerolog.Logger) error {
	store, err := openStore(c, log)
	if err != nil {
		return err
	}
	if store == nil {
		return badConfig("await-final needs --store URL")
	}
	if c.Duration("every") <= 0 || c.Duration("timeout") < 0 {
		return badConfig("--every must be positive and --timeout not negative")
	}
	if d := c.Duration("timeout"); d > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeoutCause(ctx, d, errTimedOut)
		defer cancel()
	}
	every := time.NewTicker(c.Duration("every"))
	defer every.Stop()
	for generation := c.Uint64("generation"); ; {
		entry, ok, err := (supervisor.Journal{Store: store}).Final(ctx, generation)
		switch {
		case ok && entry.Kind == ownership.Abandoned:
			return fmt.Errorf("generation %d was abandoned without a final snapshot (%s): %w", entry.Generation, entry.Reason, snapshot.ErrNotFound)
		case ok && entry.Damaged != "":
			_, err := supervisor.Newest(ctx, store, ownership.Head{Entry: entry})
			return err
		case ok:
			_, err := fmt.Fprintf(c.App.Writer, "generation %d ended at revision %d: %s\n", entry.Generation, entry.Snapshot.Revision, entry.Snapshot.Manifest)
			return err
		case err != nil && ctx.Err() == nil && !snapshot.Retryable(err):
			return err
		case err != nil && ctx.Err() == nil:
			log.Warn().Err(err).Msg("journal not read")
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}
