package screen

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/berm-dev/berm/errdefs"
)

const (
	// udpSize is the largest datagram that is asked for: it passes everywhere
	// without fragments, which can be forged.
	udpSize = 1232
	// maxStray is how many datagrams that are no answers one question survives.
	maxStray = 64
	// maxChain is how many CNAMEs are followed.
	maxChain = 16
	// maxAddrs is how many addresses of one kind a name may have.
	maxAddrs = 256
)

// question is what is asked: a name with its root's dot, and A or AAAA.
type question struct {
	name string
	kind uint16
}

// reply is what came of one question.
type reply struct {
	addrs []netip.Addr
	chain []string
	ttl   time.Duration
	err   error
}

// errNoAnswer marks a message that does not belong to the question.
var errNoAnswer = errors.New("not an answer to the question")

func errorsIsNotFound(err error) bool { return errors.Is(err, errdefs.NotFound) }

// ask puts a question to the servers in turn until one gives an answer that
// counts: addresses, or that there are none.
func (r *Resolver) ask(ctx context.Context, servers []netip.AddrPort, q question) reply {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return reply{err: errdefs.Wrap(errdefs.Timeout, "resolve", ctx.Err())}
	}
	last := reply{err: errdefs.New(errdefs.Timeout, "resolve", "no server answered")}
	for range rounds {
		for _, server := range servers {
			if ctx.Err() != nil {
				return last
			}
			last = r.exchange(ctx, server, q)
			if last.err == nil || errorsIsNotFound(last.err) {
				return last
			}
		}
	}
	return last
}

// exchange asks one server, again over TCP when the answer was cut.
func (r *Resolver) exchange(ctx context.Context, server netip.AddrPort, q question) reply {
	id := dns.Id()
	msg := new(dns.Msg)
	msg.SetQuestion(q.name, q.kind)
	msg.Id = id
	msg.SetEdns0(udpSize, false)
	packed, err := msg.Pack()
	if err != nil {
		return reply{err: errdefs.Wrap(errdefs.Invalid, "resolve", err)}
	}
	answer, err := r.overUDP(ctx, server, packed, id, q)
	if err == nil && answer.Truncated {
		answer, err = r.overTCP(ctx, server, packed, id, q)
	}
	if err != nil {
		return reply{err: transport(err)}
	}
	return read(answer, q)
}

// transport gives a failed exchange its kind.
func transport(err error) error {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return errdefs.Wrap(errdefs.Timeout, "resolve", err)
	case errors.Is(err, errNoAnswer):
		return errdefs.Wrap(errdefs.Protocol, "resolve", err)
	}
	return errdefs.Wrap(errdefs.Unavailable, "resolve", err)
}

// overUDP sends a question and waits for its answer. Datagrams that are none are
// passed over: whoever guesses the port must not be able to end the wait.
func (r *Resolver) overUDP(ctx context.Context, server netip.AddrPort, packed []byte, id uint16, q question) (*dns.Msg, error) {
	conn, done, err := r.socket(ctx, "udp", server)
	if err != nil {
		return nil, err
	}
	defer done()
	if _, err := conn.Write(packed); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	for range maxStray {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		if msg, err := unpack(buf[:n], id, q); err == nil {
			return msg, nil
		}
	}
	return nil, fmt.Errorf("%d datagrams: %w", maxStray, errNoAnswer)
}

// overTCP asks over TCP, where there is one answer, and it fits or is an error.
func (r *Resolver) overTCP(ctx context.Context, server netip.AddrPort, packed []byte, id uint16, q question) (*dns.Msg, error) {
	conn, done, err := r.socket(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	defer done()
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	buf := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, buf); err != nil {
		return nil, err
	}
	msg, err := unpack(buf, id, q)
	if err == nil && msg.Truncated {
		err = fmt.Errorf("cut although it came over TCP: %w", errNoAnswer)
	}
	return msg, err
}

// unpack reads a message and wants it to be an answer to the question.
func unpack(b []byte, id uint16, q question) (*dns.Msg, error) {
	msg := new(dns.Msg)
	// A truncated message may end in the middle of a record; its head is enough to
	// ask again.
	if err := msg.Unpack(b); err != nil && !msg.Truncated {
		return nil, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	if msg.Id != id || !msg.Response || msg.Opcode != dns.OpcodeQuery || len(msg.Question) != 1 {
		return nil, errNoAnswer
	}
	asked := msg.Question[0]
	if asked.Qtype != q.kind || asked.Qclass != dns.ClassINET || !strings.EqualFold(asked.Name, q.name) {
		return nil, errNoAnswer
	}
	return msg, nil
}

// read takes the addresses out of an answer: those of the name that was asked for,
// or that its CNAMEs lead to, and no others.
func read(msg *dns.Msg, q question) reply {
	switch msg.Rcode {
	case dns.RcodeSuccess:
	case dns.RcodeNameError:
		return reply{err: errdefs.New(errdefs.NotFound, "resolve", "the name does not exist")}
	default:
		return reply{err: errdefs.New(errdefs.Unavailable, "resolve", fmt.Sprintf("the server says %s (%d)", dns.RcodeToString[msg.Rcode], msg.Rcode))}
	}
	out := reply{ttl: cacheLimit}
	aliases := map[string]*dns.CNAME{}
	for _, rr := range msg.Answer {
		if c, ok := rr.(*dns.CNAME); ok && c.Hdr.Class == dns.ClassINET {
			owner := strings.ToLower(c.Hdr.Name)
			if other := aliases[owner]; other != nil && !strings.EqualFold(other.Target, c.Target) {
				out.err = errdefs.New(errdefs.Protocol, "resolve", "a name has two aliases")
				return out
			}
			aliases[owner] = c
		}
	}
	name := strings.ToLower(q.name)
	for c := aliases[name]; c != nil; c = aliases[name] {
		if len(out.chain) == maxChain {
			out.err = errdefs.New(errdefs.Protocol, "resolve", fmt.Sprintf("more than %d aliases", maxChain))
			return out
		}
		name = strings.ToLower(c.Target)
		out.chain = append(out.chain, strings.TrimSuffix(name, "."))
		out.ttl = min(out.ttl, seconds(c.Hdr.Ttl))
	}
	for _, rr := range msg.Answer {
		head := rr.Header()
		addr, ok := addressOf(rr, q.kind)
		if !ok || head.Class != dns.ClassINET || !strings.EqualFold(head.Name, name) {
			continue
		}
		if len(out.addrs) == maxAddrs {
			return reply{chain: out.chain, err: errdefs.New(errdefs.Protocol, "resolve", fmt.Sprintf("more than %d addresses", maxAddrs))}
		}
		out.addrs = append(out.addrs, addr)
		out.ttl = min(out.ttl, seconds(head.Ttl))
	}
	if len(out.addrs) == 0 {
		out.err = errdefs.New(errdefs.NotFound, "resolve", "the name has no address")
	}
	return out
}

func seconds(ttl uint32) time.Duration { return time.Duration(ttl) * time.Second }

// addressOf reads a record of the kind that was asked for.
func addressOf(rr dns.RR, kind uint16) (netip.Addr, bool) {
	var raw net.IP
	switch x := rr.(type) {
	case *dns.A:
		raw = x.A.To4()
		if kind != dns.TypeA {
			return netip.Addr{}, false
		}
	case *dns.AAAA:
		raw = x.AAAA
		if kind != dns.TypeAAAA {
			return netip.Addr{}, false
		}
	}
	addr, ok := netip.AddrFromSlice(raw)
	return addr.Unmap(), ok
}
