package gate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

func slowHeader(t *testing.T, w *world) {
	c := w.dial(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, b := range []byte(getAllowed) {
			if _, err := c.TCPConn.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	got := c.answer(http.MethodGet)
	if got.status != http.StatusRequestTimeout || got.reason != egress.ReasonTimeout {
		t.Errorf("answer %d %q", got.status, got.body)
	}
	c.closed()
	<-done
	if r := w.finish(t, 1)[0]; r.Allow || r.Reason != egress.ReasonTimeout {
		t.Errorf("decision %+v", r)
	}
}

func slowBody(t *testing.T, w *world) {
	c := w.dial(t)
	c.send("POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 100\r\n\r\nhello")
	c.closed()
	if end := w.sink.ends(t, 1)[0]; end.Sent != 5 {
		t.Errorf("end %+v", end)
	}
	w.finish(t, 1)
}

func manyConnections(t *testing.T, w *world) {
	var idle []*wireConn
	for range 8 {
		idle = append(idle, w.dial(t))
	}
	until(t, "all are taken", func() bool { return w.gate.Stats().Connections == 8 })
	over := w.dial(t)
	if rest := over.closed(); rest != "" {
		t.Errorf("beyond the limit came %q", rest)
	}
	for _, c := range idle {
		_ = c.Close()
	}
	until(t, "all are gone", func() bool { return w.gate.Stats().Connections == 0 })
	if r := w.finish(t, 1)[0]; r.Reason != egress.ReasonLimit || r.Allow {
		t.Errorf("decision %+v", r)
	}
}

func manyTunnels(t *testing.T, w *world) {
	for range 2 {
		c, got := w.connectTo(t, "api.example.com:443")
		if got.status != http.StatusOK {
			t.Fatalf("status %d", got.status)
		}
		if _, err := c.tls(w.pki, &tls.Config{ServerName: "api.example.com"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, got := w.connectTo(t, "api.example.com:443"); got.status != http.StatusServiceUnavailable || got.reason != egress.ReasonLimit {
		t.Errorf("answer %d %q", got.status, got.reason)
	}
	if _, code := w.socksTo(t, "api.example.com", 443); code != 1 {
		t.Errorf("SOCKS reply %#x", code)
	}
	w.finish(t, 4)
}

func resetTunnel(t *testing.T, w *world) {
	c, got := w.connectTo(t, "api.example.com:443")
	if got.status != http.StatusOK {
		t.Fatalf("status %d", got.status)
	}
	conn, err := c.tls(w.pki, &tls.Config{ServerName: "api.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	if got := get(t, conn, "api.example.com", "/"); got.status != http.StatusOK {
		t.Fatalf("through the tunnel: %d", got.status)
	}
	if err := errors.Join(c.SetLinger(0), c.Close()); err != nil {
		t.Fatal(err)
	}
	end := w.sink.ends(t, 1)[0]
	if end.Sent == 0 || end.Received == 0 || end.Sent != int64(w.secure.received()) {
		t.Errorf("end %+v; the upstream got %d bytes", end, w.secure.received())
	}
	until(t, "the flow is over", func() bool { return w.gate.Stats().Flows == 0 })
	w.finish(t, 1)
}

// endless streams until the client goes away.
func endless(w http.ResponseWriter, r *http.Request) {
	block := make([]byte, 64<<10)
	for r.Context().Err() == nil {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

func endlessResponse(t *testing.T, w *world) {
	c := w.dial(t)
	c.allow(t, time.Minute)
	c.send(getAllowed + "\r\n")
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var before, after runtime.MemStats
	total := int64(128 << 20)
	if testing.Short() {
		total = 32 << 20
	}
	runtime.GC()
	runtime.ReadMemStats(&before)
	if n, err := io.CopyN(io.Discard, resp.Body, total); err != nil {
		t.Fatalf("after %d bytes: %v", n, err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	// Other tests run beside this one; a body that is kept would be above it.
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > total/2 {
		t.Errorf("%d bytes more after %d", grown, total)
	}
	_ = c.Close()
	if end := w.sink.ends(t, 1)[0]; end.Received < total {
		t.Errorf("end %+v", end)
	}
	until(t, "the flow is over", func() bool { return w.gate.Stats().Flows == 0 })
	w.finish(t, 1)
}

// breaking panics at the first record.
type breaking struct{ calls atomic.Int32 }

func (b *breaking) Write(context.Context, *egress.Record) error {
	if b.calls.Add(1) == 1 {
		panic("a sink that breaks down")
	}
	return nil
}

func breakDown(t *testing.T, w *world) {
	c := w.dial(t)
	c.send(getAllowed + "\r\n")
	if rest := c.closed(); strings.Contains(rest, "200") {
		t.Errorf("got %q", rest)
	}
	if n := len(w.plain.requests()); n != 0 {
		t.Errorf("%d requests upstream", n)
	}
	if r := w.finish(t, 1)[0]; r.Allow || r.Reason != egress.ReasonInternal {
		t.Errorf("decision %+v", r)
	}
}

// policyVectors are the rows Y.
func policyVectors() []vector {
	return []vector{
		{id: "Y01", spelling: "opaque tunnel", run: narrow(func(t *testing.T, w *world) *wireConn {
			c, got := w.connectTo(t, "api.example.com:443")
			if got.status != http.StatusOK {
				t.Fatalf("status %d", got.status)
			}
			if _, err := c.tls(w.pki, &tls.Config{ServerName: "api.example.com"}); err != nil {
				t.Fatal(err)
			}
			return c
		})},
		{id: "Y01", spelling: "SOCKS tunnel", run: narrow(func(t *testing.T, w *world) *wireConn {
			c, code := w.socksTo(t, "api.example.com", 443)
			if code != 0 {
				t.Fatalf("reply %#x", code)
			}
			if _, err := c.tls(w.pki, &tls.Config{ServerName: "api.example.com"}); err != nil {
				t.Fatal(err)
			}
			return c
		})},
		{id: "Y01", spelling: "endless response", setup: setup{handler: endless}, run: narrow(func(t *testing.T, w *world) *wireConn {
			c := w.dial(t)
			c.send(getAllowed + "\r\n")
			if _, err := io.CopyN(io.Discard, c.r, 1<<20); err != nil {
				t.Fatal(err)
			}
			return c // it reads no more
		})},
		unread(),
		{id: "Y01", spelling: "while a request is being dialled", setup: setup{hold: newHold()}, run: narrowInDial(getAllowed+"\r\n", http.StatusForbidden)},
		{id: "Y01", spelling: "while a tunnel is being dialled", setup: setup{hold: newHold()}, run: narrowInDial("CONNECT api.example.com:443 HTTP/1.1\r\n\r\n", http.StatusOK)},
		{id: "Y01", spelling: "WebSocket", setup: setup{wild: echoSocket}, run: narrow(func(t *testing.T, w *world) *wireConn {
			c := w.dial(t)
			c.send(getAllowed + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			if got := c.answer(http.MethodGet); got.status != http.StatusSwitchingProtocols {
				t.Fatalf("status %d", got.status)
			}
			return c
		})},
		{id: "Y01", spelling: "what is still allowed goes on", run: stillAllowed},
		{id: "Y02", spelling: "malformed rule", run: invalidPolicy(egress.Policy{Allow: []string{"api example"}})},
		{id: "Y02", spelling: "over-wide rule", run: invalidPolicy(egress.Policy{Allow: []string{".com"}})},
		{id: "Y02", spelling: "credential without a value", run: invalidPolicy(egress.Policy{Credentials: []egress.Credential{{Host: "api.example.com"}}})},
		{id: "Y03", spelling: "nil", run: denyAll(nil)},
		{id: "Y03", spelling: "empty", run: denyAll(&egress.Policy{})},
		{id: "Y03", spelling: "resolver that fails", setup: resolverSetup(func(context.Context) ([]string, error) { return nil, errors.New("down") }), host: "api.example.com", want: outcomeOf(egress.ReasonResolver)},
		{id: "Y03", spelling: "resolver that breaks down", setup: resolverSetup(func(context.Context) ([]string, error) { panic("down") }), host: "api.example.com", want: outcomeOf(egress.ReasonResolver)},
		{id: "Y03", spelling: "resolver that returns junk", setup: resolverSetup(func(context.Context) ([]string, error) { return []string{"api.example.com", "*"}, nil }), host: "api.example.com", want: outcomeOf(egress.ReasonResolver)},
		{id: "Y03", spelling: "resolver that allows", setup: resolverSetup(func(context.Context) ([]string, error) { return []string{"api.example.com"}, nil }), host: "api.example.com", want: outcome{reason: egress.ReasonRule, seen: "api.example.com"}},
		{id: "Y03", spelling: "resolver that allows another", setup: resolverSetup(func(context.Context) ([]string, error) { return []string{"other.example.com"}, nil }), host: "api.example.com", want: outcomeOf(egress.ReasonNoRule)},
		{id: "Y04", spelling: "many changes under load", run: manyChanges},
		{id: "Y05", spelling: "by every way", setup: setup{sink: &failing{}}, run: failingSink},
		{id: "Y06", spelling: "HTTP", raw: "GET http://evil\x1b[31m.test/ HTTP/1.1\r\nHost: a\r\n\r\n", want: outcomeOf(egress.ReasonMalformed)},
		{id: "Y06", spelling: "SOCKS", host: "evil.test\r\n\x1b[31m{\"allow\":true}", port: 443, by: []egress.Protocol{egress.SOCKS}, want: outcomeOf(egress.ReasonMalformed)},
	}
}

func resolverSetup(r egress.Resolver) setup {
	return setup{policy: &egress.Policy{Allow: []string{".pkg.example.org"}, Resolver: r}}
}

// narrow takes the permission away from an open flow.
func narrow(open func(*testing.T, *world) *wireConn) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		c := open(t, w)
		w.sink.await(t, 1)
		start := time.Now()
		if err := w.gate.SetPolicy(t.Context(), &egress.Policy{Allow: []string{".pkg.example.org"}}); err != nil {
			t.Fatal(err)
		}
		end := w.sink.ends(t, 1)[0]
		if end.Reason != egress.ReasonGeneration || end.Generation != 1 {
			t.Errorf("end %+v", end)
		}
		_, _ = io.Copy(io.Discard, c.r)
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("closed after %v", took)
		}
		w.finish(t, 1)
	}
}

// narrowInDial takes the permission away after the decision and before the flow.
func narrowInDial(ask string, status int) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		c := w.dial(t)
		c.send(ask)
		<-w.hold.reached
		if err := w.gate.SetPolicy(t.Context(), &egress.Policy{Allow: []string{".pkg.example.org"}}); err != nil {
			t.Fatal(err)
		}
		close(w.hold.over)
		method, _, _ := strings.Cut(ask, " ")
		if got := c.answer(method); got.status != status {
			t.Errorf("status %d %s", got.status, got.body)
		}
		if method == http.MethodConnect {
			if rest := c.closed(); rest != "" {
				t.Errorf("the tunnel answers %q", rest)
			}
		}
		if r := w.finish(t, 1)[0]; r.Allow || r.Reason != egress.ReasonGeneration {
			t.Errorf("decision %+v", r)
		}
		if n := len(w.plain.requests()) + w.secure.received(); n != 0 {
			t.Errorf("the upstream got %d", n)
		}
	}
}

// unread is a response to a client that reads nothing of it, so that what carries
// it is stuck in writing.
func unread() vector {
	var written atomic.Int64
	flood := func(w http.ResponseWriter, r *http.Request) {
		block := make([]byte, 64<<10)
		for r.Context().Err() == nil {
			n, err := w.Write(block)
			if written.Add(int64(n)); err != nil {
				return
			}
		}
	}
	return vector{id: "Y01", spelling: "client that does not read", setup: setup{handler: flood}, run: narrow(func(t *testing.T, w *world) *wireConn {
		c := w.dial(t)
		c.send(getAllowed + "\r\n")
		last, since := int64(-1), time.Now()
		until(t, "nothing moves any more", func() bool {
			if now := written.Load(); now != last {
				last, since = now, time.Now()
			}
			return last > 0 && time.Since(since) > 200*time.Millisecond
		})
		return c
	})}
}

func stillAllowed(t *testing.T, w *world) {
	c, _ := w.connectTo(t, "api.example.com:443")
	conn, err := c.tls(w.pki, &tls.Config{ServerName: "api.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.gate.SetPolicy(t.Context(), &egress.Policy{Allow: []string{".example.com", ".pkg.example.org"}}); err != nil {
		t.Fatal(err)
	}
	if got := get(t, conn, "api.example.com", "/"); got.status != http.StatusOK {
		t.Errorf("status %d", got.status)
	}
	w.finish(t, 1)
}

func invalidPolicy(p egress.Policy) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		if err := w.gate.SetPolicy(t.Context(), &p); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("SetPolicy: %v", err)
		}
		if n := w.gate.Stats().Generation; n != 1 {
			t.Errorf("generation %d", n)
		}
		for host, want := range map[string]int{"api.example.com": 200, "evil.test": 403} {
			c := w.dial(t)
			c.send("GET http://" + host + "/ HTTP/1.1\r\nHost: a\r\n\r\n")
			if got := c.answer(http.MethodGet); got.status != want {
				t.Errorf("%s: %d", host, got.status)
			}
		}
		w.finish(t, 2)
	}
}

func denyAll(p *egress.Policy) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		if err := w.gate.SetPolicy(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		w.closed = true
		vector{host: "api.example.com", want: outcomeOf(egress.ReasonNoRule)}.everyWay(t, w)
	}
}

// manyChanges switches between two policies while requests run: each decision is
// by one of them whole.
func manyChanges(t *testing.T, w *world) {
	changes, clients := 1000, 4
	if testing.Short() {
		changes = 200
	}
	// Even generations allow api alone, odd ones pkg too.
	with := policy()
	without := &egress.Policy{Allow: []string{"api.example.com", aliveHost}}
	stop := make(chan struct{})
	var work sync.WaitGroup
	var sent atomic.Int32
	for range clients {
		work.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				conn, err := net.Dial("tcp", w.clients.Addr().String())
				if err != nil {
					return
				}
				sent.Add(1)
				_, _ = io.WriteString(conn, "GET http://pkg.example.org/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
		})
	}
	for i := range changes {
		p := without
		if i%2 == 1 {
			p = with
		}
		if err := w.gate.SetPolicy(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	work.Wait()
	until(t, "no flow is left", func() bool { return w.gate.Stats().Flows == 0 })
	for _, r := range w.finish(t, int(sent.Load())) {
		if wantAllow := r.Generation%2 == 1; r.Allow && !wantAllow || r.Reason == egress.ReasonNoRule && wantAllow {
			t.Errorf("a decision of two generations: %+v", r)
		}
	}
	if n := w.gate.Stats().Generation; n != uint64(changes)+1 {
		t.Errorf("generation %d", n)
	}
}

// failing refuses records about the host of the row.
type failing struct{}

func (failing) Write(_ context.Context, r *egress.Record) error {
	if r.Host == "api.example.com" {
		return errors.New("disk full")
	}
	return nil
}

func failingSink(t *testing.T, w *world) {
	c := w.dial(t)
	c.send(getAllowed + "\r\n")
	if got := c.answer(http.MethodGet); got.status != http.StatusServiceUnavailable || got.reason != egress.ReasonAudit {
		t.Errorf("HTTP: %d %q", got.status, got.reason)
	}
	tunnel, _ := w.connectTo(t, "api.example.com:443")
	if _, err := tunnel.tls(w.pki, &tls.Config{ServerName: "api.example.com"}); err == nil {
		t.Error("CONNECT: the tunnel works")
	}
	tunnel, code := w.socksTo(t, "api.example.com", 443)
	if _, err := tunnel.tls(w.pki, &tls.Config{ServerName: "api.example.com"}); err == nil {
		t.Errorf("SOCKS: reply %#x, and the tunnel works", code)
	}
	if n := len(w.plain.requests()) + w.secure.received(); n != 0 {
		t.Errorf("the upstreams got %d", n)
	}
	w.finish(t, 0)
}
