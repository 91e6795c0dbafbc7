package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// load is a mix of everything that changes an etcd, and a model of what it acknowledged.
type load struct {
	endpoint string
	user     string // empty: no authentication
	password string
	padding  int // bytes that make a value large, at most
	writers  []*modelWriter
	acked    atomic.Int64
	revision atomic.Int64 // the newest acknowledged
}

// keyState is a key as etcd shows it. Version 0: it does not exist.
type keyState struct {
	Value                string
	Version, Create, Mod int64
	Lease                clientv3.LeaseID
}

// modelWriter owns a range of keys: nobody else changes them, so the model is exact up to the one operation that got no
// answer.
type modelWriter struct {
	load    *load
	id      int
	rng     *rand.Rand
	number  int
	lease   clientv3.LeaseID
	state   map[string]keyState
	leases  map[clientv3.LeaseID]bool
	pending map[string]string // what the unanswered operation would have made of a key; empty: deleted
	dropped clientv3.LeaseID  // by the unanswered operation
}

func newLoad(endpoint string, writers int, seed uint64) *load {
	l := &load{endpoint: endpoint}
	for id := range writers {
		l.writers = append(l.writers, &modelWriter{load: l, id: id, rng: rand.New(rand.NewPCG(seed, uint64(id))),
			state: map[string]keyState{}, leases: map[clientv3.LeaseID]bool{}, pending: map[string]string{}})
	}
	return l
}

func (l *load) dial(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialTimeout: 10 * time.Second, Username: l.user, Password: l.password})
}

