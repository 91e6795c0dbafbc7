package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// demoStore is the store that both sites share, and the switch that takes it away.
type demoStore struct {
	url  string
	env  []string
	down func(bool) error
	stop func()
}

// directoryStore is a plain directory. Down means: the directory is gone, as an unmounted share would be.
func directoryStore(dir string) (*demoStore, error) {
	path, away := filepath.Join(dir, "store"), filepath.Join(dir, "store-away")
	if err := os.Mkdir(path, 0o700); err != nil {
		return nil, err
	}
	down := func(yes bool) error {
		if yes {
			return os.Rename(path, away)
		}
		return os.Rename(away, path)
	}
	return &demoStore{url: "file://" + path, down: down, stop: func() {}}, nil
}

// s3Store is a real S3 server behind a proxy. Down means: the proxy answers 503 to everything.
func s3Store(ctx context.Context, dir, versitygw string) (*demoStore, error) {
	const key, secret = "demo-access-key", "demo-secret-key"
	if _, err := os.Stat(versitygw); err != nil {
		return nil, badConfig("--store s3 needs the S3 server %s: run `make tools-s3` first", versitygw)
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"s3/data/demo", "s3/iam"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	backend := fmt.Sprintf("127.0.0.1:%d", ports[0])
	server := exec.Command(versitygw, "--port", backend, "--region", "us-east-1", "--iam-dir", filepath.Join(dir, "s3/iam"), "--quiet",
		"posix", filepath.Join(dir, "s3/data"))
	server.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+key, "ROOT_SECRET_KEY="+secret)
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := server.Start(); err != nil {
		return nil, fmt.Errorf("start the S3 server: %w", err)
	}
	stopServer := func() { server.Process.Kill(); server.Wait() }
	if err := awaitTCP(ctx, backend); err != nil {
		stopServer()
		return nil, fmt.Errorf("the S3 server does not come up: %w", err)
	}
	proxy, err := startSwitch(backend)
	if err != nil {
		stopServer()
		return nil, err
	}
	return &demoStore{
		url:  fmt.Sprintf("s3://demo/cluster?endpoint=http://%s&region=us-east-1", proxy.addr),
		env:  []string{"AWS_ACCESS_KEY_ID=" + key, "AWS_SECRET_ACCESS_KEY=" + secret},
		down: func(yes bool) error { proxy.refuse.Store(yes); return nil },
		stop: func() { proxy.server.Close(); stopServer() },
	}, nil
}

// storeSwitch is a reverse proxy that can refuse everything.
type storeSwitch struct {
	addr   string
	refuse atomic.Bool
	server *http.Server
}

func startSwitch(backend string) (*storeSwitch, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the store: %w", err)
	}
	s := &storeSwitch{addr: l.Addr().String()}
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: backend})
	s.server = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.refuse.Load() {
			http.Error(w, "the demo took the store down", http.StatusServiceUnavailable)
			return
		}
		forward.ServeHTTP(w, r)
	})}
	go s.server.Serve(l)
	return s, nil
}

// awaitTCP waits until addr accepts connections.
func awaitTCP(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}
