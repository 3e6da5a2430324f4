package gate

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/broker"
)

// newProxy makes what forwards requests: httputil's proxy, around RoundTrip.
func (g *Gate) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        g.rewrite,
		Transport:      roundTripper(g.forward),
		ModifyResponse: closeAfterUpgrade,
		ErrorHandler:   g.forwardFailed,
		ErrorLog:       log.New(io.Discard, "", 0),
		BufferPool:     &buffers{},
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls f.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// rewrite aims a request at the host that was decided about, whatever else the
// client says about hosts. It runs after hop-by-hop headers were removed.
func (g *Gate) rewrite(p *httputil.ProxyRequest) {
	x := exchangeOf(p.In.Context())
	if x == nil {
		return
	}
	usual, scheme := uint16(80), "http"
	if x.secure {
		usual, scheme = 443, "https"
	}
	host := x.verdict.Host
	if x.verdict.Addr.Is6() {
		host = "[" + host + "]"
	}
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.URL.User = scheme, host, nil
	if x.verdict.Port != usual {
		p.Out.URL.Host = host + ":" + strconv.Itoa(int(x.verdict.Port))
	}
	p.Out.Host = p.Out.URL.Host
	// Rewrite is called with what does not parse removed; a query is the
	// upstream's to read.
	p.Out.URL.RawQuery = p.In.URL.RawQuery
	// Trailers come after everything was judged.
	p.Out.Trailer = nil
	p.Out.Header.Del("Trailer")
	if !x.secure {
		hops := append(p.In.Header.Values(egress.HopHeader), g.nonce)
		p.Out.Header.Set(egress.HopHeader, strings.Join(hops, ", "))
	}
}

// closeAfterUpgrade ends a connection whose wish to switch protocols was not
// granted: what follows on it was not checked.
func closeAfterUpgrade(resp *http.Response) error {
	if x := exchangeOf(resp.Request.Context()); x != nil && x.socket && resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Header.Set("Connection", "close")
	}
	return nil
}

// forwardFailed answers for a request that did not get a response.
func (g *Gate) forwardFailed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	out, ok := w.(*responder)
	if x == nil || !ok {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	var d *denial
	if !errors.As(err, &d) {
		d = &denial{reason: egress.ReasonUpstream, status: http.StatusBadGateway, err: err}
	}
	x.fail(d.reason, d.err)
	x.refuse(r.Context(), out, d)
}

// fail notes why a flow ended, once.
func (x *exchange) fail(reason egress.Reason, err error) {
	if x.failed == "" {
		x.failed, x.cause = reason, err
	}
}

// forward sends one request: check what costs nothing, find a screened
// connection, put the credential on, write the decision down, send.
func (g *Gate) forward(out *http.Request) (*http.Response, error) {
	x := exchangeOf(out.Context())
	if x == nil {
		return nil, errors.New("a request of nobody's")
	}
	ctx := out.Context()
	if d := x.precheck(out); d != nil {
		return nil, d
	}
	up, reused, d := g.connection(ctx, x)
	if d != nil {
		return nil, d
	}
	var redactor *broker.Redactor
	if x.bound != nil {
		var reason egress.Reason
		var err error
		if redactor, reason, err = x.bound.Apply(ctx, out); err != nil {
			g.pool.put(up)
			return nil, deny(reason, err)
		}
	}
	if d := x.admit(ctx, up, out); d != nil {
		g.pool.put(up)
		return nil, d
	}
	x.countBody(out)
	resp, err := up.roundTrip(out)
	if err != nil && reused && !up.answered() && replayable(out) && ctx.Err() == nil && (x.bound == nil || x.snapshot == g.current.Load()) {
		// The upstream closed an idle connection just then. A credential is not sent
		// once more after its policy has gone.
		up.close()
		if up, d = g.dialUpstream(ctx, x); d != nil {
			return nil, d
		}
		resp, err = up.roundTrip(out)
	}
	if err != nil {
		up.close()
		return nil, x.upstreamFault(ctx, err)
	}
	return g.received(x, up, resp, redactor)
}

// precheck is what can be refused without a look at the network.
func (x *exchange) precheck(out *http.Request) *denial {
	var reason egress.Reason
	var err error
	if x.bound != nil {
		reason, err = x.bound.Check(out)
	} else {
		reason, err = x.snapshot.credentials.Misplaced(out)
	}
	if err != nil {
		return deny(reason, err)
	}
	return nil
}

