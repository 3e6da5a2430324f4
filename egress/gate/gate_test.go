package gate_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate"
	"github.com/berm-dev/berm/errdefs"
)

// TestNewRefuses: every fault is in the one error.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	_, err := gate.New(gate.Config{
		Policy: &egress.Policy{Allow: []string{"a b"}}, Nameservers: []string{"not an address"}, Username: "only",
		Limits: gate.Limits{Tunnels: -1}, Timeouts: gate.Timeouts{Dial: -1},
	})
	var e *errdefs.Error
	if !errors.As(err, &e) || e.Kind != errdefs.Invalid || len(e.Reasons) != 5 {
		t.Errorf("New: %v", err)
	}
}

// TestServeEnds: by the context, by Close and by accept's error.
func TestServeEnds(t *testing.T) {
	t.Parallel()
	g, err := gate.New(gate.Config{})
	if err != nil {
		t.Fatal(err)
	}
	wait := func(ctx context.Context) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Serve(ctx, wait); err != nil {
		t.Errorf("after the context: %v", err)
	}
	lost := errdefs.New(errdefs.TransportLost, "accept", "gone")
	if err := g.Serve(t.Context(), func(context.Context) (net.Conn, error) { return nil, lost }); !errors.Is(err, errdefs.TransportLost) {
		t.Errorf("after an error: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- g.Serve(context.Background(), wait) }()
	for range 2 {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("after Close: %v", err)
	}
	if err := g.SetPolicy(t.Context(), nil); !errors.Is(err, errdefs.Closed) {
		t.Errorf("SetPolicy after Close: %v", err)
	}
}

// TestCloseBreaksOff: nothing that is open keeps Close waiting.
func TestCloseBreaksOff(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	w := newWorld(t, p, setup{brokered: true, handler: endless})
	silent := w.dial(t)
	half := w.dial(t)
	half.send("GET http://api.ex")
	streaming := w.dial(t)
	streaming.send("GET http://pkg.example.org/ HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := streaming.r.ReadByte(); err != nil {
		t.Fatal(err)
	}
	tunnel, _ := w.connectTo(t, "pkg.example.org:443")
	if _, err := tunnel.tls(p, &tls.Config{ServerName: "pkg.example.org"}); err != nil {
		t.Fatal(err)
	}
	waiting, _ := w.connectTo(t, "pkg.example.org:443")
	inside := w.inside(t)
	if got := get(t, inside, "api.example.com", "/alive"); got.status != http.StatusOK {
		t.Fatalf("inside: %d", got.status)
	}
	until(t, "all are taken", func() bool { return w.gate.Stats().Connections == 6 })
	start := time.Now()
	if err := w.gate.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
	for _, c := range []io.Reader{silent, half, tunnel, waiting, inside} {
		_, _ = io.Copy(io.Discard, c) // ends
	}
	for _, end := range w.sink.ends(t, 4) {
		if want := egress.ReasonClosed; end.Reason != want && end.Protocol != egress.Terminated {
			t.Errorf("end %+v", end)
		}
	}
	if s := w.gate.Stats(); s.Flows != 0 || s.Tunnels != 0 {
		t.Errorf("stats %+v", s)
	}
}

// TestTunnelCarries: bytes of both directions arrive whole, the end of one
// direction is not the end of the other, and the audit has the numbers.
func TestTunnelCarries(t *testing.T) {
	t.Parallel()
	size := 16 << 20
	if testing.Short() {
		size = 4 << 20
	}
	data := make([]byte, size)
	_, _ = rand.Read(data)
	got := make(chan []byte, 1)
	w := newWorld(t, newPKI(t), setup{
		policy: &egress.Policy{Allow: []string{"tcp://api.example.com:80", ".pkg.example.org"}},
		wild: func(conn net.Conn) {
			all, _ := io.ReadAll(conn)
			got <- all
			_, _ = conn.Write(all)
		},
	})
	for _, way := range []string{"CONNECT", "SOCKS"} {
		var c *wireConn
		if way == "CONNECT" {
			c, _ = w.connectTo(t, "api.example.com:80")
		} else {
			c, _ = w.socksTo(t, "api.example.com", 80)
		}
		c.allow(t, time.Minute)
		sent := make(chan error, 1)
		go func() {
			_, err := c.TCPConn.Write(data)
			sent <- errors.Join(err, c.CloseWrite())
		}()
		if up := <-got; !bytes.Equal(up, data) {
			t.Errorf("%s: %d bytes upstream, want %d", way, len(up), size)
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
		if back := c.closed(); back != string(data) {
			t.Errorf("%s: %d bytes back", way, len(back))
		}
	}
	for _, end := range w.sink.ends(t, 2) {
		if end.Sent != int64(size) || end.Received != int64(size) || end.Reason != egress.ReasonDone {
			t.Errorf("end %+v", end)
		}
	}
}

// TestIdleTunnelsAreLight: what a thousand idle tunnels cost.
func TestIdleTunnelsAreLight(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the heap, so it runs alone: in the long form only")
	}
	w := newWorld(t, newPKI(t), setup{policy: &egress.Policy{Allow: []string{"tcp://api.example.com:80", ".pkg.example.org"}}, wild: func(conn net.Conn) {
		_, _ = io.Copy(conn, conn)
	}})
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	const tunnels = 1000
	before := heap()
	for range tunnels {
		c, got := w.connectTo(t, "api.example.com:80")
		if got.status != http.StatusOK {
			t.Fatalf("status %d", got.status)
		}
		c.send("x")
		if _, err := c.r.ReadByte(); err != nil {
			t.Fatal(err)
		}
	}
	// The clients and upstreams of this test are in it too.
	if each := (heap() - before) / tunnels; each > 96<<10 {
		t.Errorf("a tunnel costs %d bytes", each)
	}
	w.finish(t, tunnels)
}

// TestIdleFlowEnds: a tunnel in which nothing moves is broken off, one that moves
// is not.
func TestIdleFlowEnds(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	w := newWorld(t, newPKI(t), setup{
		policy: &egress.Policy{Allow: []string{"tcp://api.example.com:80", ".pkg.example.org"}},
		config: func(c *gate.Config) { c.Timeouts.Flow = limit },
		wild:   func(conn net.Conn) { _, _ = io.Copy(conn, conn) },
	})
	c, _ := w.connectTo(t, "api.example.com:80")
	var longest time.Duration
	for start, last := time.Now(), time.Now(); time.Since(start) < 3*limit; time.Sleep(10 * time.Millisecond) {
		_, err := io.WriteString(c, "x")
		if err == nil {
			_, err = c.r.ReadByte()
		}
		// A machine that is busy with other things makes gaps of its own.
		longest = max(longest, time.Since(last))
		last = time.Now()
		if err != nil && longest < limit/4 {
			t.Fatalf("broken off although the longest gap was %v: %v", longest, err)
		}
		if err != nil {
			break
		}
	}
	if end := w.sink.ends(t, 1)[0]; end.Reason != egress.ReasonTimeout {
		t.Errorf("end %+v", end)
	}
	w.finish(t, 1)
}

// TestResolverIsAskedOnce: its rules are used for a while, calls do not overlap,
// and a flow that it allows survives a change that leaves it in charge.
func TestResolverIsAskedOnce(t *testing.T) {
	t.Parallel()
	var calls, now atomic.Int32
	ask := func(context.Context) ([]string, error) {
		if now.Add(1) > 1 {
			t.Error("two calls at a time")
		}
		defer now.Add(-1)
		calls.Add(1)
		return []string{"api.example.com"}, nil
	}
	p := newPKI(t)
	w := newWorld(t, p, setup{policy: &egress.Policy{Allow: []string{".pkg.example.org"}, Resolver: ask}})
	for range 3 {
		c := w.dial(t)
		c.send(getAllowed + "\r\n")
		if got := c.answer(http.MethodGet); got.status != http.StatusOK {
			t.Errorf("status %d", got.status)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
	c, _ := w.connectTo(t, "api.example.com:443")
	conn, err := c.tls(p, &tls.Config{ServerName: "api.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.gate.SetPolicy(t.Context(), &egress.Policy{Allow: []string{".pkg.example.org"}, Resolver: ask}); err != nil {
		t.Fatal(err)
	}
	if got := get(t, conn, "api.example.com", "/"); got.status != http.StatusOK {
		t.Errorf("after the change: %d", got.status)
	}
	w.finish(t, 4)
}

// TestAuthorityStays: a change that adds no host keeps what the sandbox trusts.
func TestAuthorityStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newPKI(t), setup{})
	if w.gate.CA() != nil {
		t.Error("an authority without a credential")
	}
	with := policy()
	with.Credentials = []egress.Credential{credential()}
	set := func(p *egress.Policy) []byte {
		if err := w.gate.SetPolicy(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		return w.gate.CA()
	}
	first := set(with)
	rotated := policy()
	rotated.Credentials = []egress.Credential{{Host: "api.example.com", Value: "another-value"}}
	if !bytes.Equal(first, set(rotated)) || len(first) == 0 {
		t.Error("the authority changed with the value")
	}
	more := policy()
	more.Credentials = append(more.Credentials, credential(), egress.Credential{Host: "pkg.example.org", Value: "another-value"})
	if bytes.Equal(first, set(more)) {
		t.Error("the authority did not change with a new host")
	}
}

// TestListeners: both kinds want their credential, work with net/http's own proxy
// client, and leave nothing.
func TestListeners(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gate.sock")
	for _, network := range []string{"tcp", "unix"} {
		c := gate.Config{Policy: &egress.Policy{Allow: []string{"api.example.com"}}, Nameservers: []string{"127.0.0.1:1"}}
		listen := func() (*gate.Listener, error) { return gate.ListenLoopback(t.Context(), c) }
		if network == "unix" {
			listen = func() (*gate.Listener, error) { return gate.ListenUnix(t.Context(), path, c) }
		}
		l, err := listen()
		if err != nil {
			t.Fatal(err)
		}
		for password, want := range map[string]int{"wrong": http.StatusProxyAuthRequired, l.Password(): http.StatusForbidden} {
			if got := askListener(t, l, password); got.status != want {
				t.Errorf("%s: %d, want %d", network, got.status, want)
			}
		}
		if len(l.Password()) < 20 || l.Gate().Stats().Denied != 2 {
			t.Errorf("%s: password %q, %+v", network, l.Password(), l.Gate().Stats())
		}
		if network == "unix" {
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the socket: %v %v", info, err)
			}
			if _, err := gate.ListenUnix(t.Context(), path, c); err == nil {
				t.Error("a second gate on the same path")
			}
		}
		for range 2 {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}

func askListener(t *testing.T, l *gate.Listener, password string) reply {
	t.Helper()
	transport := &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "gate.invalid", User: url.UserPassword(l.Username(), password)}),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, l.Addr().Network(), l.Addr().String())
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://other.example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return reply{status: resp.StatusCode}
}

// TestListenerEndsWithItsContext: it takes nothing more.
func TestListenerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := gate.ListenLoopback(ctx, gate.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	until(t, "the port is closed", func() bool {
		conn, err := net.Dial(l.Addr().Network(), l.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestPooling: requests of one connection share one to the upstream; a change of
// policy ends that.
func TestPooling(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newPKI(t), setup{brokered: true})
	ask := func(host string) {
		c := w.dial(t)
		for range 3 {
			c.send("GET http://" + host + "/ HTTP/1.1\r\nHost: a\r\n\r\n")
			if got := c.answer(http.MethodGet); got.status != http.StatusOK {
				t.Errorf("status %d", got.status)
			}
		}
	}
	both := func() {
		ask("api.example.com")
		ask("pkg.example.org")
	}
	both()
	if n := len(w.dials()); n != 2 {
		t.Errorf("%d dials for two hosts", n)
	}
	with := policy()
	with.Credentials = []egress.Credential{credential()}
	if err := w.gate.SetPolicy(t.Context(), with); err != nil {
		t.Fatal(err)
	}
	both()
	if n := len(w.dials()); n != 4 {
		t.Errorf("%d dials after the change", n)
	}
}
