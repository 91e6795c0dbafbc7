package ownertest

import (
	"fmt"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Behaviour is a way to answer wrongly.
type Behaviour string

// The behaviours. "The record" is what SetOwner or SetRecords has set; Foreign is what forged and foreign records say.
const (
	Proper            Behaviour = ""
	NXDomain          Behaviour = "nxdomain"
	NoData            Behaviour = "nodata"
	NoDataBare        Behaviour = "nodata without SOA"
	ServFail          Behaviour = "servfail"
	Refuse            Behaviour = "refused"
	FormErr           Behaviour = "formerr"
	NotImp            Behaviour = "notimp"
	Lame              Behaviour = "lame: empty, neither authority nor resolver"
	LameNX            Behaviour = "lame nxdomain"
	Referral          Behaviour = "referral to other servers"
	Silent            Behaviour = "silent"
	SilentUDP         Behaviour = "silent over UDP"
	SilentTCP         Behaviour = "silent over TCP"
	DropOdd           Behaviour = "every other question unanswered, the first one too"
	Truncate          Behaviour = "truncated over UDP, right over TCP"
	TruncateForeign   Behaviour = "truncated over UDP with a foreign record in it, right over TCP"
	TruncateSilentTCP Behaviour = "truncated over UDP with a foreign record in it, silent over TCP"
	TruncateBoth      Behaviour = "truncated over UDP and TCP"
	Strings           Behaviour = "the record in several strings"
	Alias             Behaviour = "alias to the record"
	AliasCase         Behaviour = "alias to the record, spelt in other letters"
	AliasOldTTL       Behaviour = "alias with a TTL smaller than the record's"
	AliasDangling     Behaviour = "alias to a name that does not exist"
	AliasNoData       Behaviour = "alias to a name without TXT"
	AliasCut          Behaviour = "alias whose target is not in the answer"
	AliasLoop         Behaviour = "aliases in a circle"
	AliasChain8       Behaviour = "eight aliases in a row"
	AliasChain9       Behaviour = "nine aliases in a row"
	AliasAndRecord    Behaviour = "alias and record of one name"
	TwoAliases        Behaviour = "two aliases of one name"
	OtherName         Behaviour = "a foreign record of a name that nobody asked for"
	OtherNameToo      Behaviour = "the record, and a foreign one of another name"
	OtherClass        Behaviour = "a foreign record of another class"
	NXDomainRecord    Behaviour = "nxdomain with the record"
	Stale             Behaviour = "the record, marked stale"
	StaleNX           Behaviour = "nxdomain, marked stale"
	LongTTL           Behaviour = "the record with a TTL above the published one"
	ForgedID          Behaviour = "a forged answer with another id first"
	ForgedQuestion    Behaviour = "a forged answer to another question first"
	OnlyForgedID      Behaviour = "a forged answer with another id only"
	OnlyForgedQuery   Behaviour = "a forged answer to another question only"
	NotAnAnswer       Behaviour = "the question sent back"
	NoQuestion        Behaviour = "an answer without its question"
	Garbage           Behaviour = "three bytes"
	CutShort          Behaviour = "the answer cut in half, unmarked"
)

// Foreign is the owner that forged and foreign records name.
const Foreign = "seed-forged"

// reply makes the messages that answer one question.
type reply struct {
	query  *dns.Msg
	proto  string
	zone   string
	values []string
	ttl    time.Duration
	count  int // of this question, from 1
}

func (r reply) name() string { return r.query.Question[0].Name }

// proper is the right answer.
func (r reply) proper() *dns.Msg {
	m := r.empty()
	switch {
	case !strings.EqualFold(r.name(), r.zone):
		m.Rcode = dns.RcodeRefused
		m.Authoritative = false
	case len(r.values) == 0:
		m.Rcode, m.Ns = dns.RcodeNameError, []dns.RR{r.soa()}
	case r.query.Question[0].Qtype != dns.TypeTXT:
		m.Ns = []dns.RR{r.soa()}
	default:
		m.Answer = r.records(r.name())
	}
	return m
}

func (r reply) empty() *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(r.query)
	m.Authoritative = true
	if o := r.query.IsEdns0(); o != nil {
		m.SetEdns0(1232, false)
	}
	return m
}

