package ownership_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/ownership"
	"github.com/etcd-warden/etcd-warden/ownership/ownertest"
)

const (
	name = "owner.c1.own.test."
	mine = "seed-a/7"
	ttl  = 10 * time.Second
)

func serve(t *testing.T) *ownertest.Server {
	t.Helper()
	return serveOn(t, "127.0.0.1:0")
}

func serveOn(t *testing.T, addr string) *ownertest.Server {
	t.Helper()
	s, err := ownertest.ListenOn(addr, name)
	if err != nil {
		t.Skipf("no loopback server on %s: %v", addr, err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	s.SetOwner(mine, ttl)
	return s
}

// resolver asks the servers with a poll timeout that is short, for servers that never answer, or long.
func resolver(timeout time.Duration, servers ...string) *ownership.Resolver {
	s := ownership.Defaults()
	s.Name, s.ID, s.Servers, s.PollTimeout = name, mine, servers, timeout
	return &ownership.Resolver{Settings: s}
}

// TestVerdictOfEachAnswer: only a whole, fresh, fitting answer says who owns; a wrong one must never read as a loss.
func TestVerdictOfEachAnswer(t *testing.T) {
	const short, long = 200 * time.Millisecond, 20 * time.Second
	for _, tt := range []struct {
		how     ownertest.Behaviour
		values  []string // nil: our id
		tcp     bool     // ask by TCP alone
		timeout time.Duration
		want    ownership.VerdictKind
		reason  string
		proto   string
		asked   string // protocols of the questions; "" not looked at
	}{
		{how: ownertest.Proper, want: ownership.Mine, proto: "udp", asked: "udp"},
		{how: ownertest.Proper, tcp: true, want: ownership.Mine, proto: "tcp", asked: "tcp"},
		{how: ownertest.Proper, values: []string{"seed-b/1"}, want: ownership.Other, reason: "names another"},
		{how: ownertest.Proper, values: []string{strings.ToUpper(mine)}, want: ownership.Other},
		{how: ownertest.Proper, values: []string{mine + " "}, want: ownership.Other},
		{how: ownertest.Proper, values: []string{""}, want: ownership.Unclear, reason: "empty"},
		{how: ownertest.Proper, values: []string{"seed\x00b"}, want: ownership.Unclear, reason: "form"},
		{how: ownertest.Proper, values: []string{"seed\xffb"}, want: ownership.Unclear, reason: "form"},
		{how: ownertest.Proper, values: []string{mine, "seed-b/1"}, want: ownership.Unclear, reason: "2 TXT records"},
		{how: ownertest.Proper, values: []string{"seed-b/1", mine}, want: ownership.Unclear, reason: "2 TXT records"},
		{how: ownertest.Proper, values: []string{mine, mine}, want: ownership.Unclear},
		{how: ownertest.Proper, values: []string{}, want: ownership.None, reason: "does not exist"},
		{how: ownertest.Strings, want: ownership.Mine},
		{how: ownertest.NXDomain, want: ownership.None},
		{how: ownertest.NoData, want: ownership.None, reason: "no TXT record"},
		{how: ownertest.NoDataBare, want: ownership.None},
		{how: ownertest.AliasDangling, want: ownership.None, reason: "alias"},
		{how: ownertest.AliasNoData, want: ownership.None},
		{how: ownertest.Alias, want: ownership.Mine},
		{how: ownertest.AliasCase, want: ownership.Mine},
		{how: ownertest.AliasChain8, want: ownership.Mine},
		{how: ownertest.OtherNameToo, want: ownership.Mine},
		{how: ownertest.OtherClass, want: ownership.Mine},
		{how: ownertest.AliasChain9, want: ownership.Failed, reason: "more than 8"},
		{how: ownertest.AliasLoop, want: ownership.Failed, reason: "more than 8"},
		{how: ownertest.AliasCut, want: ownership.Failed, reason: "breaks off"},
		{how: ownertest.AliasAndRecord, want: ownership.Failed, reason: "more than that"},
		{how: ownertest.TwoAliases, want: ownership.Failed, reason: "more than that"},
		{how: ownertest.OtherName, want: ownership.Failed, reason: "another name"},
		{how: ownertest.NXDomainRecord, want: ownership.Failed},
		{how: ownertest.ServFail, want: ownership.Failed, reason: "SERVFAIL"},
		{how: ownertest.Refuse, want: ownership.Failed, reason: "REFUSED"},
		{how: ownertest.FormErr, want: ownership.Failed, reason: "FORMERR"},
		{how: ownertest.NotImp, want: ownership.Failed, reason: "NOTIMP"},
		{how: ownertest.Lame, want: ownership.Failed, reason: "neither"},
		{how: ownertest.LameNX, want: ownership.Failed, reason: "neither"},
		{how: ownertest.Referral, want: ownership.Failed, reason: "refers"},
		{how: ownertest.Stale, want: ownership.Failed, reason: "stale"},
		{how: ownertest.StaleNX, want: ownership.Failed, reason: "stale"},
		{how: ownertest.LongTTL, want: ownership.Failed, reason: "above the configured"},
		{how: ownertest.Truncate, want: ownership.Mine, proto: "tcp", asked: "udp tcp"},
		{how: ownertest.TruncateForeign, want: ownership.Mine, proto: "tcp", asked: "udp tcp"},
		{how: ownertest.TruncateBoth, want: ownership.Failed, reason: "truncated"},
		{how: ownertest.TruncateSilentTCP, timeout: short, want: ownership.Failed, reason: "truncated"},
		{how: ownertest.ForgedID, want: ownership.Mine, asked: "udp"},
		{how: ownertest.ForgedQuestion, want: ownership.Mine, asked: "udp"},
		{how: ownertest.OnlyForgedID, timeout: short, want: ownership.Failed, reason: "ignored 1 packets"},
		{how: ownertest.OnlyForgedQuery, timeout: short, want: ownership.Failed, reason: "ignored 1 packets"},
		{how: ownertest.OnlyForgedID, tcp: true, want: ownership.Failed, reason: "another id"},
		{how: ownertest.NotAnAnswer, timeout: short, want: ownership.Failed},
		{how: ownertest.NoQuestion, timeout: short, want: ownership.Failed},
		{how: ownertest.Garbage, timeout: short, want: ownership.Failed},
		{how: ownertest.CutShort, timeout: short, want: ownership.Failed},
		{how: ownertest.Silent, timeout: short, want: ownership.Failed, reason: "no answer in time", asked: "udp udp"},
		{how: ownertest.SilentTCP, tcp: true, timeout: short, want: ownership.Failed, reason: "no answer in time"},
		{how: ownertest.SilentUDP, tcp: true, want: ownership.Mine, proto: "tcp"},
		{how: ownertest.DropOdd, timeout: 4 * time.Second, want: ownership.Mine, asked: "udp udp"},
	} {
		label := string(tt.how)
		if tt.tcp {
			label += " by TCP"
		}
		if tt.values != nil {
			label += " " + strings.ToValidUTF8(strings.Join(tt.values, "+"), "?")
		}
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			s.Misbehave(tt.how)
			if tt.values != nil {
				s.SetRecords(ttl, tt.values...)
			}
			if tt.timeout == 0 {
				tt.timeout = long
			}
			v := resolver(tt.timeout, s.Addr()).Poll(t.Context(), tt.tcp)
			if v.Kind != tt.want || !strings.Contains(v.Reason, tt.reason) || tt.proto != "" && v.Proto != tt.proto {
				t.Fatalf("got %s over %s, want %s with %q over %q", v, v.Proto, tt.want, tt.reason, tt.proto)
			}
			if tt.asked != "" {
				var protos []string
				for _, q := range s.Queries() {
					protos = append(protos, q.Proto)
				}
				if got := strings.Join(protos, " "); got != tt.asked {
					t.Errorf("questions over %q, want %q", got, tt.asked)
				}
			}
			for _, q := range s.Queries() {
				if q.Name != name {
					t.Errorf("asked for %s: exactly one name must be asked", q.Name)
				}
			}
		})
	}
}