// run writes until ctx ends or etcd answers no more; it closes enough after n acknowledgements.
func (l *load) run(ctx context.Context, n int64, enough chan<- struct{}) error {
	c, err := l.dial(l.endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	for _, w := range l.writers {
		all.Go(func() {
			for ctx.Err() == nil && w.step(ctx, c) {
				if l.acked.Add(1) == n {
					close(enough)
				}
			}
		})
	}
	var others sync.WaitGroup
	others.Go(func() { l.maintain(ctx, c) })
	all.Wait()
	cancel()
	others.Wait()
	return nil
}

// maintain compacts and defragments, as an operator's jobs do.
func (l *load) maintain(ctx context.Context, c *clientv3.Client) {
	every := time.NewTicker(200 * time.Millisecond)
	defer every.Stop()
	for n := 1; ; n++ {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		if rev := l.revision.Load() - 200; rev > 0 { // a refusal is no matter: the next one follows
			_, _ = c.Compact(try, rev)
		}
		if n%5 == 0 {
			_, _ = c.Defragment(try, l.endpoint)
		}
		cancel()
	}
}

// step does one operation and says whether it was acknowledged.
func (w *modelWriter) step(ctx context.Context, c *clientv3.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	switch p := w.rng.IntN(100); {
	case p < 60:
		return w.put(ctx, c, w.key(), p < 15)
	case p < 75:
		return w.delete(ctx, c, w.key())
	case p < 95:
		return w.transact(ctx, c)
	case w.lease == 0:
		return w.grant(ctx, c)
	}
	return w.revoke(ctx, c)
}

func (w *modelWriter) key() string {
	return fmt.Sprintf("torture/%02d/%03d", w.id, w.rng.IntN(40))
}

func (w *modelWriter) value() string {
	w.number++
	v := fmt.Sprintf("%d by writer %d", w.number, w.id)
	if w.load.padding > 0 {
		v += strings.Repeat(".", w.rng.IntN(w.load.padding))
	}
	return v
}

func (w *modelWriter) put(ctx context.Context, c *clientv3.Client, key string, leased bool) bool {
	var lease clientv3.LeaseID
	if leased {
		lease = w.lease
	}
	value := w.value()
	w.pending[key] = value
	resp, err := c.Put(ctx, key, value, clientv3.WithLease(lease))
	if err != nil {
		return false
	}
	w.saw(resp.Header.Revision)
	w.wrote(key, value, lease, resp.Header.Revision)
	return true
}

func (w *modelWriter) delete(ctx context.Context, c *clientv3.Client, key string) bool {
	w.pending[key] = ""
	resp, err := c.Delete(ctx, key)
	if err != nil {
		return false
	}
	w.saw(resp.Header.Revision)
	w.wrote(key, "", 0, 0)
	return true
}

// transact puts two keys and deletes a third in one revision, or does nothing where the condition does not hold.
func (w *modelWriter) transact(ctx context.Context, c *clientv3.Client) bool {
	keys := map[string]bool{}
	for len(keys) < 3 {
		keys[w.key()] = true
	}
	k := slices.Sorted(maps.Keys(keys))
	first, second := w.value(), w.value()
	w.pending[k[0]], w.pending[k[1]], w.pending[k[2]] = first, second, ""
	resp, err := c.Txn(ctx).If(clientv3.Compare(clientv3.Version(k[0]), "=", w.state[k[0]].Version)).
		Then(clientv3.OpPut(k[0], first), clientv3.OpPut(k[1], second, clientv3.WithLease(w.lease)), clientv3.OpDelete(k[2])).Commit()
	if err != nil {
		return false
	}
	w.saw(resp.Header.Revision)
	if !resp.Succeeded { // the model is wrong, which the comparison at the end will show in detail
		clear(w.pending)
		return true
	}
	w.wrote(k[0], first, 0, resp.Header.Revision)
	w.wrote(k[1], second, w.lease, resp.Header.Revision)
	w.wrote(k[2], "", 0, 0)
	return true
}

func (w *modelWriter) grant(ctx context.Context, c *clientv3.Client) bool {
	resp, err := c.Grant(ctx, 3600)
	if err != nil {
		return false
	}
	w.lease, w.leases[resp.ID] = resp.ID, true
	return true
}

func (w *modelWriter) revoke(ctx context.Context, c *clientv3.Client) bool {
	var attached []string
	for key, s := range w.state {
		if s.Version > 0 && s.Lease == w.lease {
			attached = append(attached, key)
			w.pending[key] = ""
		}
	}
	w.dropped = w.lease
	if _, err := c.Revoke(ctx, w.lease); err != nil {
		return false
	}
	for _, key := range attached {
		w.wrote(key, "", 0, 0)
	}
	delete(w.leases, w.lease)
	w.lease, w.dropped = 0, 0
	return true
}

func (w *modelWriter) saw(revision int64) {
	for old := w.load.revision.Load(); revision > old && !w.load.revision.CompareAndSwap(old, revision); old = w.load.revision.Load() {
	}
}

// wrote is an acknowledged change; an empty value is a delete.
func (w *modelWriter) wrote(key, value string, lease clientv3.LeaseID, revision int64) {
	delete(w.pending, key)
	if value == "" {
		delete(w.state, key)
		return
	}
	old := w.state[key]
	s := keyState{Value: value, Version: old.Version + 1, Create: old.Create, Mod: revision, Lease: lease}
	if s.Version == 1 {
		s.Create = revision
	}
	w.state[key] = s
}

// compare checks everything that was acknowledged against an etcd that was made from the final snapshot.
func (l *load) compare(t testing.TB, ctx context.Context, c *clientv3.Client) {
	t.Helper()
	got := map[string]keyState{}
	resp, err := c.Get(ctx, "torture/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		got[string(kv.Key)] = keyState{string(kv.Value), kv.Version, kv.CreateRevision, kv.ModRevision, clientv3.LeaseID(kv.Lease)}
	}
	if rev := l.revision.Load(); resp.Header.Revision < rev {
		t.Errorf("the final has revision %d, acknowledged was %d", resp.Header.Revision, rev)
	}
	for _, w := range l.writers {
		w.compare(t, got)
		for lease := range w.leases {
			ttl, err := c.TimeToLive(ctx, lease)
			if err != nil {
				t.Fatal(err)
			}
			if ttl.GrantedTTL != 3600 && lease != w.dropped {
				t.Errorf("writer %d: acknowledged lease %x is missing", w.id, lease)
			}
		}
	}
	t.Logf("compared %d keys after %d acknowledged operations, revision %d", len(got), l.acked.Load(), resp.Header.Revision)
}

func (w *modelWriter) compare(t testing.TB, got map[string]keyState) {
	t.Helper()
	prefix := fmt.Sprintf("torture/%02d/", w.id)
	keys := map[string]bool{}
	for key := range w.state {
		keys[key] = true
	}
	for key := range got {
		if strings.HasPrefix(key, prefix) {
			keys[key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		have, want := got[key], w.state[key]
		unanswered, maybe := w.pending[key]
		if have != want && (!maybe || have.Value != unanswered) {
			have.Value, want.Value = fmt.Sprintf("%.40s", have.Value), fmt.Sprintf("%.40s", want.Value)
			t.Errorf("key %s in the final is %+v, acknowledged was %+v", key, have, want)
		}
	}
}
