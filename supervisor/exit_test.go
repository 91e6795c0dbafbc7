package supervisor

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A wrong code makes a service manager restart what should stay down, or take a clean stop for a failure.
func TestExitStatusIsTheChildsOwnBut0ForTheStopThatWeSent(t *testing.T) {
	for _, c := range []struct {
		name string
		exit Exit
		want int
		text string
	}{
		{"clean", Exit{}, 0, "exit status 0"},
		{"own code", Exit{Code: 7}, 7, "exit status 7"},
		{"own code after our stop", Exit{Code: 7, Stopped: true}, 7, "exit status 7"},
		{"etcd raises our TERM again", Exit{Signal: unix.SIGTERM, Stopped: true}, 0, "SIGTERM as asked"},
		{"INT after our stop", Exit{Signal: unix.SIGINT, Stopped: true}, 0, "SIGINT as asked"},
		{"a stranger's TERM", Exit{Signal: unix.SIGTERM}, 143, "SIGTERM"},
		{"we had to kill", Exit{Signal: unix.SIGKILL, Stopped: true, Killed: true}, 137, "SIGKILL after the grace period"},
		{"the OOM killer", Exit{Signal: unix.SIGKILL}, 137, "SIGKILL"},
		{"crash during our stop", Exit{Signal: unix.SIGSEGV, Stopped: true, CoreDump: true}, 139, "SIGSEGV, core dumped"},
	} {
		if got := c.exit.Status(); got != c.want {
			t.Errorf("%s: got status %d, want %d", c.name, got, c.want)
		}
		if got := c.exit.String(); got != c.text {
			t.Errorf("%s: got %q, want %q", c.name, got, c.text)
		}
	}
}

func TestExecErrorsHaveAShellsCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{&exec.Error{Name: "x", Err: exec.ErrNotFound}, 127},
		{&fs.PathError{Op: "stat", Path: "x", Err: unix.ENOENT}, 127},
		{unix.ENOENT, 127}, {unix.ENOTDIR, 127},
		{unix.EACCES, 126}, {unix.ENOEXEC, 126}, {unix.ELOOP, 126}, {errors.New("anything else"), 126},
		{&exec.Error{Name: "x", Err: exec.ErrDot}, 126},
	} {
		if got := execError("x", c.err).Code; got != c.want {
			t.Errorf("%v: got %d, want %d", c.err, got, c.want)
		}
	}
}

// The warden is transparent: who looks at its exit code sees the child's.
func TestTheChildsCodeIsTheWardens(t *testing.T) {
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, []byte("\x7fELF junk"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		want int
	}{
		{"0", shell("exit 0"), 0},
		{"7", shell("exit 7"), 7},
		{"255", shell("exit 255"), 255},
		{"killed", shell("kill -KILL $$"), 137},
		{"stranger's TERM", shell("kill -TERM $$"), 143},
		{"not there", []string{"--", "/nonexistent/program"}, 127},
		{"not on PATH", []string{"--", "no-such-program-here"}, 127},
		{"not executable", []string{"--", "/etc/passwd"}, 126},
		{"a directory", []string{"--", "/etc"}, 126},
		{"not a program", []string{"--", junk}, 126},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := startInit(t, c.args).code(); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

// A grandchild that keeps the child's stdout open must not keep the warden: nobody would restart etcd.
func TestAnOpenStdoutDoesNotHoldTheExitBack(t *testing.T) {
	w := startInit(t, append([]string{"-rest-grace", "100ms"}, shell("trap '' TERM; sleep 1000 & exit 5")...))
	if got := w.code(); got != 5 {
		t.Errorf("got %d, want 5", got)
	}
	w.all() // ends only when the grandchild is dead
}
