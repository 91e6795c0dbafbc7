// Package containertest runs the image with a real Docker engine.
package containertest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func newLines(r io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	return lines
}

// kubeadm is the command of a static pod as kubeadm writes it, less the certificates: nothing in it knows of us.
func kubeadm() []string {
	return []string{"etcd", "--name=m1", "--data-dir=/var/lib/etcd/default", "--listen-client-urls=http://0.0.0.0:2379",
		"--advertise-client-urls=http://127.0.0.1:2379", "--listen-metrics-urls=http://127.0.0.1:2381",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=m1=http://127.0.0.1:2380", "--snapshot-count=10000"}
}

// locked is how a careful operator runs it.
func locked() []string {
	return []string{"--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--health-interval=1s"}
}

// The whole image, one engine: the tests share it, and each is named by its guarantee.
func TestContainer(t *testing.T) {
	e := newEngine(t)
	e.makeImage(t)
	for name, test := range map[string]func(*testing.T, *engine){
		"UnchangedCommandRunsUnderPID1AndStopsInTime": testStop,
		"KillLosesNoWriteAndRestartPolicyHolds":       testKill,
		"MemoryThatRunsOutLosesNoWrite":               testMemory,
		"UnderAnotherInitItStopsInOrder":              testOtherInit,
		"WardenNamesTheRealEtcd":                      testNamedCommand,
		"HandoverAcrossNetworksThatAreCut":            testHandover,
	} {
		t.Run(name, func(t *testing.T) { test(t, e) })
	}
}

// A kubeadm command as it is, read-only, without privileges or root: PID 1 is the warden, docker stop ends in time with 0.
func testStop(t *testing.T, e *engine) {
	c := e.run(t, locked(), kubeadm()...)
	c.await("etcd serving", 1)
	s := c.until("healthy", func(s state) bool { return s.Health.Status == "healthy" })
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Pid))
	if err != nil {
		t.Skipf("the engine's processes are not visible here: %v", err)
	}
	if nspid := fieldOf(string(status), "NSpid"); !strings.HasSuffix(nspid, "\t1") {
		t.Errorf("the warden has NSpid %q, want 1 inside", nspid)
	}
	if uid := fieldOf(string(status), "Uid"); !strings.HasPrefix(uid, "65532\t") {
		t.Errorf("the warden runs as %q, want 65532", uid)
	}
	if caps := fieldOf(string(status), "CapEff"); caps != "0000000000000000" {
		t.Errorf("the warden has capabilities %s", caps)
	}
	c.etcdctl("put", "key", "value")
	e.must(t, "stop", c.name)
	// 137 would be the engine's own KILL at the end of its 10 s.
	if s := c.state(); s.ExitCode != 0 || s.Running {
		t.Errorf("after docker stop: %+v, want exit code 0", s)
	}
	e.must(t, "start", c.name)
	c.await("etcd serving", 2)
	c.wantKey()
}

func fieldOf(status, name string) string {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, name+":\t"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// docker kill, then a death of PID 1 that the engine did not ask for: the restart policy brings the container back.
func testKill(t *testing.T, e *engine) {
	c := e.run(t, append(locked(), "--restart=on-failure"), kubeadm()...)
	c.await("etcd serving", 1)
	c.etcdctl("put", "key", "value")
	if err := syscall.Kill(c.state().Pid, syscall.SIGKILL); err != nil {
		t.Skipf("the engine's processes are out of reach: %v", err)
	}
	c.await("etcd serving", 2)
	c.wantKey()
	e.must(t, "kill", c.name)
	if s := c.state(); s.ExitCode != 128+int(syscall.SIGKILL) {
		t.Errorf("after docker kill: %+v, want 137", s)
	}
	e.must(t, "start", c.name)
	c.await("etcd serving", 3)
	c.wantKey()
}

// The kernel ends etcd or the warden when the group's memory is gone. Whichever it is, the container ends, with 137.
func testMemory(t *testing.T, e *engine) {
	c := e.run(t, append(locked(), "--memory=192m", "--memory-swap=192m", "--tmpfs=/hog:size=1g,mode=1777", "--volume="+e.parts+":/parts:ro"), kubeadm()...)
	c.await("etcd serving", 1)
	c.etcdctl("put", "key", "value")
	e.docker(t.Context(), "exec", c.name, "/parts", "hog", "/hog/file") // it is killed, or its container is
	if s := c.until("dead", func(s state) bool { return !s.Running }); s.ExitCode != 128+int(syscall.SIGKILL) {
		t.Errorf("without memory: %+v, want 137", s)
	}
	e.must(t, "start", c.name)
	c.await("etcd serving", 2)
	c.wantKey()
}

// docker run --init: the warden is not PID 1, and all the same the reaper of what etcd leaves behind.
func testOtherInit(t *testing.T, e *engine) {
	c := e.run(t, append(locked(), "--init"), kubeadm()...)
	c.await("etcd serving", 1)
	s := c.state()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.Pid, s.Pid))
	if err != nil {
		t.Skipf("the engine's processes are not visible here: %v", err)
	}
	if comm, _ := os.ReadFile(filepath.Join("/proc", strings.Fields(string(children))[0], "comm")); strings.TrimSpace(string(comm)) != "etcd" {
		t.Errorf("below the other init runs %q", comm)
	}
	e.must(t, "stop", c.name)
	if s := c.state(); s.ExitCode != 0 {
		t.Errorf("after docker stop: %+v, want exit code 0", s)
	}
}

// `etcd-warden run -- etcd`: the first etcd in $PATH is a link to the warden, and must not be taken for etcd.
func testNamedCommand(t *testing.T, e *engine) {
	c := e.run(t, locked(), append([]string{"etcd-warden", "run", "--"}, kubeadm()...)...)
	c.await("etcd serving", 1)
	if top := e.must(t, "top", c.name, "-eo", "pid,args"); strings.Count(top, "--data-dir") != 2 {
		t.Errorf("one warden and one etcd are wanted:\n%s", top)
	}
}
