package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/socks"
	"github.com/berm-dev/berm/errdefs"
)

// Serve serves the connections that accept returns, such as link.Link.Accept,
// until the context ends, Close is called or accept fails. It returns nil in the
// first two cases and accept's error in the third. Connections that were taken go
// on. It may be called more than once, also at the same time.
func (g *Gate) Serve(ctx context.Context, accept func(context.Context) (net.Conn, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	for {
		if !g.pace.wait(ctx) {
			return nil
		}
		conn, err := accept(ctx)
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			return errdefs.Wrap(errdefs.Closed, "serve egress gate", err)
		}
		g.take(ctx, conn)
	}
}

// take starts to serve a connection, or refuses it at the limit.
func (g *Gate) take(ctx context.Context, conn net.Conn) {
	number := g.numbers.Add(1)
	if !g.clients.add(conn, g.config.Limits.Connections) {
		_ = conn.Close()
		// A sink that breaks down must not end the program.
		defer func() { _ = recover() }()
		g.newRuling(number, "").deny(ctx, deny(egress.ReasonLimit, errors.New("too many connections")))
		return
	}
	if !g.spawn(func() { g.first(number, conn) }) {
		g.clients.remove(conn)
		_ = conn.Close()
	}
}

// first routes a connection by its first byte.
func (g *Gate) first(number uint64, conn net.Conn) {
	taken := false
	var ruling *ruling
	defer func() {
		if fault := recover(); fault != nil && fault != http.ErrAbortHandler { //nolint:errorlint // recover gives the very value
			if ruling == nil {
				ruling = g.newRuling(number, "")
			}
			g.broke(g.ctx, ruling, fmt.Errorf("broke down: %v", fault))
			taken = false
		}
		if !taken {
			_ = conn.Close()
			g.clients.remove(conn)
		}
	}()
	_ = conn.SetReadDeadline(time.Now().Add(g.config.Timeouts.Header))
	var b [1]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		// Nothing was asked for.
		return
	}
	const socks4 = 4
	switch b[0] {
	case socks.Version:
		g.requests.Add(1)
		ruling = g.newRuling(number, egress.SOCKS)
		g.serveSOCKS(g.ctx, ruling, &tunnelConn{Conn: conn, prefix: b[:]})
	case socks4:
		g.requests.Add(1)
		ruling = g.newRuling(number, "")
		ruling.deny(g.ctx, deny(egress.ReasonMalformed, errors.New("SOCKS4")))
	default:
		taken = g.hand(number, conn, b[0])
	}
}

// hand gives a connection to the HTTP server.
func (g *Gate) hand(number uint64, conn net.Conn, first byte) bool {
	c := newClient(g, conn, &session{number: number}, []byte{first})
	ended := make(chan struct{})
	c.release = sync.OnceFunc(func() {
		g.clients.remove(conn)
		close(ended)
	})
	// The server's goroutines are not ours to wait for, so one of ours waits in
	// their stead.
	if !g.spawn(func() { <-ended }) {
		return false
	}
	if !g.h1.hand(c) {
		c.release()
		_ = conn.Close()
	}
	return true
}

// broke writes down a fault of the gate's own. A sink that is the fault must not
// break the clean-up as well.
func (g *Gate) broke(ctx context.Context, r *ruling, err error) {
	defer func() { _ = recover() }()
	g.log(ctx, "serve", err)
	r.deny(ctx, deny(egress.ReasonInternal, err))
}

// clients are the connections of the sandbox's that are open.
type clients struct {
	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

func (t *clients) add(c net.Conn, most int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.open) >= most {
		return false
	}
	t.open[c] = struct{}{}
	return true
}

func (t *clients) remove(c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
}

func (t *clients) number() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

func (t *clients) close() {
	t.mu.Lock()
	t.closed = true
	open := make([]net.Conn, 0, len(t.open))
	for c := range t.open {
		open = append(open, c)
	}
	t.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// pace lets so many connections through each second, and as many at once.
type pace struct {
	mu     sync.Mutex
	rate   float64
	tokens float64
	last   time.Time
}

func newPace(perSecond int) pace {
	return pace{rate: float64(perSecond), tokens: float64(perSecond), last: time.Now()}
}

// wait reports false when the context ended.
func (p *pace) wait(ctx context.Context) bool {
	p.mu.Lock()
	now := time.Now()
	p.tokens = min(p.rate, p.tokens+now.Sub(p.last).Seconds()*p.rate)
	p.last = now
	p.tokens--
	missing := -p.tokens
	p.mu.Unlock()
	if missing <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(time.Duration(missing / p.rate * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// serving is an HTTP server that is fed with connections.
type serving struct {
	server *http.Server
	conns  chan net.Conn
	done   chan struct{}
	once   sync.Once
}

// serveHTTP starts the two servers: HTTP/1, for the proxy and for tunnels that
// are looked into, and HTTP/2, for tunnels alone.
func (g *Gate) serveHTTP() {
	var one, two http.Protocols
	one.SetHTTP1(true)
	two.SetHTTP2(true)
	g.h1, g.h2 = g.newServing(one), g.newServing(two)
	// HTTP/1 connections keep their own time.
	g.h2.server.IdleTimeout = g.config.Timeouts.Idle
	for _, s := range []*serving{g.h1, g.h2} {
		g.spawn(func() { _ = s.server.Serve(s) })
	}
}

func (g *Gate) newServing(p http.Protocols) *serving {
	const (
		streams = 128
		window  = 64 << 10
	)
	return &serving{
		server: &http.Server{
			Handler:   g,
			Protocols: &p,
			// What is buffered of bodies that nobody reads yet is this process's memory.
			HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: streams, MaxReceiveBufferPerConnection: 4 * window, MaxReceiveBufferPerStream: window},
			MaxHeaderBytes: g.config.Limits.HeaderBytes,
			// What the gate has to say about a request is in the audit.
			ErrorLog:                     log.New(io.Discard, "", 0),
			ConnContext:                  withSession,
			DisableGeneralOptionsHandler: true,
			ConnState: func(c net.Conn, state http.ConnState) {
				if state == http.StateClosed {
					released(c)
				}
			},
		},
		conns: make(chan net.Conn),
		done:  make(chan struct{}),
	}
}

// hand reports false after the end; the connection is the caller's then.
func (s *serving) hand(c net.Conn) bool {
	select {
	case s.conns <- c:
		return true
	case <-s.done:
		return false
	}
}

func (s *serving) close() {
	s.once.Do(func() { close(s.done) })
	_ = s.server.Close()
}

// Accept implements net.Listener.
func (s *serving) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *serving) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// Addr implements net.Listener; there is none.
func (s *serving) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }
