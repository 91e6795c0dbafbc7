package ownership

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// maxLinks is how many CNAME records may lead to the owner record.
const maxLinks = 8

// cacheRounding is by how much the TTL in a cached answer may be too large: caches count in whole seconds, so that one which
// has just answered with the full TTL may have held the record for almost a second.
const cacheRounding = time.Second

// form is what an answer is held against.
type form struct {
	name    string
	id      string
	pattern *regexp.Regexp
	ttl     uint32 // the configured one, seconds
}

func newForm(s Settings) (form, error) {
	pattern, err := compilePattern(s.IDPattern)
	if err != nil {
		return form{}, fmt.Errorf("owner-id-pattern: %w", err)
	}
	return form{name: s.Name, id: s.ID, pattern: pattern, ttl: uint32(s.RecordTTL / time.Second)}, nil
}

// classify fills in what the message says about the record. The message answers our question (see parse); a truncated one is
// never read.
func (f form) classify(m *dns.Msg, a *Answer) {
	a.Kind, a.RCode, a.Flags = Failed, rcodeName(m.Rcode), flags(m)
	stale := false
	a.EDE, stale = extendedErrors(m)
	switch {
	case m.Truncated:
		a.Reason = "the answer is truncated"
	case m.Opcode != dns.OpcodeQuery:
		a.Reason = "the answer is to another kind of request"
	case stale:
		a.Reason = "the server says that its answer is stale (" + strings.Join(a.EDE, ", ") + ")"
	case m.Rcode == dns.RcodeNameError:
		f.classifyNoName(m, a)
	case m.Rcode != dns.RcodeSuccess:
		a.Reason = "the server answers " + a.RCode
	default:
		f.classifyAnswer(m, a)
	}
}

// classifyNoName takes NXDOMAIN from a server that has the right to say it.
func (f form) classifyNoName(m *dns.Msg, a *Answer) {
	switch {
	case !m.Authoritative && !m.RecursionAvailable:
		a.Reason = "NXDOMAIN of a server that is neither an authority for the name nor a resolver"
	case hasType(m.Answer, dns.TypeTXT):
		a.Reason = "NXDOMAIN together with TXT records"
	case hasType(m.Answer, dns.TypeCNAME):
		a.Kind, a.Reason = None, "the name is an alias of one that does not exist"
	default:
		a.Kind, a.Reason = None, "the name does not exist"
	}
}

// classifyAnswer follows the aliases by name and judges the record at their end.
func (f form) classifyAnswer(m *dns.Msg, a *Answer) {
	name, ttl := f.name, uint32(math.MaxUint32)
	for {
		at := recordsAt(m.Answer, name)
		ttl = min(ttl, at.minTTL)
		switch {
		case at.minTTL != math.MaxUint32 && at.maxTTL > f.ttl:
			// A cache never makes a TTL longer: either the answer is stale (RFC 8767) or the setting is wrong, and then
			// the age of an answer cannot be known.
			a.TTL = time.Duration(at.maxTTL) * time.Second
			a.Reason = fmt.Sprintf("%s has TTL %d, above the configured %d: a stale answer, or set owner-record-ttl to what is published", name, at.maxTTL, f.ttl)
		case len(at.values) > 0 && len(at.targets) > 0, len(at.targets) > 1:
			a.Reason = fmt.Sprintf("%s is an alias and more than that", name)
		case len(at.values) > 0:
			a.Values, a.TTL = at.values, time.Duration(ttl)*time.Second
			f.judge(a, ttl)
			if !m.Authoritative {
				a.Age += cacheRounding
			}
		case len(at.targets) == 0:
			f.classifyNoData(m, a, name)
		case len(a.Chain) == maxLinks:
			a.Reason = fmt.Sprintf("more than %d aliases in a row", maxLinks)
		default:
			name = at.targets[0]
			a.Chain = append(a.Chain, name)
			continue
		}
		return
	}
}

