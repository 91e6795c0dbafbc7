package ownertest

import (
	"context"
	"sync"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
)

// Asked is one poll that a Script answered.
type Asked struct {
	At  ownership.BootTime
	TCP bool
}

// Script is a poller that answers from memory, without network. It is safe for concurrent use.
type Script struct {
	id    string
	clock ownership.Clock

	mu    sync.Mutex // guards all below
	now   ownership.Verdict
	age   time.Duration
	queue []ownership.Verdict
	hang  bool
	asked []Asked
}

// NewScript returns a poller for the owner id whose record does not exist yet. A nil clock is [ownership.BootClock].
func NewScript(id string, clock ownership.Clock) *Script {
	if clock == nil {
		clock = ownership.BootClock
	}
	s := &Script{id: id, clock: clock}
	s.Set(ownership.Verdict{Kind: ownership.None, Reason: "the name does not exist"})
	return s
}

// SetOwner makes every poll from now on see a record with this value.
func (s *Script) SetOwner(value string) {
	v := ownership.Verdict{Kind: ownership.Other, Value: value, Foreign: true, Reason: "the record names another"}
	if value == s.id {
		v = ownership.Verdict{Kind: ownership.Mine, Value: value, Reason: "the record is our id"}
	}
	s.Set(v)
}

// Fail makes every poll from now on fail.
func (s *Script) Fail(reason string) {
	s.Set(ownership.Verdict{Kind: ownership.Failed, Reason: reason})
}

// Hang makes every poll from now on wait for the end of its context.
func (s *Script) Hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hang = true
}

// Set makes every poll from now on return v, with the times filled in.
func (s *Script) Set(v ownership.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now, s.hang = v, false
}

// SetAge is how old the answers are from now on, as if a cache had held them.
func (s *Script) SetAge(age time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.age = age
}

// Queue puts verdicts before what Set has set, one for each poll.
func (s *Script) Queue(vs ...ownership.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, vs...)
}

// Asked returns the polls so far, oldest first.
func (s *Script) Asked() []Asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Asked(nil), s.asked...)
}

// Poll implements [ownership.Poller].
func (s *Script) Poll(ctx context.Context, tcp bool) ownership.Verdict {
	at := s.clock()
	v, hang := s.next(at, tcp)
	if hang {
		<-ctx.Done()
		return ownership.Verdict{Kind: ownership.Failed, At: at, Reason: "no answer in time"}
	}
	return v
}

func (s *Script) next(at ownership.BootTime, tcp bool) (ownership.Verdict, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, Asked{At: at, TCP: tcp})
	v := s.now
	if len(s.queue) > 0 {
		v, s.queue = s.queue[0], s.queue[1:]
	} else if s.hang {
		return v, true
	}
	v.At, v.Server, v.Proto = at, "script", "udp"
	if tcp {
		v.Proto = "tcp"
	}
	if v.Kind == ownership.Mine || v.Kind == ownership.Other {
		v.AsOf = at.Add(-s.age)
	}
	return v, false
}
