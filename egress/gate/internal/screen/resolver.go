package screen

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

const (
	// cacheLimit is the longest that an answer is used, whatever its TTL.
	cacheLimit = 30 * time.Second
	// cacheEntries is how many answers are kept.
	cacheEntries = 1024
	// maxQuestions is how many questions a resolver has on their way at a time.
	maxQuestions = 64
	// maxServers is how many servers are asked, as elsewhere.
	maxServers = 3
	// attemptTimeout is how long one server has for one question.
	attemptTimeout = 2 * time.Second
	// lookupTimeout bounds one Lookup.
	lookupTimeout = 10 * time.Second
	// graceTimeout is how much longer the other family has once one has addresses:
	// some networks swallow questions for AAAA.
	graceTimeout = time.Second
	// rounds is how often the servers are gone through.
	rounds = 2
	// confRefresh is how often resolv.conf is looked at again.
	confRefresh = 5 * time.Second
	// confPath is where the machine's servers are written.
	confPath = "/etc/resolv.conf"
)

// Resolver asks DNS servers for the addresses of fully qualified names: no hosts
// file, no search list, no other sources. It is safe for concurrent use.
type Resolver struct {
	servers []netip.AddrPort // nil for those of conf
	conf    string
	slots   chan struct{}

	// Attempt is how long one server has for one question; 0 for two seconds. It is
	// not changed once the resolver is in use.
	Attempt time.Duration

	mu     sync.Mutex
	cache  map[string]entry
	listed []netip.AddrPort // what conf had, at read
	read   time.Time
}

type entry struct {
	answer Answer
	until  time.Time
}

// Answer is what a name resolved to. It is shared and not to be changed.
type Answer struct {
	// Addrs has all addresses, IPv4 ones unmapped, without repetitions.
	Addrs []netip.Addr
	// Chain has the names that CNAMEs led to, in order, without the root's dot.
	Chain []string
}

// NewResolver returns a resolver that asks the given servers, each an address or
// an address with a port, or those of the machine's resolv.conf when there are
// none. A server that is neither is errdefs.Invalid.
func NewResolver(servers []string) (*Resolver, error) {
	r := &Resolver{conf: confPath, slots: make(chan struct{}, maxQuestions), cache: map[string]entry{}}
	if len(servers) > maxServers {
		return nil, errdefs.New(errdefs.Invalid, "nameservers", fmt.Sprintf("there are %d; %d is the most", len(servers), maxServers))
	}
	for _, s := range servers {
		a, err := netip.ParseAddrPort(s)
		if err != nil {
			var addr netip.Addr
			if addr, err = netip.ParseAddr(s); err == nil {
				a = netip.AddrPortFrom(addr, 53)
			}
		}
		if err != nil || a.Port() == 0 {
			return nil, errdefs.New(errdefs.Invalid, "nameservers", fmt.Sprintf("%q is no address, or address and port", s))
		}
		r.servers = append(r.servers, a)
	}
	return r, nil
}

// Lookup resolves a canonical name. The error's kind is NotFound for a name that
// does not exist or has no address, Timeout for servers that did not answer,
// Unavailable for servers that cannot, Protocol for answers that are none. The
// chain is set as far as it was followed, also with an error.
func (r *Resolver) Lookup(ctx context.Context, host string) (Answer, error) {
	if a, ok := r.cached(host); ok {
		return a, nil
	}
	if !isName(host) {
		return Answer{}, errdefs.New(errdefs.Invalid, "resolve", "this is no canonical name")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end := time.AfterFunc(lookupTimeout, cancel)
	defer end.Stop()
	servers, err := r.from()
	if err != nil {
		return Answer{}, err
	}
	kinds := [...]uint16{dns.TypeA, dns.TypeAAAA}
	var replies [len(kinds)]reply
	var wait sync.WaitGroup
	for i, kind := range kinds {
		wait.Go(func() {
			replies[i] = r.ask(ctx, servers, question{host + ".", kind})
			if len(replies[i].addrs) > 0 {
				end.Reset(graceTimeout)
			}
		})
	}
	wait.Wait()
	answer, ttl, err := join(replies[:])
	if err != nil {
		return answer, err
	}
	r.keep(host, answer, ttl)
	return answer, nil
}

// isName reports whether host is a canonical name and no address.
func isName(host string) bool {
	name, err := egress.CanonicalHost(host)
	_, fault := netip.ParseAddr(host)
	return err == nil && fault != nil && name == host
}

// join puts the replies together. One without addresses is made up for by the
// other: what was not learnt is not dialled either.
func join(replies []reply) (Answer, time.Duration, error) {
	var out Answer
	var err error
	ttl := cacheLimit
	for _, p := range replies {
		if len(p.chain) > len(out.Chain) {
			out.Chain = p.chain
		}
		if p.err != nil {
			if err == nil || errorsIsNotFound(err) {
				err = p.err
			}
			// An answer with a part missing is not kept.
			if !errorsIsNotFound(p.err) {
				ttl = 0
			}
			continue
		}
		ttl = min(ttl, p.ttl)
		for _, a := range p.addrs {
			if !slices.Contains(out.Addrs, a) {
				out.Addrs = append(out.Addrs, a)
			}
		}
	}
	if len(out.Addrs) > 0 {
		return out, ttl, nil
	}
	return out, 0, err
}

func (r *Resolver) cached(host string) (Answer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.cache[host]
	if !ok || !time.Now().Before(e.until) {
		return Answer{}, false
	}
	return e.answer, true
}

// keep remembers an answer for its time. A full cache forgets what has had its
// time, or else everything: that costs questions and nothing more.
func (r *Resolver) keep(host string, a Answer, ttl time.Duration) {
	if ttl <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if len(r.cache) >= cacheEntries {
		for k, e := range r.cache {
			if !now.Before(e.until) {
				delete(r.cache, k)
			}
		}
		if len(r.cache) >= cacheEntries {
			clear(r.cache)
		}
	}
	r.cache[host] = entry{a, now.Add(min(ttl, cacheLimit))}
}

// from returns the servers to ask.
func (r *Resolver) from() ([]netip.AddrPort, error) {
	if len(r.servers) > 0 {
		return r.servers, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.listed) > 0 && time.Since(r.read) < confRefresh {
		return r.listed, nil
	}
	conf, err := dns.ClientConfigFromFile(r.conf)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Unavailable, "read resolv.conf", err)
	}
	var list []netip.AddrPort
	for _, s := range conf.Servers {
		port, err := strconv.ParseUint(conf.Port, 10, 16)
		addr, fault := netip.ParseAddr(s)
		if err == nil && fault == nil && len(list) < maxServers {
			list = append(list, netip.AddrPortFrom(addr, uint16(port)))
		}
	}
	if len(list) == 0 {
		return nil, errdefs.New(errdefs.Unavailable, "resolve", "resolv.conf names no server")
	}
	r.listed, r.read = list, time.Now()
	return list, nil
}

// socket opens a socket to a server that lasts one attempt. A UDP socket is
// connected, so that the kernel drops what others send to it, and has a port of
// the kernel's choice.
func (r *Resolver) socket(ctx context.Context, network string, server netip.AddrPort) (net.Conn, func(), error) {
	limit := r.Attempt
	if limit <= 0 {
		limit = attemptTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, server.String())
	if err != nil {
		cancel()
		return nil, nil, err
	}
	// A deadline alone would not see the caller's cancellation.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return conn, func() {
		stop()
		cancel()
		_ = conn.Close()
	}, nil
}
