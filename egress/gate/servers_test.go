package gate_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

var (
	publicAddr = netip.MustParseAddr("93.184.216.34")
	otherAddr  = netip.MustParseAddr("151.101.1.6")
	deadAddr   = netip.MustParseAddr("198.41.0.4")
)

// answer is what a name has.
type answer struct {
	addrs []string   // A and AAAA
	cname string     // instead
	code  int        // instead
	mute  bool       // no answer at all
	turns [][]string // addrs by turn, without a time to live
}

// nameserver answers for the test's names, and counts.
type nameserver struct {
	address string

	mu    sync.Mutex
	zone  map[string]answer
	asked map[string]int
}

func newNameserver(t *testing.T, more map[string]answer) *nameserver {
	t.Helper()
	n := &nameserver{asked: map[string]int{}, zone: map[string]answer{
		"api.example.com": {addrs: []string{publicAddr.String()}},
		"pkg.example.org": {addrs: []string{otherAddr.String()}},
		// Public, so that nothing but the policy is in their way.
		"evil.test": {addrs: []string{publicAddr.String()}},
	}}
	for name, a := range more {
		n.zone[name] = a
	}
	packets, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.address = packets.LocalAddr().String()
	started := make(chan struct{})
	server := &dns.Server{PacketConn: packets, Handler: n, NotifyStartedFunc: func() { close(started) }}
	done := make(chan error, 1)
	go func() { done <- server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		_ = server.Shutdown()
		<-done
	})
	return n
}

// ServeDNS implements dns.Handler.
func (n *nameserver) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	name := strings.TrimSuffix(strings.ToLower(q.Question[0].Name), ".")
	a, ok, turn := n.look(name, q.Question[0].Qtype)
	if a.mute {
		return
	}
	m := new(dns.Msg)
	m.SetReply(q)
	ttl := uint32(60)
	if a.turns != nil {
		ttl = 0
		a.addrs = a.turns[min(turn, len(a.turns)-1)]
	}
	switch {
	case !ok:
		m.Rcode = dns.RcodeNameError
	case a.code != 0:
		m.Rcode = a.code
	}
	owner := q.Question[0].Name
	for a.cname != "" {
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(owner, dns.TypeCNAME, ttl), Target: a.cname + "."})
		owner = a.cname + "."
		n.mu.Lock()
		a = n.zone[a.cname]
		n.mu.Unlock()
	}
	for _, s := range a.addrs {
		addr := netip.MustParseAddr(s)
		switch {
		case addr.Is4() && q.Question[0].Qtype == dns.TypeA:
			m.Answer = append(m.Answer, &dns.A{Hdr: header(owner, dns.TypeA, ttl), A: addr.AsSlice()})
		case addr.Is6() && q.Question[0].Qtype == dns.TypeAAAA:
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: header(owner, dns.TypeAAAA, ttl), AAAA: addr.AsSlice()})
		}
	}
	_ = w.WriteMsg(m)
}

func header(name string, kind uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// look finds a name, those below pkg.example.org by a wildcard.
func (n *nameserver) look(name string, kind uint16) (answer, bool, int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	turn := 0
	if kind == dns.TypeA {
		turn = n.asked[name]
		n.asked[name]++
	} else {
		turn = max(0, n.asked[name]-1)
		n.asked[name+" AAAA"]++
	}
	a, ok := n.zone[name]
	if !ok && strings.HasSuffix(name, ".pkg.example.org") {
		return n.zone["pkg.example.org"], true, turn
	}
	return a, ok, turn
}

// names lists what was asked for, other than the name that shows a gate alive.
func (n *nameserver) names() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for name := range n.asked {
		if !strings.HasPrefix(name, aliveHost) && !strings.HasSuffix(name, " AAAA") {
			out = append(out, name)
		}
	}
	return out
}

// seen is one request as an upstream got it.
type seen struct {
	method, host, target, sni string
	header, trailer           http.Header
	body                      string
	length                    int64
	encoding                  []string
}

// upstream is a server that the gate is led to.
type upstream struct {
	address string

	mu    sync.Mutex
	got   []seen
	conns int
	bytes int
}

func newUpstream(t *testing.T, handler http.HandlerFunc, secure *tls.Config, wild func(net.Conn)) *upstream {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{address: listener.Addr().String()}
	if wild != nil {
		u.serveWild(t, listener, wild)
		return u
	}
	listener = countingListener{listener, u}
	if secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		u.note(r, string(body))
		if handler != nil && r.URL.Path != "/alive" {
			handler(w, r)
			return
		}
		_, _ = io.WriteString(w, "hello from "+r.Host)
	})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return u
}

// serveWild gives each connection to wild, and those of the liveness check to a
// fixed answer.
func (u *upstream) serveWild(t *testing.T, listener net.Listener, wild func(net.Conn)) {
	var work sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			u.mu.Lock()
			u.conns++
			u.mu.Unlock()
			work.Go(func() {
				defer conn.Close()
				wild(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		work.Wait()
	})
}

func (u *upstream) note(r *http.Request, body string) {
	s := seen{
		method: r.Method, host: r.Host, target: r.RequestURI, header: r.Header.Clone(), trailer: r.Trailer.Clone(),
		body: body, length: r.ContentLength, encoding: r.TransferEncoding,
	}
	if r.TLS != nil {
		s.sni = r.TLS.ServerName
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if r.URL.Path != "/alive" {
		u.got = append(u.got, s)
	}
}

func (u *upstream) requests() []seen {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]seen(nil), u.got...)
}

// received is how many bytes came in, on all connections.
func (u *upstream) received() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.bytes
}

type countingListener struct {
	net.Listener
	u *upstream
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.u.mu.Lock()
	l.u.conns++
	l.u.mu.Unlock()
	return &countingConn{c, l.u}, nil
}

type countingConn struct {
	net.Conn
	u *upstream
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.u.mu.Lock()
	c.u.bytes += n
	c.u.mu.Unlock()
	return n, err
}

// pki is who signs for the TLS upstreams.
type pki struct {
	roots *x509.CertPool
	certs map[string]tls.Certificate
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	ca, caKey := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}, newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	p := &pki{roots: x509.NewCertPool(), certs: map[string]tls.Certificate{}}
	p.roots.AddCert(root)
	for name, hosts := range map[string][]string{"": {"api.example.com", "pkg.example.org", "*.pkg.example.org"}, "wrong": {"evil.test"}, "expired": {"api.example.com"}} {
		leaf, key := &x509.Certificate{
			SerialNumber: big.NewInt(2), DNSNames: hosts, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(93, 184, 216, 34)},
		}, newKey(t)
		if name == "expired" {
			leaf.NotAfter = time.Now().Add(-time.Minute)
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, root, key.Public(), caKey)
		if err != nil {
			t.Fatal(err)
		}
		p.certs[name] = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	return p
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (p *pki) upstreamTLS(which string) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{p.certs[which]}, NextProtos: []string{"http/1.1"}}
}

// helloBytes is the ClientHello that a configuration makes.
func helloBytes(t *testing.T, config *tls.Config) []byte {
	t.Helper()
	var out bytes.Buffer
	conn := tls.Client(&sink{w: &out}, config)
	_ = conn.Handshake() // ends at the answer that does not come
	return out.Bytes()
}

// sink is a connection that keeps what is written and has nothing to read.
type sink struct {
	net.Conn
	w io.Writer
}

func (s *sink) Write(p []byte) (int, error) { return s.w.Write(p) }
func (s *sink) Read([]byte) (int, error)    { return 0, io.EOF }
func (s *sink) Close() error                { return nil }
