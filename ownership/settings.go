package ownership

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/miekg/dns"
)

// Values of Settings.Absent: what a record that is not there means.
const (
	AbsentSuspect = "suspect" // nothing by itself: the lease runs
	AbsentLost    = "lost"    // the same as a record that names someone else
)

// Values of Settings.StartWithoutStore: what to do at start while the journal cannot be read.
const (
	StartNever  = "never"   // wait for the store
	StartIfOurs = "if-ours" // start when the record is ours and the last that we knew of the journal was our own entry
)

// Settings are all numbers and names of ownership. The letters are those that the bounds are written with.
// Both sites of a handover should run with the same settings: each must know how long the other may serve.
type Settings struct {
	Name      string   // absolute name of the one TXT record
	ID        string   // the record's value when we are the owner
	IDPattern string   // form of an owner id, a regular expression for the whole value; "" any printable text
	Servers   []string // addresses, with a port or for port 53; empty: resolv.conf, read anew at each poll
	Absent    string   // AbsentSuspect or AbsentLost

	Interval        time.Duration // I: between polls, ±10 %
	SuspectInterval time.Duration // i: between polls while something is unclear
	PollTimeout     time.Duration // P: for a whole poll, UDP and TCP
	LostCount       int           // C: foreign answers in a row that are a loss
	RegainCount     int           // R: own answers in a row that bring ownership back
	RecordTTL       time.Duration // T: the TTL that the record is published with

	TermGrace  time.Duration // g: from TERM to KILL in a handover
	MaxGap     time.Duration // J: the longest gap between two proofs that needs no new journal entry
	Lease      time.Duration // E: how long the last proof lasts; 0 for ever, with UnsafeNoLease only
	WaitFinal  time.Duration // W: how long a destination waits for the final; 0 for ever
	StoreCheck time.Duration // between reads of the journal while waiting; an owner reads it at a sixth of that rate

	StartWithoutStore string // StartNever or StartIfOurs
	UnsafeNoLease     bool   // allow Lease 0: an owner that is cut off serves for ever
}

// Defaults are the settings to begin with; Name and ID have none.
func Defaults() Settings {
	return Settings{
		Absent:            AbsentSuspect,
		Interval:          5 * time.Second,
		SuspectInterval:   time.Second,
		PollTimeout:       4 * time.Second,
		LostCount:         2,
		RegainCount:       3,
		RecordTTL:         10 * time.Second,
		TermGrace:         5 * time.Second,
		MaxGap:            30 * time.Second,
		Lease:             15 * time.Minute,
		WaitFinal:         30 * time.Minute,
		StoreCheck:        5 * time.Second,
		StartWithoutStore: StartNever,
	}
}

// killMargin is what the bounds allow for a kill that takes its time, for clocks that differ, and for our own tick.
const killMargin = 30 * time.Second

// longTTL is the record TTL above which Warnings speaks.
const longTTL = time.Minute

// Validate returns every reason why these settings cannot be run, one line each, joined; nil when there is none.
func (s Settings) Validate() error {
	numbers := s.checkNumbers()
	if numbers == nil {
		numbers = s.checkBounds() // of numbers that are none they would say nothing
	}
	return errors.Join(s.checkName(), s.checkID(), s.checkServers(), s.checkChoices(), numbers)
}

// Warnings are one line each about settings that can be run but are seldom meant.
func (s Settings) Warnings() []string {
	var w []string
	if s.RecordTTL > longTTL {
		w = append(w, fmt.Sprintf("owner-record-ttl %s: a change of owner stays unseen for up to that long; 10s is usual", s.RecordTTL))
	}
	if s.Lease == 0 {
		w = append(w, "owner-lease 0: an owner that is cut off from DNS and store never stops serving by itself")
	}
	return w
}

func (s Settings) checkName() error {
	labels, ok := dns.IsDomainName(s.Name)
	switch {
	case s.Name == "":
		return errors.New("owner-name is empty: set it to the absolute name of the owner record, such as owner.c1.example.org.")
	case !strings.HasSuffix(s.Name, "."):
		return fmt.Errorf("owner-name %q is relative: end it with a dot (%s.), so that no search list can answer for it", s.Name, s.Name)
	case !ok || labels < 1 || s.Name == "." || !dns.IsFqdn(s.Name) || strings.ContainsFunc(s.Name, notInName):
		return fmt.Errorf("owner-name %q is not a domain name: labels of 1 to 63 characters, 253 in all, no spaces, no wildcard", s.Name)
	}
	return nil
}

func notInName(r rune) bool { return r <= ' ' || r == '*' || r == '\\' || r == '"' || r >= 0x7f }

