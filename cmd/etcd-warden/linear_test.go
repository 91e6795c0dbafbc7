package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"
)

// registerOp is what a client asked of one key, registerModel what a single register would answer.
type registerOp struct {
	key, value string
	write      bool
}

func registerModel() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
			of := map[string]int{}
			for _, op := range history {
				key := op.Input.(registerOp).key
				if _, ok := of[key]; !ok {
					of[key] = len(parts)
					parts = append(parts, nil)
				}
				parts[of[key]] = append(parts[of[key]], op)
			}
			return parts
		},
		Init: func() any { return "" },
		Step: func(state, input, output any) (bool, any) {
			if op := input.(registerOp); op.write {
				return true, op.value
			}
			return state == output, state
		},
	}
}

// history is what clients of both sites saw. It is safe for concurrent use.
type history struct {
	began time.Time
	mu    sync.Mutex // guards ops
	ops   []porcupine.Operation
}

func (h *history) add(client int, op registerOp, call time.Time, output string, returned int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: op, Call: call.Sub(h.began).Nanoseconds(), Output: output, Return: returned})
}

// client asks either site, now this, now that, as clients with an old and a new address do.
func (h *history) client(ctx context.Context, id int, sites []*gateway, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, uint64(id)))
	for n := 0; ctx.Err() == nil; n++ {
		op := registerOp{key: fmt.Sprintf("register/%d", rng.IntN(8)), write: rng.IntN(2) == 0}
		site := sites[rng.IntN(len(sites))]
		call, output := time.Now(), ""
		var err error
		if op.write {
			op.value = fmt.Sprintf("%d/%d", id, n)
			_, err = site.put(ctx, op.key, op.value)
		} else {
			err = site.each(ctx, op.key, op.key+"\x00", func(_, value string, _ int64) { output = value })
		}
		switch {
		case err == nil:
			h.add(id, op, call, output, time.Since(h.began).Nanoseconds())
		case op.write && !errors.Is(err, syscall.ECONNREFUSED): // nobody knows whether, or when, it was done
			h.add(id, op, call, "", math.MaxInt64)
		}
		select {
		case <-time.After(time.Duration(rng.IntN(10)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// To its clients the cluster is one register, whatever site they ask and whenever the record moves: no read of the old
// site is answered after the new one took a write, and no acknowledged write is forgotten.
func TestBothSitesTogetherAreLinearizable(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano() % 1e9)
	t.Logf("seed %d", seed)
	s := newStory(t)
	a := s.start(siteA, "--new-cluster")
	s.await(siteA, "etcd serving")
	b := s.start(siteB)
	h := &history{began: time.Now()}
	ctx, cancel := context.WithCancel(s.ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	sites := []*gateway{newGateway(a.client), newGateway(b.client)}
	for id := range 8 {
		clients.Go(func() { h.client(ctx, id, sites, seed) })
	}
	pause := func() {
		select {
		case <-time.After(time.Second): // of history
		case <-ctx.Done():
		}
	}
	for n := range 3 { // there, back, and there again
		pause()
		from, to := siteA, siteB
		if n%2 == 1 {
			from, to = to, from
		}
		s.move(to)
		if _, err := s.t.awaitNth(s.ctx, from, "final journalled", n/2+1); err != nil {
			t.Fatal(err)
		}
		if _, err := s.t.awaitNth(s.ctx, to, "etcd serving", (n+1)/2+1); err != nil {
			t.Fatal(err)
		}
	}
	pause()
	cancel()
	clients.Wait()
	result, _ := porcupine.CheckOperationsVerbose(registerModel(), h.ops, time.Minute)
	t.Logf("%d operations: %s", len(h.ops), result)
	if result != porcupine.Ok {
		t.Errorf("the history of both sites is %s (seed %d)", result, seed)
	}
	if len(h.ops) < 500 {
		t.Errorf("only %d operations: that proves little", len(h.ops))
	}
}

// The checker itself must see a stale read, or the test above proves nothing.
func TestStaleReadIsNotLinearizable(t *testing.T) {
	write := func(value string) registerOp { return registerOp{key: "k", value: value, write: true} }
	ops := []porcupine.Operation{
		{Input: write("old"), Call: 0, Return: 1}, {Input: write("new"), Call: 2, Return: 3},
		{Input: registerOp{key: "k"}, Output: "old", Call: 4, Return: 5},
	}
	if porcupine.CheckOperations(registerModel(), ops) {
		t.Error("a read of the old site after a write at the new one passes for linearizable")
	}
}

// A client of the old site with everything open, as an API server has it, is cut: nothing it does is acknowledged, its
// watch tells nothing of the new site, and its lease goes on at the new site and nowhere else.
func TestClientsOfTheOldSiteAreCut(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	a := s.start(siteA, "--new-cluster")
	s.await(siteA, "etcd serving")
	b := s.start(siteB)
	dial := func(endpoint string) *clientv3.Client {
		c, err := newLoad(endpoint, 0, 0).dial(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	old := dial(a.client)
	lease, err := old.Grant(s.ctx, 600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.KeepAlive(s.ctx, lease.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Put(s.ctx, "cut/leased", "x", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	events := old.Watch(s.ctx, "cut/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events

	s.move(siteB)
	s.await(siteA, "etcd dead")
	if _, err := old.Put(short(t, s.ctx), "cut/late", "x"); err == nil {
		t.Error("a write was acknowledged after the death")
	}
	if _, err := old.KeepAliveOnce(short(t, s.ctx), lease.ID); err == nil {
		t.Error("a lease was kept alive after the death")
	}
	if state := old.ActiveConnection().GetState(); state == connectivity.Ready {
		t.Error("the connection is still open")
	}
	s.await(siteB, "etcd serving")
	now := dial(b.client)
	if _, err := now.Put(s.ctx, "cut/new", "x"); err != nil {
		t.Fatal(err)
	}
	if got, err := now.Get(s.ctx, "cut/late"); err != nil || got.Count != 0 {
		t.Errorf("a write that nobody acknowledged: %v, %v", got, err)
	}
	if left, err := now.TimeToLive(s.ctx, lease.ID, clientv3.WithAttachedKeys()); err != nil || left.GrantedTTL != 600 || len(left.Keys) != 1 {
		t.Errorf("the lease at the new site is %+v, %v", left, err)
	}
	if _, err := old.Get(short(t, s.ctx), "cut/new"); err == nil {
		t.Error("the old site answers a read")
	}
	select {
	case e := <-events:
		if len(e.Events) > 0 {
			t.Errorf("the old watch tells %v", e.Events)
		}
	default:
	}
}

// short is long enough for any answer that is going to come.
func short(t *testing.T, ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	t.Cleanup(cancel)
	return ctx
}
