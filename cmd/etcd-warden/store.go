package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

func (p *program) storeCommand() *cli.Command {
	return group("store", "look at the store", &cli.Command{
		Name: "check", Usage: "write and remove a small object, and tell what the store really does",
		Flags:  slices.Concat(commonFlags(), storeFlags(), []cli.Flag{jsonFlag()}),
		Action: p.oneShot(storeCheck),
	})
}

// group is a command that only has subcommands.
func group(name, usage string, subcommands ...*cli.Command) *cli.Command {
	cmd := &cli.Command{
		Name: name, Usage: usage, Subcommands: subcommands,
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return badConfig("unknown command %q; see `etcd-warden %s --help`", c.Args().First(), name)
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
	for _, sub := range subcommands {
		sub.OnUsageError = func(c *cli.Context, err error, _ bool) error {
			return badConfig("%w; see `etcd-warden %s %s --help`", err, name, c.Command.Name)
		}
	}
	return cmd
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "print JSON"}
}

// needStore opens the store of a command that is of no use without one.
func needStore(c *cli.Context, log zerolog.Logger, command string) (snapshot.Store, error) {
	store, err := openStore(c, log)
	if err == nil && store == nil {
		return nil, badConfig("%s needs --store URL", command)
	}
	return store, err
}

// storeReport is what `store check` prints.
type storeReport struct {
	Store             string `json:"store"`
	IfAbsent          bool   `json:"if_absent"`
	IfAbsentMultipart bool   `json:"if_absent_multipart"`
	Deletes           bool   `json:"deletes"`
	ClockOffsetMS     int64  `json:"clock_offset_ms"`
	TookMS            int64  `json:"took_ms"`
	Unfinished        int    `json:"unfinished_uploads_swept"`
}

// checkPatience bounds the whole check; each request has its own, shorter limits.
const checkPatience = 2 * time.Minute

// staleUploads is the age from which an unfinished upload is nobody's any more.
const staleUploads = 24 * time.Hour

func storeCheck(ctx context.Context, c *cli.Context, log zerolog.Logger) error {
	store, err := needStore(c, log, "store check")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	can, err := store.Probe(ctx)
	if err != nil {
		return err
	}
	swept, err := store.SweepUploads(ctx, "", staleUploads)
	if err != nil {
		log.Warn().Err(err).Msg("unfinished uploads not swept")
	}
	r := storeReport{Store: store.String(), IfAbsent: can.IfAbsent, IfAbsentMultipart: can.IfAbsentMultipart, Deletes: can.Deletes,
		ClockOffsetMS: can.ClockOffset.Milliseconds(), TookMS: can.Took.Milliseconds(), Unfinished: swept}
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(r)
	}
	return r.print(c.App.Writer)
}

func (r storeReport) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(what, value, meaning string) { fmt.Fprintf(w, "%s\t%s\t%s\n", what, value, meaning) }
	row("store", r.Store, "")
	row("create-only writes", yesNo(r.IfAbsent), either(r.IfAbsent, "decided by the store: it arbitrates between two sites",
		"not decided by the store: no generation is abandoned or claimed through it"))
	row("create-only uploads in parts", yesNo(r.IfAbsentMultipart), either(r.IfAbsentMultipart, "decided by the store", "asked for before, not decided by the store"))
	row("deletes", yesNo(r.Deletes), either(r.Deletes, "", "our credentials may not delete: retention is the bucket's own, and this check's object below probe/ stays"))
	offset := time.Duration(r.ClockOffsetMS) * time.Millisecond
	row("clock", offset.String(), either(offset.Abs() < time.Minute, "theirs minus ours", "theirs minus ours: set one of them, or requests will be refused"))
	row("unfinished uploads swept", fmt.Sprint(r.Unfinished), "")
	row("took", (time.Duration(r.TookMS) * time.Millisecond).String(), "")
	return w.Flush()
}

func yesNo(b bool) string { return either(b, "yes", "no") }

func either(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}
