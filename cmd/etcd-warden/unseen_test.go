package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// unseen is an etcd as some user has configured it.
type unseen struct {
	flags   func(u *unseenSite) []string
	env     func(u *unseenSite) []string
	prepare func(t *testing.T, u *unseenSite, c *clientv3.Client)
	tls     bool
	unix    bool // and with authentication on
}

// unseenSite is where it runs.
type unseenSite struct {
	dir, client, advertise, peer, metrics string
	cert, key                             string
	load                                  load // the credentials, once there are any
}

// Whatever the user configured, nobody reaches the etcd of a fenced restart: it has no TCP listener at all, and still
// every acknowledged write comes back.
func TestFencedRestartIsReachableByNobody(t *testing.T) {
	plain := func(u *unseenSite) []string {
		return []string{"--data-dir", u.dir + "/etcd", "--listen-client-urls", u.client, "--advertise-client-urls", u.advertise,
			"--listen-peer-urls", u.peer, "--initial-advertise-peer-urls", u.peer, "--initial-cluster", "default=" + u.peer, "--backend-batch-interval=1h"}
	}
	for name, c := range map[string]unseen{
		"flags and a metrics listener": {flags: func(u *unseenSite) []string {
			return append(plain(u), "--listen-metrics-urls", u.metrics)
		}},
		"environment": {flags: func(*unseenSite) []string { return nil }, env: func(u *unseenSite) []string {
			return []string{"ETCD_DATA_DIR=" + u.dir + "/etcd", "ETCD_LISTEN_CLIENT_URLS=" + u.client, "ETCD_ADVERTISE_CLIENT_URLS=" + u.client,
				"ETCD_LISTEN_PEER_URLS=" + u.peer, "ETCD_INITIAL_ADVERTISE_PEER_URLS=" + u.peer, "ETCD_INITIAL_CLUSTER=default=" + u.peer,
				"ETCD_LISTEN_METRICS_URLS=" + u.metrics, "ETCD_BACKEND_BATCH_INTERVAL=1h"}
		}},
		"configuration file, TLS and client certificates": {tls: true, flags: func(u *unseenSite) []string {
			return []string{"--config-file", u.configFile()}
		}},
		"unix listener, users and roles": {unix: true, flags: plain},
		"quota exceeded": {flags: func(u *unseenSite) []string {
			return append(plain(u), "--quota-backend-bytes", strconv.Itoa(1<<20), "--backend-batch-interval=10ms", "--listen-metrics-urls", u.metrics)
		}, prepare: exceedQuota},
		"corrupt alarm": {flags: plain, prepare: func(t *testing.T, _ *unseenSite, c *clientv3.Client) {
			activateAlarm(t, c, etcdserverpb.AlarmType_CORRUPT)
		}},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); c.run(t) })
	}
}

func (c unseen) run(t *testing.T) {
	s := newStory(t)
	u := c.site(t)
	warden, etcd := s.startUnseen(c, u, "--new-cluster")
	s.await(siteA, "etcd serving")
	if c.unix { // as root, whom the warden does not know
		u.load.endpoint = u.client
		enableAuth(t, s.ctx, &u.load)
	}
	conn, err := clientv3.New(u.clientConfig(c))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var revision int64
	for n := range 50 {
		resp, err := conn.Put(s.ctx, fmt.Sprintf("unseen/%d", n), "x")
		if err != nil {
			t.Fatal(err)
		}
		revision = resp.Header.Revision
	}
	if c.prepare != nil {
		c.prepare(t, u, conn)
	}
	if err := syscall.Kill(etcd, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-warden.ended
	s.move(siteB)
	s.demo.t = testTimeline(t)
	again, _ := s.startUnseen(c, u)
	seen := watchListeners(again.cmd.Process.Pid, again.ended)
	capture := s.await(siteA, "final capture")
	s.await(siteA, "final journalled")
	again.stop(s.ctx, 20*time.Second)
	looks := seen()
	t.Logf("looked %d times, %d of them while the fenced etcd listened", looks.all, looks.listening)
	if len(looks.tcp) > 0 {
		t.Errorf("the fenced etcd listened on TCP: %v", looks.tcp)
	}
	if capture.Fields["how"] == "fenced-restart" && looks.listening == 0 {
		t.Error("the fenced etcd was never seen to listen: the check saw nothing")
	}
	if capture.Fields["how"] != "fenced-restart" && name(t) != "quota exceeded" {
		t.Errorf("captured by %v: the story did not happen", capture.Fields["how"])
	}
	if got := int64(capture.Fields["revision"].(float64)); got < revision {
		t.Errorf("the final has revision %d, acknowledged was %d", got, revision)
	}
}

func name(t *testing.T) string {
	_, last, _ := strings.Cut(t.Name(), "/")
	return strings.ReplaceAll(last, "_", " ")
}

func (c unseen) site(t *testing.T) *unseenSite {
	t.Helper()
	dir, err := os.MkdirTemp("", "u") // a socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ports, err := freePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	loopback := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
	u := &unseenSite{dir: dir, client: loopback(ports[0]), peer: loopback(ports[1]), metrics: loopback(ports[2])}
	if c.tls {
		u.client, u.peer = strings.Replace(u.client, "http", "https", 1), strings.Replace(u.peer, "http", "https", 1)
		u.cert, u.key = selfSigned(t, dir)
	}
	u.advertise = u.client
	if c.unix {
		u.client = "unix://" + dir + "/c.sock:1"
	}
	return u
}

// configFile is all of etcd's configuration, with certificates on every listener.
func (u *unseenSite) configFile() string {
	path := filepath.Join(u.dir, "etcd.yaml")
	tls := fmt.Sprintf("  cert-file: %s\n  key-file: %s\n  trusted-ca-file: %s\n  client-cert-auth: true\n", u.cert, u.key, u.cert)
	os.WriteFile(path, []byte(fmt.Sprintf("name: default\ndata-dir: %s/etcd\nlisten-client-urls: %s\nadvertise-client-urls: %s\nlisten-peer-urls: %s\ninitial-advertise-peer-urls: %s\n"+
		"initial-cluster: default=%s\nlisten-metrics-urls: %s\nbackend-batch-interval: 3600000000000\nclient-transport-security:\n%speer-transport-security:\n%s",
		u.dir, u.client, u.client, u.peer, u.peer, u.peer, u.metrics, tls, tls)), 0o600)
	return path
}

func (u *unseenSite) clientConfig(c unseen) clientv3.Config {
	cfg := clientv3.Config{Endpoints: []string{u.client}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(), Username: u.load.user, Password: u.load.password}
	if c.tls {
		pair, _ := tls.LoadX509KeyPair(u.cert, u.key)
		pem, _ := os.ReadFile(u.cert)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}
	}
	return cfg
}

