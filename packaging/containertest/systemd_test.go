//go:build systemd

package containertest

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

var (
	rootfs = flag.String("rootfs", "", "tar of a Debian with systemd (packaging/containertest/rootfs.sh)")
	deb    = flag.String("deb", "", "the package under test")
)

// machine is a container whose init is a real systemd, with the package installed in it.
type machine struct {
	*container
	dir string // /host in it
}

// The unit under a real systemd, from the installation of the package on. `make test-systemd` gives what it needs.
func TestSystemd(t *testing.T) {
	if *rootfs == "" || *deb == "" {
		t.Fatal("run make test-systemd")
	}
	e := newEngine(t)
	e.must(t, "import", *rootfs, e.image)
	w := newWorld(t, e)
	w.move("site-a")
	m := w.machine()

	for _, step := range []struct {
		name string
		test func(*testing.T, *world, *machine)
	}{
		{"ServiceStartsAndStatusSaysSo", testUnitStart},
		{"ReloadAndUpgradeKeepItRunning", testUnitReload},
		{"StopIsCleanAndFreesTheData", testUnitStop},
		{"CrashOfTheWardenTakesEtcdAlongAndIsRestarted", testUnitCrash},
		{"EtcdThatHangsIsFoundByTheWatchdog", testUnitWatchdog},
		{"RebootInMidHandoverResumesIt", testUnitReboot},
		{"HandoverOutlastsTheStopTimeout", testUnitOutlast},
		{"RemovalKeepsTheData", testUnitRemove},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, w, m) }) {
			t.Logf("journal:\n%s", m.journal())
			t.FailNow() // each begins where the one before ended
		}
	}
}

// machine starts systemd and installs the package, the way an operator does.
func (w *world) machine() *machine {
	w.t.Helper()
	p := w.places["site-a"]
	m := &machine{dir: w.t.TempDir()}
	copyFile(w.t, *deb, filepath.Join(m.dir, "etcd-warden.deb"))
	copyFile(w.t, storetest.Tool(w.t, "etcd", "tools"), filepath.Join(m.dir, "etcd"))
	copyFile(w.t, storetest.Tool(w.t, "etcdctl", "tools"), filepath.Join(m.dir, "etcdctl"))
	m.container = w.e.runImage(w.t, []string{"--network=" + p.network, "--cap-add=SYS_ADMIN", "--cap-add=NET_ADMIN", "--security-opt=seccomp=unconfined",
		"--security-opt=apparmor=unconfined", "--tmpfs=/run", "--tmpfs=/run/lock", "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw", "--cgroupns=host",
		"--volume=" + m.dir + ":/host"}, w.e.image, "/lib/systemd/systemd")
	m.booted()
	m.sh("dpkg -i /host/etcd-warden.deb && cp /host/etcd /host/etcdctl /usr/bin/")
	m.sh("cat >>/etc/default/etcd-warden <<'END'\n" + strings.Join([]string{
		"WARDEN_OWNER_NAME=" + recordName, "WARDEN_OWNER_ID=site-a", "WARDEN_OWNER_SERVERS=" + p.dns + ":53",
		"WARDEN_OWNER_INTERVAL=500ms", "WARDEN_OWNER_SUSPECT_INTERVAL=200ms", "WARDEN_OWNER_POLL_TIMEOUT=1s", "WARDEN_OWNER_RECORD_TTL=1s",
		"WARDEN_OWNER_STORE_CHECK=500ms", "WARDEN_NEW_CLUSTER=true",
		"WARDEN_STORE=s3://test/systemd?endpoint=http://s3:7070&region=us-east-1&path-style=true&insecure-http=true",
		"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey, "ETCD_LOG_LEVEL=error",
	}, "\n") + "\nEND")
	// The tests need not wait for what the unit gives the real world; the proportions stay.
	m.sh("mkdir -p /etc/systemd/system/etcd-warden.service.d && printf '[Service]\\nRestartSec=1\\nWatchdogSec=4\\n' >/etc/systemd/system/etcd-warden.service.d/test.conf && systemctl daemon-reload")
	return m
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// sh runs a command in the machine.
func (m *machine) sh(command string) string {
	m.t.Helper()
	return m.e.must(m.t, "exec", m.name, "sh", "-c", command)
}

// try is sh without the demand that it succeeds: nothing is its output then.
func (m *machine) try(command string) string {
	out, err := m.e.docker(m.t.Context(), "exec", m.name, "sh", "-c", command)
	if err != nil {
		return ""
	}
	return out
}

// journal is the end of the service's log.
func (m *machine) journal() string {
	return m.try("journalctl -u etcd-warden -n 60 --no-pager -o cat")
}

// poll runs a command until good likes its output.
func (m *machine) poll(what, command string, good func(string) bool) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	for {
		out := m.try(command)
		if good(out) {
			return out
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			m.t.Fatalf("%s: %s says %s\n%s", what, command, out, m.journal())
		}
	}
}

