package screen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/internal/address"
	"github.com/berm-dev/berm/errdefs"
)

const (
	// maxDialled is how many addresses are tried for one request.
	maxDialled = 8
	// stagger is how long an address has before the next is tried beside it.
	stagger = 250 * time.Millisecond
	// selfRefresh is how long a list of the interfaces' addresses is used: making one
	// costs more than all else that a dial does before the network.
	selfRefresh = time.Second
	// dialTimeout is what Dialer.Timeout stands for when it is 0.
	dialTimeout = 10 * time.Second
)

// Dialer dials what verdicts allow. It is safe for concurrent use, and its fields
// are not changed once it is in use.
type Dialer struct {
	// Resolver resolves names; nil fails every name.
	Resolver *Resolver
	// Self lists the addresses of this machine, which are denied unless the verdict
	// is Inward; nil for those of its interfaces. An error denies.
	Self func() ([]netip.Addr, error)
	// DNS64 are the prefixes by which this network translates to IPv4.
	DNS64 []netip.Prefix
	// Timeout bounds dialling, all addresses together, after resolution; 0 for ten
	// seconds.
	Timeout time.Duration
	// Connect opens a TCP connection to an address that has been looked at; nil for
	// the network. It is there for tests, whose servers have no public address.
	Connect func(ctx context.Context, to netip.AddrPort) (net.Conn, error)

	mu     sync.Mutex
	own    []netip.Addr // of the interfaces, at listed
	listed time.Time
}

// Trace says what a Dial did, for the record; also where it failed.
type Trace struct {
	// Chain has the names that CNAMEs led to, in order.
	Chain []string
	// Addrs has all addresses that the name resolved to, or the literal.
	Addrs []netip.Addr
	// Dialled is the address and port of the connection; empty where there is none.
	Dialled string
}

// Dial opens the connection that a verdict allows. reason is empty on success, and
// else why there is none: inward, metadata, self, dns, dial, or internal for a
// verdict that allows nothing. One address that is not allowed denies all: a name
// with a public and a private address is an attack, or as good as one.
func (d *Dialer) Dial(ctx context.Context, v egress.Verdict) (net.Conn, Trace, egress.Reason, error) {
	var trace Trace
	if !v.Allow || v.Host == "" || v.Port == 0 {
		return nil, trace, egress.ReasonInternal, errdefs.New(errdefs.Internal, "dial", "the verdict allows nothing")
	}
	trace.Addrs = []netip.Addr{v.Addr}
	if !v.Addr.IsValid() {
		if d.Resolver == nil {
			return nil, Trace{}, egress.ReasonDNS, errdefs.New(errdefs.Unavailable, "resolve", "there is no resolver")
		}
		answer, err := d.Resolver.Lookup(ctx, v.Host)
		trace.Chain, trace.Addrs = answer.Chain, answer.Addrs
		if err != nil {
			return nil, trace, egress.ReasonDNS, err
		}
	}
	if reason, err := d.judge(trace.Addrs, v.Inward); err != nil {
		return nil, trace, reason, err
	}
	conn, to, err := d.race(ctx, order(trace.Addrs), v)
	if err != nil {
		reason := egress.ReasonDial
		var denied *deniedError
		if errors.As(err, &denied) {
			reason = denied.reason
		}
		return nil, trace, reason, err
	}
	trace.Dialled = to.String()
	return conn, trace, "", nil
}

// deniedError is a denial of one address.
type deniedError struct {
	addr   netip.Addr
	reason egress.Reason
}

func (e *deniedError) Error() string {
	return fmt.Sprintf("address %s is not allowed: %s", e.addr, e.reason)
}

// Unwrap gives its kind.
func (e *deniedError) Unwrap() error { return errdefs.Denied }

// judge looks at all addresses and returns the worst denial.
func (d *Dialer) judge(addrs []netip.Addr, inward bool) (egress.Reason, error) {
	if len(addrs) == 0 {
		return egress.ReasonDNS, errdefs.New(errdefs.NotFound, "resolve", "the name has no address")
	}
	if denied := d.classify(addrs, inward); denied != nil {
		return denied.reason, denied
	}
	if inward {
		return "", nil
	}
	self := d.Self
	if self == nil {
		self = d.interfaces
	}
	own, err := self()
	if err != nil {
		return egress.ReasonSelf, fmt.Errorf("list the addresses of this machine: %w", err)
	}
	for _, a := range addrs {
		reached := address.Reached(a, d.DNS64...)
		if slices.ContainsFunc(own, func(o netip.Addr) bool { return o.WithZone("").Unmap() == reached }) {
			return egress.ReasonSelf, &deniedError{a, egress.ReasonSelf}
		}
	}
	return "", nil
}

