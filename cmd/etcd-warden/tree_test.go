package main

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const modulePath = "github.com/etcd-warden/etcd-warden/"

// imports is what one package of ours imports, tests left out.
type imports struct {
	ImportPath string
	Imports    []string
}

func ourPackages(t *testing.T) []imports {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go tool to list the packages with")
	}
	out, err := exec.Command(goTool, "list", "-json=ImportPath,Imports", modulePath+"...").Output()
	if err != nil {
		t.Fatalf("list packages: %v", err)
	}
	var all []imports
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p imports
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// The tree's one direction: cmd → supervisor → {ownership, snapshot, signals}. What breaks it makes the store, DNS or the
// command line part of the kill.
func TestImportsGoOneWay(t *testing.T) {
	mayImport := map[string][]string{
		"cmd/etcd-warden":     {"supervisor", "ownership", "snapshot", "signals"},
		"supervisor":          {"ownership", "snapshot", "signals"},
		"ownership":           nil,
		"snapshot":            nil,
		"signals":             nil,
		"ownership/ownertest": {"ownership"},
		"snapshot/storetest":  {"snapshot"},

		"packaging/containertest":       nil,
		"packaging/containertest/parts": {"ownership/ownertest"},
	}
	// Who may use a library, by the prefix of its path.
	only := map[string][]string{
		"golang.org/x/sys/unix":         {"signals", "supervisor", "ownership"},
		"github.com/minio/":             {"snapshot"},
		"go.etcd.io/":                   {"snapshot"},
		"github.com/urfave/cli":         {"cmd/etcd-warden"},
		"github.com/prometheus/":        {"supervisor"},
		"github.com/klauspost/compress": {"snapshot", "snapshot/storetest"},
		"testing":                       {"ownership/ownertest", "snapshot/storetest"},
	}
	for _, p := range ourPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, modulePath)
		allowed, known := mayImport[name]
		if !known {
			t.Errorf("package %s is not in the table: say what it may import", name)
		}
		for _, i := range p.Imports {
			if ours, ok := strings.CutPrefix(i, modulePath); ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s", name, ours)
			}
			for prefix, users := range only {
				if strings.HasPrefix(i, prefix) && !slices.Contains(users, name) {
					t.Errorf("%s imports %s, which is for %v", name, i, users)
				}
			}
		}
	}
}

// A function that does not fit on a screen is not read as a whole, and a file of several ideas is searched, not read.
func TestFunctionsFitOnAScreen(t *testing.T) {
	const lines, fileLines = 70, 450
	eachSource(t, func(path string, set *token.FileSet, file *ast.File) {
		if n := set.File(file.Pos()).LineCount(); n > fileLines {
			t.Errorf("%s has %d lines, over %d", path, n, fileLines)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; n > lines {
				t.Errorf("%s: %s has %d lines, over %d", path, f.Name.Name, n, lines)
			}
			if f.Name.Name == "init" && f.Recv == nil {
				t.Errorf("%s has an init function: as PID 1, what runs before main loses signals", path)
			}
		}
	})
}

// eachSource parses every Go file of ours that is not a test.
func eachSource(t *testing.T, f func(path string, set *token.FileSet, file *ast.File)) {
	t.Helper()
	root := filepath.Join("..", "..")
	for _, dir := range []string{"cmd", "supervisor", "ownership", "snapshot", "signals"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err == nil {
				f(path, set, file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
