package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"
)

var update = flag.Bool("update", false, "write the generated references instead of comparing them")

// The references are made from the flags themselves. One that is not current would send an operator after a setting that
// is not there.
func TestReferencesAreCurrent(t *testing.T) {
	app := new(program).app()
	for path, content := range map[string]string{
		"docs/configuration.md":                  configurationReference(app),
		"packaging/config.yaml":                  configurationExample(app),
		"packaging/man/etcd-warden.8":            manual(t, app),
		"packaging/completions/etcd-warden.fish": fishCompletion(t, app),
	} {
		path = filepath.Join("..", "..", path)
		if *update {
			overwrite(t, path, []byte(content))
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(content, string(got)); diff != "" {
			t.Errorf("%s is not current (go test -run TestReferencesAreCurrent ./cmd/etcd-warden -update):\n%s", path, diff)
		}
	}
}

func manual(t *testing.T, app *cli.App) string {
	t.Helper()
	page, err := app.ToManWithSection(8)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func fishCompletion(t *testing.T, app *cli.App) string {
	t.Helper()
	script, err := app.ToFishCompletion()
	if err != nil {
		t.Fatal(err)
	}
	return script
}

// setting is a flag as a reference shows it.
type setting struct{ name, placeholder, def, usage, category string }

func settingsOf(c *cli.Command) (all []setting) {
	for _, f := range c.Flags {
		doc, ok := f.(cli.DocGenerationFlag)
		if !ok || f.Names()[0] == "help" {
			continue
		}
		s := setting{name: f.Names()[0], usage: strings.ReplaceAll(doc.GetUsage(), "`", ""), def: strings.Trim(doc.GetDefaultText(), `"`)}
		if s.def == "" && doc.TakesValue() {
			s.def = strings.Trim(doc.GetValue(), `"`)
		}
		if !doc.TakesValue() {
			s.def = "false"
		}
		if cat, ok := f.(cli.CategorizableFlag); ok {
			s.category = cat.GetCategory()
		}
		all = append(all, s)
	}
	slices.SortStableFunc(all, func(a, b setting) int { return strings.Compare(a.category, b.category) })
	return all
}

func configurationReference(app *cli.App) string {
	var b strings.Builder
	b.WriteString("# Configuration\n\nMade from the flags themselves. Each setting of `run` is a flag, a variable (`WARDEN_` and the name in capitals, `-` as `_`) and a key\n" +
		"of `/etc/etcd-warden/config.yaml`; flags beat the environment, which beats the file. Unknown flags, `WARDEN_*` variables and keys are errors.\n")
	for _, c := range app.Commands {
		commandReference(&b, "", c)
	}
	return b.String()
}

func commandReference(b *strings.Builder, parent string, c *cli.Command) {
	name := strings.TrimSpace(parent + " " + c.Name)
	fmt.Fprintf(b, "\n## etcd-warden %s\n\n%s\n", name, upperFirst(c.Usage)+".")
	if all := settingsOf(c); len(all) > 0 {
		b.WriteString("\n| flag | default | |\n| --- | --- | --- |\n")
		for _, s := range all {
			def := s.def
			if def != "" {
				def = "`" + def + "`"
			}
			fmt.Fprintf(b, "| `--%s` | %s | %s |\n", s.name, def, strings.ReplaceAll(s.usage, "|", `\|`))
		}
	}
	for _, sub := range c.Subcommands {
		commandReference(b, name, sub)
	}
}

func upperFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// configurationExample is the configuration file with every setting of run at its default, commented out.
func configurationExample(app *cli.App) string {
	var b strings.Builder
	b.WriteString("# /etc/etcd-warden/config.yaml: the settings of `etcd-warden run`, each at its default.\n# Flags and WARDEN_* variables beat this file. Unknown keys are errors.\n")
	category := ""
	for _, s := range settingsOf(app.Command("run")) {
		if s.name == "config" || s.name == "check" { // not for the file
			continue
		}
		if s.category != category {
			category = s.category
			fmt.Fprintf(&b, "\n# --- %s ---\n", category[strings.Index(category, " ")+1:])
		}
		def := s.def
		if def == "" || strings.ContainsAny(def, ":{}[]#,&*!|>%@`") {
			def = fmt.Sprintf("%q", def)
		}
		fmt.Fprintf(&b, "\n# %s\n#%s: %s\n", upperFirst(s.usage), s.name, def)
	}
	return b.String()
}
