// Package ownertest has what is needed to try ownership without the world: a real name server on loopback that can be made to
// misbehave, and a poller that answers from memory.
package ownertest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Query is one question that a Server got.
type Query struct {
	Name  string
	Proto string // udp or tcp
}

// Server is an authority for one TXT record, on one loopback port for UDP and TCP. It is safe for concurrent use.
type Server struct {
	name string
	udp  net.PacketConn
	tcp  net.Listener
	done chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex // guards all below
	values  []string
	ttl     time.Duration
	how     Behaviour
	silence int // 1: after the next answer by TCP, 2: now
	queries []Query
	conns   map[net.Conn]bool
}

// Listen starts a server for name on a free port of 127.0.0.1. It has no record yet. The caller closes it.
func Listen(name string) (*Server, error) { return ListenOn("127.0.0.1:0", name) }

// ListenOn is Listen on an address of the caller's choice; port 0 is a free one.
func ListenOn(addr, name string) (*Server, error) {
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for DNS over TCP on %s: %w", addr, err)
	}
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for DNS over UDP on %s: %w", tcp.Addr(), err), tcp.Close())
	}
	s := &Server{name: dns.Fqdn(name), udp: udp, tcp: tcp, done: make(chan struct{}), ttl: 10 * time.Second, conns: map[net.Conn]bool{}}
	s.wg.Go(s.serveUDP)
	s.wg.Go(s.serveTCP)
	return s, nil
}

// Addr is the server's address, host:port, for UDP and TCP.
func (s *Server) Addr() string { return s.udp.LocalAddr().String() }

// Name is the absolute name of the record.
func (s *Server) Name() string { return s.name }

// SetOwner replaces the record by exactly one with this value; ttl is rounded down to seconds.
func (s *Server) SetOwner(value string, ttl time.Duration) { s.SetRecords(ttl, value) }

// SetRecords replaces the record by one for each value, by none if there is no value.
func (s *Server) SetRecords(ttl time.Duration, values ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values, s.ttl, s.silence = append([]string(nil), values...), ttl, 0
}

// SetOwnerAndFallSilent is SetOwner up to the first answer by TCP, which is how a loss is confirmed. After it the server never
// answers again, until a record is set.
func (s *Server) SetOwnerAndFallSilent(value string, ttl time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values, s.ttl, s.silence = []string{value}, ttl, 1
}

// Delete removes the name.
func (s *Server) Delete() { s.SetRecords(0) }

// Misbehave changes how the server answers from now on; "" is properly.
func (s *Server) Misbehave(b Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.how = b
}

// Queries returns the questions got so far, oldest first.
func (s *Server) Queries() []Query {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Query(nil), s.queries...)
}

// Close stops the server and waits for everything that it started.
func (s *Server) Close() error {
	close(s.done)
	err := errors.Join(s.udp.Close(), s.tcp.Close())
	s.mu.Lock()
	for c := range s.conns {
		err = errors.Join(err, c.Close())
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}

func (s *Server) serveUDP() {
	buf := make([]byte, 65535)
	for {
		n, from, err := s.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		for _, p := range s.answer(buf[:n], "udp") {
			if _, err := s.udp.WriteTo(p, from); err != nil {
				return
			}
		}
	}
}

func (s *Server) serveTCP() {
	for {
		c, err := s.tcp.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		select {
		case <-s.done:
			_ = c.Close()
		default:
			s.conns[c] = true
			s.wg.Go(func() { s.serveConn(c) })
		}
		s.mu.Unlock()
	}
}

// serveConn answers one question, or holds the connection until the other side is tired of it.
func (s *Server) serveConn(c net.Conn) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.conns[c] {
			delete(s.conns, c)
			_ = c.Close()
		}
	}()
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return
	}
	buf := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, buf); err != nil {
		return
	}
	packets := s.answer(buf, "tcp")
	for _, p := range packets {
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(p))), p...)); err != nil {
			return
		}
	}
	if packets == nil {
		_, _ = c.Read(size[:]) // ends when either side closes
	}
}

// answer makes the packets to send back; nil is silence.
func (s *Server) answer(packet []byte, proto string) [][]byte {
	q := new(dns.Msg)
	if q.Unpack(packet) != nil || len(q.Question) != 1 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries = append(s.queries, Query{Name: q.Question[0].Name, Proto: proto})
	switch {
	case s.silence == 2:
		return nil
	case s.silence == 1 && proto == "tcp":
		s.silence = 2
	}
	r := reply{query: q, proto: proto, zone: s.name, values: s.values, ttl: s.ttl, count: len(s.queries)}
	var out [][]byte
	for _, m := range r.make(s.how) {
		b, err := m.Pack()
		if err != nil {
			return nil
		}
		if s.how == CutShort {
			b = b[:len(b)/2]
		}
		out = append(out, b)
	}
	if s.how == Garbage {
		return [][]byte{{1, 2, 3}}
	}
	return out
}
