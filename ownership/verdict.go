package ownership

import (
	"fmt"
	"time"
)

// VerdictKind is what one poll of the owner record says.
type VerdictKind string

// The five verdicts. Only Mine renews the lease; only Other, confirmed, is a loss.
const (
	Mine    VerdictKind = "mine"    // exactly one record, equal to our id
	Other   VerdictKind = "other"   // exactly one record, another value of the configured form
	None    VerdictKind = "none"    // the name does not exist, or has no TXT record
	Unclear VerdictKind = "unclear" // several records, an empty or malformed value, servers that disagree
	Failed  VerdictKind = "failed"  // nobody gave an answer that can be used
)

// Verdict is the outcome of one poll over all servers.
type Verdict struct {
	Kind   VerdictKind `json:"verdict"`
	Value  string      `json:"value,omitempty"` // what the record says: Mine and Other
	AsOf   BootTime    `json:"-"`               // Mine and Other: the moment at which the authority surely said so, see [Answer.Age]
	At     BootTime    `json:"-"`               // start of the query
	Server string      `json:"server,omitempty"`
	Proto  string      `json:"proto,omitempty"` // udp or tcp: what the decisive answer came by

	// Foreign says that at least one server named someone else, also when the whole is Unclear. It puts a later Mine in doubt.
	Foreign bool          `json:"foreign,omitempty"`
	Reason  string        `json:"reason"` // one phrase: why this verdict
	TTL     time.Duration `json:"ttl,omitempty"`
	Took    time.Duration `json:"took"`
	Answers []Answer      `json:"answers"` // one for each server asked, in the configured order
}

// String is a short form for logs and terminals.
func (v Verdict) String() string {
	if v.Value != "" {
		return fmt.Sprintf("%s %q: %s", v.Kind, v.Value, v.Reason)
	}
	return fmt.Sprintf("%s: %s", v.Kind, v.Reason)
}

// Answer is what one server said in one poll.
type Answer struct {
	Server string        `json:"server"`
	Proto  string        `json:"proto"` // udp or tcp: the last one used
	Kind   VerdictKind   `json:"verdict"`
	Values []string      `json:"values,omitempty"` // TXT records of the name, strings joined, in the order received
	RCode  string        `json:"rcode,omitempty"`  // "" when no answer came
	Flags  []string      `json:"flags,omitempty"`  // of aa, tc, rd, ra, ad
	TTL    time.Duration `json:"ttl,omitempty"`    // the smallest on the way to the value
	Age    time.Duration `json:"age,omitempty"`    // configured TTL - TTL received, and a second more from a cache: how long it may have held the answer
	Chain  []string      `json:"chain,omitempty"`  // names that CNAME records led to
	EDE    []string      `json:"ede,omitempty"`    // extended DNS errors, RFC 8914
	Reason string        `json:"reason"`
	Took   time.Duration `json:"took"`
}

// combine makes one verdict of the answers of all servers. Servers that gave no usable answer do not count as long
// as one did; those that answered must agree.
func combine(answers []Answer, at BootTime, took time.Duration) Verdict {
	v := Verdict{Kind: Failed, At: at, Took: took, Answers: answers, Reason: "no server to ask"}
	first := -1
	for i, a := range answers {
		v.Foreign = v.Foreign || a.Kind == Other
		if a.Kind == Failed {
			continue
		}
		if first >= 0 && !agree(answers[first], a) {
			f := answers[first]
			v.Kind, v.Value, v.AsOf, v.TTL = Unclear, "", 0, 0
			v.Server, v.Proto = "", ""
			v.Reason = fmt.Sprintf("servers disagree: %s says %s, %s says %s", f.Server, f.said(), a.Server, a.said())
			for _, rest := range answers[i:] {
				v.Foreign = v.Foreign || rest.Kind == Other
			}
			return v
		}
		asOf := at.Add(-a.Age)
		if first < 0 || asOf > v.AsOf { // every answer is a proof of its own: the freshest counts
			v.Kind, v.Value, v.AsOf, v.TTL = a.Kind, a.value(), asOf, a.TTL
			v.Server, v.Proto, v.Reason = a.Server, a.Proto, a.Reason
		}
		if first < 0 {
			first = i
		}
	}
	if first < 0 && len(answers) > 0 {
		v.Server, v.Proto = answers[0].Server, answers[0].Proto
		v.Reason = answers[0].Server + ": " + answers[0].Reason
		if n := len(answers) - 1; n > 0 {
			v.Reason += fmt.Sprintf(" (and %d more without an answer)", n)
		}
	}
	if v.Kind != Mine && v.Kind != Other {
		v.Value, v.AsOf = "", 0
	}
	return v
}

func agree(a, b Answer) bool { return a.Kind == b.Kind && a.value() == b.value() }

// value is the record's value where the answer is Mine or Other.
func (a Answer) value() string {
	if a.Kind == Mine || a.Kind == Other {
		return a.Values[0]
	}
	return ""
}

func (a Answer) said() string {
	if v := a.value(); v != "" {
		return fmt.Sprintf("%q", v)
	}
	return string(a.Kind)
}
