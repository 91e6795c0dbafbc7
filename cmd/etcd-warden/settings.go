package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
)

// configError is bad input: what, where, and what to do, in one line.
type configError struct{ err error }

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

func badConfig(format string, a ...any) error { return &configError{fmt.Errorf(format, a...)} }

// loadSettings completes the flags of c: what neither a flag nor the environment says is taken from the configuration
// file. A WARDEN_* variable or a key of the file that no command knows is an error: a misspelt setting must not be
// silently a default.
func loadSettings(c *cli.Context) error {
	known := knownSettings(c.App)
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "WARDEN_") && name != etcdBinaryVariable && !slices.Contains(known, settingOf(name)) {
			return badConfig("environment variable %s: not a setting of etcd-warden; unset it (settings are WARDEN_ and a flag's name in capitals; in Kubernetes a Service named warden makes such variables: set enableServiceLinks: false)", name)
		}
	}
	settings, err := readSettings(c)
	if err != nil {
		return err
	}
	for _, s := range settings {
		if !hasFlag(c.Command, s.name) || c.IsSet(s.name) {
			continue
		}
		if err := c.Set(s.name, s.value); err != nil {
			return badConfig("configuration %s: %s: cannot use %q: %w", s.where, s.name, s.value, err)
		}
	}
	return nil
}

// fileSetting is one line of the configuration file.
type fileSetting struct {
	name, value string
	where       string // file:line
}

// readSettings reads the configuration file. Without one there are no settings, unless --config names it.
func readSettings(c *cli.Context) ([]fileSetting, error) {
	file, explicit := c.String("config"), c.IsSet("config")
	if file == "" {
		file = defaultConfigFile
	}
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && !explicit {
		return nil, nil
	}
	if err != nil {
		return nil, badConfig("read configuration: %w", err)
	}
	return parseSettings(file, content, knownSettings(c.App))
}

func settingOf(variable string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(variable, "WARDEN_"), "_", "-"))
}

// knownSettings are the flags of all commands: one file and one environment serve all of them.
func knownSettings(app *cli.App) []string {
	var names []string
	for _, cmd := range app.Commands {
		for _, f := range cmd.Flags {
			names = append(names, f.Names()[0])
		}
	}
	return names
}

// parseSettings reads a flat YAML mapping of flag names.
func parseSettings(file string, content []byte, known []string) (settings []fileSetting, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return nil, badConfig("configuration %s: %w", file, err)
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, badConfig("configuration %s:%d: want `setting: value` lines", file, top.Line)
	}
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if !slices.Contains(known, key.Value) || key.Value == "config" || key.Value == "check" {
			return nil, badConfig("configuration %s:%d: unknown setting %q; settings are named like the flags of `etcd-warden run --help`", file, key.Line, key.Value)
		}
		text, err := scalar(value)
		if err != nil {
			return nil, badConfig("configuration %s:%d: %s: %w", file, value.Line, key.Value, err)
		}
		settings = append(settings, fileSetting{key.Value, text, fmt.Sprintf("%s:%d", file, value.Line)})
	}
	return settings, nil
}

func hasFlag(cmd *cli.Command, name string) bool {
	return slices.ContainsFunc(cmd.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
}

// scalar is a value as a flag would take it; a list becomes comma-separated.
func scalar(n *yaml.Node) (string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		return n.Value, nil
	case yaml.SequenceNode:
		var items []string
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode {
				return "", errors.New("want a list of plain values")
			}
			items = append(items, item.Value)
		}
		return strings.Join(items, ","), nil
	}
	return "", errors.New("want a value or a list of values")
}
