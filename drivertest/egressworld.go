package drivertest

import (
	"context"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/egress"
)

// serverName is the one name that the world knows.
const serverName = "server.berm-test.example"

// outsideWorld is what lies behind the gate: a name server, and servers on the host's
// loopback, which policies exempt by name and port.
type outsideWorld struct {
	dns net.PacketConn
	// web answers every request, with its path and what came as Authorization.
	web, secure *httptest.Server
	// lines answers each line with itself.
	lines net.Listener

	mu        sync.Mutex
	questions []string
	requests  []http.Header
	records   []egress.Record
	failing   error
}

func newWorld(t *testing.T) *outsideWorld {
	t.Helper()
	w := &outsideWorld{}
	handler := http.HandlerFunc(w.respond)
	w.web = httptest.NewServer(handler)
	w.secure = newSecureServer(t, handler)
	var err error
	var config net.ListenConfig
	if w.dns, err = config.ListenPacket(t.Context(), "udp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if w.lines, err = config.Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(w.answer)
	serving.Go(func() { w.echo(&serving) })
	t.Cleanup(func() {
		_ = w.dns.Close()
		_ = w.lines.Close()
		w.web.Close()
		w.secure.Close()
		serving.Wait()
	})
	return w
}

// respond is both web servers: what package managers and git ask for, and for all
// else the request's path and authorization.
func (w *outsideWorld) respond(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	w.requests = append(w.requests, r.Header.Clone())
	w.mu.Unlock()
	text := "path " + r.URL.Path + " authorization " + r.Header.Get("Authorization") + "\n"
	switch r.URL.Path {
	case "/repo.git/info/refs":
		text = strings.Repeat("a", 40) + "\trefs/heads/main\n"
	case "/simple/thing/":
		rw.Header().Set("Content-Type", "text/html")
		text = `<!DOCTYPE html><a href="/thing-1.2.3-py3-none-any.whl">thing-1.2.3-py3-none-any.whl</a>`
	case "/thing":
		rw.Header().Set("Content-Type", "application/json")
		text = `{"name":"thing","dist-tags":{"latest":"1.2.3"},"versions":{"1.2.3":{"name":"thing","version":"1.2.3"}}}`
	}
	_, _ = io.WriteString(rw, text)
}

// answer is the name server.
func (w *outsideWorld) answer() {
	buffer := make([]byte, 4096)
	for {
		n, from, err := w.dns.ReadFrom(buffer)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		name := strings.ToLower(strings.TrimSuffix(m.Questions[0].Name.String(), "."))
		w.mu.Lock()
		w.questions = append(w.questions, name)
		w.mu.Unlock()
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		switch {
		case name != serverName:
			m.RCode = dnsmessage.RCodeNameError
		case m.Questions[0].Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: 1},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			}}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = w.dns.WriteTo(out, from)
		}
	}
}

// echo sends lines back until the listener's end.
func (w *outsideWorld) echo(serving *sync.WaitGroup) {
	for {
		conn, err := w.lines.Accept()
		if err != nil {
			return
		}
		serving.Go(func() {
			defer func() { _ = conn.Close() }()
			// A test that forgets its connection must not hang the clean-up.
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, _ = io.Copy(conn, conn)
		})
	}
}

// Write implements egress.Sink.
func (w *outsideWorld) Write(_ context.Context, r *egress.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = append(w.records, *r)
	return w.failing
}

// decisions are the records of decisions about a sandbox, in order.
func (w *outsideWorld) decisions(sandbox string) (out []egress.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		if r.Event == egress.EventDecision && r.Sandbox == sandbox {
			out = append(out, r)
		}
	}
	return out
}

func (w *outsideWorld) asked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.questions...)
}

// authorizations are what the web servers got.
func (w *outsideWorld) authorizations() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.requests {
		out = append(out, h.Get("Authorization"))
	}
	return out
}

// place is where a server is by the world's name.
func place(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return net.JoinHostPort(serverName, port)
}

func webPlace(s *httptest.Server) string {
	at, err := url.Parse(s.URL)
	if err != nil {
		return ""
	}
	return place(at.Host)
}

// webRule allows the plain server: off port 80 only a rule for any protocol does.
func (w *outsideWorld) webRule() string { return "tcp://" + webPlace(w.web) }

// policy allows rules and exempts the world's servers.
func (w *outsideWorld) policy(rules ...string) *berm.Egress {
	return &berm.Egress{Allow: rules, AllowInwardFor: []string{webPlace(w.web), webPlace(w.secure), place(w.lines.Addr().String())}}
}

// configure makes a provider's gates use this world.
func (w *outsideWorld) configure(policy *berm.Egress) func(*berm.Config) {
	return func(c *berm.Config) {
		c.Egress, c.Audit, c.Nameservers = policy, w, []string{w.dns.LocalAddr().String()}
		c.UpstreamRoots = x509.NewCertPool()
		c.UpstreamRoots.AddCert(w.secure.Certificate())
	}
}

// status is the first line of what the payload's get wrote.
func status(out []byte) int {
	line, _, _ := strings.Cut(string(out), "\n")
	n, _ := strconv.Atoi(line)
	return n
}

// lineWriter keeps what a running command writes.
type lineWriter struct {
	mu   sync.Mutex
	data strings.Builder
}

func newLineWriter() *lineWriter { return &lineWriter{} }

// Write implements io.Writer.
func (l *lineWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.data.Write(p)
}

func (l *lineWriter) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.data.String()
}

// has reports whether a whole line was written.
func (l *lineWriter) has(line string) bool {
	return strings.Contains("\n"+l.text(), "\n"+line+"\n")
}

func (l *lineWriter) wait(t *testing.T, line string) {
	t.Helper()
	eventually(t, patience, "the line "+line, func() bool { return l.has(line) })
}