// TestProofIsAsOldAsTheCacheMayBe: otherwise a cached answer would renew the lease after the record moved.
func TestProofIsAsOldAsTheCacheMayBe(t *testing.T) {
	clock := func() ownership.BootTime { return ownership.BootTime(time.Hour) }
	for _, tt := range []struct {
		how  ownertest.Behaviour
		left time.Duration
		age  time.Duration
	}{{"", 10 * time.Second, 0}, {"", 3 * time.Second, 7 * time.Second}, {"", 0, 10 * time.Second}, {ownertest.AliasOldTTL, 9 * time.Second, 8 * time.Second}} {
		s := serve(t)
		s.SetOwner(mine, tt.left)
		s.Misbehave(tt.how)
		r := resolver(20*time.Second, s.Addr())
		r.Clock = clock
		v := r.Poll(t.Context(), false)
		if want := clock().Add(-tt.age); v.Kind != ownership.Mine || v.AsOf != want {
			t.Errorf("TTL %s left (%s): got %s as of %s, want as of %s", tt.left, tt.how, v.Kind, time.Duration(v.AsOf), time.Duration(want))
		}
	}
}

func TestIDsAreComparedAsBytes(t *testing.T) {
	for _, id := range []string{`a"b`, `a\b`, `a\065b`, `a;b`, "Zürich", strings.Repeat("x", 255), "a b"} {
		s := serve(t)
		r := resolver(20*time.Second, s.Addr())
		r.Settings.ID = id
		s.SetOwner(id, ttl)
		if v := r.Poll(t.Context(), false); v.Kind != ownership.Mine || v.Value != id {
			t.Errorf("%q: got %s", id, v)
		}
	}
	s := serve(t)
	r := resolver(20*time.Second, s.Addr())
	r.Settings.ID = strings.Repeat("x", 255)
	s.SetOwner(strings.Repeat("x", 300), ttl)
	if v := r.Poll(t.Context(), false); v.Kind != ownership.Other || len(v.Value) != 300 {
		t.Errorf("a value of two strings: got %s", v.Kind)
	}
}

