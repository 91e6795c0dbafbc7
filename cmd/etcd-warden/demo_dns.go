package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/miekg/dns"
)

// recordServer is an authoritative DNS server for one TXT record, on loopback, over UDP and TCP.
type recordServer struct {
	name  string
	ttl   uint32
	addr  string
	owner atomic.Pointer[string]
}

// serveRecord answers until ctx ends; done is closed when the server has stopped.
func serveRecord(ctx context.Context, name string, ttl uint32, owner string) (s *recordServer, done <-chan struct{}, err error) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, fmt.Errorf("listen for DNS: %w", err)
	}
	tcp, err := net.Listen("tcp", udp.LocalAddr().String())
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("listen for DNS: %w", err), udp.Close())
	}
	s = &recordServer{name: name, ttl: ttl, addr: udp.LocalAddr().String()}
	s.set(owner)
	servers := []*dns.Server{{PacketConn: udp, Handler: s}, {Listener: tcp, Handler: s}}
	stopped := make(chan struct{}, len(servers))
	for _, server := range servers {
		go func() { server.ActivateAndServe(); stopped <- struct{}{} }()
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		<-ctx.Done()
		udp.Close()
		tcp.Close()
		for range servers {
			<-stopped
		}
	}()
	return s, finished, nil
}

func (s *recordServer) set(owner string) { s.owner.Store(&owner) }

// ServeDNS implements dns.Handler.
func (s *recordServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	m.Authoritative = true
	if len(q.Question) == 1 && dns.CanonicalName(q.Question[0].Name) == s.name && q.Question[0].Qtype == dns.TypeTXT {
		m.Answer = []dns.RR{&dns.TXT{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: s.ttl},
			Txt: []string{*s.owner.Load()}}}
	} else {
		m.Rcode = dns.RcodeNameError
	}
	w.WriteMsg(m)
}
