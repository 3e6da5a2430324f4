package gate

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/broker"
	"github.com/berm-dev/berm/egress/gate/internal/screen"
	"github.com/berm-dev/berm/egress/gate/internal/wire"
)

const (
	// idlePerTarget and idleInAll bound the connections that are kept.
	idlePerTarget = 16
	idleInAll     = 128
	// freshFor is how long an idle connection is trusted with a request that
	// cannot be sent twice.
	freshFor = 2 * time.Second
)

// place is where a connection leads.
type place struct {
	host   string
	port   uint16
	secure bool
	inward bool
}

func (x *exchange) place() place {
	return place{x.verdict.Host, x.verdict.Port, x.secure, x.verdict.Inward}
}

// upstream is one connection to an upstream, for one request at a time.
type upstream struct {
	place place
	conn  *responses
	cc    *http.ClientConn
	trace screen.Trace
	epoch uint64
	since time.Time
}

// roundTrip sends one request.
func (u *upstream) roundTrip(r *http.Request) (*http.Response, error) {
	if !u.conn.begin(r.Method) {
		return nil, wire.ErrUnsolicited
	}
	return u.cc.RoundTrip(r)
}

// answered reports whether any of the present response has come.
func (u *upstream) answered() bool { return u.conn.touched.Load() }

// free reports whether another request can be sent.
func (u *upstream) free() bool {
	return u.cc.Err() == nil && u.cc.Available() > 0 && u.conn.clean()
}

func (u *upstream) close() { _ = u.cc.Close() }

// responses is a connection whose responses are checked before net/http gets
// them: where they end, and that nothing comes that was not asked for.
type responses struct {
	net.Conn
	touched atomic.Bool

	mu     sync.Mutex // held but while waiting for bytes
	reader *wire.Reader
	method string
}

func newResponses(conn net.Conn, l Limits) *responses {
	r := &responses{Conn: conn}
	r.reader = wire.NewResponseReader(readerFunc(r.wait), l.HeaderBytes, func(head []byte) (wire.Framing, error) {
		body, fault := wire.ParseResponse(head, r.method, l.HeaderFields)
		if fault != nil {
			return body, fault
		}
		return body, nil
	})
	return r
}

// wait lets begin in while it waits.
func (r *responses) wait(p []byte) (int, error) {
	r.mu.Unlock()
	defer r.mu.Lock()
	n, err := r.Conn.Read(p)
	if n > 0 {
		r.touched.Store(true)
	}
	return n, err
}

// Read gives checked bytes.
func (r *responses) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reader.Read(p)
}

// begin says that a request is about to be sent; false when the connection
// cannot take one.
func (r *responses) begin(method string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.method = method
	r.touched.Store(false)
	return r.reader.Next()
}

func (r *responses) clean() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reader.Clean()
}

// connection finds an idle connection or dials.
func (g *Gate) connection(ctx context.Context, x *exchange) (up *upstream, reused bool, d *denial) {
	fresh := x.arrival.head == nil || x.arrival.head.Method != http.MethodGet && x.arrival.head.Method != http.MethodHead
	if up := g.pool.get(x.place(), fresh); up != nil {
		return up, true, nil
	}
	up, d = g.dialUpstream(ctx, x)
	return up, false, d
}

// dialUpstream dials what the verdict allows, and speaks TLS to the hosts of
// credentials.
func (g *Gate) dialUpstream(ctx context.Context, x *exchange) (*upstream, *denial) {
	epoch := g.pool.epoch.Load()
	conn, d := g.dial(ctx, x)
	if d != nil {
		return nil, d
	}
	if x.secure {
		secured, d := g.secure(ctx, conn, x.verdict.Host)
		if d != nil {
			_ = conn.Close()
			return nil, d
		}
		conn = secured
	}
	up := &upstream{place: x.place(), conn: newResponses(conn, g.config.Limits), trace: x.trace, epoch: epoch}
	var err error
	if up.cc, err = g.pool.transport.NewClientConn(context.WithValue(ctx, dialledKey{}, up.conn), "http", "upstream.invalid:80"); err != nil {
		_ = conn.Close()
		return nil, deny(egress.ReasonInternal, err)
	}
	return up, nil
}

// dial opens the screened connection, and says in the record what it found.
func (g *Gate) dial(ctx context.Context, x *exchange) (net.Conn, *denial) {
	ctx, cancel := context.WithTimeout(ctx, g.config.Timeouts.Dial)
	defer cancel()
	conn, trace, reason, err := g.dialer.Dial(ctx, x.verdict)
	x.trace = trace
	x.traced(trace)
	if err != nil {
		return nil, deny(reason, err)
	}
	return conn, nil
}

