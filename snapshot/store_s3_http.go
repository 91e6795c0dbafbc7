package snapshot

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// s3Transport is the one way out: it tells the call of every request what moves and what the answer's headers say.
type s3Transport struct {
	base *http.Transport
}

// newS3Transport sets every time-out that the library leaves at minutes or at never. Proxies come from the environment.
func newS3Transport(where s3Location, limits Limits) (*s3Transport, error) {
	dialer := &net.Dialer{
		Timeout: limits.Dial,
		// Detects a line that went dark while a request waits for a slow answer.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	proxy := httpproxy.FromEnvironment().ProxyFunc() // http.ProxyFromEnvironment reads it once for the whole process
	base := &http.Transport{
		Proxy:       func(r *http.Request) (*url.URL, error) { return proxy(r.URL) },
		DialContext: dialer.DialContext, TLSHandshakeTimeout: limits.Dial,
		MaxIdleConnsPerHost: maxParallel, IdleConnTimeout: time.Minute, ExpectContinueTimeout: 10 * time.Second,
		DisableCompression:     true,    // we count and hash the stored bytes
		MaxResponseHeaderBytes: 1 << 20, // of whoever answers
		WriteBufferSize:        64 << 10, ReadBufferSize: 64 << 10,
	}
	if where.secure {
		config, err := s3TLSConfig(where)
		if err != nil {
			return nil, err
		}
		base.TLSClientConfig = config
	}
	return &s3Transport{base: base}, nil
}

func s3TLSConfig(where s3Location) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: where.skipVerify} // on explicit request only
	if where.caFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(where.caFile)
	if err != nil {
		return nil, fmt.Errorf("%w store URL %s: parameter ca-file: %w", ErrInvalid, where, err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w store URL %s: parameter ca-file: %s holds no PEM certificate", ErrInvalid, where, where.caFile)
	}
	config.RootCAs = pool
	return config, nil
}

// RoundTrip implements http.RoundTripper.
func (t *s3Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c, ok := req.Context().Value(callKey{}).(*call)
	if !ok {
		return t.base.RoundTrip(req)
	}
	if req.Body != nil && req.Body != http.NoBody {
		body := &sentBody{ReadCloser: req.Body, call: c, left: req.ContentLength}
		c.watch(body)
		watched := *req // a RoundTripper leaves the request alone
		watched.Body, watched.GetBody = body, nil
		req = &watched
	}
	c.moved()
	resp, err := t.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	c.note(resp.Header, time.Now())
	c.moved()
	// Decoded as a listing, a web page is an empty one: a portal or a wrong port must not be taken for an empty store.
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") && resp.StatusCode < 300 {
		return nil, errors.Join(&StoreError{Kind: ErrInvalid, HTTP: resp.StatusCode, Err: errors.New("the answer is a web page"),
			Hint: "the endpoint is not that of an S3 server: a console, a portal or another port"}, resp.Body.Close())
	}
	resp.Body = &callBody{ReadCloser: resp.Body, call: c, ctx: req.Context()}
	return resp, nil
}

// note keeps what the headers tell: how long to stay away, and what time it is over there.
func (c *call) note(h http.Header, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		c.answered, c.offset = true, date.Sub(now.Truncate(time.Second))
	}
	if v := h.Get("Retry-After"); v != "" {
		c.asked = true
		if seconds, err := strconv.Atoi(v); err == nil && seconds >= 0 {
			c.retryAfter = time.Duration(seconds) * time.Second
		} else if at, err := http.ParseTime(v); err == nil {
			c.retryAfter = max(0, at.Sub(now)-c.offset)
		}
		c.retryAfter = min(c.retryAfter, 10*time.Minute)
	}
}

// CloseIdleConnections lets the owner of an http.Client drop them.
func (t *s3Transport) CloseIdleConnections() { t.base.CloseIdleConnections() }
