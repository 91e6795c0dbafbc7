package ownership

import (
	"math"
	"time"
)

// State is where a [Machine] stands.
type State string

// The states. In Owner and Suspect etcd serves clients; in no other.
const (
	Unknown    State = "unknown"    // etcd is not started; who owns is not known, or it is not us
	Owner      State = "owner"      // etcd serves, the last poll said that we own
	Suspect    State = "suspect"    // etcd serves, the last poll said anything else; the lease runs
	Fencing    State = "fencing"    // etcd is being killed
	Fenced     State = "fenced"     // etcd is dead, the loss is decided, the final is not begun
	Isolated   State = "isolated"   // etcd is dead because the lease ran out; nobody said that we lost
	Finalizing State = "finalizing" // the final is being captured, stored and entered
	Finalized  State = "finalized"  // our final is in the journal
	Superseded State = "superseded" // another closed our generation; our data is kept
	WaitFinal  State = "wait-final" // the record is ours, another's generation is open: waiting for its final
	Claiming   State = "claiming"   // restoring a closed generation, to serve the next one
)

// Boot is what is known when the warden starts, before DNS or the store is asked.
type Boot struct {
	Instance   string // nonce of the data directory, random, kept beside it
	HasData    bool   // the data directory holds an etcd
	Generation uint64 // of that data, by the marker; 0 unknown
	Lost       bool   // marker: fenced and lost, the final may be missing
	Isolated   bool   // marker: fenced, loss unproven
	Finalized  bool   // marker: our final is stored
	Claiming   bool   // marker: the data was restored for Generation, and the claim of it may be missing
	HadOpen    bool   // marker: the last that we knew of the journal was our own open or claim

	MayBootstrap  bool // the operator said that the cluster is new: an empty etcd may be started
	TakeOver      bool // the operator said that the instance which holds the generation under our own id is gone
	NoConditional bool // the store has no if-absent: it cannot arbitrate
	NoStore       bool // no store at all: DNS and the lease alone
}

// LastVerdict is what is kept of the last poll.
type LastVerdict struct {
	Kind   VerdictKind // "" no poll yet
	Value  string
	AsOf   BootTime // Mine and Other
	At     BootTime // when the machine learned of it
	Server string
	Proto  string
	Reason string
}

// Machine decides: a value, stepped by events, that says what to do. It has no clock and does no I/O; two machines that are
// == behave the same for ever. The zero value is not usable, see [NewMachine]. Its owner is one loop; it is not safe for
// concurrent use.
//
// The first Step (a Tick will do) asks for what it needs to know.
type Machine struct {
	set   limits
	boot  Boot
	state State
	why   string

	// What DNS said.
	last      LastVerdict
	mines     int      // Mine in a row
	firstMine BootTime // as-of of the first of them
	proof     BootTime // as-of of the latest Mine, valid if proven
	proven    bool
	others    int // foreign answers in a row; a poll that failed does not end the row

	// The lease, in Owner and Suspect.
	lease BootTime // as-of of the proof that counts
	doubt bool     // a foreign answer came after that proof: only a journal entry lets it count again

	// What the journal said.
	head      Head
	headKnown bool
	headAt    BootTime // when the machine learned of it
	storeDown bool     // the last read or append failed
	reading   bool     // a read without delay is under way
	appending EntryKind
	clean     bool // no foreign answer came since the append was asked for

	generation uint64 // of the local data; 0 unknown
	home       State  // where to go when the record leaves us: Unknown, Finalized or Superseded
	lost       bool   // Fencing: lost, not unproven
	closed     bool   // Fencing: the journal said so, the generation is no longer ours
	stored     bool   // Finalizing: the snapshot is stored, only its entry is missing

	// Claiming: the restore of the head with this sequence number is under way, or done.
	restoring, restored bool
	restoreSeq          uint64
	restoreGeneration   uint64   // the generation that is claimed then
	retryAt             BootTime // no restore before

	// WaitFinal: since when, and after which entry.
	waiting  bool
	waitFrom BootTime
	waitSeq  uint64

	alarm AlarmCode // the last one raised, so that it is raised once
	begun bool
	rules rules
}

