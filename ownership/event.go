package ownership

import "time"

// Event is something that the supervisor tells a [Machine].
type Event interface{ event() }

// The events. All are values; the texts in them are for people only and decide nothing.
type (
	// VerdictEvent is the outcome of one poll.
	VerdictEvent struct{ Verdict }
	// HeadEvent is the outcome of a read of the journal.
	HeadEvent struct{ Head Head }
	// HeadFailed says that the journal could not be read: the store is unreachable, or an entry is broken.
	HeadFailed struct{ Reason string }
	// Appended says that our entry is in the journal.
	Appended struct{ Entry Entry }
	// AppendRefused says that another entry was there first, or that ours may not follow what is there; Head is the head now.
	// Kind is what was asked for; empty stands for the one that the machine waits for.
	AppendRefused struct {
		Kind EntryKind
		Head Head
	}
	// AppendFailed says that the store did not answer. The entry may be there or not.
	AppendFailed struct{ Reason string }
	// ChildDead says that after a [Fence] every process of etcd is reaped, its group is empty and its lock is free. The
	// supervisor sends it also when there was nothing to kill.
	ChildDead struct{}
	// Restored says that a [Restore] is done: the data directory holds the verified snapshot of the head.
	Restored struct{}
	// RestoreFailed says that a [Restore] did not succeed. The data directory is as it was.
	RestoreFailed struct{ Reason string }
	// Tick says that time went by; see [Machine.Wake].
	Tick struct{}
)

func (VerdictEvent) event()  {}
func (HeadEvent) event()     {}
func (HeadFailed) event()    {}
func (Appended) event()      {}
func (AppendRefused) event() {}
func (AppendFailed) event()  {}
func (ChildDead) event()     {}
func (Restored) event()      {}
func (RestoreFailed) event() {}
func (Tick) event()          {}

// Action is something that a [Machine] tells the supervisor to do. Actions are done in the order given.
type Action interface{ action() }

// The actions. Those that end with an event are asked for again by the machine when they must be repeated, so the
// supervisor needs no retry of its own, except for [Finalize].
type (
	// Poll asks for the next poll After from now in place of the scheduled one, by TCP alone if TCP.
	Poll struct {
		After time.Duration
		TCP   bool
	}
	// ReadJournal asks for one read of the journal After from now, in place of one that is scheduled and not begun. It ends
	// with HeadEvent or HeadFailed.
	ReadJournal struct{ After time.Duration }
	// Append asks for one create-only entry after [Machine.Head], built by the Next function of its kind. It ends with
	// Appended, AppendRefused or AppendFailed. A Final is asked for only when the snapshot of an earlier Finalize is stored
	// and its entry was refused because we had ourselves moved the head on; Reason goes into the entry.
	Append struct {
		Kind   EntryKind
		Reason string
	}
	// Serve asks to start etcd for clients. The machine is then Owner.
	Serve struct{}
	// Fence asks to kill etcd, whatever else hangs. It ends with ChildDead.
	Fence struct {
		Lost   bool // false: the lease ran out, nobody said that we lost
		Reason string
	}
	// Mark asks to write the marker beside the data directory. Best effort: nothing waits for it.
	Mark struct {
		Phase      Phase
		Generation uint64
	}
	// Finalize asks to capture the dead etcd, store the snapshot and append the Final, again and again until it ends with
	// Appended or AppendRefused. If Late, the generation is closed already: the snapshot goes below late/ and nothing is appended.
	Finalize struct{ Late bool }
	// Restore asks to put the snapshot of Head into the data directory, verified: of a final exactly that one (our own data
	// may be kept when its revision is the same and it was never served since), of an abandoned generation the newest that
	// verifies. It ends with Restored or RestoreFailed.
	Restore struct{ Head Head }
	// Alarm says that a person must know. Code is stable, Text says what happened and what to do.
	Alarm struct {
		Code AlarmCode
		Text string
	}
)

func (Poll) action()        {}
func (ReadJournal) action() {}
func (Append) action()      {}
func (Serve) action()       {}
func (Fence) action()       {}
func (Mark) action()        {}
func (Finalize) action()    {}
func (Restore) action()     {}
func (Alarm) action()       {}

// Phase is what the marker says. At the next start it becomes a field of [Boot].
type Phase string

// The phases. Each carries the generation of the data.
const (
	PhaseServing    Phase = "serving"    // etcd served this generation; Boot.HadOpen
	PhaseLost       Phase = "lost"       // fenced, and the loss is decided; Boot.Lost
	PhaseIsolated   Phase = "isolated"   // fenced, the lease ran out; Boot.Isolated
	PhaseFinalized  Phase = "finalized"  // the final of this generation is stored; Boot.Finalized
	PhaseSuperseded Phase = "superseded" // another closed the generation; Boot.Lost
	PhaseClaiming   Phase = "claiming"   // the data was restored for this generation, which is not ours yet; Boot.Claiming
)

// AlarmCode names a kind of alarm, for metrics and runbooks.
type AlarmCode string

// The alarms.
const (
	AlarmHeldByTwin      AlarmCode = "held-by-twin"      // another instance with our own id holds the generation
	AlarmJournalEmpty    AlarmCode = "journal-empty"     // the store is empty where history was expected
	AlarmDataMismatch    AlarmCode = "data-mismatch"     // local data and journal do not belong together
	AlarmDataMissing     AlarmCode = "data-missing"      // we hold the generation, but the data directory is gone
	AlarmNotBootstrapped AlarmCode = "not-bootstrapped"  // nothing anywhere, and nobody said that the cluster is new
	AlarmIsolated        AlarmCode = "isolated"          // fenced because the lease ran out
	AlarmSuperseded      AlarmCode = "superseded"        // our generation was closed by another
	AlarmAbandoning      AlarmCode = "abandoning"        // a generation is given up without its final
	AlarmNoConditional   AlarmCode = "no-if-absent"      // the store cannot arbitrate, so nothing is taken over
	AlarmRestoreFailed   AlarmCode = "restore-failed"    // the snapshot could not be restored
	AlarmWithoutStore    AlarmCode = "started-storeless" // serving though the journal could not be read
	AlarmFencedForGood   AlarmCode = "fenced-for-good"   // lost, and there is no store to come back through
)
