package storetest

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"time"
)

// Mode is what a FaultProxy does with a request.
type Mode int

// The modes.
const (
	Pass       Mode = iota // hand it on
	Refuse503              // 503 SlowDown, with FaultProxy.RetryAfter when set
	Refuse403              // 403 AccessDenied
	Expired                // 400 ExpiredToken
	Hang                   // read the request, never answer
	Stall                  // read some of the body, then stop reading
	Reset                  // read some of the body, then reset the connection
	LoseAnswer             // hand it on, let the server do it, and reset the connection
	CutAnswer              // hand it on, and reset the connection in the middle of the answer's body
	BlackHole              // nothing moves in or out of any connection, new or old
)

// usedUp is the Times of a fault that has happened often enough.
const usedUp = -1

// cutAfter is how much of a body passes before Stall, Reset and CutAnswer.
const cutAfter = 256 << 10

// Fault applies a mode to requests that match.
type Fault struct {
	Mode  Mode
	Match func(*http.Request) bool // nil matches all
	Times int                      // for so many requests; 0 for all
}

// FaultProxy is a reverse proxy on a loopback port that misbehaves on demand. It is safe for concurrent use.
type FaultProxy struct {
	RetryAfter string // header of Refuse503; set before the first request

	url    string
	server *http.Server
	proxy  *httputil.ReverseProxy
	hole   *gate

	mu     sync.Mutex // guards what follows
	mode   Mode
	faults []*Fault
	hits   map[Mode]int
}

// StartFaultProxy starts a proxy before the server at target (http://host:port). Close must be called.
func StartFaultProxy(target string) (*FaultProxy, error) {
	to, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("start fault proxy: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start fault proxy: %w", err)
	}
	p := &FaultProxy{url: "http://" + listener.Addr().String(), hole: newGate(), hits: make(map[Mode]int)}
	p.proxy = &httputil.ReverseProxy{
		// The Host header stays what the client signed.
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host },
		Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	p.server = &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	go func() { _ = p.server.Serve(gatedListener{listener, p.hole}) }()
	return p, nil
}

// URL is where the proxy listens: http://127.0.0.1:port.
func (p *FaultProxy) URL() string { return p.url }

// SetMode applies a mode to all requests, until the next call. Faults that match go first.
func (p *FaultProxy) SetMode(m Mode) {
	p.mu.Lock()
	p.mode = m
	p.mu.Unlock()
	p.hole.set(m != BlackHole)
}

// Inject adds a fault. Of those that match a request, the first one that is not used up counts.
func (p *FaultProxy) Inject(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, &f)
}

// Hits counts the requests that met a mode.
func (p *FaultProxy) Hits(m Mode) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits[m]
}

// Close ends the proxy and all of its connections.
func (p *FaultProxy) Close() error {
	p.hole.set(true)
	return p.server.Close()
}

func (p *FaultProxy) modeFor(r *http.Request) Mode {
	p.mu.Lock()
	faults := slices.Clone(p.faults)
	p.mu.Unlock()
	matches := func(f *Fault) bool { return f.Match == nil || f.Match(r) } // without the lock: it may use the proxy
	faults = slices.DeleteFunc(faults, func(f *Fault) bool { return !matches(f) })

	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.mode
	for _, f := range faults {
		if f.Times == usedUp {
			continue
		}
		if m = f.Mode; f.Times > 0 {
			if f.Times--; f.Times == 0 {
				f.Times = usedUp
			}
		}
		break
	}
	p.hits[m]++
	return m
}

// ServeHTTP implements http.Handler.
func (p *FaultProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch p.modeFor(r) {
	case Refuse503:
		if p.RetryAfter != "" {
			w.Header().Set("Retry-After", p.RetryAfter)
		}
		refuse(w, r, http.StatusServiceUnavailable, "SlowDown")
	case Refuse403:
		refuse(w, r, http.StatusForbidden, "AccessDenied")
	case Expired:
		refuse(w, r, http.StatusBadRequest, "ExpiredToken")
	case Hang:
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	case Stall:
		_, _ = io.CopyN(io.Discard, r.Body, cutAfter)
		<-r.Context().Done()
	case Reset:
		_, _ = io.CopyN(io.Discard, r.Body, cutAfter)
		reset(w)
	case LoseAnswer:
		p.proxy.ServeHTTP(&discardWriter{header: make(http.Header)}, r)
		reset(w)
	case CutAnswer:
		p.proxy.ServeHTTP(&cutWriter{ResponseWriter: w, left: cutAfter}, r)
	default:
		p.proxy.ServeHTTP(w, r)
	}
}

func refuse(w http.ResponseWriter, r *http.Request, status int, code string) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>by the fault proxy</Message></Error>", code)
	}
}

// reset ends the connection by RST, as a machine does that lost it.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // an answer is under way: cut it
	}
	if tcp, ok := conn.(*gatedConn).Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

type discardWriter struct{ header http.Header }

func (d *discardWriter) Header() http.Header         { return d.header }
func (d *discardWriter) Write(b []byte) (int, error) { return len(b), nil }
func (d *discardWriter) WriteHeader(int)             {}

// cutWriter lets some bytes of an answer through.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(b []byte) (int, error) {
	if len(b) > c.left {
		_, _ = c.ResponseWriter.Write(b[:c.left])
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(b)
	return c.ResponseWriter.Write(b)
}

// gate holds back every connection while it is shut.
type gate struct {
	mu   sync.Mutex    // guards open
	open chan struct{} // closed while the gate is open
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
		if !open {
			g.open = make(chan struct{})
		}
	default:
		if open {
			close(g.open)
		}
	}
}

func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return net.ErrClosed
	}
}

type gatedListener struct {
	net.Listener
	gate *gate
}

func (l gatedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background()) // ends with the connection
	return &gatedConn{Conn: conn, gate: l.gate, ctx: ctx, cancel: cancel}, nil
}

type gatedConn struct {
	net.Conn
	gate   *gate
	ctx    context.Context // of the connection itself
	cancel context.CancelFunc
}

func (c *gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	// What came in while the gate was shut must not be acted upon.
	if errGate := c.gate.wait(c.ctx); errGate != nil {
		return n, errGate
	}
	return n, err
}

func (c *gatedConn) Write(b []byte) (int, error) {
	if err := c.gate.wait(c.ctx); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *gatedConn) Close() error {
	c.cancel()
	return c.Conn.Close()
}