// classify returns the worst denial by class, nil for none.
func (d *Dialer) classify(addrs []netip.Addr, inward bool) *deniedError {
	var worst *deniedError
	for _, a := range addrs {
		switch class := Screen(a, d.DNS64...); {
		case class == Metadata:
			return &deniedError{a, egress.ReasonMetadata}
		case class != Public && !inward && worst == nil:
			worst = &deniedError{a, egress.ReasonInward}
		}
	}
	return worst
}

// interfaces lists the addresses of this machine's interfaces.
func (d *Dialer) interfaces() ([]netip.Addr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.own != nil && time.Since(d.listed) < selfRefresh {
		return d.own, nil
	}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, addr.Unmap())
			}
		}
	}
	d.own, d.listed = out, time.Now()
	return out, nil
}

// order has the families take turns, IPv6 first, and keeps the server's order
// within each.
func order(addrs []netip.Addr) []netip.Addr {
	var six, four, out []netip.Addr
	for _, a := range addrs {
		if a = a.Unmap(); a.Is4() {
			four = append(four, a)
		} else {
			six = append(six, a)
		}
	}
	for i := range max(len(six), len(four)) {
		if i < len(six) {
			out = append(out, six[i])
		}
		if i < len(four) {
			out = append(out, four[i])
		}
	}
	return out[:min(len(out), maxDialled)]
}

// attempt is the end of one connection attempt.
type attempt struct {
	conn net.Conn
	to   netip.AddrPort
	err  error
}

// race dials the addresses in order, each as soon as the one before has failed or
// has had its time, and returns the first connection. It returns when all attempts
// have ended.
func (d *Dialer) race(ctx context.Context, addrs []netip.Addr, v egress.Verdict) (net.Conn, netip.AddrPort, error) {
	limit := d.Timeout
	if limit <= 0 {
		limit = dialTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ended := make(chan attempt)
	var won attempt
	var faults []error
	running, next := 0, 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for running > 0 || next < len(addrs) && won.conn == nil && ctx.Err() == nil {
		var tick <-chan time.Time
		if next < len(addrs) && won.conn == nil && ctx.Err() == nil {
			tick = timer.C
		}
		select {
		case <-tick:
			to := netip.AddrPortFrom(addrs[next], v.Port)
			next, running = next+1, running+1
			go func() {
				conn, err := d.connect(ctx, to, v.Inward)
				ended <- attempt{conn, to, err}
			}()
			timer.Reset(stagger)
		case a := <-ended:
			running--
			switch {
			case a.err != nil:
				faults = append(faults, a.err)
				timer.Reset(0)
			case won.conn == nil:
				won = a
				cancel()
			default:
				_ = a.conn.Close()
			}
		}
	}
	if won.conn != nil {
		return won.conn, won.to, nil
	}
	if err := context.Cause(ctx); err != nil {
		faults = append(faults, err)
	}
	return nil, netip.AddrPort{}, fmt.Errorf("dial %s: %w", v.Host, errors.Join(faults...))
}

// connect opens one connection, and looks at the address once more where the
// kernel is told it.
func (d *Dialer) connect(ctx context.Context, to netip.AddrPort, inward bool) (net.Conn, error) {
	if d.Connect != nil {
		return d.Connect(ctx, to)
	}
	dialer := net.Dialer{
		FallbackDelay: -1,
		ControlContext: func(_ context.Context, _, written string, _ syscall.RawConn) error {
			got, err := netip.ParseAddrPort(written)
			if err != nil || got != to {
				return &deniedError{got.Addr(), egress.ReasonInternal}
			}
			if denied := d.classify([]netip.Addr{got.Addr()}, inward); denied != nil {
				return denied
			}
			return nil
		},
	}
	network := "tcp4"
	if to.Addr().Is6() {
		network = "tcp6"
	}
	return dialer.DialContext(ctx, network, to.String())
}
