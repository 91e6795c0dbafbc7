package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// event is one thing that happened in the demo: a line of a site's own log, or something that the demo itself did.
type event struct {
	At      time.Time
	Who     string
	Message string
	Fields  map[string]any
}

// timeline collects events in the order of their arrival and prints the ones worth a line. It is safe for concurrent
// use.
type timeline struct {
	out  io.Writer
	json bool
	all  bool // print every event with all its fields

	mu     sync.Mutex // guards all below
	zero   time.Time  // when the record moved; before that, times are negative
	events []event
	over   bool          // the story is told: what comes is the demo's own cleaning up
	more   chan struct{} // closed and replaced at each new event
}

func newTimeline(out io.Writer, asJSON bool) *timeline {
	return &timeline{out: out, json: asJSON, more: make(chan struct{})}
}

// shown are the log messages that tell the story, with the fields worth showing.
var shown = map[string][]string{
	"record moved":                 {"owner"},
	"store down":                   nil,
	"store back":                   nil,
	"etcd hung":                    {"pid"},
	"etcd started":                 {"pid", "generation"},
	"etcd serving":                 nil,
	"owner record polled":          {"answer"},
	"readiness off":                nil,
	"TERM sent":                    {"pid"},
	"SIGKILL sent":                 nil,
	"etcd dead":                    {"exit", "took_ms"},
	"final capture":                {"how", "revision"},
	"fenced restart":               {"behind"},
	"final snapshot uploaded":      {"revision", "size_bytes", "took_ms"},
	"final snapshot not stored":    {"attempt", "error"},
	"final journalled":             {"generation", "revision"},
	"final snapshot found":         {"generation", "revision"},
	"snapshot restored":            {"revision", "took_ms"},
	"generation claimed":           {"generation"},
	"writer stopped acknowledging": {"acknowledged"},
}

func (t *timeline) add(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Message == "record moved" {
		t.zero = e.At
	}
	t.events = append(t.events, e)
	close(t.more)
	t.more = make(chan struct{})
	switch fields, ok := shown[e.Message]; {
	case t.over:
	case t.all:
		t.print(e, slices.Sorted(maps.Keys(e.Fields)))
	case ok:
		t.print(e, fields)
	}
}

// end stops the printing.
func (t *timeline) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

func (t *timeline) note(who, message string, fields map[string]any) {
	t.add(event{At: time.Now(), Who: who, Message: message, Fields: fields})
}

func (t *timeline) print(e event, fields []string) {
	ms := e.At.Sub(t.zero).Milliseconds()
	if t.zero.IsZero() {
		ms = 0
	}
	if t.json {
		line := map[string]any{"ms": ms, "who": e.Who, "event": e.Message}
		for _, f := range fields {
			if v, ok := e.Fields[f]; ok {
				line[f] = v
			}
		}
		json.NewEncoder(t.out).Encode(line)
		return
	}
	at := "      before"
	if !t.zero.IsZero() {
		at = fmt.Sprintf("%9d ms", ms)
	}
	text := fmt.Sprintf("%s  %-6s  %s", at, e.Who, e.Message)
	for _, f := range fields {
		if v, ok := e.Fields[f]; ok && v != "" {
			text += fmt.Sprintf("  %s=%v", f, v)
		}
	}
	fmt.Fprintln(t.out, text)
}

// await returns the first event, past or future, that who sent with this message.
func (t *timeline) await(ctx context.Context, who, message string) (event, error) {
	return t.awaitNth(ctx, who, message, 1)
}

// awaitNth returns the nth such event.
func (t *timeline) awaitNth(ctx context.Context, who, message string, n int) (event, error) {
	for next := 0; ; {
		t.mu.Lock()
		events, more := t.events[next:], t.more
		t.mu.Unlock()
		for _, e := range events {
			switch {
			case e.Who != who:
			case e.Message == message:
				if n--; n == 0 {
					return e, nil
				}
			case e.Message == siteEnded:
				return event{}, fmt.Errorf("%s ended before %q: %v", who, message, e.Fields["why"])
			}
		}
		next += len(events)
		select {
		case <-more:
		case <-ctx.Done():
			return event{}, fmt.Errorf("wait for %q of %s: %w", message, who, context.Cause(ctx))
		}
	}
}
