package ownership_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/ownership/ownertest"
)

// The servers of this file are real: knot, BIND and unbound as the distribution ships them.

const (
	zone  = "c1.own.test."
	other = "seed-b/8"
	// absent is the zone's SOA minimum: longer than any test, so that what is cached stays cached.
	absent = time.Hour
)

var zoneRecords = `owner TXT "seed-a/7"
alias CNAME owner
chain CNAME alias
dangling CNAME nowhere
loop1 CNAME loop2
loop2 CNAME loop1
address A 127.0.0.1
two TXT "seed-a/7"
two TXT "seed-b/8"
split TXT "seed" "-a" "/7"
empty TXT ""
long TXT` + strings.Repeat(` "`+strings.Repeat("x", 200)+`"`, 8) + "\n"

type startAuthority func(testing.TB, string, time.Duration, string) *ownertest.Program

var authorities = map[string]startAuthority{"knot": ownertest.StartKnot, "BIND": ownertest.StartBind}

// paths are the ways on which a site may ask: the authority itself, or a cache before it.
func eachPath(t *testing.T, test func(t *testing.T, authority, asked *ownertest.Program)) {
	for name, start := range authorities {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, zone, absent, zoneRecords)
			test(t, a, a)
		})
		t.Run("unbound before "+name, func(t *testing.T) {
			t.Parallel()
			a := start(t, zone, absent, zoneRecords)
			test(t, a, ownertest.StartUnbound(t, zone, a.Addr()))
		})
	}
}

func pollOf(t *testing.T, record string, tcp bool, timeout time.Duration, servers ...string) ownership.Verdict {
	t.Helper()
	r := resolver(timeout, servers...)
	r.Settings.Name = record
	return r.Poll(t.Context(), tcp)
}

// TestRealServers: what the misbehaving server of ownertest is taken to stand for must be what real ones do.
func TestRealServers(t *testing.T) {
	eachPath(t, func(t *testing.T, _, asked *ownertest.Program) {
		for _, tt := range []struct {
			record string
			tcp    bool
			want   ownership.VerdictKind
			proto  string
			reason string
		}{
			{record: "owner." + zone, want: ownership.Mine, proto: "udp"},
			{record: "owner." + zone, tcp: true, want: ownership.Mine, proto: "tcp"},
			{record: "OWNER." + zone, want: ownership.Mine, proto: "udp"},
			{record: "alias." + zone, want: ownership.Mine, proto: "udp"},
			{record: "chain." + zone, want: ownership.Mine, proto: "udp"},
			{record: "split." + zone, want: ownership.Mine, proto: "udp"},
			{record: "dangling." + zone, want: ownership.None, reason: "alias of one that does not exist"},
			{record: "nowhere." + zone, want: ownership.None, reason: "the name does not exist"},
			{record: "address." + zone, want: ownership.None, reason: "no TXT record"},
			{record: "loop1." + zone, want: ownership.Failed},
			{record: "two." + zone, want: ownership.Unclear, reason: "2 TXT records"},
			{record: "empty." + zone, want: ownership.Unclear, reason: "empty"},
			{record: "long." + zone, want: ownership.Other, proto: "tcp"},
		} {
			v := pollOf(t, tt.record, tt.tcp, 20*time.Second, asked.Addr())
			if v.Kind != tt.want || !strings.Contains(v.Reason, tt.reason) || tt.proto != "" && v.Proto != tt.proto {
				t.Errorf("%s (tcp %v): got %.100s over %s, want %s with %q over %q", tt.record, tt.tcp, v, v.Proto, tt.want, tt.reason, tt.proto)
			}
		}
		if v := pollOf(t, "chain."+zone, false, 20*time.Second, asked.Addr()); !slices.Equal(v.Answers[0].Chain, []string{"alias." + zone, "owner." + zone}) {
			t.Errorf("chain: got %q", v.Answers[0].Chain)
		}
	})
}

// TestServersOutsideTheirZone: an authority refuses what it does not serve, a resolver without a way to it fails. Neither is a loss.
func TestServersOutsideTheirZone(t *testing.T) {
	eachPath(t, func(t *testing.T, authority, asked *ownertest.Program) {
		want := "REFUSED"
		if asked != authority {
			want = "SERVFAIL"
		}
		if v := pollOf(t, "owner.other.test.", false, 20*time.Second, asked.Addr()); v.Kind != ownership.Failed || !strings.Contains(v.Reason, want) {
			t.Errorf("got %s, want failed with %s", v, want)
		}
	})
}

