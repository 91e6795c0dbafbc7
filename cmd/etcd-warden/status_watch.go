package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"
)

// watchEvery is how often a watched status is asked for.
const watchEvery = time.Second

// clearScreen puts the cursor home and clears what is below it; ECMA-48 CUP and ED.
const clearScreen = "\x1b[H\x1b[J"

// watchStatus shows the status again and again until ctx ends, which is its good end. A warden that does not answer may
// come back: that is shown too. On a terminal each view replaces the one before, elsewhere they follow each other.
func watchStatus(ctx context.Context, c *cli.Context, address string) error {
	terminal := c.App.Writer == io.Writer(os.Stdout) && term.IsTerminal(int(os.Stdout.Fd()))
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		var view bytes.Buffer
		if terminal {
			view.WriteString(clearScreen)
		}
		if !c.Bool("json") {
			fmt.Fprintf(&view, "%s  %s\n\n", address, time.Now().Format(time.TimeOnly))
		}
		if err := showStatus(ctx, c, &view, address); err != nil && ctx.Err() == nil {
			fmt.Fprintln(&view, err)
		}
		if !c.Bool("json") {
			fmt.Fprintln(&view)
		}
		if ctx.Err() != nil {
			return nil
		}
		if _, err := view.WriteTo(c.App.Writer); err != nil {
			return fmt.Errorf("show the status: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
