package snapshot_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// keyServer is an S3 server that takes the requests of some access keys only, and says of all others that they expired.
type keyServer struct {
	*storetest.S3Server
	mu   sync.Mutex // guards what follows
	good string
	seen map[string]int // requests by access key; "" for unsigned ones
}

func startKeyServer(t *testing.T, good string) (*keyServer, string) {
	k := &keyServer{S3Server: storetest.NewS3Server("test"), good: good, seen: map[string]int{}}
	server := httptest.NewServer(k)
	t.Cleanup(server.Close)
	return k, storetest.S3URL(server.URL, "test", "p")
}

func (k *keyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	key, _, _ := strings.Cut(rest, "/")
	k.mu.Lock()
	k.seen[key]++
	good := key == k.good
	k.mu.Unlock()
	if !good {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>`)
		return
	}
	k.S3Server.ServeHTTP(w, r)
}

func (k *keyServer) accept(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.good = key
}

func (k *keyServer) requests(key string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.seen[key]
}

// noCredentials clears the environment of everything that credentials could come from.
func noCredentials(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_ENDPOINT_URL_STS", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_REGION",
		"AWS_DEFAULT_REGION", "HTTP_PROXY", "http_proxy"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "credentials"))
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "config"))
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
}

func writeKeys(t *testing.T, key string) {
	t.Helper()
	content := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = secret-of-%[1]s\n", key)
	if err := os.WriteFile(os.Getenv("AWS_SHARED_CREDENTIALS_FILE"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Keys are rotated by writing the shared file anew. A warden runs for months: it must go on with the new ones, without a request of the old.
func TestRotatedSharedFileIsPickedUp(t *testing.T) {
	noCredentials(t)
	server, url := startKeyServer(t, "old")
	writeKeys(t, "old")
	store := openStore(t, url, snapshot.OpenOptions{})
	put(t, store, "a", "x")
	server.accept("rotated")
	writeKeys(t, "rotated")
	before := server.requests("old")
	put(t, store, "b", "x")
	if n := server.requests("old") - before; n != 0 {
		t.Errorf("%d requests with the old key", n)
	}
}

// A token that expires in the middle of an upload is renewed and the part is sent again: starting a large final over could go on for ever.
func TestExpiryInMidUploadIsRenewed(t *testing.T) {
	noCredentials(t)
	server, url := startKeyServer(t, "old")
	writeKeys(t, "old")
	store := openStore(t, url, snapshot.OpenOptions{})
	sent := 0
	source := readerFunc(func(b []byte) (int, error) {
		if sent > 20<<20 && server.requests("new") == 0 { // two parts are there: from now on only the new key is good
			server.accept("new")
			writeKeys(t, "new")
		}
		if sent >= 40<<20 {
			return 0, io.EOF
		}
		sent += len(b)
		return len(b), nil
	})
	object, err := store.Put(t.Context(), "k", source, snapshot.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if object.SizeBytes < 40<<20 || server.requests("new") == 0 {
		t.Errorf("stored %d bytes, %d requests with the new key", object.SizeBytes, server.requests("new"))
	}
	inits := 0
	for _, r := range server.Requests() {
		if strings.HasPrefix(r, "POST") && strings.Contains(r, "uploads") {
			inits++
		}
	}
	if inits != 1 {
		t.Errorf("the upload was begun %d times: it was not continued", inits)
	}
}

// A role for a service account: the token file is exchanged for keys at the token service, again when they end.
func TestWebIdentityIsExchangedForKeys(t *testing.T) {
	noCredentials(t)
	server, url := startKeyServer(t, "sts-1")
	exchanges := 0
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil || r.Form.Get("WebIdentityToken") != "the token" || r.Form.Get("RoleArn") != "arn:aws:iam::1:role/x" {
			http.Error(w, "bad exchange", http.StatusBadRequest)
			return
		}
		exchanges++
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>sts-%d</AccessKeyId><SecretAccessKey>s</SecretAccessKey>`+
			`<SessionToken>t</SessionToken><Expiration>%s</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`,
			exchanges, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	defer sts.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the token"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_WEB_IDENTITY_TOKEN_FILE", token)
	t.Setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/x")
	t.Setenv("AWS_ENDPOINT_URL_STS", sts.URL)
	store := openStore(t, url, snapshot.OpenOptions{})
	put(t, store, "a", "x")
	put(t, store, "b", "x")
	if exchanges != 1 {
		t.Errorf("%d exchanges for keys that are good for an hour", exchanges)
	}
	server.accept("sts-2") // the first ones are revoked
	put(t, store, "c", "x")
	if exchanges != 2 {
		t.Errorf("%d exchanges, want another after the end of the first keys", exchanges)
	}
}