func (r reply) records(name string) []dns.RR {
	var rrs []dns.RR
	for _, v := range r.values {
		rrs = append(rrs, txt(name, r.ttl, v))
	}
	return rrs
}

func (r reply) soa() dns.RR {
	return &dns.SOA{Hdr: header(r.zone, dns.TypeSOA, 7*time.Second), Ns: "ns." + r.zone, Mbox: "admin." + r.zone,
		Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: 7}
}

func (r reply) alias(from, to string) dns.RR {
	return &dns.CNAME{Hdr: header(from, dns.TypeCNAME, r.ttl), Target: to}
}

// make chooses by behaviour; nil is silence.
func (r reply) make(how Behaviour) []*dns.Msg {
	switch {
	case how == Silent, how == SilentUDP && r.proto == "udp", how == SilentTCP && r.proto == "tcp",
		how == TruncateSilentTCP && r.proto == "tcp", how == DropOdd && r.count%2 == 1:
		return nil
	case how == ForgedID, how == OnlyForgedID, how == ForgedQuestion, how == OnlyForgedQuery:
		return r.forged(how)
	case strings.HasPrefix(string(how), "alias"), strings.HasPrefix(string(how), "eight"), strings.HasPrefix(string(how), "nine"), how == TwoAliases:
		return []*dns.Msg{r.aliased(how)}
	}
	return []*dns.Msg{r.wrong(how)}
}

func (r reply) wrong(how Behaviour) *dns.Msg {
	m, bare := r.proper(), r.empty()
	if code, ok := map[Behaviour]int{ServFail: dns.RcodeServerFailure, Refuse: dns.RcodeRefused, FormErr: dns.RcodeFormatError, NotImp: dns.RcodeNotImplemented}[how]; ok {
		bare.Rcode = code
		return bare
	}
	foreign := txt(r.name(), r.ttl, Foreign)
	switch how {
	case NXDomain, StaleNX, LameNX:
		bare.Rcode, bare.Ns = dns.RcodeNameError, []dns.RR{r.soa()}
		bare.Authoritative = how != LameNX
		if how == StaleNX {
			markStale(bare, dns.ExtendedErrorCodeStaleNXDOMAINAnswer)
		}
		return bare
	case NoData:
		bare.Ns = []dns.RR{r.soa()}
		return bare
	case NoDataBare:
		return bare
	case Lame, Referral:
		bare.Authoritative = false
		if how == Referral {
			bare.RecursionAvailable = true
			bare.Ns = []dns.RR{&dns.NS{Hdr: header(r.zone, dns.TypeNS, r.ttl), Ns: "ns." + r.zone}}
		}
		return bare
	case OtherName:
		bare.Answer = []dns.RR{txt("other."+r.zone, r.ttl, Foreign)}
		return bare
	case OtherNameToo:
		m.Answer = append([]dns.RR{txt("other."+r.zone, r.ttl, Foreign)}, m.Answer...)
	case OtherClass:
		foreign.Hdr.Class = dns.ClassCHAOS
		m.Answer = append([]dns.RR{foreign}, m.Answer...)
	case NXDomainRecord:
		m.Rcode = dns.RcodeNameError
	case Truncate, TruncateForeign, TruncateSilentTCP, TruncateBoth:
		if r.proto == "udp" || how == TruncateBoth {
			bare.Truncated = true
			if how != Truncate {
				bare.Answer = []dns.RR{foreign}
			}
			return bare
		}
	case Strings:
		for _, rr := range m.Answer {
			t := rr.(*dns.TXT)
			t.Txt = strings.Split(strings.Join(t.Txt, ""), "")
		}
	case Stale:
		markStale(m, dns.ExtendedErrorCodeStaleAnswer)
	case LongTTL:
		for _, rr := range m.Answer {
			rr.Header().Ttl = 3600
		}
	case NotAnAnswer:
		m.Response = false
	case NoQuestion:
		m.Question = nil
	}
	return m
}

