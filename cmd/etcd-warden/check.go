package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/rs/zerolog"
	"github.com/urfave/cli/v2"
)

// check validates what `run` would run with, and prints it with the source of each value. It starts and changes nothing, and
// asks neither DNS nor store. Settings hold no secrets: credentials come from AWS_*, passwords from files.
func (p *program) check(c *cli.Context) error {
	given := map[string]string{} // what flags and environment said, before the file is applied
	for _, f := range c.Command.Flags {
		if name := f.Names()[0]; c.IsSet(name) {
			given[name] = givenBy(name)
		}
	}
	settings, err := readSettings(c)
	if err != nil {
		return err
	}
	if err := loadSettings(c); err != nil {
		return err
	}
	for _, s := range settings {
		if _, beaten := given[s.name]; !beaten {
			given[s.name] = s.where
		}
	}
	command, err := checkCommand(c)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
	for _, f := range c.Command.Flags {
		name := f.Names()[0]
		if name == "check" || name == "help" {
			continue
		}
		source := given[name]
		if source == "" {
			source = "default"
		}
		fmt.Fprintf(t, "%s\t%v\t%s\n", name, c.Value(name), source)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "\n%sconfiguration is valid\n", command)
	return err
}

// checkCommand validates the settings, with the command where there is one, and says what is known about it.
func checkCommand(c *cli.Context) (string, error) {
	if _, err := parseLevel(c.String("log-level")); err != nil {
		return "", err
	}
	if !c.Args().Present() {
		if _, err := ownerConfig(c); err != nil {
			return "", err
		}
		_, err := openStore(c, zerolog.Nop())
		return "no command was given: what depends on it is not checked\n", err
	}
	cfg, err := runConfig(c, zerolog.Nop())
	if err != nil {
		return "", err
	}
	text := "command: " + cfg.Path + "\n"
	if cfg.Etcd != nil {
		text += "data directory: " + cfg.Etcd.DataDir + "\n"
	}
	if cfg.Owner != nil {
		for _, w := range cfg.Owner.Warnings() {
			text += "warning: " + w + "\n"
		}
	}
	return text, nil
}

// givenBy tells which of the two set a flag that is set: a flag on the command line beats its variable.
func givenBy(name string) string {
	variable := env(name)[0]
	if _, set := os.LookupEnv(variable); !set {
		return "flag"
	}
	for _, arg := range os.Args[1:] {
		if arg == "--" {
			break
		}
		if flag, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); strings.HasPrefix(arg, "-") && flag == name {
			return "flag"
		}
	}
	return variable
}
