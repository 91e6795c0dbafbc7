package supervisor

import (
	"runtime"
	"sync"
	"time"
)

// Status is what /status answers. It is a copy: safe to keep and to read anywhere.
type Status struct {
	Version  string          `json:"version"`
	Phase    Phase           `json:"phase"`
	Since    time.Time       `json:"since"`
	Ready    bool            `json:"ready"`
	Why      string          `json:"why,omitempty"` // what the warden waits for, or why etcd does not run
	Child    ChildStatus     `json:"child"`
	Owner    *OwnerStatus    `json:"owner,omitempty"`
	Handover *HandoverStatus `json:"handover,omitempty"`
	Store    string          `json:"store,omitempty"`

	Snapshots *SnapshotStatus `json:"snapshots,omitempty"` // nil: no schedule

	Goroutines int `json:"goroutines"` // of the warden itself: what leaks shows here first
}

// ChildStatus tells of the supervised process.
type ChildStatus struct {
	PID      int       `json:"pid,omitempty"` // 0: none runs
	Started  time.Time `json:"started,omitzero"`
	Restarts int       `json:"restarts"`
	LastExit string    `json:"last_exit,omitempty"`
}

// OwnerStatus tells what is believed about ownership, and why.
type OwnerStatus struct {
	Name        string    `json:"name"`
	ID          string    `json:"id"`
	Instance    string    `json:"instance"`
	State       string    `json:"state"`
	Reason      string    `json:"reason,omitempty"`
	Verdict     string    `json:"verdict,omitempty"`
	VerdictAt   time.Time `json:"verdict_at,omitzero"`
	LeaseLeftMS int64     `json:"lease_left_ms"`
	Generation  uint64    `json:"generation,omitempty"`
	Head        string    `json:"journal_head,omitempty"`
	HeadSeq     uint64    `json:"journal_head_seq,omitempty"`
	HeadKind    string    `json:"journal_head_kind,omitempty"`
}

// handoverDone is the step of a handover whose final snapshot is in the journal, or whose etcd is only fenced.
const handoverDone = "done"

// HandoverStatus tells how far a handover is.
type HandoverStatus struct {
	Step        string           `json:"step"`
	Attempt     int              `json:"attempt,omitempty"`
	PlainBytes  int64            `json:"plain_bytes,omitempty"`
	StoredBytes int64            `json:"stored_bytes,omitempty"`
	TotalBytes  int64            `json:"total_bytes,omitempty"`
	BytesPerS   int64            `json:"bytes_per_s,omitempty"` // of the plain bytes, since the upload began
	LeftMS      int64            `json:"left_ms,omitempty"`     // what is left at that rate
	LastError   string           `json:"last_error,omitempty"`
	Revision    int64            `json:"revision,omitempty"`
	Key         string           `json:"key,omitempty"`
	StepsMS     map[string]int64 `json:"steps_ms,omitempty"`
}

// board is where the loop and its jobs publish and the HTTP server reads.
type board struct {
	mu     sync.Mutex // guards status
	status Status
}

func (b *board) read() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.status
	s.Goroutines = runtime.NumGoroutine()
	if s.Owner != nil {
		o := *s.Owner
		s.Owner = &o
	}
	if s.Handover != nil {
		h := *s.Handover
		s.Handover = &h
	}
	return s
}

func (b *board) update(change func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.status)
}