func (r reply) aliased(how Behaviour) *dns.Msg {
	m, target := r.empty(), "target."+r.zone
	switch how {
	case Alias:
		m.Answer = append([]dns.RR{r.alias(r.name(), target)}, r.records(target)...)
	case AliasCase:
		m.Answer = append([]dns.RR{r.alias(strings.ToUpper(r.name()), target)}, r.records(strings.ToUpper(target))...)
	case AliasOldTTL:
		a := r.alias(r.name(), target)
		a.Header().Ttl = 2
		m.Answer = append([]dns.RR{a}, r.records(target)...)
	case AliasDangling:
		m.Rcode, m.Answer, m.Ns = dns.RcodeNameError, []dns.RR{r.alias(r.name(), target)}, []dns.RR{r.soa()}
	case AliasNoData:
		m.Answer, m.Ns = []dns.RR{r.alias(r.name(), target)}, []dns.RR{r.soa()}
	case AliasCut:
		m.Answer = []dns.RR{r.alias(r.name(), target)}
	case AliasLoop:
		m.Answer = append([]dns.RR{r.alias(r.name(), target), r.alias(target, r.name())}, txt("other."+r.zone, r.ttl, Foreign))
	case AliasChain8:
		m.Answer = r.chain(8)
	case AliasChain9:
		m.Answer = r.chain(9)
	case AliasAndRecord:
		m.Answer = append(append([]dns.RR{r.alias(r.name(), target)}, r.records(r.name())...), r.records(target)...)
	case TwoAliases:
		m.Answer = append([]dns.RR{r.alias(r.name(), target), r.alias(r.name(), "second."+r.zone)}, r.records(target)...)
	}
	return m
}

func (r reply) chain(links int) []dns.RR {
	var rrs []dns.RR
	from := r.name()
	for i := range links {
		to := fmt.Sprintf("n%d.%s", i, r.zone)
		rrs = append(rrs, r.alias(from, to))
		from = to
	}
	return append(rrs, r.records(from)...)
}

// forged puts a forged answer before the right one, or in its place.
func (r reply) forged(how Behaviour) []*dns.Msg {
	bad := r.empty()
	name := r.name()
	if how == ForgedID || how == OnlyForgedID {
		bad.Id++
	} else {
		name = "other." + r.zone
		bad.Question[0].Name = name
	}
	bad.Answer = []dns.RR{txt(name, r.ttl, Foreign)}
	if how == OnlyForgedID || how == OnlyForgedQuery {
		return []*dns.Msg{bad}
	}
	return []*dns.Msg{bad, r.proper()}
}

func markStale(m *dns.Msg, code uint16) {
	if o := m.IsEdns0(); o != nil {
		o.Option = append(o.Option, &dns.EDNS0_EDE{InfoCode: code})
	}
}

func header(name string, t uint16, ttl time.Duration) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: t, Class: dns.ClassINET, Ttl: uint32(ttl / time.Second)}
}

// txt is a TXT record of any bytes, in strings of at most 255.
func txt(name string, ttl time.Duration, value string) *dns.TXT {
	rr := &dns.TXT{Hdr: header(name, dns.TypeTXT, ttl)}
	for len(value) > 255 {
		rr.Txt = append(rr.Txt, escape(value[:255]))
		value = value[255:]
	}
	rr.Txt = append(rr.Txt, escape(value))
	return rr
}

// escape is the presentation form in which the library keeps strings.
func escape(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteString(`\` + string(rune(c)))
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\%03d`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