func TestPatternTellsABrokenRecordFromANewOwner(t *testing.T) {
	s := serve(t)
	r := resolver(20*time.Second, s.Addr())
	r.Settings.IDPattern = "seed-[a-z]/[0-9]+"
	for value, want := range map[string]ownership.VerdictKind{mine: ownership.Mine, "seed-b/1": ownership.Other, "v=spf1 -all": ownership.Unclear, "seed-b/1\n": ownership.Unclear} {
		s.SetOwner(value, ttl)
		if v := r.Poll(t.Context(), false); v.Kind != want {
			t.Errorf("%q: got %s, want %s", value, v, want)
		}
	}
}

func TestSeveralServers(t *testing.T) {
	dead := func(s *ownertest.Server) { s.Misbehave(ownertest.Silent) }
	foreign := func(s *ownertest.Server) { s.SetOwner("seed-b/1", ttl) }
	gone := func(s *ownertest.Server) { s.Delete() }
	well := func(*ownertest.Server) {}
	refuse := func(s *ownertest.Server) { s.Misbehave(ownertest.Refuse) }
	for name, tt := range map[string]struct {
		servers []func(*ownertest.Server)
		want    ownership.VerdictKind
		foreign bool
	}{
		"all well":                           {[]func(*ownertest.Server){well, well}, ownership.Mine, false},
		"one of three dead":                  {[]func(*ownertest.Server){well, dead, well}, ownership.Mine, false},
		"first one refuses":                  {[]func(*ownertest.Server){refuse, well}, ownership.Mine, false},
		"all dead":                           {[]func(*ownertest.Server){dead, dead}, ownership.Failed, false},
		"they disagree":                      {[]func(*ownertest.Server){well, foreign}, ownership.Unclear, true},
		"they disagree, the other way round": {[]func(*ownertest.Server){foreign, well}, ownership.Unclear, true},
		"the last one disagrees":             {[]func(*ownertest.Server){well, gone, foreign}, ownership.Unclear, true},
		"one does not have the name":         {[]func(*ownertest.Server){gone, well}, ownership.Unclear, false},
		"all say another":                    {[]func(*ownertest.Server){foreign, foreign}, ownership.Other, true},
		"one says another, one is dead":      {[]func(*ownertest.Server){dead, foreign}, ownership.Other, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var addrs []string
			for _, change := range tt.servers {
				s := serve(t)
				change(s)
				addrs = append(addrs, s.Addr())
			}
			v := resolver(3*time.Second, addrs...).Poll(t.Context(), false)
			if v.Kind != tt.want || v.Foreign != tt.foreign || len(v.Answers) != len(addrs) {
				t.Fatalf("got %s, foreign %v, %d answers; want %s, %v, %d", v, v.Foreign, len(v.Answers), tt.want, tt.foreign, len(addrs))
			}
			for i, a := range v.Answers {
				if a.Server != addrs[i] || a.Reason == "" {
					t.Errorf("answer %d: server %s, reason %q; want %s and a reason", i, a.Server, a.Reason, addrs[i])
				}
			}
		})
	}
}