func (f form) judge(a *Answer, ttl uint32) {
	v := a.Values[0]
	switch {
	case len(a.Values) > 1:
		a.Kind, a.Reason = Unclear, fmt.Sprintf("%d TXT records, expected one", len(a.Values))
	case v == f.id:
		a.Kind, a.Reason = Mine, "the record is our id"
	case v == "":
		a.Kind, a.Reason = Unclear, "the record is empty"
	case !wellFormed(v, f.pattern):
		a.Kind, a.Reason = Unclear, fmt.Sprintf("the record %.64q does not have the form of an owner id", v)
	default:
		a.Kind, a.Reason = Other, "the record names another"
	}
	a.Age = time.Duration(f.ttl-ttl) * time.Second
}

// classifyNoData tells "there is no TXT record" from an answer that is not complete.
func (f form) classifyNoData(m *dns.Msg, a *Answer, name string) {
	soa := hasType(m.Ns, dns.TypeSOA)
	switch {
	case hasType(m.Answer, dns.TypeTXT):
		a.Reason = "TXT records of another name only"
	case !m.Authoritative && !m.RecursionAvailable:
		a.Reason = "the server is neither an authority for the name nor a resolver"
	case !soa && !m.Authoritative && hasType(m.Ns, dns.TypeNS):
		a.Reason = "the server refers to others"
	case len(a.Chain) > 0 && !soa:
		a.Reason = fmt.Sprintf("the chain of aliases breaks off at %s", name)
	default:
		a.Kind, a.Reason = None, "the name has no TXT record"
	}
}

// records are those of one name that matter.
type records struct {
	values         []string // of TXT, strings joined, as bytes
	targets        []string // of CNAME
	minTTL, maxTTL uint32   // minTTL is MaxUint32 where there is no record
}

func recordsAt(answer []dns.RR, name string) records {
	at := records{minTTL: math.MaxUint32}
	for _, rr := range answer {
		h := rr.Header()
		if h.Class != dns.ClassINET || !strings.EqualFold(h.Name, name) {
			continue
		}
		switch rr := rr.(type) {
		case *dns.TXT:
			at.values = append(at.values, unescape(strings.Join(rr.Txt, "")))
		case *dns.CNAME:
			at.targets = append(at.targets, rr.Target)
		default:
			continue
		}
		at.minTTL, at.maxTTL = min(at.minTTL, h.Ttl), max(at.maxTTL, h.Ttl)
	}
	return at
}

// unescape undoes the presentation form in which the library keeps strings: \DDD and \X (RFC 1035, 5.1).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b = append(b, s[i])
			continue
		}
		i++
		if i+2 < len(s) && digit(s[i]) && digit(s[i+1]) && digit(s[i+2]) {
			b = append(b, (s[i]-'0')*100+(s[i+1]-'0')*10+(s[i+2]-'0'))
			i += 2
			continue
		}
		b = append(b, s[i])
	}
	return string(b)
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

func hasType(rrs []dns.RR, t uint16) bool {
	for _, rr := range rrs {
		if rr.Header().Rrtype == t {
			return true
		}
	}
	return false
}

func flags(m *dns.Msg) []string {
	var f []string
	for _, x := range []struct {
		set  bool
		name string
	}{{m.Authoritative, "aa"}, {m.Truncated, "tc"}, {m.RecursionDesired, "rd"}, {m.RecursionAvailable, "ra"}, {m.AuthenticatedData, "ad"}} {
		if x.set {
			f = append(f, x.name)
		}
	}
	return f
}

func rcodeName(rcode int) string {
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return fmt.Sprintf("RCODE%d", rcode)
}

// extendedErrors lists the extended errors (RFC 8914) and whether one says that the answer is stale: 3 and 19.
func extendedErrors(m *dns.Msg) (list []string, stale bool) {
	opt := m.IsEdns0()
	if opt == nil {
		return nil, false
	}
	for _, o := range opt.Option {
		e, ok := o.(*dns.EDNS0_EDE)
		if !ok {
			continue
		}
		text := fmt.Sprintf("EDE %d", e.InfoCode)
		if name, ok := dns.ExtendedErrorCodeToString[e.InfoCode]; ok {
			text += " " + name
		}
		list = append(list, text)
		stale = stale || e.InfoCode == dns.ExtendedErrorCodeStaleAnswer || e.InfoCode == dns.ExtendedErrorCodeStaleNXDOMAINAnswer
	}
	return list, stale
}