func contains(want string) func(string) bool {
	return func(out string) bool { return strings.Contains(out, want) }
}

func (m *machine) booted() {
	m.t.Helper()
	m.poll("systemd is up", "systemctl is-system-running || true", func(out string) bool {
		return strings.Contains(out, "running") || strings.Contains(out, "degraded")
	})
}

// property is one of the unit's.
func (m *machine) property(name string) string {
	m.t.Helper()
	return m.sh("systemctl show -P " + name + " etcd-warden")
}

// logged waits until the service logged a message so often since the machine was made.
func (m *machine) logged(message string, times int) {
	m.t.Helper()
	m.poll(message, "journalctl -u etcd-warden --no-pager -o cat | grep -c '\"message\":\""+message+"\"' || true", func(out string) bool {
		n, err := strconv.Atoi(out)
		return err == nil && n >= times
	})
}

func (m *machine) serving() {
	m.t.Helper()
	m.poll("etcd serves", "etcd-warden status --quiet && echo ready", contains("ready"))
}

func testUnitStart(t *testing.T, _ *world, m *machine) {
	m.t = t
	if says := m.sh("systemd-analyze verify etcd-warden.service 2>&1"); says != "" {
		t.Errorf("systemd-analyze verify: %s", says)
	}
	m.sh("systemctl start etcd-warden")
	m.serving()
	m.poll("systemctl status shows our line", "systemctl status etcd-warden --no-pager || true", contains(`Status: "running`))
	if got := m.property("User"); got != "etcd" {
		t.Errorf("the service runs as %q", got)
	}
	// What etcd leaves behind in sessions of its own is found by its cgroup alone.
	if group := m.sh("grep ^0:: /proc/$(pgrep -x etcd)/cgroup"); !strings.Contains(group, "/etcd-warden.service/etcd-warden.") {
		t.Errorf("etcd has no cgroup of its own: %s", group)
	}
	m.sh("etcdctl put key value")
}

func testUnitReload(t *testing.T, _ *world, m *machine) {
	m.t = t
	pid := m.property("MainPID")
	m.sh("systemctl reload etcd-warden")
	m.serving()
	if again := m.property("MainPID"); again != pid {
		t.Errorf("reload changed the main process from %s to %s", pid, again)
	}
	// When etcd is restarted is for the operator to say, not for the package manager.
	m.sh("dpkg -i /host/etcd-warden.deb")
	m.serving()
	if again := m.property("MainPID"); again != pid {
		t.Errorf("the upgrade changed the main process from %s to %s", pid, again)
	}
}

func testUnitStop(t *testing.T, _ *world, m *machine) {
	m.t = t
	m.sh("systemctl stop etcd-warden")
	if result, state := m.property("Result"), m.property("ActiveState"); result != "success" || state != "inactive" {
		t.Errorf("after stop: result %s, state %s", result, state)
	}
	m.sh("! pgrep -x etcd || exit 1; systemctl start etcd-warden")
	m.serving()
	if got := m.sh("etcdctl get --print-value-only key"); got != "value" {
		t.Errorf("after the restart the key is %q", got)
	}
}

