package gate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net"
	"net/http/httputil"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/screen"
	"github.com/berm-dev/berm/errdefs"
)

// Gate serves one sandbox. All methods may be called concurrently.
type Gate struct {
	config Config
	// nonce marks the plain requests that have passed this gate.
	nonce  string
	dialer *screen.Dialer
	pool   *pool

	// setting makes policy changes follow each other.
	setting sync.Mutex
	current atomic.Pointer[snapshot]
	asking  chan struct{} // holds the one call of a Resolver

	flows   flows
	clients clients
	pace    pace
	tunnels chan struct{}
	// answering holds the requests that are being answered.
	answering chan struct{}

	proxy *httputil.ReverseProxy
	h1    *serving
	h2    *serving

	ctx    context.Context // the life of the gate's goroutines, ended by Close
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup

	numbers  atomic.Uint64
	requests atomic.Uint64
	denied   atomic.Uint64
}

// Stats are numbers about a gate.
type Stats struct {
	// Connections, Tunnels and Flows are open now.
	Connections, Tunnels, Flows int
	// Requests and Denied were counted since New.
	Requests, Denied uint64
	// Generation is the policy's: 1 for the first, one more for each change.
	Generation uint64
}

// New returns a gate that serves nothing yet. It has to be closed. The error is
// errdefs.Invalid with every fault of the configuration and the policy.
func New(c Config) (*Gate, error) { return newGate(c, seams{}) }

// seams replace the network behind the screen, for tests.
type seams struct {
	connect func(context.Context, netip.AddrPort) (net.Conn, error)
	self    func() ([]netip.Addr, error)
}

func newGate(c Config, s seams) (*Gate, error) {
	const op = "make egress gate"
	faults := c.faults()
	first, err := newSnapshot(c.Policy, 1, nil)
	if err != nil {
		faults = append(faults, err.Error())
	}
	resolver, err := screen.NewResolver(c.Nameservers)
	if err != nil {
		faults = append(faults, err.Error())
	}
	if len(faults) > 0 {
		return nil, errdefs.New(errdefs.Invalid, op, faults...)
	}
	c.Limits, c.Timeouts = c.Limits.withDefaults(), c.Timeouts.withDefaults()
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // ends the program rather than fail
	g := &Gate{
		config: c,
		nonce:  hex.EncodeToString(nonce[:]),
		dialer: &screen.Dialer{Resolver: resolver, Connect: s.connect, Self: s.self, Timeout: c.Timeouts.Dial},
		asking: make(chan struct{}, 1),
		flows:  flows{open: map[*flow]struct{}{}},
		clients: clients{
			open: map[net.Conn]struct{}{},
		},
		pace:      newPace(c.Limits.AcceptsPerSecond),
		tunnels:   make(chan struct{}, c.Limits.Tunnels),
		answering: make(chan struct{}, c.Limits.Requests),
	}
	if c.DNS64.IsValid() {
		g.dialer.DNS64 = []netip.Prefix{c.DNS64}
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.current.Store(first)
	g.pool = newPool(g)
	g.proxy = g.newProxy()
	g.serveHTTP()
	g.spawn(g.patrol)
	return g, nil
}

// SetPolicy replaces the policy; nil denies everything. A policy that is invalid
// changes nothing. When it returns, every flow that the new policy does not allow
// has been broken off, and no connection of the old one is used again. The
// context is looked at before anything is changed.
func (g *Gate) SetPolicy(ctx context.Context, p *egress.Policy) error {
	const op = "set egress policy"
	g.setting.Lock()
	defer g.setting.Unlock()
	if err := ctx.Err(); err != nil {
		return errdefs.Wrap(errdefs.KindOf(err), op, err)
	}
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return errdefs.New(errdefs.Closed, op, "the gate was closed")
	}
	before := g.current.Load()
	next, err := newSnapshot(p, before.generation()+1, before)
	if err != nil {
		return errdefs.Wrap(errdefs.Invalid, op, err)
	}
	g.current.Store(next)
	g.pool.drop()
	if next.rules.Resolver() != nil && g.flows.number() > 0 {
		// What only the Resolver allows is judged with its word, if that comes in
		// time; otherwise it ends.
		ctx, cancel := context.WithTimeout(ctx, rejudgeLimit)
		_, err := g.resolved(ctx, next)
		cancel()
		g.log(ctx, "policy resolver", err)
	}
	g.rejudge()
	return nil
}

// rejudgeLimit is how long a change of policy waits for a Resolver before it ends
// what that would have to allow.
const rejudgeLimit = 500 * time.Millisecond

// CA is the certificate, in PEM, of the authority that signs for the hosts that
// have a credential; nil when none has. A SetPolicy that adds such a host replaces
// it, and the sandbox has to be given the new one.
func (g *Gate) CA() []byte {
	if a := g.current.Load().authority; a != nil {
		return a.PEM()
	}
	return nil
}

// Stats returns the present numbers.
func (g *Gate) Stats() Stats {
	return Stats{
		Connections: g.clients.number(), Tunnels: len(g.tunnels), Flows: g.flows.number(),
		Requests: g.requests.Load(), Denied: g.denied.Load(),
		Generation: g.current.Load().generation(),
	}
}

// Close breaks everything off and waits until it has ended, also for a Resolver
// or a Sink that is being called. A second call waits as well.
func (g *Gate) Close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel()
	g.flows.close()
	g.h1.close()
	g.h2.close()
	g.clients.close()
	g.pool.close()
	g.work.Wait()
	return nil
}

// spawn runs a goroutine that Close waits for, unless the gate is closing.
func (g *Gate) spawn(do func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.work.Go(do)
	return true
}

func (g *Gate) log(ctx context.Context, what string, err error) {
	if g.config.Logger != nil && err != nil {
		g.config.Logger.WarnContext(ctx, "egress gate", slog.String("sandbox", g.config.Sandbox), slog.String("what", what), slog.String("error", err.Error()))
	}
}

// session says where a request came from; it is in the context of every one.
type session struct {
	number uint64
	client *client // nil for HTTP/2
	tunnel *tunnel // nil for requests to the proxy itself
}

type sessionKey struct{}

func sessionOf(ctx context.Context) *session {
	s, _ := ctx.Value(sessionKey{}).(*session)
	return s
}

func withSession(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, sessionKey{}, findSession(conn))
}
