package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain makes the test binary the program as well: it is on the PATH of every test under the name etcd-warden, so that
// what is tested is a process with signals, exit codes and output, and race-checked like the rest.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"etcd-warden": mainThatCrashes, "etcd": main})
}

// program finds the program that TestMain provides.
func selfPath(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("etcd-warden")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// The command line as a user types it: testdata/script, one file a subject.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			if wd, err := os.Getwd(); err == nil {
				e.Setenv("ROOT", wd+"/../..")
			}
			return giveRecord(e)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "record": record},
	})
}
