package supervisor

import (
	"fmt"
	"slices"
)

// Phase is where the warden is in the life of what it supervises. The zero value is Booting.
type Phase uint8

// The phases of a supervised etcd, in the order of an ordinary life. Every other command knows only Booting, Running,
// BackingOff, Stopping and Ended.
const (
	Booting    Phase = iota // data directory locked, marker read, nothing started
	Waiting                 // ownership or the store's word is missing: etcd is not started
	Restoring               // the newest snapshot of the store is being put in place
	Running                 // the child runs
	BackingOff              // the child ended by itself and is started again after a delay
	Stopping                // the child is being ended; done when its whole group is reaped
	Capturing               // etcd is proven dead; its last state is on the way to the store
	Fenced                  // etcd is dead and stays so until ownership is confirmed anew
	Ended                   // the warden is about to exit
)

var phaseNames = [...]string{"booting", "waiting", "restoring", "running", "backing-off", "stopping", "capturing", "fenced", "ended"}

// String is the phase's name in logs, /status and metrics.
func (p Phase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// MarshalText makes phases readable in JSON.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (p *Phase) UnmarshalText(text []byte) error {
	i := slices.Index(phaseNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown phase %q", text)
	}
	*p = Phase(i)
	return nil
}

// nextPhases is the table of all legal changes of phase. What is not in it is a broken invariant of ours. In particular,
// nothing leads from Stopping to Capturing but the proof of death, and nothing from Capturing back to Running.
var nextPhases = map[Phase][]Phase{
	Booting:    {Waiting, Restoring, Running, Stopping, Capturing, Fenced, Ended},
	Waiting:    {Restoring, Running, Stopping, Fenced, Ended},
	Restoring:  {Waiting, Running, Stopping, Fenced, Ended},
	Running:    {BackingOff, Stopping, Ended},
	BackingOff: {Running, Stopping, Ended},
	Stopping:   {Capturing, Fenced, Waiting, Ended},
	Capturing:  {Fenced, Ended},
	Fenced:     {Restoring, Running, Stopping, Waiting, Ended},
	Ended:      nil,
}

// canFollow says whether the table lets next follow p. A phase may follow itself.
func (p Phase) canFollow(next Phase) bool { return p == next || slices.Contains(nextPhases[p], next) }
