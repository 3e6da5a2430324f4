package screen

import (
	"context"
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

// FromFile has the resolver read another file than the machine's resolv.conf.
func (r *Resolver) FromFile(path string) { r.conf = path }

// From lists the servers that would be asked.
func (r *Resolver) From() ([]netip.AddrPort, error) { return r.from() }

// Direct dials past the screen, as far as the second look.
func (d *Dialer) Direct(ctx context.Context, to netip.AddrPort, inward bool) (net.Conn, error) {
	return d.connect(ctx, to, inward)
}

// ReadAnswer reads bytes that came for a question, as a reply and as the names and
// addresses that were taken from it.
func ReadAnswer(b []byte, id uint16, name string, v6 bool) (Answer, error) {
	q := question{name, dns.TypeA}
	if v6 {
		q.kind = dns.TypeAAAA
	}
	msg, err := unpack(b, id, q)
	if err != nil {
		return Answer{}, err
	}
	p := read(msg, q)
	return Answer{Addrs: p.addrs, Chain: p.chain}, p.err
}

// The limits that tests go to.
const (
	MaxAddrs   = maxAddrs
	MaxChain   = maxChain
	MaxStray   = maxStray
	MaxDialled = maxDialled
)
