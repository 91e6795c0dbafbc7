package main

import (
	"slices"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/ownership/ownertest"
	"github.com/etcd-warden/etcd-warden/snapshot"
)

// idles checks that a site stands in a state with no etcd for clients. It looks after the first poll of this life.
func (s *story) idles(life int, on *site, want ownership.State) {
	s.test.Helper()
	s.awaitFrom(life, on.name, "a poll", message("owner record polled"))
	if st := s.status(on); st.Owner.State != string(want) || st.Child.PID != 0 || st.Ready {
		s.test.Errorf("%s stands at %s (%s) with child %d, ready %v; want %s and no etcd", on.name, st.Owner.State, st.Owner.Reason, st.Child.PID, st.Ready, want)
	}
	s.refusesClients(on)
}

// serves waits until this life of a site serves.
func (s *story) serves(life int, on *site) {
	s.test.Helper()
	s.awaitFrom(life, on.name, "service", message("etcd serving"))
	if st := s.status(on); st.Owner.State != string(ownership.Owner) {
		s.test.Errorf("%s serves and stands at %s (%s)", on.name, st.Owner.State, st.Owner.Reason)
	}
}

// A warden may be killed at any time and started again. While nobody says that ownership is lost it comes back to the same
// generation, with a new entry each time it serves, and never on a guess.
func TestWardenKilledInAnyStateOfAnOwnerComesBack(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	flags := append(cutOff(), "--new-cluster")

	s.dns.Delete()
	a := s.start(siteA, flags...)
	s.idles(0, a, ownership.Unknown)
	life := s.kill(a)
	a = s.start(siteA, flags...)
	s.idles(life, a, ownership.Unknown)
	s.dns.SetOwner(siteA, storyOwner.RecordTTL)
	s.serves(life, a)
	s.write(a, 200)()
	death := time.Now()

	life = s.kill(a) // as owner
	a = s.start(siteA, flags...)
	s.serves(life, a)

	s.dns.Misbehave(ownertest.ServFail)
	s.awaitState(life, siteA, ownership.Suspect)
	life = s.kill(a)
	a = s.start(siteA, flags...)
	s.idles(life, a, ownership.Unknown)
	s.dns.Misbehave(ownertest.Proper)
	s.serves(life, a)

	s.dns.Misbehave(ownertest.Silent)
	s.awaitState(life, siteA, ownership.Isolated)
	life = s.kill(a)
	a = s.start(siteA, flags...)
	s.idles(life, a, ownership.Isolated)
	s.dns.Misbehave(ownertest.Proper)
	s.serves(life, a)
	s.noneLost(a, death)
	// One for each time it served.
	want := slices.Repeat([]string{"open 1 site-a"}, 4)
	if got := s.journal(s.openStore(snapshot.OpenOptions{})); len(got) < len(want) || !slices.Equal(got[:len(want)], want) || slices.ContainsFunc(got, func(e string) bool { return e != want[0] }) {
		t.Errorf("the journal has %q, want at least %q and nothing else", got, want)
	}
}

// Once the loss is decided no crash of either side brings the old etcd back, ends the generation twice or begins the next
// one twice.
func TestWardensKilledInAnyStateOfAHandoverFinishIt(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	a := s.start(siteA, "--new-cluster")
	s.await(siteA, "etcd serving")
	s.write(a, 500)

	place := s.now()
	s.move(siteB)
	s.awaitState(place, siteA, ownership.Fencing)
	lost := s.kill(a)
	death := time.Now()

	b := s.start(siteB)
	s.awaitState(lost, siteB, ownership.WaitFinal)
	heir := s.kill(b)
	b = s.start(siteB)
	s.awaitState(heir, siteB, ownership.WaitFinal)

	a = s.start(siteA)
	s.awaitState(lost, siteA, ownership.Finalizing) // it is fenced for no longer than the step takes
	s.kill(a)
	a = s.start(siteA)

	s.awaitState(heir, siteB, ownership.Claiming)
	life := s.kill(b)
	b = s.start(siteB)
	s.serves(life, b)
	s.noneLost(b, death)
	life = s.kill(a)
	a = s.start(siteA)
	s.idles(life, a, ownership.Finalized)

	// Back again, with a store that is away: the other side is killed while its final is owed.
	if err := s.store.down(true); err != nil {
		t.Fatal(err)
	}
	back := s.now()
	s.move(siteA)
	s.awaitFrom(back, siteB, "the owed final", message("final snapshot not stored"))
	life = s.kill(b)
	if err := s.store.down(false); err != nil {
		t.Fatal(err)
	}
	b = s.start(siteB)
	s.awaitState(life, siteB, ownership.Finalized)
	s.serves(back, a)
	if n := s.served(lost, siteA); n != 1 {
		t.Errorf("the old site started its etcd %d times since its loss, want once, for its return", n)
	}
	s.noneLost(a, death)
	got := slices.Compact(s.journal(s.openStore(snapshot.OpenOptions{})))
	// A destination that was killed between its claim and its service opens what it claimed once more.
	got = slices.DeleteFunc(got, func(e string) bool { return e == "open 2 site-b" })
	want := []string{"open 1 site-a", "final 1 site-a", "claim 2 site-b", "final 2 site-b", "claim 3 site-a"}
	if !slices.Equal(got, want) {
		t.Errorf("the journal has %q, want %q", got, want)
	}
}
