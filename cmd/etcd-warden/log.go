package main

import (
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/rs/zerolog/diode"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"
)

// logQueue is how many lines may wait for a slow stderr; older ones are dropped and counted. A full pipe behind stderr
// must never hold up a kill.
const logQueue = 4096

// newLogger makes the program's logger. The returned function flushes it, but waits for a blocked stderr one second at
// most.
func newLogger(c *cli.Context) (zerolog.Logger, func(), error) {
	level, err := parseLevel(c.String("log-level"))
	if err != nil {
		return zerolog.Logger{}, nil, err
	}
	zerolog.SetGlobalLevel(level) // not the logger's own, so that a reload can change it
	zerolog.TimeFieldFormat, zerolog.DurationFieldInteger = "2006-01-02T15:04:05.000000Z07:00", true
	var out io.Writer = os.Stderr
	terminal := term.IsTerminal(int(os.Stderr.Fd()))
	switch format := c.String("log-format"); {
	case format == "console", format == "auto" && terminal:
		out = zerolog.ConsoleWriter{Out: os.Stderr, TimeFormat: "15:04:05.000", NoColor: !terminal || os.Getenv("NO_COLOR") != ""}
	case format == "json", format == "auto":
	default:
		return zerolog.Logger{}, nil, badConfig("--log-format %q: want json, console or auto", format)
	}
	queue := diode.NewWriter(struct{ io.Writer }{out}, logQueue, 0, func(int) {}) // hides Close: stderr stays ours
	flush := func() { atMost(lastWords, func() { queue.Close() }) }
	return zerolog.New(queue).With().Timestamp().Logger(), flush, nil
}

// lastWords is how long the end of the program waits for a stderr that nobody reads.
const lastWords = time.Second

// atMost runs f and waits for it, but no longer than that: the program ends while f still runs.
func atMost(patience time.Duration, f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
	}
}

func parseLevel(name string) (zerolog.Level, error) {
	level, err := zerolog.ParseLevel(name)
	if err != nil || level == zerolog.NoLevel {
		return level, badConfig("--log-level %q: want debug, info, warn or error", name)
	}
	return level, nil
}
