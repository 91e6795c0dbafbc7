package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// A runbook that names a command, a flag or a page that does not exist fails whoever is woken at night.
func TestDocumentsNameWhatExists(t *testing.T) {
	root := filepath.Join("..", "..")
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	files = append(files, filepath.Join(root, "README.md"), filepath.Join(root, "SECURITY.md"), filepath.Join(root, "packaging", "alerts.yaml"))
	app := new(program).app()
	code := regexp.MustCompile("`etcd-warden ([^`\n]+)`")
	link := regexp.MustCompile(`\]\(([^)#]+)(?:#[^)]*)?\)`)
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range code.FindAllStringSubmatch(string(content), -1) {
			if unknown := unknownIn(app, strings.Fields(m[1])); unknown != "" {
				t.Errorf("%s: `etcd-warden %s`: there is no %s", file, m[1], unknown)
			}
		}
		for _, m := range link.FindAllStringSubmatch(string(content), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s: link to %s: %v", file, m[1], err)
			}
		}
	}
}

// unknownIn is the first word of a command line that the program does not know.
func unknownIn(app *cli.App, words []string) string {
	if strings.HasPrefix(words[0], "--") {
		return "" // --help, --version
	}
	command := app.Command(words[0])
	if command == nil {
		return words[0]
	}
	for _, word := range words[1:] {
		name, _, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		switch {
		case word == "--":
			return ""
		case strings.HasPrefix(word, "--") && name != "help" && !strings.Contains(name, "…") && !hasFlag(command, name):
			return word
		case command.Command(word) != nil:
			command = command.Command(word)
		case len(command.Subcommands) > 0 && !strings.HasPrefix(word, "-") && !strings.Contains(word, "|"):
			return word
		}
	}
	return ""
}
