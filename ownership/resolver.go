package ownership

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const (
	ednsSize   = 1232 // largest UDP answer asked for: fits every path without fragments (DNS flag day 2020)
	udpTries   = 2    // each from a new port: a lost first packet must not cost the poll
	maxServers = 8    // asked in one poll
)

// Resolver asks the configured servers, all at once, for the owner record. It is safe for concurrent use.
type Resolver struct {
	Settings   Settings
	Clock      Clock  // nil: BootClock
	ResolvConf string // read at each poll when Settings has no servers; "" /etc/resolv.conf
}

// Poll asks every server once and makes one verdict of the answers: by UDP and, for a truncated answer, TCP, or by TCP alone. It
// returns within the poll timeout, and at once when ctx ends.
func (r *Resolver) Poll(ctx context.Context, tcp bool) Verdict {
	clock := r.Clock
	if clock == nil {
		clock = BootClock
	}
	at := clock()
	servers, err := r.servers()
	if err != nil {
		return Verdict{Kind: Failed, At: at, Reason: err.Error()}
	}
	form, err := newForm(r.Settings)
	if err != nil {
		return Verdict{Kind: Failed, At: at, Reason: err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Settings.PollTimeout)
	defer cancel()
	answers := make([]Answer, len(servers))
	var wg sync.WaitGroup
	for i, server := range servers {
		wg.Go(func() {
			started := clock()
			answers[i] = ask(ctx, form, server.String(), tcp, r.Settings.PollTimeout)
			answers[i].Took = clock().Sub(started)
		})
	}
	wg.Wait()
	return combine(answers, at, clock().Sub(at))
}

// servers are those configured, or those of resolv.conf as it is now.
func (r *Resolver) servers() ([]netip.AddrPort, error) {
	names := r.Settings.Servers
	if len(names) == 0 {
		path := r.ResolvConf
		if path == "" {
			path = "/etc/resolv.conf"
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("find name servers: %w", err)
		}
		defer f.Close()
		conf, err := dns.ClientConfigFromReader(io.LimitReader(f, 64<<10))
		if err != nil {
			return nil, fmt.Errorf("find name servers in %s: %w", path, err)
		}
		if names = conf.Servers; len(names) == 0 {
			return nil, fmt.Errorf("find name servers in %s: it names none", path)
		}
	}
	var servers []netip.AddrPort
	seen := map[netip.AddrPort]bool{}
	for _, n := range names {
		ap, err := ParseServer(n)
		if err != nil {
			return nil, err
		}
		if !seen[ap] && len(servers) < maxServers {
			servers = append(servers, ap)
		}
		seen[ap] = true
	}
	return servers, nil
}

// ask asks one server. UDP gets half of the poll timeout, shared by its tries, and TCP what is left.
func ask(ctx context.Context, f form, server string, tcp bool, limit time.Duration) Answer {
	a := Answer{Server: server, Proto: "udp", Kind: Failed}
	if !tcp {
		var msg *dns.Msg
		var err error
		for range udpTries {
			msg, err = exchangeUDP(ctx, f, server, limit/2/udpTries)
			if err == nil || ctx.Err() != nil || errors.Is(err, errTruncated) {
				break
			}
		}
		switch {
		case err == nil:
			f.classify(msg, &a)
			return a
		case !errors.Is(err, errTruncated):
			a.Reason = plain(err)
			return a
		}
	}
	a.Proto = "tcp"
	msg, err := exchangeTCP(ctx, f, server)
	switch {
	case err != nil && !tcp:
		a.Reason = "the answer by UDP is truncated, and by TCP: " + plain(err)
	case err != nil:
		a.Reason = plain(err)
	default:
		f.classify(msg, &a)
	}
	return a
}

// errTruncated says that the answer does not fit into UDP. It is returned by exchangeUDP.
var errTruncated = errors.New("answer truncated")

// exchangeUDP sends one query from a new port and waits for the answer to it. Packets that answer anything else are counted
// and ignored: they are late, or forged.
func exchangeUDP(ctx context.Context, f form, server string, limit time.Duration) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, done, err := dial(ctx, "udp", server)
	if err != nil {
		return nil, err
	}
	defer done()
	query, packet, err := f.query()
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(packet); err != nil {
		return nil, err
	}
	buf := make([]byte, 65535)
	for ignored := 0; ; ignored++ {
		n, err := conn.Read(buf)
		if err != nil {
			if ignored > 0 {
				return nil, fmt.Errorf("%w (ignored %d packets with another id or question)", err, ignored)
			}
			return nil, err
		}
		if truncated(query, buf[:n]) {
			return nil, errTruncated
		}
		if msg := parse(query, buf[:n]); msg != nil {
			return msg, nil
		}
	}
}

// exchangeTCP sends one query over a new connection. There an answer to anything else is an error.
func exchangeTCP(ctx context.Context, f form, server string) (*dns.Msg, error) {
	conn, done, err := dial(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	defer done()
	query, packet, err := f.query()
	if err != nil {
		return nil, err
	}
	framed := binary.BigEndian.AppendUint16(nil, uint16(len(packet)))
	if _, err := conn.Write(append(framed, packet...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	buf := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, buf); err != nil {
		return nil, err
	}
	if truncated(query, buf) {
		return nil, errors.New("truncated also over TCP")
	}
	msg := parse(query, buf)
	if msg == nil {
		return nil, errors.New("the answer is malformed, or has another id or question")
	}
	return msg, nil
}

// dial connects with the deadline of ctx; done closes the connection, as does the end of ctx.
func dial(ctx context.Context, network, server string) (conn net.Conn, done func(), err error) {
	conn, err = (&net.Dialer{}).DialContext(ctx, network, server)
	if err != nil {
		return nil, nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, nil, errors.Join(err, conn.Close())
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return conn, func() {
		stop()
		_ = conn.Close() // read only: nothing can be lost
	}, nil
}

// query is a new question with a random id.
func (f form) query() (*dns.Msg, []byte, error) {
	q := new(dns.Msg)
	q.SetQuestion(f.name, dns.TypeTXT)
	q.SetEdns0(ednsSize, false)
	packet, err := q.Pack()
	if err != nil {
		return nil, nil, fmt.Errorf("pack the question for %s: %w", f.name, err)
	}
	return q, packet, nil
}

// truncated looks at the header alone: a message that was cut need not be parsable.
func truncated(query *dns.Msg, packet []byte) bool {
	const response, cut = 0x80, 0x02
	return len(packet) >= 12 && binary.BigEndian.Uint16(packet) == query.Id && packet[2]&response != 0 && packet[2]&cut != 0
}

// parse returns the answer to query, or nil when the packet is none.
func parse(query *dns.Msg, packet []byte) *dns.Msg {
	m := new(dns.Msg)
	if err := m.Unpack(packet); err != nil {
		return nil
	}
	if m.Id != query.Id || !m.Response || len(m.Question) != 1 {
		return nil
	}
	got, want := m.Question[0], query.Question[0]
	if got.Qtype != want.Qtype || got.Qclass != want.Qclass || !strings.EqualFold(got.Name, want.Name) {
		return nil
	}
	return m
}

// plain shortens network errors to what happened; the server is named beside them.
func plain(err error) string {
	var op *net.OpError
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		var n string
		if s := err.Error(); strings.Contains(s, "(ignored") {
			n = s[strings.Index(s, " (ignored"):]
		}
		return "no answer in time" + n
	}
	if call, ok := errors.AsType[*os.SyscallError](err); ok {
		return call.Error() // "read: connection refused"
	}
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}
