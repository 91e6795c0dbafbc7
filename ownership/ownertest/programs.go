package ownertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const (
	// programPatience bounds the start of a server, one question to it and its end.
	programPatience = 20 * time.Second
	// portTries is how often a server is started again on another port: between the choice and its start another may take it.
	portTries = 5

	tsigName   = "update."
	tsigSecret = "b25seS1mb3ItdGVzdHMtb24tbG9vcGJhY2s=" // "only-for-tests-on-loopback"
)

// Program is a real name server of the distribution, on one loopback port for UDP and TCP. Its files lie in a directory of
// its own. It ends with the test.
type Program struct {
	t    testing.TB
	name string
	zone string
	addr string
	dir  string
	cmd  *exec.Cmd
	done chan struct{}
}

// StartKnot starts knot as the authority of zone, whose records are given in the form of a zone file, without SOA and NS;
// negative is the SOA minimum, which bounds how long an absence is cached. The test is skipped where knot is not installed.
func StartKnot(t testing.TB, zone string, negative time.Duration, records string) *Program {
	t.Helper()
	return startProgram(t, "knot", "knotd", zone, func(dir, host, port string) (map[string]string, []string) {
		return map[string]string{
			"knot.conf": `server:
  rundir: "` + dir + `"
  listen: "` + host + "@" + port + `"
  udp-workers: 1
  tcp-workers: 1
  background-workers: 1
control:
  listen: "` + dir + `/knot.sock"
log:
  - target: stderr
    any: info
database:
  storage: "` + dir + `"
key:
  - id: update
    algorithm: hmac-sha256
    secret: ` + tsigSecret + `
acl:
  - id: update
    key: update
    action: update
zone:
  - domain: "` + zone + `"
    file: "` + dir + `/zone"
    acl: update
`,
			"zone": zoneFile(zone, negative, records),
		}, []string{"-c", dir + "/knot.conf"}
	})
}

// StartBind is StartKnot for BIND's named.
func StartBind(t testing.TB, zone string, negative time.Duration, records string) *Program {
	t.Helper()
	return startProgram(t, "bind9", "named", zone, func(dir, host, port string) (map[string]string, []string) {
		return map[string]string{
			"named.conf": `options {
  directory "` + dir + `"; pid-file none; session-keyfile "` + dir + `/session.key";
  listen-on port ` + port + ` { ` + host + `; }; listen-on-v6 { none; };
  recursion no; dnssec-validation no; notify no;
};
controls { };
key "update" { algorithm hmac-sha256; secret "` + tsigSecret + `"; };
zone "` + zone + `" { type primary; file "` + dir + `/zone"; allow-update { key "update"; }; };
`,
			"zone": zoneFile(zone, negative, records),
		}, []string{"-g", "-n", "1", "-c", dir + "/named.conf"}
	})
}

// StartUnbound starts unbound as a caching resolver that finds zone at the authority upstream; more are lines of its server
// section. The test is skipped where unbound is not installed.
func StartUnbound(t testing.TB, zone, upstream string, more ...string) *Program {
	t.Helper()
	host, port, err := net.SplitHostPort(upstream)
	if err != nil {
		t.Fatal(err)
	}
	return startProgram(t, "unbound", "unbound", zone, func(dir, own, ownPort string) (map[string]string, []string) {
		return map[string]string{"unbound.conf": `server:
  interface: ` + own + "@" + ownPort + `
  port: ` + ownPort + `
  do-ip6: no
  access-control: 127.0.0.0/8 allow
  username: ""
  chroot: ""
  directory: "` + dir + `"
  pidfile: ""
  use-syslog: no
  num-threads: 1
  do-not-query-localhost: no
  module-config: "iterator"
  local-zone: "test." nodefault
  root-hints: "/dev/null"
  qname-minimisation: no
  target-fetch-policy: "0 0 0 0 0"
  ` + strings.Join(more, "\n  ") + `
remote-control:
  control-enable: yes
  control-use-cert: no
  control-interface: "` + dir + `/control"
stub-zone:
  name: "` + zone + `"
  stub-addr: ` + host + "@" + port + `
`}, []string{"-d", "-p", "-c", dir + "/unbound.conf"}
	})
}

// Addr is where it answers, host:port.
func (p *Program) Addr() string { return p.addr }

