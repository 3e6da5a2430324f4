package gate_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// patience bounds every wait of these tests.
	patience = 10 * time.Second
	// aliveHost is allowed in every policy here, so that a gate can be seen to live.
	aliveHost = "alive.pkg.example.org"
)

// setup is what a world differs in.
type setup struct {
	policy *egress.Policy // nil: the table's
	// brokered adds the table's credential to the policy.
	brokered bool
	zone     map[string]answer // beside the usual names
	handler  http.HandlerFunc  // of the upstreams; nil: 200 with a small body
	wild     func(net.Conn)    // in the place of the plain upstream, below HTTP
	cert     string            // "wrong" or "expired": what the TLS upstream shows
	self     []netip.Addr
	hold     *hold // where a dial to publicAddr waits; nil: nowhere
	sink     egress.Sink
	config   func(*gate.Config)
}

// world is a gate between a client and everything that it could reach.
type world struct {
	t       *testing.T
	gate    *gate.Gate
	sink    *memory
	dns     *nameserver
	plain   *upstream
	secure  *upstream
	wild    *upstream // in the place of plain at publicAddr; nil: none
	pki     *pki
	clients *net.TCPListener
	hold    *hold

	// closed: the policy denies everything by the end of the row.
	closed bool
	// login is the field that a gate with a credential of its own wants.
	login string
	// finished: the row had its last checks.
	finished bool

	mu      sync.Mutex
	dialled []netip.AddrPort
}

// hold stops a dial until the test has done something.
type hold struct{ reached, over chan struct{} }

func newHold() *hold { return &hold{reached: make(chan struct{}), over: make(chan struct{})} }

func policy() *egress.Policy {
	return &egress.Policy{Allow: []string{"api.example.com", ".pkg.example.org"}}
}

const secretValue = "s3cr3t-Value/with+odd=chars"

func credential() egress.Credential {
	return egress.Credential{ID: "api", Host: "api.example.com", Prefix: "Bearer ", Value: secretValue}
}

// newWorld starts a gate and all around it; the test's end stops it.
func newWorld(t *testing.T, p *pki, s setup) *world {
	t.Helper()
	if s.policy == nil {
		s.policy = policy()
		if s.brokered {
			s.policy.Credentials = []egress.Credential{credential()}
		}
	}
	w := &world{t: t, sink: &memory{next: s.sink}, pki: p, hold: s.hold}
	w.dns = newNameserver(t, s.zone)
	w.plain = newUpstream(t, s.handler, nil, nil)
	if s.wild != nil {
		w.wild = newUpstream(t, nil, nil, s.wild)
	}
	w.secure = newUpstream(t, s.handler, p.upstreamTLS(s.cert), nil)
	c := gate.Config{
		Sandbox: "vector", Policy: s.policy, Sink: w.sink, Nameservers: []string{w.dns.address}, Roots: p.roots,
	}
	if s.config != nil {
		s.config(&c)
	}
	self := func() ([]netip.Addr, error) { return s.self, nil }
	g, err := gate.NewBehind(c, w.connect, self)
	if err != nil {
		t.Fatal(err)
	}
	w.gate = g
	w.serve()
	return w
}

func (w *world) serve() {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		w.t.Fatal(err)
	}
	w.clients = listener
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		done <- w.gate.Serve(ctx, func(context.Context) (net.Conn, error) { return listener.Accept() })
	}()
	w.t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		if err := <-done; err != nil {
			w.t.Errorf("Serve: %v", err)
		}
		if err := w.gate.Close(); err != nil {
			w.t.Errorf("Close: %v", err)
		}
	})
}

// connect is behind the screen: it leads public addresses to servers of the test.
func (w *world) connect(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	w.dialled = append(w.dialled, to)
	w.mu.Unlock()
	if w.hold != nil && to.Addr() == publicAddr {
		w.hold.reached <- struct{}{}
		<-w.hold.over
	}
	target := w.plain
	switch {
	case to.Port() != 80:
		target = w.secure
	case w.wild != nil && to.Addr() == publicAddr:
		target = w.wild
	}
	if to.Addr() == deadAddr {
		return nil, errors.New("no route in this test")
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", target.address)
}

func (w *world) dials() []netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]netip.AddrPort(nil), w.dialled...)
}

// dial opens a connection to the gate.
func (w *world) dial(t *testing.T) *wireConn {
	t.Helper()
	conn, err := net.Dial("tcp", w.clients.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &wireConn{TCPConn: conn.(*net.TCPConn), r: bufio.NewReader(conn), t: t}
}

// allow gives a connection more time.
func (c *wireConn) allow(t *testing.T, d time.Duration) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
}

// wireConn is a client that writes what it wants.
type wireConn struct {
	*net.TCPConn
	r *bufio.Reader
	t *testing.T
}

// Read reads what was not read as a response.
func (c *wireConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func (c *wireConn) send(raw string) {
	c.t.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// reply is one response that was read to its end.
type reply struct {
	status int
	header http.Header
	body   string
	reason egress.Reason // of a refusal
	err    error         // of the body
}

// answer reads one response.
func (c *wireConn) answer(method string) reply {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("no response: %v", err)
	}
	defer resp.Body.Close()
	if method == http.MethodConnect && resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols {
		return reply{status: resp.StatusCode, header: resp.Header}
	}
	body, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(body), reason: reasonIn(string(body)), err: err}
}

// closed waits for the end of the connection and gives what came before it.
func (c *wireConn) closed() string {
	c.t.Helper()
	rest, err := io.ReadAll(c.r)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Errorf("the connection stays open")
	}
	return string(rest)
}