// startUnseen starts a warden over that etcd; the second result is the etcd's process ID, 0 with no flag.
func (s *story) startUnseen(c unseen, u *unseenSite, flags ...string) (*site, int) {
	t := s.test
	t.Helper()
	o := storyOwner
	args := append([]string{"run", "--log-format", "json", "--http", "", "--store", s.store.url, "--owner-id", siteA, "--owner-name", demoRecord, "--owner-servers", s.dns.Addr(),
		"--owner-interval", o.Interval.String(), "--owner-suspect-interval", o.SuspectInterval.String(), "--owner-poll-timeout", o.PollTimeout.String(),
		"--owner-record-ttl", o.RecordTTL.String(), "--owner-store-check", o.StoreCheck.String()}, flags...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	life := &site{name: siteA, ended: make(chan struct{})}
	life.cmd = exec.Command(s.self, append(append(args, "--", s.etcd), c.flags(u)...)...)
	life.cmd.Env = os.Environ()
	if c.env != nil {
		life.cmd.Env = append(life.cmd.Env, c.env(u)...)
	}
	life.cmd.Stdout, life.cmd.Stderr = w, w
	life.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = life.cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	go life.follow(r, s.t)
	t.Cleanup(func() { life.stop(s.ctx, 20*time.Second) })
	if len(flags) == 0 {
		return life, 0
	}
	return life, int(s.await(siteA, "etcd started").Fields["pid"].(float64))
}

// listeners is what was seen of a warden's children.
type listeners struct {
	all, listening int
	tcp            []string
}

// watchListeners looks again and again at the sockets on which the children of a warden listen, until it has ended. The
// function returned waits for that.
func watchListeners(warden int, ended <-chan struct{}) func() listeners {
	var seen listeners
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			for _, child := range childrenOf(warden) {
				tcp, unix := listening(child)
				seen.all++
				seen.tcp = append(seen.tcp, tcp...)
				if unix > 0 {
					seen.listening++
				}
			}
			select {
			case <-ended:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	return func() listeners { watch.Wait(); return seen }
}

func childrenOf(pid int) (children []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		list, _ := os.ReadFile(task) // the process may be gone
		for _, child := range strings.Fields(string(list)) {
			if n, err := strconv.Atoi(child); err == nil {
				children = append(children, n)
			}
		}
	}
	return children
}

// listening returns the TCP addresses, and the number of unix sockets, that a process listens on; proc(5).
func listening(pid int) (tcp []string, unixes int) {
	inodes := map[string]bool{}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			inodes[strings.Trim(to[len("socket:"):], "[]")] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6"} {
		content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		for line := range strings.Lines(string(content)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && inodes[f[9]] {
				tcp = append(tcp, f[1])
			}
		}
	}
	content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", pid))
	for line := range strings.Lines(string(content)) {
		if f := strings.Fields(line); len(f) > 6 && f[3] == "00010000" && inodes[f[6]] {
			unixes++
		}
	}
	return tcp, unixes
}

func exceedQuota(t *testing.T, _ *unseenSite, c *clientv3.Client) {
	value := strings.Repeat("x", 64<<10)
	for n := range 1000 {
		if _, err := c.Put(t.Context(), fmt.Sprintf("fill/%d", n), value); err != nil {
			if !strings.Contains(err.Error(), "space exceeded") {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("the quota holds nobody up")
}

func activateAlarm(t *testing.T, c *clientv3.Client, alarm etcdserverpb.AlarmType) {
	t.Helper()
	status, err := c.Status(t.Context(), c.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcdserverpb.NewMaintenanceClient(c.ActiveConnection()).Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: alarm}); err != nil {
		t.Fatal(err)
	}
}

// selfSigned makes a certificate for the loopback address that is its own authority.
func selfSigned(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", secret)
}