// limits are the settings that the machine needs, in comparable form.
type limits struct {
	id                     string
	absentLost             bool
	interval, suspect      time.Duration
	lostCount, regainCount int
	ttl, gap, lease, wait  time.Duration
	storeCheck             time.Duration
	startIfOurs            bool
}

// rules breaks single rules, so that tests can show that each is needed. The zero value is the product.
type rules struct {
	failOpen     bool // the lease never ends
	finalEarly   bool // the final does not wait for the death of etcd
	silentReturn bool // doubt and gaps need no journal entry
	countCached  bool // a cached answer counts as of its arrival
	bridgeGaps   bool // a destination waits through gaps in its own proofs
}

// NewMachine returns the machine of a warden that has just started. The settings must be valid.
func NewMachine(s Settings, b Boot) Machine {
	m := Machine{
		set: limits{
			id: s.ID, absentLost: s.Absent == AbsentLost,
			interval: s.Interval, suspect: s.SuspectInterval,
			lostCount: s.LostCount, regainCount: s.RegainCount,
			ttl: s.RecordTTL, gap: s.MaxGap, lease: s.Lease, wait: s.WaitFinal,
			storeCheck: s.StoreCheck, startIfOurs: s.StartWithoutStore == StartIfOurs,
		},
		boot: b, generation: b.Generation, state: Unknown, home: Unknown, why: "started; nothing is known yet",
	}
	switch {
	case b.Lost:
		m.state, m.why = Fenced, "the marker says that ownership was lost"
	case b.Finalized:
		m.state, m.home, m.why = Finalized, Finalized, "the marker says that the final is stored"
	case b.Isolated:
		m.state, m.why = Isolated, "the marker says that the lease ran out"
	}
	return m
}

// State returns where the machine stands.
func (m Machine) State() State { return m.state }

// Reason says in one phrase why it stands there, for /status and logs.
func (m Machine) Reason() string { return m.why }

// Serving reports whether etcd may serve clients.
func (m Machine) Serving() bool { return m.state == Owner || m.state == Suspect }

// Generation is that of the local data, 0 when unknown.
func (m Machine) Generation() uint64 { return m.generation }

// Last returns what is kept of the last poll; its Kind is empty before the first.
func (m Machine) Last() LastVerdict { return m.last }

// Head returns the last head of the journal that was read or made, and whether there is one.
func (m Machine) Head() (Head, bool) { return m.head, m.headKnown }

// StoreDown reports whether the last read of or append to the journal failed.
func (m Machine) StoreDown() bool { return m.storeDown }

// LeaseLeft is how long etcd may go on serving without a new proof: 0 when it does not serve, the longest Duration when the
// lease is for ever.
func (m Machine) LeaseLeft(now BootTime) time.Duration {
	switch {
	case !m.Serving():
		return 0
	case m.set.lease == 0:
		return math.MaxInt64
	}
	return max(m.lease.Add(m.set.lease).Sub(now), 0)
}

// WaitLeft is how long a destination goes on waiting for the final of another, and whether it does and there is an end to it.
func (m Machine) WaitLeft(now BootTime) (time.Duration, bool) {
	if m.state != WaitFinal || !m.waiting || m.set.wait == 0 {
		return 0, false
	}
	return max(m.waitFrom.Add(m.set.wait).Sub(now), 0), true
}

// Wake is the next moment at which a Tick changes something, and whether there is one. A timer of Go's stands still
// while the machine is suspended, so the supervisor ticks also when a poll comes back.
func (m Machine) Wake() (BootTime, bool) {
	switch {
	case m.Serving() && m.set.lease > 0:
		return m.lease.Add(m.set.lease), true
	case m.state == WaitFinal && m.waiting && m.set.wait > 0:
		return m.waitFrom.Add(m.set.wait), true
	case m.state == Claiming && !m.restoring && !m.restored:
		return m.retryAt, true
	}
	return 0, false
}
