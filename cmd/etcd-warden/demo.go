package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"
)

const (
	demoRecord = "owner.demo.test."
	siteA      = "site-a"
	siteB      = "site-b"
)

func (p *program) demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "watch an ownership change, start to end, on loopback: a DNS record moves, one etcd dies, its final snapshot is stored, another starts from it",
		Flags: slices.Concat(commonFlags(), []cli.Flag{
			&cli.StringFlag{Name: "store", Value: "file", Usage: "`KIND` of the store that both sites share: file, or s3 (starts a real S3 server)"},
			&cli.DurationFlag{Name: "bucket-down", Usage: "the store refuses everything from the move of the record on, for this long"},
			&cli.BoolFlag{Name: "hang-etcd", Usage: "stop the old etcd (SIGSTOP) so that it cannot act on TERM"},
			&cli.IntFlag{Name: "keys", Value: 2000, Usage: "writes that must be acknowledged before the record moves"},
			&cli.BoolFlag{Name: "json", Usage: "print the timeline and the result as JSON lines"},
			&cli.StringFlag{Name: "etcd", Usage: "etcd `BINARY` (default: beside this program, else in $PATH)"},
		}),
		Action: p.oneShot(runDemo),
	}
}

// demo is one run of the story.
type demo struct {
	t          *timeline
	dir        string
	self, etcd string
	store      *demoStore
	record     *recordServer
	bucketDown time.Duration
	hang       bool
	keys       int
	old, heir  *site
	writer     *writer
}

// result is the demo's last line.
type result struct {
	Result       string `json:"result"`
	Acknowledged int    `json:"acknowledged"`
	Missing      int    `json:"missing"`
	Late         int    `json:"late"`
	FenceMS      int64  `json:"fence_ms"`   // record moved until the old etcd was proven dead
	FinalMS      int64  `json:"final_ms"`   // record moved until the final snapshot was committed
	ServingMS    int64  `json:"serving_ms"` // record moved until the new etcd served
}

func runDemo(ctx context.Context, c *cli.Context, _ zerolog.Logger) (err error) {
	if c.Int("keys") < 1 {
		return badConfig("--keys %d: want at least 1", c.Int("keys"))
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute+c.Duration("bucket-down"))
	defer cancel()
	d := &demo{t: newTimeline(os.Stdout, c.Bool("json")), bucketDown: c.Duration("bucket-down"), hang: c.Bool("hang-etcd"), keys: c.Int("keys")}
	if d.self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if d.etcd, err = findEtcd(c.String("etcd"), d.self); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "etcd-warden-demo-"); err != nil {
		return fmt.Errorf("make a directory for the demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	switch c.String("store") {
	case "file":
		d.store, err = directoryStore(d.dir)
	case "s3":
		d.store, err = s3Store(ctx, d.dir, filepath.Join(filepath.Dir(d.self), "versitygw"))
	default:
		err = badConfig("--store %q: want file or s3", c.String("store"))
	}
	if err != nil {
		return err
	}
	defer d.store.stop()
	if !c.Bool("json") {
		fmt.Printf("Two sites on loopback, one owner record, one store (%s). %d clients write to %s; after %d acknowledged writes the record moves to %s.\n\n",
			c.String("store"), writerClients, siteA, d.keys, siteB)
	}
	r, err := d.play(ctx)
	if err != nil {
		return err
	}
	return d.report(r, c.Bool("json"))
}

func (d *demo) report(r result, asJSON bool) error {
	if asJSON {
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			return err
		}
	} else {
		fmt.Printf("\nhandover %s: acknowledged=%d missing=%d late=%d fence_ms=%d final_ms=%d serving_ms=%d\n",
			r.Result, r.Acknowledged, r.Missing, r.Late, r.FenceMS, r.FinalMS, r.ServingMS)
	}
	if r.Result != "ok" {
		return fmt.Errorf("%d acknowledged writes are missing on the new site, %d were acknowledged after the old etcd's death", r.Missing, r.Late)
	}
	return nil
}

// play runs the story: site A owns and serves, B waits, the record moves, B takes over.
func (d *demo) play(ctx context.Context) (result, error) {
	var jobs sync.WaitGroup
	defer jobs.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	record, dnsDone, err := serveRecord(ctx, demoRecord, 1, siteA)
	if err != nil {
		return result{}, err
	}
	d.record = record
	defer func() { cancel(); <-dnsDone }()
	defer d.stopSites(ctx)
	if err := d.startSites(ctx); err != nil {
		return result{}, err
	}
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	d.writer = newWriter(newGateway(d.old.client), d.keys)
	jobs.Go(func() { d.writer.run(writing) })
	select {
	case <-d.writer.enough:
	case <-d.old.ended:
		return result{}, errors.New("site-a ended before the record moved")
	case <-ctx.Done():
		return result{}, context.Cause(ctx)
	}
	moved, err := d.move(ctx, &jobs)
	if err != nil {
		return result{}, err
	}
	return d.takeOver(ctx, moved, stopWriting)
}