func testUnitCrash(t *testing.T, _ *world, m *machine) {
	m.t = t
	pid := m.property("MainPID")
	m.sh("kill -KILL " + pid)
	m.poll("the service is restarted", "systemctl show -P MainPID etcd-warden", func(out string) bool { return out != pid && out != "0" && out != "" })
	m.serving()
	if n := strings.Fields(m.sh("pgrep -x etcd")); len(n) != 1 {
		t.Errorf("%d etcds run", len(n))
	}
}

// etcd is stopped, not dead: only the watchdog sees it.
func testUnitWatchdog(t *testing.T, _ *world, m *machine) {
	m.t = t
	before := m.property("NRestarts")
	m.sh("kill -STOP $(pgrep -x etcd)")
	m.poll("the watchdog restarts the service", "systemctl show -P NRestarts etcd-warden", func(out string) bool { return out != before && out != "" })
	m.serving()
}

// The store is away when the record moves, and the machine reboots: the next start finishes the handover, and etcd is never
// started for clients.
func testUnitReboot(t *testing.T, w *world, m *machine) {
	m.t = t
	w.t = t
	m.sh("systemctl enable etcd-warden && mkdir -p /var/log/journal && systemctl restart systemd-journald")
	w.cut("site-a", w.s3)
	w.move("site-b")
	m.logged("final snapshot not stored", 1)
	served := m.sh("journalctl -u etcd-warden --no-pager -o cat | grep -c '\"message\":\"etcd serving\"'")
	w.e.must(t, "kill", m.name) // the power goes
	w.e.must(t, "start", m.name)
	m.booted()
	w.join("site-a", w.s3)
	m.logged("final journalled", 1)
	if again := m.sh("journalctl -u etcd-warden --no-pager -o cat | grep -c '\"message\":\"etcd serving\"'"); again != served {
		t.Errorf("etcd served %s times before the reboot and %s after it", served, again)
	}
}

// The unit's TimeoutStopSec is over long before the store is back: without the extensions systemd would kill the warden, and the
// final snapshot would wait for somebody to start it again.
func testUnitOutlast(t *testing.T, w *world, m *machine) {
	m.t = t
	w.t = t
	m.sh("printf '[Service]\\nTimeoutStopSec=3\\n' >>/etc/systemd/system/etcd-warden.service.d/test.conf && systemctl daemon-reload")
	w.move("site-a")
	m.serving() // the way back: a generation of its own
	m.sh("etcdctl put key again")
	w.cut("site-a", w.s3)
	w.move("site-b")
	m.logged("final snapshot not stored", 2)
	m.sh("systemctl stop --no-block etcd-warden")
	m.poll("it is being stopped", "systemctl show -P ActiveState etcd-warden", contains("deactivating"))
	began := m.property("StateChangeTimestampMonotonic")
	m.poll("the unit's own timeout is over", "awk -v began="+began+" '{print ($1 > began/1e6 + 6) ? \"over\" : \"not yet\"}' /proc/uptime", func(out string) bool { return out == "over" })
	if state := m.property("ActiveState"); state != "deactivating" {
		t.Errorf("twice its timeout after the stop the unit is %s", state)
	}
	w.join("site-a", w.s3)
	m.logged("final journalled", 2)
	m.poll("the stop ends", "systemctl show -P ActiveState etcd-warden", func(out string) bool { return out == "inactive" || out == "failed" })
	if result := m.property("Result"); result != "success" {
		t.Errorf("the stop ended with %s (exit status %s)", result, m.property("ExecMainStatus"))
	}
}

func testUnitRemove(t *testing.T, _ *world, m *machine) {
	m.t = t
	m.sh("dpkg -r etcd-warden")
	m.sh("test -d /var/lib/etcd/default/member && test -s /etc/default/etcd-warden && getent passwd etcd")
	if m.try("systemctl cat etcd-warden") != "" {
		t.Error("the unit is still there")
	}
}
