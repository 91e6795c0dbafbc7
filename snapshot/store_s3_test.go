package snapshot_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/snapshot/storetest"
)

// testOptions has waits that a test can afford and that still leave a loaded machine room.
func testOptions() snapshot.OpenOptions {
	return snapshot.OpenOptions{
		Credentials: &snapshot.Credentials{AccessKeyID: "k", SecretAccessKey: "s"},
		Limits:      snapshot.Limits{Dial: 5 * time.Second, Stall: 10 * time.Second, Backoff: time.Millisecond, Attempts: 3, PartBudget: 30 * time.Second},
	}
}

// impatient is for tests in which a server hangs.
func impatient() snapshot.OpenOptions {
	o := testOptions()
	o.Limits.Stall, o.Limits.Complete, o.Limits.Attempts, o.Limits.PartBudget = 300*time.Millisecond, 300*time.Millisecond, 2, time.Second
	return o
}

func proxied(t *testing.T, opt snapshot.OpenOptions) (*storetest.S3Server, *storetest.FaultProxy, snapshot.Store) {
	t.Helper()
	server := storetest.NewS3Server("test")
	proxy := startProxy(t, server)
	return server, proxy, openStore(t, storetest.S3URL(proxy.URL(), "test", "p"), opt)
}

func TestLostAnswerToOurWriteIsRecognised(t *testing.T) {
	for name, size := range map[string]int{"single": 10, "parts": 9 << 20} {
		t.Run(name, func(t *testing.T) {
			_, proxy, store := proxied(t, testOptions())
			isWrite := func(r *http.Request) bool {
				return isComplete(r) || r.Method == http.MethodPut && !r.URL.Query().Has("partNumber")
			}
			proxy.Inject(storetest.Fault{Mode: storetest.LoseAnswer, Match: isWrite, Times: 1})
			object, err := store.Put(t.Context(), "k", bytes.NewReader(storetest.Bytes(size)), snapshot.PutOptions{IfAbsent: true})
			if err != nil {
				t.Fatalf("our own write is not recognised: %v", err)
			}
			if object.SizeBytes != int64(size) || proxy.Hits(storetest.LoseAnswer) != 1 {
				t.Errorf("got %+v after %d lost answers", object, proxy.Hits(storetest.LoseAnswer))
			}
			_, err = store.Put(t.Context(), "k", strings.NewReader("x"), snapshot.PutOptions{IfAbsent: true})
			wantIs(t, err, snapshot.ErrExists)
		})
	}
}

// Another's object is another's even if our answer was lost.
func TestForeignObjectIsNotTakenForOurs(t *testing.T) {
	server, proxy, store := proxied(t, testOptions())
	proxy.Inject(storetest.Fault{Mode: storetest.Reset, Times: 1, Match: func(r *http.Request) bool {
		if r.Method == http.MethodPut {
			server.PutObject("p/k", []byte("0123456789"))
		}
		return r.Method == http.MethodPut
	}})
	_, err := store.Put(t.Context(), "k", strings.NewReader("9876543210"), snapshot.PutOptions{IfAbsent: true})
	wantIs(t, err, snapshot.ErrExists)
}

func TestFaultsHaveTheRightKind(t *testing.T) {
	for _, tt := range []struct {
		name  string
		mode  storetest.Mode
		opt   snapshot.OpenOptions
		kind  error
		retry bool
		hits  int // 0: any
	}{
		{"throttled", storetest.Refuse503, testOptions(), snapshot.ErrUnavailable, true, 3},
		{"denied", storetest.Refuse403, testOptions(), snapshot.ErrDenied, false, 1},
		{"expired", storetest.Expired, testOptions(), snapshot.ErrDenied, true, 3},
		{"reset", storetest.Reset, testOptions(), snapshot.ErrUnavailable, true, 0},
		{"hangs", storetest.Hang, impatient(), snapshot.ErrUnavailable, true, 0},
		{"black hole", storetest.BlackHole, impatient(), snapshot.ErrUnavailable, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, proxy, store := proxied(t, tt.opt)
			proxy.SetMode(tt.mode)
			body, _, err := store.Get(t.Context(), "k", 0)
			if err == nil {
				t.Fatalf("no error, a body: %v", body.Close())
			}
			wantIs(t, err, tt.kind)
			if snapshot.Retryable(err) != tt.retry {
				t.Errorf("retryable is %t for %v", !tt.retry, err)
			}
			if got := proxy.Hits(tt.mode); tt.hits != 0 && got != tt.hits {
				t.Errorf("%d tries, want %d", got, tt.hits)
			}
			for _, err := range store.List(t.Context(), "") {
				wantIs(t, err, tt.kind)
			}
			wantIs(t, store.Delete(t.Context(), "k"), tt.kind)
		})
	}
}