func (s Settings) checkID() error {
	pattern, err := compilePattern(s.IDPattern)
	if err != nil {
		return fmt.Errorf("owner-id-pattern %q is not a regular expression: %w", s.IDPattern, err)
	}
	switch {
	case s.ID == "":
		return errors.New("owner-id is empty: set it to the value that the record has while this site is the owner")
	case !utf8.ValidString(s.ID) || strings.ContainsFunc(s.ID, func(r rune) bool { return !unicode.IsPrint(r) }):
		return fmt.Errorf("owner-id %q has control or invalid characters: use printable text only", s.ID)
	case strings.TrimSpace(s.ID) != s.ID:
		return fmt.Errorf("owner-id %q begins or ends with a space: ids are compared byte for byte, remove it", s.ID)
	case len(s.ID) > 255:
		return fmt.Errorf("owner-id is %d bytes long: 255 is the limit", len(s.ID))
	case !wellFormed(s.ID, pattern):
		return fmt.Errorf("owner-id %q does not match owner-id-pattern %q: the other site would take our own record for a broken one; change either", s.ID, s.IDPattern)
	}
	return nil
}

func (s Settings) checkServers() error {
	var errs []error
	for _, a := range s.Servers {
		if _, err := ParseServer(a); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s Settings) checkChoices() error {
	var errs []error
	if s.Absent != AbsentSuspect && s.Absent != AbsentLost {
		errs = append(errs, fmt.Errorf("owner-absent %q is unknown: use %s or %s", s.Absent, AbsentSuspect, AbsentLost))
	}
	if s.StartWithoutStore != StartNever && s.StartWithoutStore != StartIfOurs {
		errs = append(errs, fmt.Errorf("start-without-store %q is unknown: use %s or %s", s.StartWithoutStore, StartNever, StartIfOurs))
	}
	return errors.Join(errs...)
}

func (s Settings) checkNumbers() error {
	var errs []error
	for _, n := range []struct {
		name string
		d    time.Duration
		min  time.Duration
	}{
		{"owner-interval", s.Interval, 100 * time.Millisecond},
		{"owner-suspect-interval", s.SuspectInterval, 100 * time.Millisecond},
		{"owner-poll-timeout", s.PollTimeout, 100 * time.Millisecond},
		{"owner-record-ttl", s.RecordTTL, 0},
		{"owner-term-grace", s.TermGrace, 0},
		{"owner-max-gap", s.MaxGap, time.Millisecond},
		{"owner-lease", s.Lease, 0},
		{"wait-final", s.WaitFinal, 0},
		{"owner-store-check", s.StoreCheck, 100 * time.Millisecond},
	} {
		if n.d < n.min {
			errs = append(errs, fmt.Errorf("%s %s is too short: at least %s", n.name, n.d, n.min))
		}
	}
	if s.RecordTTL%time.Second != 0 {
		errs = append(errs, fmt.Errorf("owner-record-ttl %s is not in whole seconds: DNS knows no other TTL", s.RecordTTL))
	}
	if s.LostCount < 2 {
		errs = append(errs, fmt.Errorf("owner-lost-count %d: a single answer is no confirmation; at least 2", s.LostCount))
	}
	if s.RegainCount < 1 {
		errs = append(errs, fmt.Errorf("owner-regain-count %d: at least 1", s.RegainCount))
	}
	return errors.Join(errs...)
}

// checkBounds returns the first inequality between the numbers that is broken: a single wrong number breaks several.
func (s Settings) checkBounds() error {
	e, t, g, w := s.Lease, s.RecordTTL, s.TermGrace, s.WaitFinal
	worst := t + s.Interval*11/10 + s.PollTimeout // the age of a proof just before the next, from a cache
	switch sum := e + t + g + killMargin; {
	case s.Interval > t && t > 0:
		return fmt.Errorf("I > T: owner-interval %s is longer than owner-record-ttl %s: poll at least once in each TTL, lower the interval or raise the TTL", s.Interval, t)
	case s.SuspectInterval > s.Interval:
		return fmt.Errorf("i > I: owner-suspect-interval %s is longer than owner-interval %s: lower it", s.SuspectInterval, s.Interval)
	case e == 0 && !s.UnsafeNoLease:
		return errors.New("owner-lease 0: an owner that is cut off would serve for ever; set a lease, or owner-unsafe-no-lease and wait-final 0 if that is what you want")
	case e == 0 && w > 0:
		return fmt.Errorf("E > W: owner-lease 0 (for ever) is longer than wait-final %s: a destination would take over from an owner that never stops; set wait-final to 0 (wait for ever) or set a lease", w)
	case e > 0 && e <= worst:
		return fmt.Errorf("E <= T + 1.1 I + P: owner-lease %s would run out between two good polls (%s); raise it", e, worst)
	case worst > s.MaxGap:
		return fmt.Errorf("T + 1.1 I + P > J: owner-record-ttl %s + 1.1 owner-interval %s + owner-poll-timeout %s = %s is longer than owner-max-gap %s: cached answers would cost a journal entry each; raise the gap", t, s.Interval, s.PollTimeout, worst, s.MaxGap)
	case e > 0 && s.MaxGap >= e:
		return fmt.Errorf("J >= E: owner-max-gap %s is not shorter than owner-lease %s: lower the gap", s.MaxGap, e)
	case e > 0 && w > 0 && sum > w:
		return fmt.Errorf("E + T + g + %s > W: owner-lease %s + owner-record-ttl %s + owner-term-grace %s + %s = %s is longer than wait-final %s: a destination would take over while the source may still serve; %sraise wait-final to %s",
			killMargin, e, t, g, killMargin, sum, w, s.lowerLease(worst), sum)
	}
	return nil
}

// lowerLease is the advice to lower the lease to what the wait allows, where that leaves one that can be run.
func (s Settings) lowerLease(worst time.Duration) string {
	if most := s.WaitFinal - s.RecordTTL - s.TermGrace - killMargin; most > max(worst, s.MaxGap) {
		return fmt.Sprintf("lower the lease to %s or ", most)
	}
	return ""
}

// Windows are the bounds that follow from the settings, without what DNS and the kernel add: D, until every server of
// the zone has a change (a cache may hold the old record for a second more than T: it counts in whole seconds), and k, from KILL to the last process reaped.
type Windows struct {
	LossVisible time.Duration // change of the record to the last acknowledged write, at most, + D + k
	Silence     time.Duration // DNS cut off to the last acknowledged write, at most, + D + k; 0 never
	Destination time.Duration // what W must be at least, + D + k
	Wait        time.Duration // what W is; 0 for ever
	Spare       time.Duration // Wait - Destination: what is left for D, k and the final's upload
}

// Windows computes the bounds. Settings that Validate refuses give numbers without meaning.
func (s Settings) Windows() Windows {
	w := Windows{
		LossVisible: s.RecordTTL + s.Interval*11/10 + s.PollTimeout + time.Duration(s.LostCount-1)*(s.SuspectInterval+s.PollTimeout) + s.TermGrace,
		Wait:        s.WaitFinal,
	}
	if s.Lease > 0 {
		w.Silence = s.Lease + s.TermGrace
		w.Destination = s.Lease + s.Lease/1000 + s.TermGrace // two clocks drift apart by 0.1 % at most
	}
	if w.Wait > 0 {
		w.Spare = w.Wait - w.Destination
	}
	return w
}

// Window is one line of an explanation for people.
type Window struct {
	Name    string        `json:"name"`
	Formula string        `json:"formula"`
	Value   time.Duration `json:"value"`
	Meaning string        `json:"meaning"`
}

// Explain is the windows as lines, in the order to print them.
func (w Windows) Explain() []Window {
	lines := []Window{{"loss visible", "D + T + 1.1 I + P + (C-1)(i+P) + g + k", w.LossVisible,
		"after a change of the record, the last acknowledged write comes at most this much later, + D + k"}}
	if w.Silence > 0 {
		lines = append(lines, Window{"dns cut off", "D + E + g + k", w.Silence,
			"an owner that gets no more answers stops at most this much after the last one, + D + k"})
	} else {
		lines = append(lines, Window{"dns cut off", "never (E = 0)", 0, "an owner that gets no more answers serves for ever"})
	}
	if w.Wait == 0 {
		return append(lines, Window{"destination", "W = 0", 0, "a destination waits for the final for ever"})
	}
	return append(lines,
		Window{"destination, least", "E + 0.1 % + g + D + k", w.Destination, "a destination must wait for the final at least this long, + D + k"},
		Window{"destination, set", "W", w.Wait, "how long it waits before it abandons the generation"},
		Window{"destination, spare", "W - (E + 0.1 % + g)", w.Spare, "what is left for D, k and the upload of a late final"})
}

// ParseServer reads the address of a name server: an IPv4 or IPv6 address, with a zone if link-local, with :port or for port 53.
func ParseServer(a string) (netip.AddrPort, error) {
	if ap, err := netip.ParseAddrPort(a); err == nil && ap.Port() != 0 {
		return ap, nil
	}
	if ip, err := netip.ParseAddr(strings.Trim(a, "[]")); err == nil {
		return netip.AddrPortFrom(ip, 53), nil
	}
	return netip.AddrPort{}, fmt.Errorf("owner-servers %q is not an address: write it as 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:53; names are not looked up, since that would need DNS", a)
}

func compilePattern(p string) (*regexp.Regexp, error) {
	if p == "" {
		return nil, nil
	}
	return regexp.Compile(`\A(?:` + p + `)\z`)
}

// wellFormed reports whether a value has the form of an owner id.
func wellFormed(v string, pattern *regexp.Regexp) bool {
	if v == "" || !utf8.ValidString(v) || strings.ContainsFunc(v, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return false
	}
	return pattern == nil || pattern.MatchString(v)
}
