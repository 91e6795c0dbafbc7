package supervisor

import "strings"

// FencedCommand is how to run an etcd where nobody can reach it: see EtcdConfig.Fenced.
type FencedCommand struct {
	Args     []string // the whole argv, Args[0] included
	Env      []string // never nil
	Dir      string   // must be its working directory, and nobody else's to enter
	Endpoint string   // of its client listener, for a client outside
}

// The sockets of a fenced etcd. Names relative to its working directory escape the 107 bytes that a socket's path may
// have; "c:1" looks like host:port, which etcd 3.4 asks of a unix URL too.
const (
	fencedClientSocket = "c:1"
	fencedPeerSocket   = "p:1"
)

// Fenced is the command line of the same etcd on the same files, reachable only through sockets in dir, which must be
// absolute and of mode 0700. Nothing of the user's is kept but where the data lies, the member's name and what it tells
// others of its client URLs (the member publishes both, so the membership stays as it was): no flag, variable or
// configuration file can open another listener. It never makes a new cluster where the log is gone, has no quota that a
// replay could exceed, compacts nothing, and tells no service manager that it is ready.
func (c EtcdConfig) Fenced(dir string) FencedCommand {
	advertise := defaultClientURL
	if len(c.AdvertiseClientURLs) > 0 {
		advertise = strings.Join(c.AdvertiseClientURLs, ",")
	}
	args := []string{
		"etcd",
		"--name=" + c.Name,
		"--data-dir=" + c.DataDir,
		"--listen-client-urls=unix://" + fencedClientSocket,
		"--advertise-client-urls=" + advertise,
		"--listen-peer-urls=unix://" + fencedPeerSocket,
		"--initial-cluster-state=existing",
		"--quota-backend-bytes=-1",
		"--auto-compaction-retention=0",
		"--log-level=warn",
	}
	if c.WALDir != "" {
		args = append(args, "--wal-dir="+c.WALDir)
	}
	return FencedCommand{Args: args, Env: fencedEnv(c.env), Dir: dir, Endpoint: "unix://" + dir + "/" + fencedClientSocket}
}

// fencedEnv drops every variable that configures etcd or connects it to a service manager. ETCD_UNSUPPORTED_ARCH is no
// setting: without it etcd refuses to start on some processors.
func fencedEnv(env []string) []string {
	kept := make([]string, 0, len(env)) // nil would mean "inherit all"
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case name == "ETCD_UNSUPPORTED_ARCH":
		case strings.HasPrefix(name, etcdEnvPrefix), strings.HasPrefix(name, "LISTEN_"), strings.HasPrefix(name, "WATCHDOG_"), name == "NOTIFY_SOCKET":
			continue
		}
		kept = append(kept, kv)
	}
	return kept
}
