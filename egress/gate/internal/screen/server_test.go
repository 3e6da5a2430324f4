package screen_test

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/screen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a real DNS server on a loopback port, over UDP and TCP.
type server struct {
	addr string

	mu    sync.Mutex
	asked []string // "A name." and so on, in order, "tcp" before what came over TCP
}

// handler answers a question; it may write what it likes instead.
type handler func(w dns.ResponseWriter, r *dns.Msg)

// serve starts a server and ends it with the test.
func serve(t *testing.T, h handler) *server {
	t.Helper()
	s := &server{}
	var packets net.PacketConn
	var streams net.Listener
	for range 20 {
		var err error
		if packets, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		s.addr = packets.LocalAddr().String()
		if streams, err = net.Listen("tcp", s.addr); err == nil {
			break
		}
		_ = packets.Close()
	}
	if streams == nil {
		t.Fatal("no port is free for both UDP and TCP")
	}
	note := dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		line := dns.TypeToString[r.Question[0].Qtype] + " " + r.Question[0].Name
		if w.RemoteAddr().Network() == "tcp" {
			line = "tcp " + line
		}
		s.mu.Lock()
		s.asked = append(s.asked, line)
		s.mu.Unlock()
		h(w, r)
	})
	var wait sync.WaitGroup
	// Cleanups run last in, first out: shut down, then wait.
	t.Cleanup(wait.Wait)
	for _, d := range []*dns.Server{{PacketConn: packets, Handler: note}, {Listener: streams, Handler: note}} {
		started := make(chan struct{})
		d.NotifyStartedFunc = func() { close(started) }
		wait.Go(func() { _ = d.ActivateAndServe() })
		<-started
		t.Cleanup(func() { _ = d.Shutdown() })
	}
	return s
}

// questions returns what was asked so far.
func (s *server) questions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.asked...)
}

// zone answers from records in the form of a zone file, following aliases as a
// recursive server does; NXDOMAIN for names that it does not have.
func zone(t *testing.T, text string) handler {
	t.Helper()
	records := parseZone(t, text)
	return func(w dns.ResponseWriter, r *dns.Msg) { _ = w.WriteMsg(answer(r, records)) }
}

func parseZone(t *testing.T, text string) []dns.RR {
	t.Helper()
	// A line that begins with space would have the owner of the one before.
	text = strings.ReplaceAll(text, "\t", "")
	var out []dns.RR
	for z := dns.NewZoneParser(strings.NewReader(text), ".", ""); ; {
		rr, ok := z.Next()
		if !ok {
			if z.Err() != nil {
				t.Fatal(z.Err())
			}
			return out
		}
		out = append(out, rr)
	}
}

func answer(r *dns.Msg, records []dns.RR) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(r)
	m.Rcode = dns.RcodeNameError
	name := r.Question[0].Name
	for range 40 {
		next := ""
		for _, rr := range records {
			if !strings.EqualFold(rr.Header().Name, name) {
				continue
			}
			m.Rcode = dns.RcodeSuccess
			if rr.Header().Rrtype == r.Question[0].Qtype {
				m.Answer = append(m.Answer, rr)
			}
			if c, ok := rr.(*dns.CNAME); ok {
				m.Answer = append(m.Answer, rr)
				next = c.Target
			}
		}
		if next == "" {
			break
		}
		name = next
	}
	return m
}

// resolver returns one that asks the servers, in order.
func resolver(t *testing.T, servers ...*server) *screen.Resolver {
	t.Helper()
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.addr)
	}
	r, err := screen.NewResolver(addrs)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// allowed is the verdict for a name or address and port that a policy allows.
func allowed(t *testing.T, host string, port int, inwardFor ...string) egress.Verdict {
	t.Helper()
	rules, err := egress.Compile(&egress.Policy{Allow: []string{"api.example.com", "93.184.216.34"}, AllowInwardFor: inwardFor}, 1)
	if err != nil {
		t.Fatal(err)
	}
	v := rules.Decide(egress.Query{Host: host, Port: port})
	if !v.Allow {
		t.Fatalf("%s: %+v", host, v)
	}
	return v
}

// soon bounds what must not hang.
const soon = 20 * time.Second
