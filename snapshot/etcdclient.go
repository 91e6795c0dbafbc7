package snapshot

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// How AwaitServing asks: each try has its own deadline, and tries follow each other at this distance.
const (
	serveTryTimeout = 2 * time.Second
	serveTryPause   = 20 * time.Millisecond
)

// servedKey is read to see whether etcd serves. It need not exist.
const servedKey = "\x00etcd-warden"

// AwaitServing waits until the etcd at endpoint ("http://127.0.0.1:2379", "unix:///run/x/c:1") answers a linearizable
// read, which means that it has a leader and has applied every entry that was committed when the read was asked. It
// returns nil then, and when ctx ends its cause together with the last refusal.
func AwaitServing(ctx context.Context, endpoint string) error {
	c, err := dialEtcd(endpoint, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	pause := time.NewTicker(serveTryPause)
	defer pause.Stop()
	var last error
	for {
		try, cancel := context.WithTimeout(ctx, serveTryTimeout)
		err := readLinearizable(try, c)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("await etcd at %s: %w (last answer: %w)", endpoint, context.Cause(ctx), last)
		case <-pause.C:
		}
	}
}

// Serving asks the etcd at endpoint once for a linearizable read. tlsConfig is for https and unixs endpoints, nil
// otherwise. The deadline is that of ctx.
func Serving(ctx context.Context, endpoint string, tlsConfig *tls.Config) error {
	c, err := dialEtcd(endpoint, tlsConfig)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := readLinearizable(ctx, c); err != nil {
		return fmt.Errorf("read from etcd at %s: %w", endpoint, err)
	}
	return nil
}

// readLinearizable asks for one key. With authentication on, etcd first waits for the read to be linearizable and then
// refuses it to a stranger (etcdserver, v3_server.go, Range): such a refusal proves as much as an answer.
func readLinearizable(ctx context.Context, c *clientv3.Client) error {
	_, err := c.Get(ctx, servedKey, clientv3.WithKeysOnly())
	if errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrPermissionDenied) {
		return nil
	}
	return err
}

// dialEtcd makes a client that logs nothing and connects lazily. The address is dialed by ourselves, as grpc knows no
// socket path that is longer than the kernel's limit.
func dialEtcd(endpoint string, tlsConfig *tls.Config) (*clientv3.Client, error) {
	return dialEtcdAs(endpoint, tlsConfig, "", "")
}

// dialEtcdAs is dialEtcd as one of etcd's users. With a user it connects at once.
func dialEtcdAs(endpoint string, tlsConfig *tls.Config, user, password string) (*clientv3.Client, error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	scheme := "http"
	if tlsConfig != nil {
		scheme = "https"
	}
	// A name for TLS and the authority header; the dialer below ignores it.
	host := "localhost:2379"
	if network == "tcp" {
		host = address
	}
	var patience time.Duration
	if user != "" {
		patience = liveCallTimeout // for the token, which New asks for
	}
	c, err := clientv3.New(clientv3.Config{
		DialTimeout: patience,
		Endpoints:   []string{scheme + "://" + host},
		TLS:         tlsConfig,
		Username:    user,
		Password:    password,
		Logger:      zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return dialEndpoint(ctx, network, address)
		}),
			// The endpoint is our own child on this machine: no proxy, and no seconds of back-off while it starts.
			grpc.WithNoProxy(),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: serveTryTimeout, Backoff: backoff.Config{
				BaseDelay: serveTryPause, Multiplier: 1.5, MaxDelay: 10 * serveTryPause}}),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("client for etcd at %s: %w", endpoint, err)
	}
	return c, nil
}

func splitEndpoint(endpoint string) (network, address string, err error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case ok && (scheme == "unix" || scheme == "unixs") && rest != "":
		return "unix", rest, nil
	case ok && (scheme == "http" || scheme == "https"):
		if u, err := url.Parse(endpoint); err == nil && u.Port() != "" {
			return "tcp", u.Host, nil
		}
	}
	return "", "", fmt.Errorf("etcd endpoint %q: want http://host:port, https://host:port or unix:///path", endpoint)
}

// maxSocketPath is the longest path that fits sockaddr_un, with its final zero; unix(7).
const maxSocketPath = 107

// dialEndpoint connects; a socket whose path is too long for the kernel is reached through its opened directory.
func dialEndpoint(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	if network != "unix" || len(address) <= maxSocketPath {
		return d.DialContext(ctx, network, address)
	}
	dir, err := os.OpenFile(filepath.Dir(address), os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close() // only needed while connecting
	return d.DialContext(ctx, network, fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(address)))
}