// SetRecords replaces the TXT records of name by one for each value, by none if there is no value, in one dynamic update
// (RFC 2136): nobody sees a state between the two. Only an authority takes it.
func (p *Program) SetRecords(name string, ttl time.Duration, values ...string) {
	p.t.Helper()
	m := new(dns.Msg).SetUpdate(p.zone)
	m.RemoveRRset([]dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}}})
	for _, v := range values {
		m.Insert([]dns.RR{txt(name, ttl, v)})
	}
	m.SetTsig(tsigName, dns.HmacSHA256, 300, time.Now().Unix())
	c := &dns.Client{Net: "tcp", Timeout: programPatience, TsigSecret: map[string]string{tsigName: tsigSecret}}
	r, _, err := c.ExchangeContext(p.t.Context(), m, p.addr)
	if err != nil {
		p.t.Fatalf("update %s at %s: %v", name, p.name, err)
	}
	if r.Rcode != dns.RcodeSuccess {
		p.t.Fatalf("update %s at %s: %s", name, p.name, dns.RcodeToString[r.Rcode])
	}
}

// Forget empties the cache of an unbound.
func (p *Program) Forget() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), programPatience)
	defer cancel()
	control, err := findProgram("unbound-control")
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := exec.CommandContext(ctx, control, "-c", filepath.Join(p.dir, "unbound.conf"), "flush_zone", p.zone).CombinedOutput()
	if err != nil {
		p.t.Fatalf("empty the cache of %s: %v: %s", p.name, err, out)
	}
}

// Freeze stops the server (SIGSTOP): its port is open, and nobody answers. It returns when every thread stands still.
func (p *Program) Freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	for {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		running := slices.ContainsFunc(threads, func(path string) bool {
			stat, err := os.ReadFile(path)
			return err != nil || !bytes.Contains(stat, []byte(") T "))
		})
		switch {
		case err != nil || len(threads) == 0:
			p.t.Fatalf("freeze %s: it is gone (%v)", p.name, err)
		case !running:
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Thaw lets a frozen server go on.
func (p *Program) Thaw() { p.signal(syscall.SIGCONT) }

func (p *Program) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("send %s to %s: %v", s, p.name, err)
	}
}

// settings makes a server's files and arguments for its directory and address.
type settings func(dir, host, port string) (files map[string]string, args []string)

func startProgram(t testing.TB, pkg, name, zone string, conf settings) *Program {
	t.Helper()
	path, err := findProgram(name)
	if err != nil {
		t.Skipf("%s is not installed (package %s): %v", name, pkg, err)
	}
	for try := 1; ; try++ {
		p, err := tryProgram(t, path, zone, conf)
		if err == nil {
			t.Cleanup(p.stop)
			return p
		}
		if try == portTries {
			t.Fatalf("start %s: %v", name, err)
		}
	}
}

// findProgram looks in $PATH and where distributions keep servers, which an ordinary user's $PATH does not have.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/usr/local/sbin"} {
		if err == nil {
			break
		}
		path, err = exec.LookPath(filepath.Join(dir, name))
	}
	return path, err
}

func tryProgram(t testing.TB, path, zone string, conf settings) (*Program, error) {
	dir, err := os.MkdirTemp("", "dns-") // short: a unix socket's path may have 107 bytes
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	files, args := conf(dir, host, port)
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	var said bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &said, &said, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Program{t: t, name: filepath.Base(path), zone: zone, addr: addr, dir: dir, cmd: cmd, done: make(chan struct{})}
	go func() { defer close(p.done); _ = cmd.Wait() }() // how it ended is of no interest
	if err := p.awaitAnswer(t.Context()); err != nil {
		p.stop()
		return nil, fmt.Errorf("%w; it said: %s", err, said.String())
	}
	return p, nil
}

// awaitAnswer returns once the server knows its zone.
func (p *Program) awaitAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, programPatience)
	defer cancel()
	q := new(dns.Msg).SetQuestion(p.zone, dns.TypeSOA)
	for {
		try, done := context.WithTimeout(ctx, 500*time.Millisecond)
		r, _, err := new(dns.Client).ExchangeContext(try, q, p.addr)
		done()
		if err == nil && r.Rcode != dns.RcodeServerFailure {
			return nil
		}
		select {
		case <-p.done:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w", errors.Join(err, ctx.Err()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends it: KILL, as nothing that it has is kept.
func (p *Program) stop() {
	_ = p.cmd.Process.Kill() // an error means that it is gone
	<-p.done
}

// freeAddr finds a loopback port that is free for UDP and TCP now.
func freeAddr() (string, error) {
	for range portTries {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		u, err := net.ListenPacket("udp", l.Addr().String())
		if err == nil {
			return l.Addr().String(), errors.Join(u.Close(), l.Close())
		}
		_ = l.Close()
	}
	return "", errors.New("no port is free for both UDP and TCP")
}

func zoneFile(zone string, negative time.Duration, records string) string {
	return fmt.Sprintf("$ORIGIN %s\n$TTL 10\n@ SOA ns admin 1 3600 600 86400 %d\n@ NS ns\nns A 127.0.0.1\n%s\n", zone, int(negative.Seconds()), records)
}