func TestFreshestOfSeveralProofsCounts(t *testing.T) {
	cached, direct := serve(t), serve(t)
	cached.SetOwner(mine, 2*time.Second)
	v := resolver(20*time.Second, cached.Addr(), direct.Addr()).Poll(t.Context(), false)
	if v.Kind != ownership.Mine || v.AsOf != v.At || v.Server != direct.Addr() {
		t.Fatalf("got %s as of %s before the query, from %s", v, v.At.Sub(v.AsOf), v.Server)
	}
}

func TestIPv6Server(t *testing.T) {
	s := serveOn(t, "[::1]:0")
	if v := resolver(20*time.Second, s.Addr()).Poll(t.Context(), false); v.Kind != ownership.Mine {
		t.Fatalf("got %s", v)
	}
}

func TestClosedPortIsNoLoss(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tcp := range []bool{false, true} {
		if v := resolver(20*time.Second, addr).Poll(t.Context(), tcp); v.Kind != ownership.Failed || !strings.Contains(v.Reason, "refused") {
			t.Errorf("tcp=%v: got %s", tcp, v)
		}
	}
}

// TestResolvConfIsReadAtEachPoll: a file that was empty or wrong at start must not matter for ever.
func TestResolvConfIsReadAtEachPoll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	r := resolver(20 * time.Second)
	r.ResolvConf = path
	if v := r.Poll(t.Context(), false); v.Kind != ownership.Failed || !strings.Contains(v.Reason, path) {
		t.Fatalf("no file: got %s", v)
	}
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("search own.test\noptions ndots:5\n")
	if v := r.Poll(t.Context(), false); v.Kind != ownership.Failed || !strings.Contains(v.Reason, "names none") {
		t.Fatalf("no servers: got %s", v)
	}
	s := serveOn(t, "127.0.77.53:53") // the file has no way to name a port
	write("search own.test\noptions ndots:5\nnameserver 127.0.77.53\n")
	if v := r.Poll(t.Context(), false); v.Kind != ownership.Mine {
		t.Fatalf("filled later: got %s", v)
	}
	if q := s.Queries(); len(q) != 1 || q[0].Name != name {
		t.Fatalf("asked %v, want the one name without a search list", q)
	}
}

// TestPollEndsWithItsContext: shutdown must not wait for a dead server.
func TestPollEndsWithItsContext(t *testing.T) {
	s := serve(t)
	s.Misbehave(ownertest.Silent)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan ownership.Verdict)
	go func() { done <- resolver(time.Hour, s.Addr()).Poll(ctx, false) }()
	cancel()
	if v := <-done; v.Kind != ownership.Failed {
		t.Fatalf("got %s", v)
	}
}

func TestAnswersTellWhatCame(t *testing.T) {
	s := serve(t)
	s.Misbehave(ownertest.Alias)
	a := resolver(20*time.Second, s.Addr()).Poll(t.Context(), false).Answers[0]
	if a.RCode != "NOERROR" || !slices.Contains(a.Flags, "aa") || a.TTL != ttl || !slices.Equal(a.Values, []string{mine}) || !slices.Equal(a.Chain, []string{"target." + name}) {
		t.Errorf("got %+v", a)
	}
	s.Misbehave(ownertest.Stale)
	a = resolver(20*time.Second, s.Addr()).Poll(t.Context(), false).Answers[0]
	if len(a.EDE) != 1 || !strings.Contains(a.EDE[0], "EDE 3") {
		t.Errorf("extended errors: got %q", a.EDE)
	}
}
