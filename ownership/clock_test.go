package ownership

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestBootClockIsCLOCK_BOOTTIME: in a time namespace whose CLOCK_BOOTTIME is ten days ahead, as after a long suspend, the clock must
// be ten days ahead too; Go's own is not.
func TestBootClockIsCLOCK_BOOTTIME(t *testing.T) {
	const asked = "OWNERSHIP_TEST_PRINT_BOOTTIME"
	if os.Getenv(asked) != "" {
		if _, err := os.Stdout.WriteString("boottime " + strconv.FormatInt(int64(BootClock()), 10) + "\n"); err != nil {
			t.Fatal(err)
		}
		return
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("no unshare(1)")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const ahead = 10 * 24 * time.Hour
	cmd := exec.CommandContext(t.Context(), unshare, "--time", "--fork", "--boottime", strconv.Itoa(int(ahead/time.Second)), self, "-test.run=^TestBootClockIsCLOCK_BOOTTIME$")
	cmd.Env = append(os.Environ(), asked+"=1")
	before := BootClock()
	out, err := cmd.CombinedOutput()
	after := BootClock()
	if err != nil {
		t.Skipf("no time namespace here: %v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "boottime "); ok {
			ns, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if got := BootTime(ns); got < before.Add(ahead) || got > after.Add(ahead) {
				t.Fatalf("boot clock in the namespace: %s, want between %s and %s", time.Duration(got), time.Duration(before.Add(ahead)), time.Duration(after.Add(ahead)))
			}
			return
		}
	}
	t.Fatalf("the child printed no time: %s", out)
}
