package gate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/broker"
	"github.com/berm-dev/berm/egress/gate/internal/hello"
	"github.com/berm-dev/berm/egress/gate/internal/socks"
)

// tunnel is the target of a tunnel whose requests the gate looks at.
type tunnel struct {
	host   string
	port   int
	secure bool   // the gate ended its TLS
	sni    string // as the client wrote it
}

// tunnelConn is a connection whose first bytes were read already. In a tunnel
// whose TLS was ended it lies below the TLS and knows the session.
type tunnelConn struct {
	net.Conn
	prefix  []byte
	session *session
	release func()
	flow    *flow // counts what goes through; nil where the copying counts
}

// Read gives what was read before, then reads.
func (c *tunnelConn) Read(p []byte) (int, error) {
	if len(c.prefix) > 0 {
		n := copy(p, c.prefix)
		c.prefix = c.prefix[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	if c.flow != nil {
		c.flow.count(&c.flow.sent, n)
	}
	return n, err
}

// Write writes.
func (c *tunnelConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.flow != nil {
		c.flow.count(&c.flow.received, n)
	}
	return n, err
}

// CloseWrite ends one direction.
func (c *tunnelConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// open gets everything ready for a tunnel, so that the client can be told.
func (x *exchange) open(ctx context.Context, host string, port int) (net.Conn, *denial) {
	g := x.g
	x.rec.Asked = host
	x.query = egress.Query{Protocol: x.rec.Protocol, Host: host, Port: port}
	x.snapshot, x.verdict = g.decide(ctx, x.query)
	x.judged(x.verdict)
	if !x.verdict.Allow {
		return nil, deny(x.verdict.Reason, nil)
	}
	if x.verdict.Brokered {
		if x.bound = x.snapshot.credentials.For(x.verdict.Host); x.bound == nil || x.snapshot.authority == nil || !x.snapshot.authority.Covers(x.verdict.Host) {
			return nil, deny(egress.ReasonUnterminated, nil)
		}
		x.rec.Credential = x.bound.ID()
	}
	select {
	case g.tunnels <- struct{}{}:
		x.slot = true
	default:
		return nil, deny(egress.ReasonLimit, errors.New("too many tunnels"))
	}
	if x.looksInto() {
		return nil, x.warm(ctx)
	}
	return g.dial(ctx, x)
}

// looksInto reports whether requests inside the tunnel are judged one by one:
// plain ones, and those to the host of a credential.
func (x *exchange) looksInto() bool {
	return x.verdict.Brokered || x.verdict.Port == 80 && !x.verdict.Opaque
}

// warm makes sure that there is a connection for the first request, so that a
// target that cannot be reached is said to be so before the tunnel is there.
func (x *exchange) warm(ctx context.Context) *denial {
	inner := x.inner()
	if x.g.pool.has(inner.place()) {
		return nil
	}
	up, d := x.g.dialUpstream(ctx, inner)
	x.traced(inner.trace)
	if d != nil {
		return d
	}
	x.g.pool.put(up)
	return nil
}

// inner is how a request inside the tunnel would go out.
func (x *exchange) inner() *exchange {
	inner := &exchange{ruling: x.g.newRuling(x.rec.Flow, x.rec.Protocol), session: x.session, verdict: x.verdict, secure: x.verdict.Brokered}
	if inner.secure && x.verdict.Port == 80 {
		inner.verdict = x.snapshot.rules.Decide(egress.Query{Protocol: x.rec.Protocol, Host: x.query.Host, Port: 443})
	}
	return inner
}

// connect serves one CONNECT.
func (x *exchange) connect(w *responder, r *http.Request) *denial {
	host, port, err := egress.SplitAuthority(x.arrival.authority)
	if err != nil {
		return deny(egress.ReasonMalformed, err)
	}
	up, d := x.open(r.Context(), host, port)
	if d != nil {
		return d
	}
	defer closeConn(up)
	// The client's own end of the connection ends the tunnel; the request's context
	// is of no use once the connection was taken.
	conn, _, err := w.Hijack()
	if err != nil {
		return deny(egress.ReasonInternal, err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("HTTP/1.1 200 Connection Established\r\n\r\n")); err != nil {
		return deny(egress.ReasonClosed, err)
	}
	return x.run(context.WithoutCancel(r.Context()), w.client.detach(), up)
}

// serveSOCKS serves a whole SOCKS5 connection.
func (g *Gate) serveSOCKS(ctx context.Context, r *ruling, conn *tunnelConn) {
	x := &exchange{ruling: r, session: &session{number: r.rec.Flow}, cancel: func(error) {}}
	w := &responder{}
	defer x.finish(ctx, w)
	if d := x.socks(ctx, conn); d != nil {
		x.deny(ctx, d)
		// Closing with unread bytes would throw the answer away.
		drain(conn)
	}
}

func (x *exchange) socks(ctx context.Context, conn *tunnelConn) *denial {
	err := socks.Greet(conn, socks.Credential{Username: x.g.config.Username, Password: x.g.config.Password})
	if err != nil {
		return socksFault(err)
	}
	req, err := socks.ReadRequest(conn)
	if err != nil {
		return socksFault(err)
	}
	x.rec.Asked = req.Host
	refuse := func(code socks.Reply, d *denial) *denial {
		x.deny(ctx, d) // on record before the client knows
		_ = socks.Answer(conn, code)
		return d
	}
	switch {
	case !req.Connect:
		return refuse(socks.NoCommand, deny(egress.ReasonCommand, nil))
	case req.Host == "":
		return refuse(socks.NoAddressType, deny(egress.ReasonMalformed, errors.New("an unknown type of address")))
	}
	up, d := x.open(ctx, req.Host, req.Port)
	if d != nil {
		return refuse(socksCode(d.reason), d)
	}
	defer closeConn(up)
	if err := errors.Join(conn.SetReadDeadline(time.Time{}), socks.Answer(conn, socks.Granted)); err != nil {
		return deny(egress.ReasonClosed, err)
	}
	return x.run(ctx, conn, up)
}

// socksFault is the denial of what is not SOCKS5, or lacks the credential.
func socksFault(err error) *denial {
	switch {
	case errors.Is(err, socks.ErrMethod), errors.Is(err, socks.ErrCredential):
		return deny(egress.ReasonAuth, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return deny(egress.ReasonTimeout, err)
	}
	return deny(egress.ReasonMalformed, err)
}

func socksCode(reason egress.Reason) socks.Reply {
	switch reason { // all others are the policy's word
	case egress.ReasonMalformed, egress.ReasonLimit, egress.ReasonInternal, egress.ReasonAudit, egress.ReasonClosed, egress.ReasonTLSVerify, egress.ReasonUpstream:
		return socks.Failed
	case egress.ReasonDNS:
		return socks.Unreachable
	case egress.ReasonDial:
		return socks.Refused
	}
	return socks.NotAllowed
}

func closeConn(c net.Conn) {
	if c != nil {
		_ = c.Close()
	}
}

// run carries a tunnel that the client believes to be open. up is nil where
// requests inside it are looked at.
func (x *exchange) run(ctx context.Context, conn *tunnelConn, up net.Conn) (d *denial) {
	defer conn.Close()
	defer func() {
		if d != nil {
			// Before the client sees the end.
			x.deny(ctx, d)
		}
	}()
	f := newFlow(x.query, x.verdict, func() {
		_ = conn.Conn.Close()
		closeConn(up)
	})
	if !x.g.enter(f) {
		return deny(f.stopped(egress.ReasonGeneration), nil)
	}
	defer x.g.flows.remove(f)
	var secured *tls.Conn
	if !x.verdict.Opaque && (x.verdict.Port != 80 || up != nil) {
		var d *denial
		if secured, d = x.inspect(ctx, conn); d != nil {
			d.reason = f.stopped(d.reason)
			return d
		}
	}
	if d := x.allow(ctx); d != nil {
		return d
	}
	x.flow = f
	switch {
	case up == nil && secured != nil:
		x.serveInside(conn, secured)
	case up == nil:
		x.serveInside(conn, nil)
	default:
		x.failed, x.cause = x.g.splice(f, conn, up)
	}
	return nil
}

// inspect reads the ClientHello and judges it; nothing was sent upstream by then.
// For the host of a credential it makes the session with the client as well.
func (x *exchange) inspect(ctx context.Context, conn *tunnelConn) (*tls.Conn, *denial) {
	limit := time.Now().Add(x.g.config.Timeouts.Hello)
	if err := conn.SetReadDeadline(limit); err != nil {
		return nil, deny(egress.ReasonClosed, err)
	}
	said, err := hello.Read(ctx, conn)
	conn.prefix = append(said.Raw, conn.prefix...)
	x.rec.SNI, x.rec.ECH = said.Name, said.ECH
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, deny(egress.ReasonTLSTimeout, nil)
	case err != nil:
		return nil, deny(egress.ReasonNotTLS, err)
	}
	if d := x.judgeHello(said); d != nil {
		return nil, d
	}
	if !x.verdict.Brokered {
		return nil, wrapClosed(conn.SetReadDeadline(time.Time{}))
	}
	return x.terminate(ctx, conn, limit)
}

func wrapClosed(err error) *denial {
	if err == nil {
		return nil
	}
	return deny(egress.ReasonClosed, err)
}

// judgeHello wants the name that the tunnel is for. A literal has no name in TLS.
func (x *exchange) judgeHello(said hello.Hello) *denial {
	if said.Name == "" && x.verdict.Addr.IsValid() && !said.ECH {
		return nil
	}
	name, err := egress.CanonicalHost(said.Name)
	if err == nil && name == x.verdict.Host {
		return nil
	}
	if said.ECH {
		return deny(egress.ReasonECH, nil)
	}
	return deny(egress.ReasonSNI, nil)
}

// terminate ends the client's TLS with a certificate of the sandbox's authority.
func (x *exchange) terminate(ctx context.Context, conn *tunnelConn, limit time.Time) (*tls.Conn, *denial) {
	config, err := x.snapshot.authority.ServerConfig(x.verdict.Host)
	if err != nil {
		return nil, deny(egress.ReasonUnterminated, err)
	}
	secured := tls.Server(conn, config)
	if err := secured.SetDeadline(limit); err != nil {
		return nil, deny(egress.ReasonClosed, err)
	}
	err = secured.HandshakeContext(ctx)
	switch {
	case err == nil:
	case broker.RejectedByClient(err):
		return nil, deny(egress.ReasonClientCA, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, deny(egress.ReasonTLSTimeout, err)
	default:
		return nil, deny(egress.ReasonNotTLS, fmt.Errorf("handshake: %w", err))
	}
	if err := secured.SetDeadline(time.Time{}); err != nil {
		return nil, deny(egress.ReasonClosed, err)
	}
	return secured, nil
}

// serveInside serves the requests inside the tunnel, until it ends.
func (x *exchange) serveInside(conn *tunnelConn, secured *tls.Conn) {
	s := &session{number: x.rec.Flow, tunnel: &tunnel{
		host: x.verdict.Host, port: int(x.verdict.Port), secure: secured != nil, sni: x.rec.SNI,
	}}
	ended := make(chan struct{})
	end := sync.OnceFunc(func() { close(ended) })
	conn.flow = x.flow
	server, inner := x.g.h1, net.Conn(nil)
	switch {
	case secured == nil:
		c := newClient(x.g, conn, s, nil)
		c.release = end
		inner = c
	case secured.ConnectionState().NegotiatedProtocol == "h2":
		conn.session, conn.release = s, end
		server, inner = x.g.h2, secured
	default:
		c := newClient(x.g, secured, s, nil)
		c.release = end
		inner = c
	}
	if !server.hand(inner) {
		return
	}
	<-ended
}
