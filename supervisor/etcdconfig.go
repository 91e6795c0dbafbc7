package supervisor

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNotServer is returned by ParseEtcd when the arguments do not start an etcd server: --version, --help, and the
// gateway and grpc-proxy commands. Such a command is run like any other program.
var ErrNotServer = errors.New("these arguments do not start an etcd server")

// EtcdConfig is what the warden needs to know of an etcd's configuration, with etcd's own precedence and defaults.
type EtcdConfig struct {
	Name    string
	DataDir string // absolute
	WALDir  string // absolute; empty: inside DataDir

	ListenClientURLs         []string
	AdvertiseClientURLs      []string
	InitialAdvertisePeerURLs []string
	InitialCluster           string // empty with a discovery service
	InitialClusterToken      string
	Members                  int // named in InitialCluster; 0: unknown, a discovery service tells

	ClientTLS  EtcdTLS
	ConfigFile string // absolute; where it is set, etcd reads nothing else

	env []string // of the etcd, "KEY=value"
}

// EtcdTLS is the TLS configuration of etcd's client listener.
type EtcdTLS struct {
	CertFile, KeyFile             string
	ClientCertFile, ClientKeyFile string // what etcd shows when it is its own client; empty: the pair above
	TrustedCAFile                 string
	ClientCertAuth                bool
	AutoTLS                       bool
}

// etcd's defaults (server/embed/config.go), the same in 3.4 to 3.7.
const (
	defaultEtcdName    = "default"
	defaultClientURL   = "http://localhost:2379"
	defaultPeerURL     = "http://localhost:2380"
	defaultToken       = "etcd-cluster"
	etcdEnvPrefix      = "ETCD_"
	etcdConfigFileFlag = "config-file"
)

// ParseEtcd reads an etcd's configuration the way etcd 3.4 to 3.7 does: a flag beats its ETCD_* variable (3.4 and
// later even refuse to start with both), which beats the default; a configuration file beats all of them. args are etcd's arguments without the program's name, env its
// environment. Relative paths are resolved against the working directory. Flags that do not matter here are not checked.
// The error is ErrNotServer, or says which setting is wrong.
func ParseEtcd(args, env []string) (EtcdConfig, error) {
	flags, err := parseEtcdFlags(args)
	if err != nil {
		return EtcdConfig{}, err
	}
	settings := etcdSettings{get: func(name string) (string, bool) {
		if v, ok := flags[name]; ok {
			return v, true
		}
		return lookupEnv(env, etcdEnvName(name))
	}}
	cfg := EtcdConfig{env: env}
	if file, _ := settings.get(etcdConfigFileFlag); file != "" {
		if cfg.ConfigFile, err = filepath.Abs(file); err != nil {
			return EtcdConfig{}, fmt.Errorf("etcd configuration file: %w", err)
		}
		if settings, err = readEtcdFile(cfg.ConfigFile); err != nil {
			return EtcdConfig{}, err
		}
	}
	if err := cfg.fill(settings); err != nil {
		return EtcdConfig{}, err
	}
	return cfg, nil
}

// etcdSettings looks a setting up by the name of its flag, wherever it comes from.
type etcdSettings struct {
	get func(name string) (string, bool)
}

func (s etcdSettings) or(name, def string) string {
	if v, ok := s.get(name); ok && v != "" {
		return v
	}
	return def
}

func (s etcdSettings) urls(name, def string) []string {
	return strings.FieldsFunc(s.or(name, def), func(r rune) bool { return r == ',' || r == ' ' })
}

func (s etcdSettings) bool(name string) (bool, error) {
	v, ok := s.get(name)
	if !ok || v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, fmt.Errorf("etcd setting %s: %q is neither true nor false", name, v)
	}
	return b, nil
}

// fill takes the settings, with etcd's defaults for what is not set.
func (c *EtcdConfig) fill(s etcdSettings) (err error) {
	c.Name = s.or("name", defaultEtcdName)
	if c.DataDir, err = filepath.Abs(s.or("data-dir", c.Name+".etcd")); err != nil {
		return fmt.Errorf("etcd data directory: %w", err)
	}
	if wal := s.or("wal-dir", ""); wal != "" {
		if c.WALDir, err = filepath.Abs(wal); err != nil {
			return fmt.Errorf("etcd write-ahead log directory: %w", err)
		}
	}
	c.ListenClientURLs = s.urls("listen-client-urls", defaultClientURL)
	c.AdvertiseClientURLs = s.urls("advertise-client-urls", defaultClientURL)
	c.InitialAdvertisePeerURLs = s.urls("initial-advertise-peer-urls", defaultPeerURL)
	c.InitialClusterToken = s.or("initial-cluster-token", defaultToken)
	if err := c.fillCluster(s); err != nil {
		return err
	}
	t := &c.ClientTLS
	t.CertFile, t.KeyFile = s.or("cert-file", ""), s.or("key-file", "")
	t.ClientCertFile, t.ClientKeyFile = s.or("client-cert-file", ""), s.or("client-key-file", "")
	t.TrustedCAFile = s.or("trusted-ca-file", "")
	if t.ClientCertAuth, err = s.bool("client-cert-auth"); err != nil {
		return err
	}
	t.AutoTLS, err = s.bool("auto-tls")
	return err
}

// fillCluster sets the initial cluster. Its default names this member and its peer URLs, the latter only together with
// a name (embed, UpdateDefaultClusterFromName); a discovery service, where there is one, replaces the default.
func (c *EtcdConfig) fillCluster(s etcdSettings) error {
	c.InitialCluster = s.or("initial-cluster", "")
	if c.InitialCluster == "" {
		for _, discovery := range []string{"discovery", "discovery-srv", "discovery-srv-name", "discovery-endpoints"} {
			if s.or(discovery, "") != "" {
				return nil
			}
		}
		c.InitialCluster = defaultEtcdName + "=" + defaultPeerURL
		if c.Name != defaultEtcdName {
			var pairs []string
			for _, u := range c.InitialAdvertisePeerURLs {
				pairs = append(pairs, c.Name+"="+u)
			}
			c.InitialCluster = strings.Join(pairs, ",")
		}
	}
	names := map[string]bool{}
	for pair := range strings.SplitSeq(c.InitialCluster, ",") {
		name, url, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || name == "" || url == "" {
			return fmt.Errorf("etcd setting initial-cluster: %q is not NAME=PEER-URL", pair)
		}
		names[name] = true
	}
	c.Members = len(names)
	return nil
}

// etcdEnvName is the variable of a flag.
func etcdEnvName(flag string) string {
	return etcdEnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// lookupEnv finds a variable as a Go program sees it: the first of several wins, and etcd takes an empty one for unset.
func lookupEnv(env []string, name string) (string, bool) {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			return v, v != ""
		}
	}
	return "", false
}
