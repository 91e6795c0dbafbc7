package containertest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

const (
	recordName = "owner.test."
	accessKey  = "warden"
	secretKey  = "warden-secret-key"
)

// place is one site's network, with the name server and the store in it.
type place struct {
	network string
	dns     string // address of the name server in it
}

// world is two networks, a name server and an S3 server on both of them.
type world struct {
	e       *engine
	t       *testing.T
	places  map[string]place
	dns, s3 *container
	control string // URL that sets the record
}

func newWorld(t *testing.T, e *engine) *world {
	w := &world{e: e, t: t, places: map[string]place{}}
	for _, id := range []string{"site-a", "site-b"} {
		w.places[id] = w.network(id)
	}
	a, b := w.places["site-a"], w.places["site-b"]
	data := t.TempDir()
	for _, dir := range []string{"data/test", "iam", "meta"} {
		if err := os.MkdirAll(filepath.Join(data, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.s3 = e.run(t, []string{"--user=0", "--no-healthcheck", "--network=" + a.network, "--network-alias=s3", "--volume=" + e.s3 + ":/versitygw:ro", "--volume=" + data + ":/s3",
		"--env=ROOT_ACCESS_KEY=" + accessKey, "--env=ROOT_SECRET_KEY=" + secretKey},
		"/versitygw", "--port=:7070", "--region=us-east-1", "--iam-dir=/s3/iam", "--quiet", "posix", "--sidecar=/s3/meta", "/s3/data")
	w.dns = e.run(t, []string{"--user=0", "--no-healthcheck", "--network=" + a.network, "--ip=" + a.dns, "--volume=" + e.parts + ":/parts:ro"}, "/parts", "dns", recordName)
	e.must(t, "network", "connect", "--alias=s3", b.network, w.s3.name)
	e.must(t, "network", "connect", "--ip="+b.dns, b.network, w.dns.name)
	w.control = "http://" + net.JoinHostPort(b.dns, "8080") // through b, which is never cut
	return w
}

// network makes one with addresses of our choice: only there may a container keep its address when it comes back.
func (w *world) network(id string) place {
	w.t.Helper()
	name := w.e.prefix + "-" + id
	var err error
	for n := range 200 {
		prefix := fmt.Sprintf("10.213.%d", n)
		if _, err = w.e.docker(w.t.Context(), "network", "create", "--subnet="+prefix+".0/24", name); err == nil {
			w.t.Cleanup(func() { w.e.docker(context.Background(), "network", "rm", name) })
			return place{network: name, dns: prefix + ".53"}
		}
	}
	w.t.Fatalf("no free network: %v", err)
	return place{}
}

// site starts a warden. The lease is short, and everything else follows from it.
func (w *world) site(id string, flags ...string) *container {
	w.t.Helper()
	p := w.places[id]
	env := append([]string{"--network=" + p.network,
		"--env=WARDEN_OWNER_NAME=" + recordName, "--env=WARDEN_OWNER_ID=" + id, "--env=WARDEN_OWNER_SERVERS=" + p.dns + ":53",
		"--env=WARDEN_OWNER_INTERVAL=500ms", "--env=WARDEN_OWNER_SUSPECT_INTERVAL=200ms", "--env=WARDEN_OWNER_POLL_TIMEOUT=1s", "--env=WARDEN_OWNER_RECORD_TTL=1s",
		"--env=WARDEN_OWNER_LEASE=10s", "--env=WARDEN_OWNER_MAX_GAP=5s", "--env=WARDEN_OWNER_STORE_CHECK=500ms",
		"--env=WARDEN_STORE=s3://test/cluster?endpoint=http://s3:7070&region=us-east-1&path-style=true&insecure-http=true",
		"--env=AWS_ACCESS_KEY_ID=" + accessKey, "--env=AWS_SECRET_ACCESS_KEY=" + secretKey}, locked()...)
	return w.e.run(w.t, append(env, flags...), kubeadm()...)
}

func (w *world) move(id string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for {
		err := call(ctx, http.MethodGet, w.control+"/?owner="+id, nil, nil)
		if err == nil {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			w.t.Fatalf("set the record: %v", err)
		}
	}
}

func (w *world) cut(id string, c *container) {
	w.t.Helper()
	w.e.must(w.t, "network", "disconnect", w.places[id].network, c.name)
}

func (w *world) join(id string, c *container) {
	w.t.Helper()
	p, flag := w.places[id], "--alias=s3"
	if c == w.dns {
		flag = "--ip=" + p.dns
	}
	w.e.must(w.t, "network", "connect", flag, p.network, c.name)
}

// address is where a site's etcd is reached from this machine.
func (w *world) address(id string, c *container) string {
	w.t.Helper()
	ip := w.e.must(w.t, "inspect", "--format", "{{(index .NetworkSettings.Networks \""+w.places[id].network+"\").IPAddress}}", c.name)
	return net.JoinHostPort(ip, "2379")
}

// Two sites on two networks, the store unreachable when the record moves: etcd is dead all the same, nothing acknowledged is
// lost, and the cuts that follow are ridden out (DNS) or end etcd with the lease (DNS and store).
func testHandover(t *testing.T, e *engine) {
	w := newWorld(t, e)
	w.move("site-a")
	a := w.site("site-a", "--env=WARDEN_NEW_CLUSTER=true")
	a.await("etcd serving", 1)
	b := w.site("site-b")
	atA, atB := w.address("site-a", a), w.address("site-b", b)
	const writes = 200
	for n := range writes {
		put(t, atA, fmt.Sprintf("write/%03d", n))
	}

	w.cut("site-a", w.s3)
	w.move("site-b")
	a.await("etcd dead", 1)
	if c, err := net.Dial("tcp", atA); err == nil {
		c.Close()
		t.Errorf("the old site accepts connections after the death of its etcd")
	}
	a.await("final snapshot not stored", 1)
	w.join("site-a", w.s3)
	a.await("final journalled", 1)
	b.await("etcd serving", 1)
	if got := count(t, atB, "write/"); got != writes {
		t.Errorf("%d of %d acknowledged writes are there", got, writes)
	}

	// The name server alone is cut off, for less than the lease: etcd serves on.
	w.cut("site-b", w.dns)
	b.until("in doubt", func(state) bool { return stateOf(t, b) == "suspect" })
	put(t, atB, "write/while-in-doubt")
	w.join("site-b", w.dns)
	b.until("sure again", func(state) bool { return stateOf(t, b) == "owner" })

	// Both, for longer: etcd ends with the lease, and serves again once the record is confirmed.
	w.cut("site-b", w.dns)
	w.cut("site-b", w.s3)
	b.await("etcd dead", 1)
	w.join("site-b", w.s3)
	w.join("site-b", w.dns)
	b.await("etcd serving", 2)
	if got := count(t, atB, "write/"); got != writes+1 {
		t.Errorf("after the lease: %d of %d acknowledged writes are there", got, writes+1)
	}
	e.must(t, "stop", b.name)
	if s := b.state(); s.ExitCode != 0 {
		t.Errorf("after docker stop: %+v, want exit code 0", s)
	}
}

// stateOf is the state of ownership.
func stateOf(t *testing.T, c *container) string {
	t.Helper()
	out, err := c.e.docker(t.Context(), "exec", c.name, "etcd-warden", "status", "--json")
	if err != nil {
		return err.Error() // not ready has an exit code of its own
	}
	var st struct{ Owner struct{ State string } }
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		t.Fatal(err)
	}
	return st.Owner.State
}

// call speaks JSON over HTTP: etcd's own gateway, a client that shares no code with us.
func call(ctx context.Context, method, url string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

func put(t *testing.T, at, key string) {
	t.Helper()
	if err := call(t.Context(), http.MethodPost, "http://"+at+"/v3/kv/put", map[string]string{"key": b64(key), "value": b64("value")}, nil); err != nil {
		t.Fatal(err)
	}
}

// count counts the keys that begin with prefix, which ends in a slash.
func count(t *testing.T, at, prefix string) int {
	t.Helper()
	var out struct {
		Count int `json:",string"`
	}
	end := prefix[:len(prefix)-1] + "0" // the character after the slash
	if err := call(t.Context(), http.MethodPost, "http://"+at+"/v3/kv/range", map[string]any{"key": b64(prefix), "range_end": b64(end), "count_only": true}, &out); err != nil {
		t.Fatal(err)
	}
	return out.Count
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