// A server that stops reading, or a line that goes dark, must not hold an upload for ever; a slow one must not be given up.
func TestStalledPartIsSentAgain(t *testing.T) {
	opt := testOptions()
	opt.Limits.Stall = time.Second
	server, proxy, store := proxied(t, opt)
	proxy.Inject(storetest.Fault{Mode: storetest.Stall, Times: 1, Match: func(r *http.Request) bool { return r.URL.Query().Get("partNumber") == "2" }})
	data := storetest.Bytes(20 << 20)
	if _, err := store.Put(t.Context(), "k", bytes.NewReader(data), snapshot.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := countRequests(server, "POST p/k uploads"); n != 1 {
		t.Errorf("%d uploads were started, want 1", n)
	}
}

func TestThrottleTellsHowLong(t *testing.T) {
	_, proxy, store := proxied(t, testOptions())
	proxy.RetryAfter = "60"
	proxy.SetMode(storetest.Refuse503)
	_, err := store.Stat(t.Context(), "k")
	if got := snapshot.ThrottledFor(err); got != time.Minute || !snapshot.Retryable(err) {
		t.Errorf("got error %v, want one that asks for a minute", err)
	}
	if n := proxy.Hits(storetest.Refuse503); n != 1 {
		t.Errorf("the server was asked %d times, want once: a minute is for the caller to wait", n)
	}
}

// Lost if it fails: the time that a handover has, to a server that hangs. The test hangs then.
func TestCancelEndsAnUploadWhileServerAndAbortHang(t *testing.T) {
	for _, mode := range []storetest.Mode{storetest.Hang, storetest.Stall, storetest.BlackHole} {
		opt := testOptions()
		opt.Limits.Stall = 10 * time.Minute
		_, proxy, store := proxied(t, opt)
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		isPart := func(r *http.Request) bool {
			if r.URL.Query().Has("partNumber") {
				proxy.SetMode(mode)
				cancel(stop)
				return true
			}
			return false
		}
		proxy.Inject(storetest.Fault{Mode: mode, Match: isPart})
		_, err := store.Put(ctx, "k", bytes.NewReader(storetest.Bytes(20<<20)), snapshot.PutOptions{})
		wantIs(t, err, stop)
	}
}

// Lost if it fails: everything. An absent bucket read as an empty store lets an empty etcd start where data is expected.
func TestAbsentBucketIsNotAnEmptyStore(t *testing.T) {
	server := httptest.NewServer(storetest.NewS3Server("another"))
	defer server.Close()
	store := openStore(t, storetest.S3URL(server.URL, "test", "p"), testOptions())
	_, errStat := store.Stat(t.Context(), "k")
	_, _, errGet := store.Get(t.Context(), "k", 0)
	_, errPut := store.Put(t.Context(), "k", strings.NewReader("x"), snapshot.PutOptions{IfAbsent: true})
	errs := []error{errStat, errGet, errPut}
	for _, err := range store.List(t.Context(), "") {
		errs = append(errs, err)
	}
	if len(errs) != 4 {
		t.Error("list says that the store is empty")
	}
	for _, err := range errs {
		wantIs(t, err, snapshot.ErrNoStore)
		if errors.Is(err, snapshot.ErrNotFound) {
			t.Errorf("%v reads as an absent object", err)
		}
	}
}

func TestIfAbsentWithoutTheRightToLook(t *testing.T) {
	handler := storetest.NewS3Server("test")
	handler.NoLooking = true
	server := httptest.NewServer(handler)
	defer server.Close()
	store := openStore(t, storetest.S3URL(server.URL, "test", "p"), testOptions())
	if _, err := store.Put(t.Context(), "k", strings.NewReader("x"), snapshot.PutOptions{IfAbsent: true}); err != nil {
		t.Error(err)
	}
	_, err := store.Put(t.Context(), "k", strings.NewReader("y"), snapshot.PutOptions{IfAbsent: true})
	wantIs(t, err, snapshot.ErrExists)
}

func TestProbeTellsWhatTheServerDecides(t *testing.T) {
	for name, tt := range map[string]struct {
		support storetest.IfAbsentSupport
		want    bool
	}{"honoured": {storetest.IfAbsentHonoured, true}, "ignored": {storetest.IfAbsentIgnored, false}, "refused": {storetest.IfAbsentRefused, false}} {
		t.Run(name, func(t *testing.T) {
			handler := storetest.NewS3Server("test")
			handler.IfAbsent = tt.support
			server := httptest.NewServer(handler)
			defer server.Close()
			caps, err := openStore(t, storetest.S3URL(server.URL, "test", "p"), testOptions()).Probe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if caps.IfAbsent != tt.want || caps.IfAbsentMultipart != tt.want {
				t.Errorf("probe says %+v, want if-absent %t", caps, tt.want)
			}
			if handler.Uploads() != 0 {
				t.Error("the probe left an upload behind")
			}
		})
	}
}

// Lost if it fails: a live upload of a neighbour, or money for parts that nobody sees.
func TestSweepTakesOldUploadsOfOursOnly(t *testing.T) {
	server, _, store := proxied(t, testOptions())
	server.StartUpload("p/old", time.Now().Add(-25*time.Hour))
	server.StartUpload("p/young", time.Now())
	server.StartUpload("px/neighbour", time.Now().Add(-25*time.Hour))
	server.StartUpload("neighbour", time.Now().Add(-25*time.Hour))
	if n, err := store.SweepUploads(t.Context(), "", 24*time.Hour); n != 1 || err != nil {
		t.Errorf("swept %d, error %v; want 1", n, err)
	}
	if server.Uploads() != 3 {
		t.Errorf("%d uploads are left, want 3", server.Uploads())
	}
}

// An upload that fails frees its parts.
func TestFailedUploadIsAborted(t *testing.T) {
	server, proxy, store := proxied(t, testOptions())
	proxy.Inject(storetest.Fault{Mode: storetest.Refuse403, Match: func(r *http.Request) bool { return r.URL.Query().Get("partNumber") == "2" }})
	_, err := store.Put(t.Context(), "k", bytes.NewReader(storetest.Bytes(20<<20)), snapshot.PutOptions{})
	wantIs(t, err, snapshot.ErrDenied)
	// Put waits for its abort for half a second only, which a loaded machine may not keep.
	for deadline := time.After(15 * time.Second); server.Uploads() != 0; {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%d uploads are left", server.Uploads())
		}
	}
}

