package supervisor

import (
	"context"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
)

// loss is why a handover begins.
type loss struct {
	proven bool // false: the lease ran out, and nobody said that somebody else owns the cluster
	reason string
}

// handover gives the data up: readiness off, etcd proven dead, the last state captured and stored, the generation ended.
// Nothing else in this program does any of the four, and each may be repeated: after a crash the next start finds the
// marker, or asks DNS and the journal, and comes back here with nothing left to kill.
//
// It runs beside the loop, which has handed it the child (nil when none runs). Only a second stop request ends ctx, and
// only then is the error not nil: whatever else fails is tried again. Until etcd is dead it waits for neither disk,
// store nor DNS.
func (s *Supervisor) handover(ctx context.Context, child *Child, why loss) error {
	began := time.Now()
	s.fencedEnds = 0

	// 1. Nobody is sent here any more. The marker is on its way to the disk, but nothing waits for it: if a crash comes
	// first, the next start cannot serve without asking DNS and the journal.
	s.unready(why)
	s.made("readiness off")

	// 2. Every process of etcd's group is reaped: the first proof. An unproven loss ends here, with etcd dead and nothing
	// given away until somebody says that we lost.
	if err := s.killEtcd(ctx, child, began); err != nil {
		return err
	}
	s.made("etcd dead")
	s.tell(ctx, ownership.ChildDead{})
	if !why.proven || s.journal == nil {
		return nil
	}

	// 3. Everything that etcd acknowledged goes to the store, for as long as it takes. The capture takes the lock that a
	// living etcd holds on its database: the second proof, which needs no process table. 4. A create-only entry in the
	// journal ends the generation. Nothing more can be acknowledged, so there is no hurry, only no giving up.
	s.enter(Capturing, why.reason)
	for attempt := 1; ; attempt++ {
		ev, err := s.finalize(ctx, began)
		if err == nil {
			s.tell(ctx, ev)
			s.sweepGeneration(ctx, ev)
			return nil
		}
		if err := s.backOff(ctx, attempt, err); err != nil {
			return err
		}
	}
}
