package main

import (
	"slices"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"
)

// reloader reads the configuration file again at SIGHUP. Only the log level is taken over: everything else is part of what
// the guarantees are computed from, and holds for one life of the program.
type reloader struct {
	c     *cli.Context
	log   zerolog.Logger
	fixed bool              // the log level is a flag's or a variable's, which beat the file
	began map[string]string // what the file said at start
}

// newReloader must be made before the file is applied, as flags that it sets count as set afterwards.
func newReloader(c *cli.Context) *reloader { return &reloader{c: c, fixed: c.IsSet("log-level")} }

// begin notes what is in force.
func (r *reloader) begin(log zerolog.Logger) error {
	r.log = log
	var err error
	r.began, err = r.read()
	return err
}

func (r *reloader) read() (map[string]string, error) {
	settings, err := readSettings(r.c)
	if err != nil {
		return nil, err
	}
	now := map[string]string{}
	for _, s := range settings {
		if hasFlag(r.c.Command, s.name) {
			now[s.name] = s.value
		}
	}
	return now, nil
}

// reload takes over the log level, and says which other settings have changed since the start. With an error nothing was
// changed.
func (r *reloader) reload() error {
	now, err := r.read()
	if err != nil {
		return err
	}
	const level = "log-level"
	if _, named := now[level]; !named {
		now[level] = defaultLogLevel
	}
	if !r.fixed {
		to, err := parseLevel(now[level])
		if err != nil {
			return err
		}
		zerolog.SetGlobalLevel(to)
	}
	var changed []string
	for name := range now {
		if was, known := r.began[name]; name != level && (!known || was != now[name]) {
			changed = append(changed, name)
		}
	}
	for name := range r.began {
		if _, still := now[name]; !still {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	if len(changed) > 0 {
		r.log.Warn().Strs("settings", changed).Msg("changed settings need a restart of the warden")
	}
	return nil
}
