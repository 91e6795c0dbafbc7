package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/ownership"
)

func (p *program) ownerCommand() *cli.Command {
	flags := func(own ...cli.Flag) []cli.Flag { return slices.Concat(commonFlags(), ownerFlags(), own) }
	asJSON := &cli.BoolFlag{Name: "json", Usage: "print JSON, one value a line"}
	tcp := &cli.BoolFlag{Name: "tcp", Usage: "ask by TCP alone, as the poll does that confirms a loss"}
	cmd := &cli.Command{
		Name: "owner", Usage: "ask the owner record once, watch it, or explain the configured numbers",
		Subcommands: []*cli.Command{
			{Name: "check", Usage: "poll once: what each server says, and what `run` would make of it; the exit code is the verdict's",
				Flags: flags(asJSON, tcp), Action: p.oneShot(p.ownerCheck)},
			{Name: "watch", Usage: "poll as `run` does and print a line for each change, until a signal comes",
				Flags: flags(asJSON), Action: p.oneShot(ownerWatch)},
			{Name: "explain", Usage: "print the configured numbers and the windows that follow from them",
				Flags: flags(asJSON), Action: p.oneShot(ownerExplain)},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return badConfig("unknown command %q; see `etcd-warden owner --help`", c.Args().First())
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
	for _, sub := range cmd.Subcommands {
		sub.OnUsageError = func(c *cli.Context, err error, _ bool) error {
			return badConfig("%w; see `etcd-warden owner %s --help`", err, c.Command.Name)
		}
	}
	return cmd
}

// ownerSettings are the settings of a command that is of no use without them.
func ownerSettings(c *cli.Context) (ownership.Settings, error) {
	if c.Args().Present() {
		return ownership.Settings{}, badConfig("unexpected argument %q; see `etcd-warden owner %s --help`", c.Args().First(), c.Command.Name)
	}
	s, err := ownerConfig(c)
	switch {
	case err != nil:
		return ownership.Settings{}, err
	case s == nil:
		return ownership.Settings{}, badConfig("owner %s needs --owner-name NAME and --owner-id ID: the record to ask, and its value when the cluster is ours", c.Command.Name)
	}
	return *s, nil
}

// verdictCode is the exit code of `owner check`.
func verdictCode(k ownership.VerdictKind) int {
	switch k {
	case ownership.Mine:
		return 0
	case ownership.Other:
		return exitOther
	case ownership.None:
		return exitNone
	case ownership.Unclear:
		return exitUnclear
	}
	return exitPollFailed
}

func (p *program) ownerCheck(ctx context.Context, c *cli.Context, _ zerolog.Logger) error {
	s, err := ownerSettings(c)
	if err != nil {
		return err
	}
	v := (&ownership.Resolver{Settings: s}).Poll(ctx, c.Bool("tcp"))
	if ctx.Err() != nil {
		return context.Cause(ctx) // what was cut short says nothing about the record
	}
	p.code = verdictCode(v.Kind)
	r := newCheckReport(s, v)
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(r)
	}
	return r.print(c.App.Writer)
}

// checkReport is what one poll says, for people and programs.
type checkReport struct {
	Name    string                `json:"name"`
	ID      string                `json:"id"`
	Verdict ownership.VerdictKind `json:"verdict"`
	Value   string                `json:"value,omitempty"`
	Reason  string                `json:"reason"`
	Effect  string                `json:"effect"`
	Foreign bool                  `json:"foreign"`          // at least one server named someone else
	AgeMS   *int64                `json:"age_ms,omitempty"` // mine and other: how old the answer may be
	Server  string                `json:"server,omitempty"` // whose answer counted
	Proto   string                `json:"proto,omitempty"`  //
	TookMS  int64                 `json:"took_ms"`          //
	Answers []answerReport        `json:"answers"`          // in the configured order
}

// answerReport is what one server said.
type answerReport struct {
	Server     string                `json:"server"`
	Proto      string                `json:"proto"`
	Verdict    ownership.VerdictKind `json:"verdict"`
	Values     []string              `json:"values"`
	RCode      string                `json:"rcode,omitempty"`
	Flags      []string              `json:"flags"`
	TTLSeconds *int64                `json:"ttl_seconds,omitempty"`
	AgeSeconds *int64                `json:"age_seconds,omitempty"`
	Chain      []string              `json:"chain,omitempty"`
	EDE        []string              `json:"ede,omitempty"`
	Reason     string                `json:"reason"`
	TookMS     int64                 `json:"took_ms"`
}

func newCheckReport(s ownership.Settings, v ownership.Verdict) checkReport {
	r := checkReport{Name: s.Name, ID: s.ID, Verdict: v.Kind, Value: v.Value, Reason: v.Reason, Effect: effect(s, v.Kind), Foreign: v.Foreign,
		Server: v.Server, Proto: v.Proto, TookMS: v.Took.Milliseconds(), Answers: []answerReport{}}
	if v.Kind == ownership.Mine || v.Kind == ownership.Other {
		age := v.At.Sub(v.AsOf).Milliseconds()
		r.AgeMS = &age
	}
	for _, a := range v.Answers {
		out := answerReport{Server: a.Server, Proto: a.Proto, Verdict: a.Kind, Values: append([]string{}, a.Values...), RCode: a.RCode,
			Flags: append([]string{}, a.Flags...), Chain: a.Chain, EDE: a.EDE, Reason: a.Reason, TookMS: a.Took.Milliseconds()}
		if len(a.Values) > 0 || a.TTL > 0 {
			ttl := int64(a.TTL / time.Second)
			out.TTLSeconds = &ttl
		}
		if len(a.Values) > 0 {
			age := int64(a.Age / time.Second)
			out.AgeSeconds = &age
		}
		r.Answers = append(r.Answers, out)
	}
	return r
}

// effect says what `run` makes of a verdict.
func effect(s ownership.Settings, k ownership.VerdictKind) string {
	switch {
	case k == ownership.Mine:
		return "renews the lease"
	case k == ownership.Other, k == ownership.None && s.Absent == ownership.AbsentLost:
		return fmt.Sprintf("a loss when %d polls in a row say so", s.LostCount)
	case s.Lease == 0:
		return "no loss; an owner goes on for ever (owner-lease 0)"
	}
	return fmt.Sprintf("no loss; an owner goes on until the last proof is %s old", s.Lease)
}

func (r checkReport) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SERVER\tBY\tVERDICT\tANSWER\tTTL\tAGE\tFLAGS\tTOOK\tWHY")
	for _, a := range r.Answers {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d ms\t%s\n", a.Server, a.Proto, a.Verdict, orDash(a.said()), inSeconds(a.TTLSeconds), inSeconds(a.AgeSeconds),
			orDash(strings.Join(a.Flags, " ")), a.TookMS, a.why())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	said := string(r.Verdict)
	if r.Value != "" {
		said += fmt.Sprintf(" %q", r.Value)
	}
	_, err := fmt.Fprintf(out, "\n%s is %s: %s: %s\n", r.Name, said, r.Reason, r.Effect)
	return err
}

