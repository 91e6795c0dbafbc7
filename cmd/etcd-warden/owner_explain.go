package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/ownership"
)

// number is one setting with the letter that the bounds are written with.
type number struct {
	Letter  string `json:"letter,omitempty"`
	Setting string `json:"setting"`
	Value   string `json:"value"`
	Meaning string `json:"meaning"`
}

func numbers(s ownership.Settings) []number {
	return []number{
		{"I", "owner-interval", s.Interval.String(), "between two polls, ±10 %"},
		{"i", "owner-suspect-interval", s.SuspectInterval.String(), "between two polls while something is unclear"},
		{"P", "owner-poll-timeout", s.PollTimeout.String(), "a whole poll: half for UDP, the rest for TCP"},
		{"C", "owner-lost-count", fmt.Sprint(s.LostCount), "foreign answers in a row that are a loss"},
		{"R", "owner-regain-count", fmt.Sprint(s.RegainCount), "own answers in a row that bring ownership back"},
		{"T", "owner-record-ttl", s.RecordTTL.String(), "TTL that the record is published with"},
		{"g", "owner-term-grace", s.TermGrace.String(), "from TERM to KILL in a handover, at most"},
		{"J", "owner-max-gap", s.MaxGap.String(), "the longest gap between two proofs that needs no new journal entry"},
		{"E", "owner-lease", forEver(s.Lease), "how long the last proof lasts"},
		{"W", "wait-final", forEver(s.WaitFinal), "how long a destination waits for the final"},
		{"", "owner-store-check", s.StoreCheck.String(), "between two looks at the journal while something is waited for"},
		{"", "owner-absent", s.Absent, "what a missing record means"},
		{"", "start-without-store", s.StartWithoutStore, "at start, while the journal cannot be read"},
	}
}

func forEver(d time.Duration) string {
	if d == 0 {
		return "for ever"
	}
	return d.String()
}

// explainReport is `owner explain --json`.
type explainReport struct {
	Numbers  []number       `json:"numbers"`
	Windows  []windowReport `json:"windows"`
	Warnings []string       `json:"warnings"`
}

type windowReport struct {
	Name    string `json:"name"`
	Formula string `json:"formula"`
	MS      int64  `json:"ms"` // 0: never, or for ever
	Meaning string `json:"meaning"`
}

// placeholder stands in for a record that nobody has named yet: the numbers can be looked at before.
func placeholder(c *cli.Context) error {
	if c.String("owner-name") != "" || c.String("owner-id") != "" {
		return nil
	}
	if err := c.Set("owner-name", "owner.example.org."); err != nil {
		return err
	}
	if c.String("owner-id-pattern") != "" {
		if err := c.Set("owner-id-pattern", ""); err != nil {
			return err
		}
	}
	return c.Set("owner-id", "site-a")
}

func ownerExplain(_ context.Context, c *cli.Context, _ zerolog.Logger) error {
	if err := placeholder(c); err != nil {
		return err
	}
	s, err := ownerSettings(c)
	if err != nil {
		return err
	}
	r := explainReport{Numbers: numbers(s), Warnings: append([]string{}, s.Warnings()...)}
	for _, w := range s.Windows().Explain() {
		r.Windows = append(r.Windows, windowReport{w.Name, w.Formula, w.Value.Milliseconds(), w.Meaning})
	}
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(r)
	}
	w := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	for _, n := range r.Numbers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", n.Letter, n.Setting, n.Value, n.Meaning)
	}
	fmt.Fprint(w, "D\t\t\tuntil every server of the zone has a change, and a second more behind a cache\nk\t\t\tfrom KILL to the last process reaped\n\n")
	for _, x := range s.Windows().Explain() {
		value := x.Value.String()
		if x.Value == 0 {
			value = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.Name, x.Formula, value, x.Meaning)
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(w, "\nwarning: %s\n", warning)
	}
	return w.Flush()
}
