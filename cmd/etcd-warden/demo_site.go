package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// siteEnded is the message of the event that follows the last line of a site's log.
const siteEnded = "site ended"

// site is one place where the cluster may run: a real `etcd-warden run` with a real etcd and directories of its own.
type site struct {
	name   string
	client string // URL of its etcd, once that serves
	http   string
	cmd    *exec.Cmd
	ended  chan struct{}
}

// startSite starts a warden as a child process. Its JSON log becomes events, and is kept in a file.
func startSite(name string, d *demo, flags []string) (*site, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(d.dir, name)
	s := &site{name: name, client: urlOf(ports[0]), http: "127.0.0.1:" + strconv.Itoa(ports[2]), ended: make(chan struct{})}
	args := append([]string{"run", "--log-format", "json", "--http", s.http, "--owner-id", name}, flags...)
	args = append(args, "--", d.etcd, "--name", name, "--data-dir", filepath.Join(dir, "etcd"),
		"--listen-client-urls", s.client, "--advertise-client-urls", s.client,
		"--listen-peer-urls", urlOf(ports[1]), "--initial-advertise-peer-urls", urlOf(ports[1]),
		"--initial-cluster", name+"="+urlOf(ports[1]), "--log-level", "error")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.cmd = exec.Command(d.self, args...)
	s.cmd.Env = append(os.Environ(), d.store.env...)
	s.cmd.Stdout, s.cmd.Stderr = w, w
	s.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // Ctrl-C goes to the demo, which stops its sites in order
		Pdeathsig: syscall.SIGKILL, // and a demo that is killed leaves nothing behind
	}
	err = s.cmd.Start()
	w.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), r.Close())
	}
	go s.follow(r, d.t)
	return s, nil
}

// follow turns the site's log into events until its end, then reaps it.
func (s *site) follow(r *os.File, t *timeline) {
	defer close(s.ended)
	defer r.Close()
	last := ""
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var fields map[string]any
		if json.Unmarshal(lines.Bytes(), &fields) != nil || fields["message"] == nil {
			last = lines.Text() // etcd's own, or ours before the log was set up
			continue
		}
		if fields["level"] == "error" {
			last = lines.Text()
		}
		at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(fields["time"]))
		if err != nil {
			at = time.Now()
		}
		t.add(event{At: at, Who: s.name, Message: fmt.Sprint(fields["message"]), Fields: fields})
	}
	err := s.cmd.Wait()
	t.note(s.name, siteEnded, map[string]any{"why": fmt.Sprintf("%v; its last words: %s", err, last)})
}

// stop ends the site: TERM, and KILL after patience. It returns when it is reaped.
func (s *site) stop(ctx context.Context, patience time.Duration) {
	select {
	case <-s.ended:
		return
	default:
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	select {
	case <-s.ended:
	case <-ctx.Done():
		s.cmd.Process.Kill() // takes its etcd along: parent-death signal
		<-s.ended
	}
}

func urlOf(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

// freePorts finds n loopback ports that are free now.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