// halfClose ends what the client sends, unless the gate was quicker.
func (c *wireConn) halfClose() { _ = c.CloseWrite() }

// connectTo opens a tunnel by CONNECT.
func (w *world) connectTo(t *testing.T, target string) (*wireConn, reply) {
	t.Helper()
	c := w.dial(t)
	c.send("CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n\r\n")
	return c, c.answer(http.MethodConnect)
}

// socksTo opens a tunnel by SOCKS5, with a name or any bytes in its place, and
// gives the reply's code.
func (w *world) socksTo(t *testing.T, host string, port int) (*wireConn, byte) {
	t.Helper()
	c := w.dial(t)
	c.send("\x05\x01\x00")
	var method [2]byte
	if _, err := io.ReadFull(c.r, method[:]); err != nil || method != [2]byte{5, 0} {
		t.Fatalf("greeting answered %v, %v", method, err)
	}
	c.send(socksRequest(host, port))
	return c, c.socksReply()
}

func socksRequest(host string, port int) string {
	address := "\x03" + string(rune(len(host))) + host
	if len(host) > 127 {
		address = "\x03" + string([]byte{byte(len(host))}) + host
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Zone() == "" {
		b := a.AsSlice()
		address = "\x01" + string(b)
		if len(b) == 16 {
			address = "\x04" + string(b)
		}
	}
	return "\x05\x01\x00" + address + string([]byte{byte(port >> 8), byte(port)})
}

func (c *wireConn) socksReply() byte {
	c.t.Helper()
	var answer [10]byte
	if _, err := io.ReadFull(c.r, answer[:]); err != nil {
		c.t.Fatalf("no SOCKS reply: %v", err)
	}
	return answer[1]
}

// tls makes TLS through a tunnel, verified by roots.
func (c *wireConn) tls(p *pki, config *tls.Config) (*tls.Conn, error) {
	if config.RootCAs == nil {
		config.RootCAs = p.roots
	}
	conn := tls.Client(c, config)
	return conn, conn.Handshake()
}

// get asks for a path through a TLS connection.
func get(t *testing.T, conn io.ReadWriter, host, path string) reply {
	t.Helper()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("no response: %v", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(body), reason: reasonIn(string(body)), err: err}
}

// finish checks what every row has: so many decisions, each with a reason, and
// a gate that goes on.
func (w *world) finish(t *testing.T, decisions int) []egress.Record {
	t.Helper()
	w.finished = true
	w.sink.await(t, decisions)
	before := w.sink.decisions()
	c := w.dial(t)
	c.send("GET http://" + aliveHost + "/alive HTTP/1.1\r\nHost: " + aliveHost + "\r\n" + w.login + "Connection: close\r\n\r\n")
	want := http.StatusOK
	if w.closed {
		want = http.StatusForbidden
	}
	if got := c.answer(http.MethodGet); got.status != want {
		t.Errorf("afterwards the gate answers %d: %s", got.status, got.body)
	}
	all := w.sink.decisions()
	if len(before) != decisions || len(all) != decisions+1 {
		t.Errorf("%d decisions, want %d: %+v", len(all)-1, decisions, all)
	}
	for _, r := range all {
		if r.Reason == "" || r.Sandbox != "vector" || r.Flow == 0 || r.Time.IsZero() {
			t.Errorf("a decision without a reason, sandbox, flow or time: %+v", r)
		}
	}
	w.quietDNS(t, before)
	return before
}

// quietDNS wants no question about a name that was denied as a name.
func (w *world) quietDNS(t *testing.T, records []egress.Record) {
	t.Helper()
	asked := map[string]bool{}
	for _, name := range w.dns.names() {
		asked[name] = true
	}
	for _, r := range records {
		if r.Allow || r.Dialled != "" || len(r.Addresses) > 0 {
			asked[r.Host] = false // its name was allowed
		}
	}
	for _, r := range records {
		switch r.Reason {
		case egress.ReasonNoRule, egress.ReasonPort, egress.ReasonLiteral, egress.ReasonMalformed, egress.ReasonResolver, egress.ReasonUnterminated:
			if asked[r.Host] {
				t.Errorf("DNS was asked for %q, which is denied: %s", r.Host, r.Reason)
			}
		}
	}
}

// memory keeps records.
type memory struct {
	next egress.Sink // asked first; nil: none

	mu      sync.Mutex
	records []egress.Record
}

func (m *memory) Write(ctx context.Context, r *egress.Record) error {
	if m.next != nil {
		if err := m.next.Write(ctx, r); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records = append(m.records, *r)
	return nil
}

func (m *memory) of(e egress.Event) []egress.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []egress.Record
	for _, r := range m.records {
		if r.Event == e {
			out = append(out, r)
		}
	}
	return out
}

func (m *memory) decisions() []egress.Record { return m.of(egress.EventDecision) }

// await waits for a number of decisions.
func (m *memory) await(t *testing.T, n int) {
	t.Helper()
	until(t, "the decision is in the audit", func() bool { return len(m.decisions()) >= n })
}

// ends waits for a number of ends.
func (m *memory) ends(t *testing.T, n int) []egress.Record {
	t.Helper()
	until(t, "the end is in the audit", func() bool { return len(m.of(egress.EventEnd)) >= n })
	return m.of(egress.EventEnd)
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

// reasonIn finds the reason in a refusal.
func reasonIn(body string) egress.Reason {
	_, rest, ok := strings.Cut(body, `"reason":"`)
	if !ok {
		return ""
	}
	reason, _, _ := strings.Cut(rest, `"`)
	return egress.Reason(reason)
}