// TestRecordChangesAreSeen: moved, doubled, emptied, deleted and brought back, by dynamic updates.
func TestRecordChangesAreSeen(t *testing.T) {
	for name, start := range authorities {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, zone, absent, zoneRecords)
			for _, tt := range []struct {
				values []string
				want   ownership.VerdictKind
			}{
				{[]string{other}, ownership.Other},
				{[]string{mine, other}, ownership.Unclear},
				{[]string{""}, ownership.Unclear},
				{nil, ownership.None},
				{[]string{mine}, ownership.Mine},
			} {
				a.SetRecords("owner."+zone, ttl, tt.values...)
				for _, tcp := range []bool{false, true} {
					if v := pollOf(t, "owner."+zone, tcp, 20*time.Second, a.Addr()); v.Kind != tt.want {
						t.Errorf("after %q (tcp %v): got %s, want %s", tt.values, tcp, v, tt.want)
					}
				}
			}
		})
	}
}

// TestCachedAbsenceIsNoLoss: a record that was deleted and made again stays absent in a cache for the SOA minimum. The lease
// must run meanwhile, and beside an authority that has the record the answer is unclear, never a loss.
func TestCachedAbsenceIsNoLoss(t *testing.T) {
	a := ownertest.StartKnot(t, zone, absent, zoneRecords)
	cache := ownertest.StartUnbound(t, zone, a.Addr())
	record := "owner." + zone
	a.SetRecords(record, ttl)
	if v := pollOf(t, record, false, 20*time.Second, cache.Addr()); v.Kind != ownership.None {
		t.Fatalf("deleted: got %s", v)
	}
	a.SetRecords(record, ttl, mine)
	if v := pollOf(t, record, false, 20*time.Second, a.Addr()); v.Kind != ownership.Mine {
		t.Errorf("the authority: got %s", v)
	}
	if v := pollOf(t, record, false, 20*time.Second, cache.Addr()); v.Kind != ownership.None {
		t.Errorf("the cache: got %s, want the cached absence", v)
	}
	if v := pollOf(t, record, false, 20*time.Second, cache.Addr(), a.Addr()); v.Kind != ownership.Unclear || v.Foreign {
		t.Errorf("both: got %s, foreign %v", v, v.Foreign)
	}
	cache.Forget()
	if v := pollOf(t, record, false, 20*time.Second, cache.Addr()); v.Kind != ownership.Mine {
		t.Errorf("the emptied cache: got %s", v)
	}
}

// TestFrozenAuthorityGivesNoNewProof: when nobody can ask the authority any more, no answer may prove ownership as of a later
// moment, whatever caches do: else a site that was cut off would renew its lease from a cache for ever.
func TestFrozenAuthorityGivesNoNewProof(t *testing.T) {
	const short = time.Second
	for name, tt := range map[string]struct {
		cache []string // lines of unbound's configuration; nil: no cache
		why   string   // what the polls end with
	}{
		"direct":                  {why: "no answer in time"},
		"cache":                   {cache: []string{}, why: ""},
		"cache that serves stale": {cache: []string{"serve-expired: yes", "ede: yes", "ede-serve-expired: yes"}, why: "stale"},
		"cache that hides it":     {cache: []string{"serve-expired: yes"}, why: "above the configured"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := ownertest.StartKnot(t, zone, absent, zoneRecords)
			record := "owner." + zone
			a.SetRecords(record, short, mine)
			asked := a
			if tt.cache != nil {
				asked = ownertest.StartUnbound(t, zone, a.Addr(), tt.cache...)
			}
			r := resolver(2*time.Second, asked.Addr())
			r.Settings.Name, r.Settings.RecordTTL = record, short
			if v := r.Poll(t.Context(), false); v.Kind != ownership.Mine {
				t.Fatalf("before: got %s", v)
			}
			a.Freeze()
			frozen := ownership.BootClock()
			var v ownership.Verdict
			for v = r.Poll(t.Context(), false); v.Kind == ownership.Mine; v = r.Poll(t.Context(), false) {
				if v.AsOf > frozen {
					t.Fatalf("a proof as of %s after the authority froze", v.AsOf.Sub(frozen))
				}
				time.Sleep(20 * time.Millisecond) // the cache's clock is what is waited for
			}
			if v.Kind != ownership.Failed || !strings.Contains(v.Reason, tt.why) {
				t.Fatalf("got %s, want failed with %q", v, tt.why)
			}
			a.Thaw()
			a.SetRecords(record, short, other)
			moved := ownership.BootClock()
			for v.Kind != ownership.Other {
				if v = r.Poll(t.Context(), false); v.Kind == ownership.Mine && v.AsOf > moved {
					t.Fatalf("a proof as of %s after the record had moved", v.AsOf.Sub(moved))
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
}
