package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// A configuration that is understood differently from etcd itself would fence, capture or restore the wrong directory.
func TestParseEtcdReadsWhatEtcdReads(t *testing.T) {
	cwd := t.TempDir()
	t.Chdir(cwd)
	plain := EtcdConfig{
		Name: "default", DataDir: filepath.Join(cwd, "default.etcd"),
		ListenClientURLs: []string{"http://localhost:2379"}, AdvertiseClientURLs: []string{"http://localhost:2379"},
		InitialAdvertisePeerURLs: []string{"http://localhost:2380"}, InitialCluster: "default=http://localhost:2380",
		InitialClusterToken: "etcd-cluster", Members: 1,
	}
	with := func(change func(*EtcdConfig)) EtcdConfig { c := plain; change(&c); return c }
	writeFile(t, "etcd.yaml", `
name: from-file
data-dir: /file/data
wal-dir: /file/wal
listen-client-urls: https://10.0.0.1:2379,https://127.0.0.1:2379
initial-cluster: a=http://a:2380,from-file=http://f:2380
cert-file: /ignored/at/the/top
client-transport-security:
  cert-file: /tls/c.pem
  key-file: /tls/k.pem
  client-cert-auth: true
  trusted-ca-file: /tls/ca.pem
peer-transport-security:
  cert-file: /tls/peer.pem
max-snapshots: 5
`)
	fromFile := with(func(c *EtcdConfig) {
		c.Name, c.DataDir, c.WALDir = "from-file", "/file/data", "/file/wal"
		c.ListenClientURLs = []string{"https://10.0.0.1:2379", "https://127.0.0.1:2379"}
		c.InitialCluster, c.Members = "a=http://a:2380,from-file=http://f:2380", 2
		c.ClientTLS = EtcdTLS{CertFile: "/tls/c.pem", KeyFile: "/tls/k.pem", ClientCertAuth: true, TrustedCAFile: "/tls/ca.pem"}
		c.ConfigFile = filepath.Join(cwd, "etcd.yaml")
	})
	cases := []struct {
		name string
		args []string
		env  []string
		want EtcdConfig
	}{
		{"nothing", nil, nil, plain},
		{"separate value", []string{"--data-dir", "/d"}, nil, with(func(c *EtcdConfig) { c.DataDir = "/d" })},
		{"value after =", []string{"--data-dir=/d"}, nil, with(func(c *EtcdConfig) { c.DataDir = "/d" })},
		{"single dash", []string{"-data-dir", "/d"}, nil, with(func(c *EtcdConfig) { c.DataDir = "/d" })},
		{"relative directory", []string{"--data-dir=d", "--wal-dir=w"}, nil,
			with(func(c *EtcdConfig) { c.DataDir, c.WALDir = filepath.Join(cwd, "d"), filepath.Join(cwd, "w") })},
		{"last of several", []string{"--data-dir=/a", "--data-dir=/b"}, nil, with(func(c *EtcdConfig) { c.DataDir = "/b" })},
		{"name gives directory and cluster", []string{"--name", "m1"}, nil, with(func(c *EtcdConfig) {
			c.Name, c.DataDir, c.InitialCluster = "m1", filepath.Join(cwd, "m1.etcd"), "m1=http://localhost:2380"
		})},
		{"name and peer URLs give the cluster", []string{"--name=m1", "--initial-advertise-peer-urls=http://a:2380,http://b:2380"}, nil, with(func(c *EtcdConfig) {
			c.Name, c.DataDir = "m1", filepath.Join(cwd, "m1.etcd")
			c.InitialAdvertisePeerURLs = []string{"http://a:2380", "http://b:2380"}
			c.InitialCluster = "m1=http://a:2380,m1=http://b:2380"
		})},
		{"environment", nil, []string{"ETCD_DATA_DIR=/e", "ETCD_AUTO_TLS=true"},
			with(func(c *EtcdConfig) { c.DataDir, c.ClientTLS.AutoTLS = "/e", true })},
		{"flag beats environment", []string{"--data-dir=/f"}, []string{"ETCD_DATA_DIR=/e"}, with(func(c *EtcdConfig) { c.DataDir = "/f" })},
		{"empty variable is unset", nil, []string{"ETCD_DATA_DIR="}, plain},
		{"first of two variables", nil, []string{"ETCD_DATA_DIR=/1", "ETCD_DATA_DIR=/2"}, with(func(c *EtcdConfig) { c.DataDir = "/1" })},
		{"flags of no interest", []string{"--pre-vote", "--quota-backend-bytes", "-1", "--snapshot-count", "5", "--data-dir", "/d", "--force-new-cluster=false"}, nil,
			with(func(c *EtcdConfig) { c.DataDir = "/d" })},
		{"switch before a flag", []string{"--client-cert-auth", "--data-dir", "/d"}, nil,
			with(func(c *EtcdConfig) { c.DataDir, c.ClientTLS.ClientCertAuth = "/d", true })},
		{"switch off", []string{"--client-cert-auth=false", "--auto-tls=1"}, nil, with(func(c *EtcdConfig) { c.ClientTLS.AutoTLS = true })},
		{"three members", []string{"--initial-cluster", "a=http://a:2380,b=http://b:2380,c=http://c:2380,c=http://c2:2380"}, nil,
			with(func(c *EtcdConfig) {
				c.InitialCluster, c.Members = "a=http://a:2380,b=http://b:2380,c=http://c:2380,c=http://c2:2380", 3
			})},
		{"discovery", []string{"--discovery-srv=example.org"}, nil, with(func(c *EtcdConfig) { c.InitialCluster, c.Members = "", 0 })},
		{"file ignores all else", []string{"--config-file", "etcd.yaml", "--data-dir=/f", "--name=f"}, []string{"ETCD_WAL_DIR=/e"}, fromFile},
		{"file by variable", nil, []string{"ETCD_CONFIG_FILE=etcd.yaml"}, fromFile},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseEtcd(c.args, c.env)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmpopts.IgnoreUnexported(EtcdConfig{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseEtcdTellsWhatIsNotAServer(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"-h"}, {"--help"}, {"gateway", "start"}, {"grpc-proxy"}, {"--data-dir", "/d", "--version=true"}} {
		if _, err := ParseEtcd(args, nil); !errors.Is(err, ErrNotServer) {
			t.Errorf("%v: got %v, want ErrNotServer", args, err)
		}
	}
	if _, err := ParseEtcd([]string{"--version=false"}, nil); err != nil {
		t.Errorf("--version=false: %v", err)
	}
}

func TestParseEtcdSaysWhichSettingIsWrong(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, "broken.yaml", "name: [")
	cases := []struct {
		args []string
		want string
	}{
		{[]string{"data"}, `"data"`},
		{[]string{"--data-dir=/d", "--", "x"}, `"x"`},
		{[]string{"---x"}, "---x"},
		{[]string{"--data-dir"}, "--data-dir needs a value"},
		{[]string{"--initial-cluster=http://a:2380"}, "initial-cluster"},
		{[]string{"--auto-tls=perhaps"}, "auto-tls"},
		{[]string{"--config-file=absent.yaml"}, "absent.yaml"},
		{[]string{"--config-file=broken.yaml"}, "broken.yaml"},
	}
	for _, c := range cases {
		if _, err := ParseEtcd(c.args, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want a message with %q", c.args, err, c.want)
		}
	}
}

// What reaches the fenced etcd of the user's settings could open a listener for his clients.
func TestFencedKeepsNothingThatOpensAListener(t *testing.T) {
	env := []string{"PATH=/bin", "ETCD_LISTEN_CLIENT_URLS=http://0.0.0.0:2379", "ETCD_CONFIG_FILE=", "ETCD_UNSUPPORTED_ARCH=riscv64",
		"NOTIFY_SOCKET=/run/n", "LISTEN_FDS=1", "WATCHDOG_USEC=1", "ETCD_DATA_DIR=/e"}
	args := []string{"--name=m1", "--data-dir=/data", "--wal-dir=/wal", "--listen-client-urls=http://0.0.0.0:2379", "--listen-metrics-urls=http://0.0.0.0:2381",
		"--listen-peer-urls=http://0.0.0.0:2380", "--advertise-client-urls=http://site-a:2379", "--quota-backend-bytes=100", "--force-new-cluster"}
	cfg, err := ParseEtcd(args, env)
	if err != nil {
		t.Fatal(err)
	}
	got := cfg.Fenced("/run/fenced")
	want := FencedCommand{
		Args: []string{"etcd", "--name=m1", "--data-dir=/data", "--listen-client-urls=unix://c:1", "--advertise-client-urls=http://site-a:2379",
			"--listen-peer-urls=unix://p:1", "--initial-cluster-state=existing", "--quota-backend-bytes=-1", "--auto-compaction-retention=0",
			"--log-level=warn", "--wal-dir=/wal"},
		Env: []string{"PATH=/bin", "ETCD_UNSUPPORTED_ARCH=riscv64"}, Dir: "/run/fenced", Endpoint: "unix:///run/fenced/c:1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if env := (EtcdConfig{}).Fenced("/run/fenced").Env; env == nil {
		t.Error("a nil environment would be inherited")
	}
}

func TestClientEndpointIsOnThisMachine(t *testing.T) {
	cwd := t.TempDir()
	t.Chdir(cwd)
	cases := []struct {
		listen, want string
		tls          bool
	}{
		{"http://0.0.0.0:2379", "http://127.0.0.1:2379", false},
		{"http://[::]:2379", "http://[::1]:2379", false},
		{"https://10.0.0.1:2379", "https://10.0.0.1:2379", true},
		{"http://localhost:2379,http://10.0.0.1:2379", "http://localhost:2379", false},
		{"unix:///run/etcd:1", "unix:///run/etcd:1", false},
		{"unix://c:1", "unix://" + cwd + "/c:1", false},
		{"unixs://c:1", "unixs://" + cwd + "/c:1", true},
	}
	for _, c := range cases {
		cfg, err := ParseEtcd([]string{"--listen-client-urls", c.listen}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, tlsConfig, err := cfg.ClientEndpoint()
		if err != nil || got != c.want || (tlsConfig != nil) != c.tls {
			t.Errorf("%s: got %s, TLS %v, error %v; want %s, TLS %v", c.listen, got, tlsConfig != nil, err, c.want, c.tls)
		}
	}
	for _, listen := range []string{"ftp://a:1", "a:1", "://"} {
		cfg := EtcdConfig{ListenClientURLs: []string{listen}}
		if _, _, err := cfg.ClientEndpoint(); err == nil {
			t.Errorf("%s: no error", listen)
		}
	}
}

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