// Outside of a cloud the instance's address is a black hole. It costs three seconds, is worth trying later, and is no licence for unsigned requests.
func TestBlackHoleOfTheInstanceRoleIsBounded(t *testing.T) {
	noCredentials(t)
	hole, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer hole.Close()
	t.Setenv("AWS_EC2_METADATA_DISABLED", "")
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://"+hole.Addr().String())
	server, url := startKeyServer(t, "any")
	opt := snapshot.OpenOptions{Limits: snapshot.Limits{Attempts: 1}}
	began := time.Now()
	_, err = openStore(t, url, opt).Stat(t.Context(), "k")
	took := time.Since(began)
	wantIs(t, err, snapshot.ErrDenied)
	if !snapshot.Retryable(err) || !strings.Contains(err.Error(), "instance role") {
		t.Errorf("error %v; want one that names the instance role and is worth trying later", err)
	}
	if bound := 3 * time.Second; took > bound+time.Second { // the product's own bound, and a second for the machine
		t.Errorf("it took %s, promised are %s", took, bound)
	}
	if n := server.requests(""); n != 0 || len(server.Requests()) != 0 {
		t.Errorf("%d unsigned requests", n)
	}
}

// A program that prints credentials is run when they are needed; one that hangs ends with the call that waits for it.
func TestCredentialProcess(t *testing.T) {
	noCredentials(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "credentials.sh")
	program := func(content string) {
		if err := os.WriteFile(script, []byte("#!/bin/sh\n"+content), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(os.Getenv("AWS_CONFIG_FILE"), []byte("[default]\ncredential_process = "+script+" now\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program(`echo '{"Version":1,"AccessKeyId":"printed","SecretAccessKey":"s","Expiration":"2099-01-01T00:00:00Z"}'`)
	_, url := startKeyServer(t, "printed")
	put(t, openStore(t, url, snapshot.OpenOptions{}), "a", "x")

	program("while [ -e " + script + " ]; do sleep 0.1; done") // ends with the test's directory
	store := openStore(t, url, snapshot.OpenOptions{})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := store.Stat(ctx, "k"); done <- err }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("a hanging program gave credentials")
		}
	case <-time.After(20 * time.Second):
		t.Error("the call waits for the program although its context has ended")
	}
}

// A region that is wrong is named together with the right one; endpoints that cannot be right are refused by name.
func TestEndpointMistakesAreExplained(t *testing.T) {
	noCredentials(t)
	answer := func(status int, body string, header ...string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	tests := []struct{ name, endpoint, want string }{
		{"region", answer(400, `<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region></Error>`), "write region=eu-west-3"},
		{"redirect", answer(307, "", "Location", "https://elsewhere.example/"), "redirects"},
		{"not S3", answer(200, "<html>welcome</html>"), "web page"},
		{"no bucket", answer(404, `<Error><Code>NoSuchBucket</Code></Error>`), "create the bucket"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			opt := testOptions()
			opt.Limits.Attempts = 1
			var err error
			for _, errList := range openStore(t, storetest.S3URL(tt.endpoint, "test", "p"), opt).List(t.Context(), "") {
				err = errList
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// Requests go through the proxy that the environment names, but not those to this very machine.
func TestProxyOfTheEnvironmentIsUsed(t *testing.T) {
	noCredentials(t)
	backend := httptest.NewServer(storetest.NewS3Server("test"))
	defer backend.Close()
	through := 0
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		through++
		out := r.Clone(r.Context())
		out.URL.Scheme, out.URL.Host, out.RequestURI = "http", strings.TrimPrefix(backend.URL, "http://"), ""
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	defer proxy.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	url := storetest.S3URL("http://bucket.test.invalid:9000", "test", "p") + "&insecure-http=true"
	put(t, openStore(t, url, testOptions()), "a", "x")
	if through == 0 {
		t.Error("the proxy saw nothing")
	}
}