// R2 refuses parts of unequal size; small objects take one request to write.
func TestPartsAreEqualAndSmallObjectsHaveNone(t *testing.T) {
	server, proxy, store := proxied(t, testOptions())
	proxy.Inject(storetest.Fault{Mode: storetest.Refuse403, Match: isComplete})
	proxy.Inject(storetest.Fault{Mode: storetest.Refuse403, Match: func(r *http.Request) bool { return r.Method == http.MethodDelete }})
	_, err := store.Put(t.Context(), "large", bytes.NewReader(storetest.Bytes(20<<20)), snapshot.PutOptions{})
	wantIs(t, err, snapshot.ErrDenied)
	if got := server.PartSizes(); len(got) != 3 || got[0] != 8<<20 || got[1] != 8<<20 || got[2] != 4<<20 {
		t.Errorf("part sizes are %v", got)
	}
	before := len(server.Requests())
	if _, err := store.Put(t.Context(), "small", strings.NewReader("x"), snapshot.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := len(server.Requests()) - before; n != 1 {
		t.Errorf("a small object took %d requests, want 1", n)
	}
}

// Lost if it fails: an outage of the credential source that looks like a wrong bucket policy, or a write to a public bucket.
func TestRequestsAreNeverUnsignedByAccident(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY", "AWS_SECRET_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", t.TempDir()+"/absent")
	t.Setenv("AWS_CONFIG_FILE", t.TempDir()+"/absent")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	handler := storetest.NewS3Server("test")
	server := httptest.NewServer(handler)
	defer server.Close()
	url := storetest.S3URL(server.URL, "test", "p")
	_, err := openStore(t, url, snapshot.OpenOptions{}).Stat(t.Context(), "k")
	wantIs(t, err, snapshot.ErrDenied)
	if snapshot.Retryable(err) || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("error does not help: %v", err)
	}
	if got := handler.Requests(); len(got) != 0 {
		t.Errorf("requests were sent: %q", got)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "k")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "s")
	put(t, openStore(t, url, snapshot.OpenOptions{}), "k", "x")
	_, err = openStore(t, url+"&anonymous=true", snapshot.OpenOptions{}).Stat(t.Context(), "k")
	wantIs(t, err, snapshot.ErrDenied) // asked for, and refused by the server
}

func TestUnknownAuthorityIsExplainedAtOnce(t *testing.T) {
	hits := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits++ }))
	defer server.Close()
	server.Config.ErrorLog = nil
	_, err := openStore(t, storetest.S3URL(server.URL, "test", "p"), testOptions()).Stat(t.Context(), "k")
	wantIs(t, err, snapshot.ErrInvalid)
	if !strings.Contains(err.Error(), "ca-file=") || snapshot.Retryable(err) || hits != 0 {
		t.Errorf("error does not help: %v", err)
	}
}

func TestHTTPSToAnHTTPPortIsExplained(t *testing.T) {
	server := httptest.NewServer(storetest.NewS3Server("test"))
	defer server.Close()
	_, err := openStore(t, storetest.S3URL(strings.Replace(server.URL, "http:", "https:", 1), "test", "p"), testOptions()).Stat(t.Context(), "k")
	wantIs(t, err, snapshot.ErrInvalid)
	if !strings.Contains(err.Error(), "http://") {
		t.Errorf("error does not help: %v", err)
	}
}

// Lost if it fails: a restore that hangs for ever. It must end with an error that is worth another attempt, from where it broke.
func TestStalledDownloadEnds(t *testing.T) {
	opt := testOptions()
	opt.Limits.Stall = 2 * time.Second
	server, proxy, store := proxied(t, opt)
	server.PutObject("p/k", storetest.Bytes(32<<20)) // more than the sockets between us hold
	body, _, err := store.Get(t.Context(), "k", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	proxy.SetMode(storetest.BlackHole)
	_, err = io.Copy(io.Discard, body)
	wantIs(t, err, snapshot.ErrUnavailable)
	if !snapshot.Retryable(err) {
		t.Errorf("%v is not called retryable", err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
}
