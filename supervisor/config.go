package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/snapshot"
)

// Config is everything that a Supervisor needs to know. It is not changed after New.
type Config struct {
	Version string // for /status and the manifest

	Path    string        // of the child's executable
	Args    []string      // its argv, Args[0] included
	Restart RestartPolicy // what follows when it ends by itself
	Grace   time.Duration // from TERM to KILL in an ordinary stop

	HTTP         string // address of the health checks; empty: none
	HTTPRequired bool   // an address that is taken is an error, not a warning

	// Reload reads again what may change while the program runs, and logs what may not. Nil: nothing may.
	Reload func() error

	// Etcd says how the child is configured. Nil: the child is any other command, and all that follows is unused.
	Etcd *EtcdConfig
	// Serving asks the child whether it serves; nil where it cannot be asked.
	Serving func(context.Context) error

	Owner         *ownership.Settings // nil: ownership is not asked for, etcd is simply supervised
	Store         snapshot.Store      // nil: there is none
	Live          snapshot.LiveEtcd   // how to reach the child for a snapshot; the zero value where it cannot be reached
	Snapshots     Snapshotting        // what is taken while etcd runs
	NewCluster    bool                // nothing in the data directory and nothing in the store: bootstrap
	TakeOver      bool                // the instance that holds the generation under our own id is gone for good
	AcceptDamaged uint64              // go on from the newest snapshot after this generation, which ended damaged; 0: none
	// FaultPoint, for tests, is told each step of a handover, a restore and a claim that was just made. Nil: nobody is.
	FaultPoint func(step string)

	ExitWhenFenced bool // end after a handover instead of waiting for the way back
}

// The ways in which Run ends that have an exit code of their own.
var (
	// ErrUnfinished is returned by Run when it was told to end while a final snapshot was still owed.
	ErrUnfinished = errors.New("stopped before the final snapshot was stored; the next start resumes")
	// ErrFenced is returned by Run after a complete handover, with ExitWhenFenced.
	ErrFenced = errors.New("ownership lost, handover complete")
	// ErrSuperseded is returned by Run, with ExitWhenFenced, when somebody else had ended the generation.
	ErrSuperseded = errors.New("ownership lost, and somebody else ended the generation; the data is kept and was uploaded under late/")
	// ErrNothing is returned by Run without ownership where neither the data directory nor the store has anything.
	ErrNothing = errors.New("nothing to start from; if the cluster is new, say --new-cluster, otherwise check --data-dir and --store")
	// ErrStillOpen is returned by Run without ownership for an empty data directory whose generation somebody else holds.
	ErrStillOpen = errors.New("restore by hand (`etcd-warden restore`), or set --owner-name so that DNS says who may go on")
	// ErrNoIfAbsent is returned by Run with ownership where nothing but a claim could make the site serve, and the store
	// cannot decide who claims.
	ErrNoIfAbsent = errors.New("no create-only writes (If-None-Match): a site without data begins by claiming a generation, and here two could claim the same; use a store that has them, see docs/store.md")
	// ErrDataDir is returned by New for a data directory that cannot be looked into.
	ErrDataDir = errors.New("cannot be looked into; it is left alone")
	// ErrMembers is returned by New for a combination that would be unsafe.
	ErrMembers = errors.New("ownership with more than one initial cluster member is not supported yet: killing one of several members fences nothing; use one member, or run without --owner-name")
)

// Validate checks what belongs together.
func (c Config) Validate() error {
	if err := c.Snapshots.Validate(c.Store != nil, c.Live.Endpoint != ""); err != nil {
		return err
	}
	if c.Owner == nil {
		return nil
	}
	if c.Etcd == nil {
		return errors.New("--owner-name is for etcd: the command after -- is something else")
	}
	if c.Etcd.Members > 1 {
		return ErrMembers
	}
	return c.Owner.Validate()
}
