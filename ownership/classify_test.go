package ownership

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// FuzzAnswer: whatever bytes come, only a whole answer to our question with exactly one TXT record at the end of the chain
// may say who owns.
func FuzzAnswer(f *testing.F) {
	s := goodSettings()
	form, err := newForm(s)
	if err != nil {
		f.Fatal(err)
	}
	q := new(dns.Msg)
	q.SetQuestion(s.Name, dns.TypeTXT)
	q.Id = 4711
	seed := func(change func(*dns.Msg)) {
		m := new(dns.Msg)
		m.SetReply(q)
		m.Authoritative = true
		m.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: s.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 10}, Txt: []string{s.ID}}}
		change(m)
		b, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	seed(func(*dns.Msg) {})
	seed(func(m *dns.Msg) { m.Truncated = true })
	seed(func(m *dns.Msg) { m.Answer = append(m.Answer, m.Answer[0]) })
	seed(func(m *dns.Msg) { m.Answer = nil })
	seed(func(m *dns.Msg) { m.SetEdns0(1232, false) })
	f.Fuzz(func(t *testing.T, b []byte) {
		if truncated(q, b) {
			return
		}
		m := parse(q, b)
		if m == nil {
			return
		}
		var a Answer
		form.classify(m, &a)
		if a.Kind != Mine && a.Kind != Other {
			return
		}
		if m.Truncated || m.Rcode != dns.RcodeSuccess || len(a.Values) != 1 || a.Age < 0 || !strings.EqualFold(m.Question[0].Name, s.Name) {
			t.Fatalf("%s from %v", a.Kind, m)
		}
		if (a.Kind == Mine) != (a.Values[0] == s.ID) {
			t.Fatalf("%s for %q", a.Kind, a.Values[0])
		}
	})
}
