package containertest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// patience bounds each wait; every wait is for an event.
const patience = 90 * time.Second

// engine is the Docker engine of this machine. All that it makes bears prefix.
type engine struct {
	prefix    string
	image     string
	root, bin string // of the module, and its programs
	parts     string // the test's own static program
	s3        string // the S3 server, static
	n         int
}

// newEngine finds the engine, or skips the test where there is none.
func newEngine(t *testing.T) *engine {
	t.Helper()
	if testing.Short() {
		t.Skip("runs containers")
	}
	if out, err := exec.CommandContext(t.Context(), "docker", "version", "--format", "{{.Server.Version}}").CombinedOutput(); err != nil {
		t.Skipf("no Docker engine: %v: %s", err, bytes.TrimSpace(out))
	}
	e := &engine{prefix: fmt.Sprintf("warden-test-%d", os.Getpid()), s3: storetest.Tool(t, "versitygw", "tools-s3")}
	e.bin = filepath.Dir(e.s3)
	e.root = filepath.Dir(e.bin)
	e.image = e.prefix + ":test"
	e.parts = filepath.Join(t.TempDir(), "parts")
	e.build(t, e.parts, "./packaging/containertest/parts")
	t.Cleanup(func() { e.docker(context.Background(), "image", "rm", "--force", e.image) })
	return e
}

// makeImage makes the image under test as `make image` does, from the program as it is now.
func (e *engine) makeImage(t *testing.T) {
	t.Helper()
	storetest.Tool(t, "etcd", "tools")
	scratch := t.TempDir()
	stage := filepath.Join(scratch, "bin")
	if err := os.Mkdir(stage, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"etcd", "etcdctl", "etcdutl"} {
		if err := os.Symlink(filepath.Join(e.bin, tool), filepath.Join(stage, tool)); err != nil {
			t.Fatal(err)
		}
	}
	e.build(t, filepath.Join(stage, "etcd-warden"), "./cmd/etcd-warden")
	cmd := exec.CommandContext(t.Context(), "packaging/image.sh", e.image, filepath.Join(scratch, "image"), stage)
	cmd.Dir = e.root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make the image: %v\n%s", err, out)
	}
}

func (e *engine) build(t *testing.T, out, pkg string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", out, pkg)
	cmd.Dir, cmd.Env = e.root, append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, msg)
	}
}

func (e *engine) docker(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

func (e *engine) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := e.docker(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// container is one container of a test. Its log is followed from its first start on.
type container struct {
	e    *engine
	t    *testing.T
	name string
}

// run starts a container of the image under test; flags come before the image, command after it.
func (e *engine) run(t *testing.T, flags []string, command ...string) *container {
	t.Helper()
	return e.runImage(t, flags, append([]string{e.image}, command...)...)
}

func (e *engine) runImage(t *testing.T, flags []string, rest ...string) *container {
	t.Helper()
	e.n++
	c := &container{e: e, t: t, name: fmt.Sprintf("%s-%d", e.prefix, e.n)}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("docker", "logs", "--tail", "60", c.name).CombinedOutput()
			t.Logf("log of %s:\n%s", c.name, out)
		}
		e.docker(context.Background(), "rm", "--force", "--volumes", c.name)
	})
	e.must(t, append(append([]string{"run", "--detach", "--name", c.name}, flags...), rest...)...)
	return c
}

// await returns when the log has so many lines with the message.
func (c *container) await(message string, times int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	err := c.follow(ctx, message, times)
	for errors.Is(err, errLogEnded) && ctx.Err() == nil && c.state().alive() { // by the restart policy
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
		err = c.follow(ctx, message, times)
	}
	if err != nil {
		c.t.Fatalf("%s: %q %d times in its log: %v", c.name, message, times, err)
	}
}

var errLogEnded = errors.New("the log ended")

func (c *container) follow(ctx context.Context, message string, times int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", "logs", "--follow", c.name)
	pipe, err := cmd.StderrPipe() // ours and etcd's both go there
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait()
	defer cancel()
	for lines := newLines(pipe); lines.Scan(); {
		var fields struct{ Message string }
		if json.Unmarshal(lines.Bytes(), &fields) == nil && fields.Message == message {
			if times--; times == 0 {
				return nil
			}
		}
	}
	return errors.Join(errLogEnded, ctx.Err())
}

// state is what the engine says of a container.
type state struct {
	Running    bool
	Restarting bool
	Pid        int
	ExitCode   int
	Health     struct{ Status string }
}

func (s state) alive() bool { return s.Running || s.Restarting }

func (c *container) state() (s state) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(c.e.must(c.t, "inspect", "--format", "{{json .State}}", c.name)), &s); err != nil {
		c.t.Fatal(err)
	}
	return s
}

// until asks the engine until good says yes.
func (c *container) until(what string, good func(state) bool) state {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	for {
		s := c.state()
		if good(s) {
			return s
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			c.t.Fatalf("%s does not become %s: %+v", c.name, what, s)
		}
	}
}

func (c *container) etcdctl(args ...string) string {
	c.t.Helper()
	return c.e.must(c.t, append([]string{"exec", c.name, "etcdctl"}, args...)...)
}

// wantKey checks that a write of an earlier life is there.
func (c *container) wantKey() {
	c.t.Helper()
	if got := c.etcdctl("get", "--print-value-only", "key"); got != "value" {
		c.t.Errorf("after the restart the key is %q, want value", got)
	}
}
