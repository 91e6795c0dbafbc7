package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// gateway speaks etcd's own JSON over HTTP (https://etcd.io/docs, "gRPC gateway"): a client that shares no code with us.
type gateway struct {
	url    string
	client *http.Client
}

func newGateway(url string) *gateway {
	return &gateway{url: url, client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
}

type kv struct {
	Key         string `json:"key"`
	Value       string `json:"value"`
	ModRevision string `json:"mod_revision"`
}

func (g *gateway) call(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answered %s: %.200s", resp.Status, b)
	}
	return json.Unmarshal(b, out)
}

// put returns the revision of the acknowledged write.
func (g *gateway) put(ctx context.Context, key, value string) (int64, error) {
	var out struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := g.call(ctx, "/v3/kv/put", map[string]string{"key": b64(key), "value": b64(value)}, &out); err != nil {
		return 0, err
	}
	return strconv.ParseInt(out.Header.Revision, 10, 64)
}

// each calls f for every key from first up to but not including end, in order.
func (g *gateway) each(ctx context.Context, first, end string, f func(key, value string, rev int64)) error {
	for {
		var out struct {
			KVs  []kv `json:"kvs"`
			More bool `json:"more"`
		}
		if err := g.call(ctx, "/v3/kv/range", map[string]any{"key": b64(first), "range_end": b64(end), "limit": "1000"}, &out); err != nil {
			return err
		}
		for _, e := range out.KVs {
			key, _ := base64.StdEncoding.DecodeString(e.Key)
			value, _ := base64.StdEncoding.DecodeString(e.Value)
			rev, err := strconv.ParseInt(e.ModRevision, 10, 64)
			if err != nil {
				return fmt.Errorf("key %q: mod_revision %q: %w", key, e.ModRevision, err)
			}
			f(string(key), string(value), rev)
			first = string(key) + "\x00"
		}
		if !out.More {
			return nil
		}
	}
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// acknowledged is a write that the old site confirmed.
type acknowledged struct {
	value string
	rev   int64
	sent  time.Time // when the request left: an answer may be read late on a busy machine, a request cannot be early
}

// writerClients is how many clients write at once.
const writerClients = 8

// writer puts unique keys into an etcd from several clients at once and remembers every acknowledgement.
type writer struct {
	g      *gateway
	enough chan struct{} // closed when the wanted number is acknowledged
	wanted int

	mu   sync.Mutex // guards acks
	acks map[string]acknowledged
}

func newWriter(g *gateway, wanted int) *writer {
	return &writer{g: g, wanted: wanted, enough: make(chan struct{}), acks: map[string]acknowledged{}}
}

// run writes until ctx ends. It goes on against a dead etcd: an acknowledgement after the death is what the demo looks
// for.
func (w *writer) run(ctx context.Context) {
	var wg sync.WaitGroup
	for c := range writerClients {
		wg.Go(func() { w.client(ctx, c) })
	}
	wg.Wait()
}

func (w *writer) client(ctx context.Context, c int) {
	for i := 0; ctx.Err() == nil; i++ {
		key := fmt.Sprintf("demo/%02d/%08d", c, i)
		value := fmt.Sprintf("written by client %d as its number %d", c, i)
		sent := time.Now()
		rev, err := w.g.put(ctx, key, value)
		if err != nil {
			select { // a refused connection comes back at once: do not burn a core on it
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		w.record(key, acknowledged{value, rev, sent})
	}
}

func (w *writer) record(key string, a acknowledged) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acks[key] = a
	if len(w.acks) == w.wanted {
		close(w.enough)
	}
}

// verify counts the acknowledged writes that g does not have with their value and revision, and those that were sent
// after the death and acknowledged all the same.
func (w *writer) verify(ctx context.Context, g *gateway, death time.Time) (missing, late int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	left := make(map[string]acknowledged, len(w.acks))
	for k, a := range w.acks {
		left[k] = a
		if a.sent.After(death) {
			late++
		}
	}
	err = g.each(ctx, "demo/", "demo0", func(key, value string, rev int64) {
		if a, ok := left[key]; ok && a.value == value && a.rev == rev {
			delete(left, key)
		}
	})
	return len(left), late, err
}

func (w *writer) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acks)
}
