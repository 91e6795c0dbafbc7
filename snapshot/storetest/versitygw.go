package storetest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
)

// VersityGW is a running versitygw: a real S3 server on loopback that keeps its objects in a directory.
type VersityGW struct {
	Endpoint    string // http://127.0.0.1:port, or https
	CAFile      string // of an https endpoint: the authority of its certificate
	Credentials snapshot.Credentials

	key    string // file with the certificate's key
	data   string
	cancel context.CancelFunc
	exited chan struct{}
	output *bytes.Buffer // complete when exited is closed
}

// Env is what a program needs in its environment to use the server.
func (v *VersityGW) Env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + v.Credentials.AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + v.Credentials.SecretAccessKey, "AWS_REGION=us-east-1"}
}

// StoreURL is the URL of a store in one of the server's buckets.
func (v *VersityGW) StoreURL(bucket, prefix string) string {
	url := S3URL(v.Endpoint, bucket, prefix)
	if v.CAFile != "" {
		url += "&ca-file=" + v.CAFile
	}
	return url
}

// CreateBucket makes a bucket.
func (v *VersityGW) CreateBucket(bucket string) error {
	if err := os.Mkdir(filepath.Join(v.data, bucket), 0o755); err != nil {
		return fmt.Errorf("create bucket: %w", err)
	}
	return nil
}

// Close ends the server and waits for it.
func (v *VersityGW) Close() {
	v.cancel()
	<-v.exited
}

// S3URL is the store URL for a bucket behind an endpoint of the form http://host:port.
func S3URL(endpoint, bucket, prefix string) string {
	return "s3://" + bucket + "/" + prefix + "?endpoint=" + endpoint + "&region=us-east-1&path-style=true"
}

// StartVersityGW starts the program bin with all its files below dir, and returns when it answers. It ends with ctx, or by Close, and dies with this process.
func StartVersityGW(ctx context.Context, bin, dir string) (*VersityGW, error) {
	return startVersityGW(ctx, bin, dir, "", "")
}

// startVersityGW speaks https when it gets a certificate.
func startVersityGW(ctx context.Context, bin, dir, cert, key string) (*VersityGW, error) {
	v := &VersityGW{
		CAFile: cert, key: key,
		Credentials: snapshot.Credentials{AccessKeyID: "warden", SecretAccessKey: "warden-secret-key"},
		data:        filepath.Join(dir, "data"), exited: make(chan struct{}), output: new(bytes.Buffer),
	}
	for _, sub := range []string{"data", "iam", "meta"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("start versitygw: %w", err)
		}
	}
	// The port may be taken by someone else between its choice and its use.
	for range 3 {
		address, err := freeAddress()
		if err != nil {
			return nil, fmt.Errorf("start versitygw: %w", err)
		}
		v.Endpoint = "http://" + address
		if cert != "" {
			v.Endpoint = "https://" + address
		}
		if err = v.start(ctx, bin, dir, address); err == nil {
			return v, nil
		}
		if ctx.Err() != nil || errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("start versitygw: it does not come up: %s", v.output)
}

func (v *VersityGW) start(ctx context.Context, bin, dir, address string) error {
	ctx, v.cancel = context.WithCancel(ctx)
	v.exited = make(chan struct{})
	// Metadata in files beside the objects: not every file system has extended attributes.
	args := []string{"--port", address, "--region", "us-east-1", "--iam-dir", filepath.Join(dir, "iam"), "--quiet"}
	if v.CAFile != "" {
		args = append(args, "--cert", v.CAFile, "--key", v.key)
	}
	cmd := exec.CommandContext(ctx, bin, append(args, "posix", "--sidecar", filepath.Join(dir, "meta"), v.data)...)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+v.Credentials.AccessKeyID, "ROOT_SECRET_KEY="+v.Credentials.SecretAccessKey)
	cmd.Stdout, cmd.Stderr = v.output, v.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		v.cancel()
		return fmt.Errorf("start versitygw: %w", err)
	}
	go func() {
		_ = cmd.Wait() // its output says why
		close(v.exited)
	}()
	if err := v.awaitAnswer(ctx); err != nil {
		v.Close()
		return err
	}
	return nil
}

// awaitAnswer asks until any answer comes, for half a minute.
func (v *VersityGW) awaitAnswer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // whoever answers is there
	defer client.CloseIdleConnections()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.Endpoint, nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			return resp.Body.Close()
		}
		select {
		case <-tick.C:
		case <-v.exited:
			return errors.New("versitygw ended")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Tool finds a program in bin/ at the root of the module, or skips the test.
func Tool(t testing.TB, name, makeTarget string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
			continue
		}
		path := filepath.Join(dir, "bin", name)
		if _, err := os.Stat(path); err != nil {
			break
		}
		return path
	}
	t.Skipf("no bin/%s: run make %s", name, makeTarget)
	return ""
}

// StartS3 starts a versitygw for the length of a test, with a bucket named "test", or skips the test when the program is not there.
func StartS3(t testing.TB) *VersityGW {
	t.Helper()
	v, err := StartVersityGW(context.Background(), Tool(t, "versitygw", "tools-s3"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	if err := v.CreateBucket("test"); err != nil {
		t.Fatal(err)
	}
	return v
}

// StartS3TLS is StartS3 over https, with a certificate of its own authority: see VersityGW.CAFile.
func StartS3TLS(t testing.TB) *VersityGW {
	t.Helper()
	cert, key, err := WriteCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	v, err := startVersityGW(context.Background(), Tool(t, "versitygw", "tools-s3"), t.TempDir(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	if err := v.CreateBucket("test"); err != nil {
		t.Fatal(err)
	}
	return v
}