// startSites starts A, which owns the record, and once that serves B, which has to wait.
func (d *demo) startSites(ctx context.Context) (err error) {
	flags := []string{"--store", d.store.url, "--owner-name", demoRecord, "--owner-servers", d.record.addr, "--owner-record-ttl", "1s",
		"--owner-interval", "1s", "--owner-suspect-interval", "200ms", "--owner-poll-timeout", "1s",
		"--owner-store-check", "500ms"}
	// Only the first site may ever begin with nothing.
	if d.old, err = startSite(siteA, d, append(flags, "--new-cluster")); err != nil {
		return err
	}
	if _, err := d.t.await(ctx, siteA, "etcd serving"); err != nil {
		return err
	}
	d.heir, err = startSite(siteB, d, flags)
	return err
}

func (d *demo) stopSites(ctx context.Context) {
	for _, s := range []*site{d.heir, d.old} {
		if s != nil {
			s.stop(ctx, 15*time.Second)
		}
	}
}

// move changes the record, after whatever is to go wrong has gone wrong.
func (d *demo) move(ctx context.Context, jobs *sync.WaitGroup) (time.Time, error) {
	if d.bucketDown > 0 {
		if err := d.store.down(true); err != nil {
			return time.Time{}, fmt.Errorf("take the store down: %w", err)
		}
		d.t.note("store", "store down", nil)
		jobs.Go(func() { d.storeReturns(ctx) })
	}
	if d.hang {
		started, err := d.t.await(ctx, siteA, "etcd started")
		if err != nil {
			return time.Time{}, err
		}
		pid, _ := started.Fields["pid"].(float64)
		d.t.note(siteA, "etcd hung", map[string]any{"pid": int(pid)})
		jobs.Go(func() { d.keepHung(ctx, int(pid)) })
	}
	d.t.note("record", "record moved", map[string]any{"owner": siteB})
	moved := time.Now()
	d.record.set(siteB)
	return moved, nil
}

func (d *demo) storeReturns(ctx context.Context) {
	select {
	case <-time.After(d.bucketDown):
	case <-ctx.Done():
	}
	if err := d.store.down(false); err != nil {
		d.t.note("store", "store not brought back", map[string]any{"error": err.Error()})
		return
	}
	d.t.note("store", "store back", nil)
}

// keepHung stops the old etcd again and again until it is dead: the warden sends CONT after TERM, and this etcd is to be
// one that cannot act on either.
func (d *demo) keepHung(ctx context.Context, pid int) {
	dead := make(chan struct{})
	go func() { defer close(dead); d.t.await(ctx, siteA, "etcd dead") }()
	pidfd, err := os.FindProcess(pid) // holds a pidfd: a later process with the same number is never hit
	if err != nil {
		return
	}
	defer pidfd.Release()
	for {
		pidfd.Signal(syscall.SIGSTOP)
		select {
		case <-dead:
			return
		case <-time.After(200 * time.Microsecond):
		}
	}
}

// takeOver waits for the end of the old etcd and the service of the new one, then compares.
func (d *demo) takeOver(ctx context.Context, moved time.Time, stopWriting func()) (result, error) {
	dead, err := d.t.await(ctx, siteA, "etcd dead")
	if err != nil {
		return result{}, err
	}
	final, err := d.t.await(ctx, siteA, "final journalled")
	if err != nil {
		return result{}, err
	}
	serving, err := d.t.await(ctx, siteB, "etcd serving")
	if err != nil {
		return result{}, err
	}
	stopWriting()
	d.t.end()
	missing, late, err := d.writer.verify(ctx, newGateway(d.heir.client), dead.At)
	if err != nil {
		return result{}, fmt.Errorf("read what the new site has: %w", err)
	}
	r := result{Result: "ok", Acknowledged: d.writer.count(), Missing: missing, Late: late, FenceMS: dead.At.Sub(moved).Milliseconds(),
		FinalMS: final.At.Sub(moved).Milliseconds(), ServingMS: serving.At.Sub(moved).Milliseconds()}
	if missing > 0 || late > 0 {
		r.Result = "failed"
	}
	return r, nil
}

// findEtcd resolves the etcd binary: the one given, the one beside this program, or the one in $PATH.
func findEtcd(given, self string) (string, error) {
	beside := filepath.Join(filepath.Dir(self), "etcd")
	if given == "" {
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
		given = "etcd"
	}
	path, err := exec.LookPath(given)
	if err != nil {
		return "", badConfig("etcd not found beside %s nor in $PATH (%w): run `make tools`, or say --etcd PATH", self, err)
	}
	return filepath.Abs(path)
}
