package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"

	"github.com/etcd-warden/etcd-warden/supervisor"
)

// errNotReady is returned by status when the warden answers but is not ready.
var errNotReady = errors.New("not ready")

func (p *program) statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "ask a running warden how it stands; the exit code is 0 only if it is ready",
		Flags: slices.Concat(commonFlags(), []cli.Flag{
			stringFlag(catHTTP, "http", defaultHTTP, "`ADDRESS` of the warden's health checks"),
			&cli.BoolFlag{Name: "json", Usage: "print what the warden answers"},
			&cli.BoolFlag{Name: "watch", Usage: "show it anew each second, until interrupted"},
			&cli.BoolFlag{Name: "quiet", Usage: "print nothing: a health check of a container, say"},
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Second, Usage: "for the answer"},
		}),
		Action: p.oneShot(status),
	}
}

func status(ctx context.Context, c *cli.Context, _ zerolog.Logger) error {
	address := c.String("http")
	if _, _, err := net.SplitHostPort(address); err != nil {
		return badConfig("--http %q: want host:port", address)
	}
	switch {
	case c.Bool("watch") && c.Bool("quiet"):
		return badConfig("--watch and --quiet exclude each other")
	case c.Bool("watch"):
		return watchStatus(ctx, c, address)
	}
	return showStatus(ctx, c, c.App.Writer, address)
}

// showStatus asks once. Its error says that nobody answers, or that the warden is not ready.
func showStatus(ctx context.Context, c *cli.Context, w io.Writer, address string) error {
	ctx, cancel := context.WithTimeout(ctx, c.Duration("timeout"))
	defer cancel()
	body, _, err := ask(ctx, "http://"+address+"/status")
	if err != nil {
		return fmt.Errorf("no warden answers at %s (%w); is it running, and with this --http?", address, err)
	}
	var st supervisor.Status
	if err := json.Unmarshal(body, &st); err != nil {
		return fmt.Errorf("what answers at %s is no etcd-warden: %w", address, err)
	}
	switch {
	case c.Bool("quiet"):
	case c.Bool("json"):
		_, err = w.Write(body)
	default:
		err = printStatus(w, st, time.Now())
	}
	if err != nil {
		return err
	}
	// Ready means that etcd serves now, not that it did.
	if why, code, err := ask(ctx, "http://"+address+"/readyz"); err != nil {
		return err
	} else if code != http.StatusOK {
		return fmt.Errorf("%w: %s", errNotReady, why)
	}
	return nil
}

// maxStatusBytes bounds an answer: a status has a few kilobytes.
const maxStatusBytes = 1 << 20

func ask(ctx context.Context, url string) (body []byte, code int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxStatusBytes))
	return body, resp.StatusCode, err
}

// printStatus is the status for people. now makes ages of moments.
func printStatus(w io.Writer, st supervisor.Status, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, a ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, a...)) }
	row("warden", "%s", st.Version)
	row("phase", "%s for %s", st.Phase, now.Sub(st.Since).Round(time.Second))
	row("ready", "%v", st.Ready)
	if st.Why != "" {
		row("why", "%s", st.Why)
	}
	if st.Child.PID != 0 {
		row("child", "pid %d for %s, %d restarts", st.Child.PID, now.Sub(st.Child.Started).Round(time.Second), st.Child.Restarts)
	} else {
		row("child", "none runs, %d restarts", st.Child.Restarts)
	}
	if st.Child.LastExit != "" {
		row("last exit", "%s", st.Child.LastExit)
	}
	if o := st.Owner; o != nil {
		row("owner record", "%s, ours is %q", o.Name, o.ID)
		row("ownership", "%s: %s", o.State, o.Reason)
		if o.Verdict != "" {
			row("last poll", "%s, %s ago", o.Verdict, now.Sub(o.VerdictAt).Round(time.Second))
		}
		if st.Child.PID != 0 {
			row("lease left", "%s", (time.Duration(o.LeaseLeftMS) * time.Millisecond).Round(time.Second))
		}
		row("generation", "%d", o.Generation)
		row("journal", "%s", o.Head)
	}
	if h := st.Handover; h != nil {
		row("handover", "%s", h.Step)
		if h.TotalBytes > 0 && h.Revision == 0 {
			row("read", "%d of %d bytes, %d stored", h.PlainBytes, h.TotalBytes, h.StoredBytes)
		}
		if h.Revision > 0 {
			row("final", "revision %d, %s", h.Revision, h.Key)
		}
		if h.LastError != "" {
			row("last error", "%s (try %d)", h.LastError, h.Attempt)
		}
	}
	if st.Store != "" {
		row("store", "%s", st.Store)
	}
	return t.Flush()
}