// admit puts the request among the open flows and writes the decision down.
func (x *exchange) admit(ctx context.Context, up *upstream, out *http.Request) *denial {
	x.traced(up.trace)
	x.rec.WebSocket = x.socket
	f := newFlow(x.query, x.verdict, x.breakOff)
	if x.bound != nil {
		f.carries = out
	}
	if !x.g.enter(f) {
		return deny(f.stopped(egress.ReasonGeneration), nil)
	}
	if d := x.allow(ctx); d != nil {
		x.g.flows.remove(f)
		return d
	}
	x.flow = f
	return nil
}

// breakOff ends the request from outside of its handler, also where that waits for
// a client that does not read.
func (x *exchange) breakOff() {
	const grace = 500 * time.Millisecond // for a refusal, where no response has begun
	x.cancel(errBrokenOff)
	x.life.Lock()
	defer x.life.Unlock()
	if !x.over {
		_ = http.NewResponseController(x.writer).SetWriteDeadline(time.Now().Add(grace))
	}
}

var errBrokenOff = errors.New("broken off by the gate")

// upstreamFault names what went wrong after the request was let through.
func (x *exchange) upstreamFault(ctx context.Context, err error) *denial {
	d := &denial{reason: broker.UpstreamReason(err), status: http.StatusBadGateway, err: err}
	switch {
	case d.reason == egress.ReasonPlaceholder:
		d.status = http.StatusForbidden
	case errors.Is(context.Cause(ctx), errBrokenOff):
		d.reason, d.status = x.flow.stopped(egress.ReasonClosed), http.StatusForbidden
	case ctx.Err() != nil:
		d.reason = egress.ReasonDone
	}
	return d
}

// received checks a response and makes its body count, and give the connection
// back when it has been read to its end.
func (g *Gate) received(x *exchange, up *upstream, resp *http.Response, redactor *broker.Redactor) (*http.Response, error) {
	switched := resp.StatusCode == http.StatusSwitchingProtocols
	if switched && (!x.socket || !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket")) {
		up.close()
		return nil, &denial{reason: egress.ReasonUpstream, status: http.StatusBadGateway, err: errors.New("the upstream switched protocols and was not asked to")}
	}
	if redactor != nil {
		if err := redactor.Response(resp); err != nil {
			up.close()
			return nil, &denial{reason: egress.ReasonUpstream, status: http.StatusBadGateway, err: err}
		}
	}
	if both, ok := resp.Body.(io.ReadWriteCloser); ok && switched {
		resp.Body = &socketBody{ReadWriteCloser: both, x: x, up: up}
		context.AfterFunc(resp.Request.Context(), up.close)
		return resp, nil
	}
	resp.Body = &responseBody{ReadCloser: resp.Body, x: x, up: up}
	return resp, nil
}

// replayable requests can be sent twice.
func replayable(r *http.Request) bool {
	if r.Body != nil && r.Body != http.NoBody {
		return false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return true
	}
	return false
}

// countBody counts what the client sends.
func (x *exchange) countBody(out *http.Request) {
	if out.Body != nil && out.Body != http.NoBody {
		out.Body = &requestBody{ReadCloser: out.Body, flow: x.flow}
	}
}

type requestBody struct {
	io.ReadCloser
	flow *flow
}

// Read reads and counts.
func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.flow.count(&b.flow.sent, n)
	return n, err
}

type responseBody struct {
	io.ReadCloser
	x  *exchange
	up *upstream
}

// Read reads and counts.
func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.x.flow.count(&b.x.flow.received, n)
	if err != nil && !errors.Is(err, io.EOF) {
		reason := egress.ReasonUpstream
		if errors.Is(err, context.Canceled) {
			reason = egress.ReasonDone // the client went away
		}
		b.x.fail(b.x.flow.stopped(reason), err)
	}
	return n, err
}

// Close gives the connection back, which closes it where the body was not read to
// its end.
func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.x.g.pool.put(b.up)
	return err
}

// socketBody is a connection after a switch of protocols.
type socketBody struct {
	io.ReadWriteCloser
	x  *exchange
	up *upstream
}

// Read reads what the upstream sends.
func (b *socketBody) Read(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Read(p)
	b.x.flow.count(&b.x.flow.received, n)
	return n, err
}

// Write sends what the client sent.
func (b *socketBody) Write(p []byte) (int, error) {
	n, err := b.ReadWriteCloser.Write(p)
	b.x.flow.count(&b.x.flow.sent, n)
	return n, err
}

// Close closes the connection.
func (b *socketBody) Close() error {
	err := b.ReadWriteCloser.Close()
	b.up.close()
	return err
}

const bufferBytes = 32 << 10

// buffers are what bodies are copied with.
type buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[bufferBytes]byte); ok {
		return p[:]
	}
	return make([]byte, bufferBytes)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) {
	if len(p) == bufferBytes {
		b.pool.Put((*[bufferBytes]byte)(p))
	}
}
