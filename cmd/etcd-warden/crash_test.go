package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/signals"
	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/supervisor"
)

// mainThatCrashes is main, but for CRASH_AT: a step after which the program dies by SIGKILL, as a crash of the machine
// would have it.
func mainThatCrashes() {
	step := os.Getenv("CRASH_AT")
	if step == "" {
		main()
		return
	}
	if code, handled := supervisor.Trampoline(os.Args); handled {
		os.Exit(code)
	}
	p := &program{inbox: signals.Notify(), faultPoint: func(made string) {
		if made == step {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // nothing may follow the step
		}
	}}
	code, err := p.execute(os.Args)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// crashing starts a life of a site that dies after a step, and returns when it has.
func (s *story) crashing(id, step string, flags ...string) {
	s.test.Helper()
	env := s.store.env
	s.store.env = append([]string{"CRASH_AT=" + step}, env...)
	life := s.start(id, flags...)
	s.store.env = env
	select {
	case <-life.ended:
	case <-s.ctx.Done():
		s.test.Fatalf("%s never came to %q", id, step)
	}
	if ws, ok := life.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		s.test.Fatalf("%s ended with %s, not by the crash after %q", id, life.cmd.ProcessState, step)
	}
}

// Whatever step of the handover a crash follows, the next life ends in the same state: one final, every acknowledged
// write in it, and no etcd that serves in between.
func TestCrashAfterAnyStepOfTheHandover(t *testing.T) {
	for _, step := range []string{"readiness off", "log replayed", "captured", "uploading", "uploaded", "final journalled"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			death := s.killedBehind()
			s.crashing(siteA, step)
			s.demo.t = testTimeline(t)
			s.start(siteA)
			b := s.start(siteB)
			s.await(siteB, "etcd serving")
			s.handedOverOnce(b, death)
		})
	}
}

// The step that kills etcd is followed by a crash: etcd is dead, nobody knows it but the marker, if that was written.
func TestCrashAfterTheKill(t *testing.T) {
	for _, marker := range []string{"kept", "lost"} {
		t.Run("marker "+marker, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			env := s.store.env
			s.store.env = append([]string{"CRASH_AT=etcd dead"}, env...)
			a := s.start(siteA, "--new-cluster")
			s.store.env = env
			s.await(siteA, "etcd serving")
			file := filepath.Join(s.dir, siteA, "etcd.warden/marker.json")
			before, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s.write(a, 500)
			s.move(siteB)
			<-a.ended
			death := time.Now()
			if marker == "lost" { // a power cut drops what was not synced: the file is the old one
				if err := os.WriteFile(file, before, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s.refusesClients(a)
			s.demo.t = testTimeline(t)
			s.start(siteA)
			b := s.start(siteB)
			s.await(siteB, "etcd serving")
			s.handedOverOnce(b, death)
		})
	}
}

// The new site dies on its way to serve, and begins anew.
func TestCrashAfterAnyStepOfTheRestore(t *testing.T) {
	for _, step := range []string{"downloaded", "restored", "claim journalled"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			a := s.start(siteA, "--new-cluster")
			s.await(siteA, "etcd serving")
			s.write(a, 500)
			s.move(siteB)
			dead := s.await(siteA, "etcd dead")
			s.await(siteA, "final journalled")
			s.crashing(siteB, step)
			a.stop(s.ctx, 20*time.Second)
			s.demo.t = testTimeline(t)
			b := s.start(siteB)
			s.await(siteB, "etcd serving")
			s.handedOverOnce(b, dead.At)
		})
	}
}

// The old site's warden is killed at random moments of the handover, one to three times. CRASH_N says how many rounds,
// CRASH_SEED which.
func TestKilledAtRandomMomentsOfTheHandover(t *testing.T) {
	rounds, err := strconv.Atoi(orElse("CRASH_N", "1"))
	if err != nil {
		t.Fatalf("CRASH_N: %v", err)
	}
	seed, err := strconv.ParseUint(orElse("CRASH_SEED", strconv.FormatInt(time.Now().UnixNano()%1e9, 10)), 10, 64)
	if err != nil {
		t.Fatalf("CRASH_SEED: %v", err)
	}
	t.Logf("replay with: make crash N=%d SEED=%d", rounds, seed)
	for n := range rounds {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, uint64(n)))
			s := newStory(t)
			life := s.start(siteA, "--new-cluster")
			s.await(siteA, "etcd serving")
			s.write(life, 300)
			s.move(siteB)
			death := time.Time{}
			for kills := 1 + rng.IntN(3); kills > 0; kills-- {
				moment := time.Duration(rng.IntN(2500)) * time.Millisecond
				t.Logf("killed %s after the record moved or the warden started", moment)
				select {
				case <-life.ended:
				case <-time.After(moment):
				}
				life.cmd.Process.Kill()
				<-life.ended
				if death.IsZero() {
					death = time.Now()
				}
				s.demo.t = testTimeline(t)
				life = s.start(siteA)
			}
			b := s.start(siteB)
			s.await(siteB, "etcd serving")
			if n := s.starts(siteA); n != 0 {
				t.Errorf("the old site started its etcd %d times for clients after the record had moved", n)
			}
			s.handedOverOnce(b, death)
		})
	}
}

// handedOverOnce checks the end state: the new site serves everything, the old one nothing, the journal is in order with
// one final, and nothing is left behind.
func (s *story) handedOverOnce(b *site, death time.Time) {
	t := s.test
	t.Helper()
	if n := s.starts(siteA); n != 0 {
		t.Errorf("the old site started its etcd %d times for clients after the crash", n)
	}
	s.handedOver(b, death)
}

// handedOver checks the same of a handover in which the old site's first life goes on.
func (s *story) handedOver(b *site, death time.Time) {
	t := s.test
	t.Helper()
	s.noneLost(b, death)
	store := s.openStore(snapshot.OpenOptions{})
	journal := supervisor.Journal{Store: store}
	head, err := journal.Head(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	var entries []ownership.Entry
	finals := 0
	for seq := uint64(1); seq <= head.Seq; seq++ {
		e, err := journal.Entry(s.ctx, seq)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
		if e.Kind == ownership.Final {
			finals++
		}
	}
	if _, err := ownership.CheckJournal(entries); err != nil || finals != 1 {
		t.Errorf("the journal has %d finals, error %v: %+v", finals, err, entries)
	}
	if n, err := store.SweepUploads(s.ctx, snapshot.GenerationPrefix(1), 0); n != 0 || err != nil {
		t.Errorf("%d unfinished uploads are left in the store, error %v", n, err)
	}
	for _, id := range []string{siteA, siteB} {
		for _, pattern := range []string{".*", "etcd.warden/.*", "etcd.warden/fenced-*"} {
			if left := globAll(t, filepath.Join(s.dir, id, pattern)); len(left) > 0 {
				t.Errorf("left behind: %s", strings.Join(left, " "))
			}
		}
	}
}