// said is the answer in short: the quoted records, so that no byte of them reaches a terminal, or the response code.
func (a answerReport) said() string {
	if len(a.Values) == 0 {
		return a.RCode
	}
	var quoted []string
	for _, v := range a.Values {
		quoted = append(quoted, fmt.Sprintf("%.100q", v))
	}
	return strings.Join(quoted, " ")
}

func (a answerReport) why() string {
	why := a.Reason
	if len(a.Chain) > 0 {
		why += ", by way of " + strings.Join(a.Chain, ", ")
	}
	if len(a.EDE) > 0 && !strings.Contains(why, a.EDE[0]) {
		why += " (" + strings.Join(a.EDE, ", ") + ")"
	}
	return why
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func inSeconds(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprintf("%ds", *n)
}

// ownerWatch ends without an error when a signal ends it: that is its only end.
func ownerWatch(ctx context.Context, c *cli.Context, _ zerolog.Logger) error {
	s, err := ownerSettings(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := ownership.NewWatcher(&ownership.Resolver{Settings: s}, s, nil)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = w.Run(ctx) }() // its only error is the end of ctx
	defer func() { cancel(); <-ended }()
	seen := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case v := <-w.Verdicts():
			if v.Kind != ownership.Mine {
				w.Next(s.SuspectInterval, false) // as an owner in doubt polls
			}
			if now := gist(v); now != seen {
				seen = now
				if err := printChange(c, time.Now(), v); err != nil {
					return fmt.Errorf("print a change: %w", err)
				}
			}
		}
	}
}

// gist is what makes a change of two verdicts: what each server says, not how or how fast.
func gist(v ownership.Verdict) string {
	parts := []string{string(v.Kind), v.Value}
	for _, a := range v.Answers {
		parts = append(parts, a.Server, string(a.Kind), a.RCode, fmt.Sprintf("%q", a.Values))
	}
	if len(v.Answers) == 0 {
		parts = append(parts, v.Reason)
	}
	return strings.Join(parts, "\x00")
}

// changeReport is one line of `owner watch --json`.
type changeReport struct {
	Time    time.Time             `json:"time"`
	Verdict ownership.VerdictKind `json:"verdict"`
	Value   string                `json:"value,omitempty"`
	Server  string                `json:"server,omitempty"`
	Proto   string                `json:"proto,omitempty"`
	Reason  string                `json:"reason"`
}

func printChange(c *cli.Context, at time.Time, v ownership.Verdict) error {
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(changeReport{at.UTC(), v.Kind, v.Value, v.Server, v.Proto, v.Reason})
	}
	from := ""
	if v.Server != "" {
		from = fmt.Sprintf(" (%s by %s)", v.Server, v.Proto)
	}
	_, err := fmt.Fprintf(c.App.Writer, "%s  %s%s\n", at.UTC().Format("2006-01-02T15:04:05.000Z"), v, from)
	return err
}