// secure verifies the host of a credential.
func (g *Gate) secure(ctx context.Context, conn net.Conn, host string) (net.Conn, *denial) {
	ctx, cancel := context.WithTimeout(ctx, g.config.Timeouts.Dial)
	defer cancel()
	config := broker.ClientTLS(g.config.Roots).Clone()
	config.ServerName = host
	config.NextProtos = []string{"http/1.1"}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, &denial{reason: broker.UpstreamReason(err), status: http.StatusBadGateway, err: err}
	}
	return secured, nil
}

// pool keeps idle connections to upstreams.
type pool struct {
	transport *http.Transport
	idleFor   time.Duration
	// epoch grows with each drop: what was dialled before is not kept.
	epoch atomic.Uint64

	mu     sync.Mutex
	closed bool
	idle   map[place][]*upstream
	number int
}

type dialledKey struct{}

func newPool(g *Gate) *pool {
	var one http.Protocols
	one.SetHTTP1(true)
	return &pool{
		idle:    map[place][]*upstream{},
		idleFor: g.config.Timeouts.Idle,
		transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				if conn, ok := ctx.Value(dialledKey{}).(*responses); ok {
					return conn, nil
				}
				return nil, errors.New("not dialled")
			},
			DisableCompression:     true,
			MaxResponseHeaderBytes: int64(g.config.Limits.HeaderBytes) * 2,
			ExpectContinueTimeout:  time.Second,
			Protocols:              &one,
		},
	}
}

// get takes the connection that was used last; nil when there is none. fresh asks
// for one that has hardly been idle.
func (p *pool) get(at place, fresh bool) *upstream {
	p.mu.Lock()
	defer p.mu.Unlock()
	for list := p.idle[at]; len(list) > 0; list = p.idle[at] {
		up := list[len(list)-1]
		if fresh && time.Since(up.since) > freshFor {
			return nil
		}
		p.cut(at, len(list)-1)
		if up.free() {
			return up
		}
		up.close()
	}
	return nil
}

// cut removes one connection from the list. The lock is held.
func (p *pool) cut(at place, i int) {
	list := p.idle[at]
	list = append(list[:i], list[i+1:]...)
	p.number--
	if len(list) == 0 {
		delete(p.idle, at)
		return
	}
	p.idle[at] = list
}

// put keeps a connection, or closes it.
func (p *pool) put(up *upstream) {
	if up == nil {
		return
	}
	p.mu.Lock()
	keep := !p.closed && up.epoch == p.epoch.Load() && p.number < idleInAll && len(p.idle[up.place]) < idlePerTarget && up.free()
	if keep {
		up.since = time.Now()
		p.idle[up.place] = append(p.idle[up.place], up)
		p.number++
	}
	p.mu.Unlock()
	if !keep {
		up.close()
	}
}

// has reports whether there is an idle connection.
func (p *pool) has(at place) bool {
	up := p.get(at, false)
	if up == nil {
		return false
	}
	p.put(up)
	return true
}

// expire closes what was idle for too long.
func (p *pool) expire() {
	p.mu.Lock()
	var old []*upstream
	for at := range p.idle {
		for i := len(p.idle[at]) - 1; i >= 0; i-- {
			if up := p.idle[at][i]; time.Since(up.since) > p.idleFor || !up.free() {
				old = append(old, up)
				p.cut(at, i)
			}
		}
	}
	p.mu.Unlock()
	for _, up := range old {
		up.close()
	}
}

// drop closes all that is idle, and keeps nothing that was dialled before.
func (p *pool) drop() {
	p.epoch.Add(1)
	p.mu.Lock()
	idle := p.idle
	p.idle, p.number = map[place][]*upstream{}, 0
	p.mu.Unlock()
	for _, list := range idle {
		for _, up := range list {
			up.close()
		}
	}
}

func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.drop()
}

// patrol looks after what only time ends.
func (g *Gate) patrol() {
	tick := time.NewTicker(min(time.Second, g.config.Timeouts.Flow, g.config.Timeouts.Idle))
	defer tick.Stop()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-tick.C:
			g.pool.expire()
			g.flows.each(func(f *flow) {
				if f.idle() > g.config.Timeouts.Flow {
					f.stop(egress.ReasonTimeout)
				}
			})
		}
	}
}
