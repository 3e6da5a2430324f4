package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"

	"github.com/berm-dev/berm/egress/internal/address"
)

// scope says which names a rule covers. They are in order of precedence: where two
// rules cover a name from the same label on, the one that covers less wins.
type scope uint8

const (
	exact scope = iota // api.example.com
	below              // *.example.com
	apex               // .example.com: the name and all below
	block              // addresses
)

// rule is one rule of a policy, parsed. It is not changed once compiled.
type rule struct {
	text   string
	scope  scope
	name   string // of names, without the leading dot
	prefix netip.Prefix
	port   uint16 // 0 for 80 and 443
	opaque bool
	order  int // place in the policy, the last word between equals
}

// The widest blocks that a rule may have.
const (
	widest4 = 8
	widest6 = 16
)

// parseRule reads one rule. Its error does not repeat the text.
func parseRule(text string) (rule, error) {
	r := rule{text: text}
	rest := text
	if after, ok := strings.CutPrefix(rest, "tcp://"); ok {
		r.opaque, rest = true, after
	}
	switch {
	case rest == "":
		return rule{}, errors.New("is empty")
	case strings.Contains(rest, "://"):
		return rule{}, errors.New("has a scheme; only tcp:// is one")
	case len(rest) > 1024:
		return rule{}, errors.New("is too long")
	}
	host, port, err := cutPort(rest)
	if err != nil {
		return rule{}, err
	}
	r.port = port
	if r.opaque && port == 0 {
		return rule{}, errors.New("says tcp and lacks a port")
	}
	if strings.Contains(host, "/") {
		err = r.setBlock(host)
		return r, err
	}
	err = r.setHost(host)
	return r, err
}

// cutPort takes the port and the brackets off. An IPv6 block may be without
// brackets where no port follows, because the slash ends it.
func cutPort(s string) (host string, port uint16, err error) {
	rest, hasPort := "", false
	switch {
	case strings.HasPrefix(s, "["):
		var closed bool
		host, rest, closed = strings.Cut(s[1:], "]")
		if !closed || rest != "" && rest[0] != ':' || !strings.Contains(host, ":") {
			return "", 0, errors.New("has brackets without an IPv6 address")
		}
		rest, hasPort = strings.CutPrefix(rest, ":")
	case strings.Count(s, ":") > 1 && strings.Contains(s, "/"):
		host = s
	case strings.Count(s, ":") > 1:
		return "", 0, errors.New("has an IPv6 address without brackets")
	default:
		host, rest, hasPort = strings.Cut(s, ":")
	}
	if !hasPort {
		return host, 0, nil
	}
	n, err := parsePort(rest)
	return host, uint16(n), err
}

// setBlock makes r a rule for a block of addresses.
func (r *rule) setBlock(s string) error {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || p.String() != lower(s) && p.Addr().Is4():
		return errors.New("is no block of addresses")
	case p.Addr().Is4In6():
		return errors.New("has an IPv4 block in IPv6 form")
	case p != p.Masked():
		return fmt.Errorf("has bits beyond its length: write %s", p.Masked())
	case p.Addr().Is4() && p.Bits() < widest4, p.Addr().Is6() && p.Bits() < widest6:
		return fmt.Errorf("is too wide: /%d for IPv4 and /%d for IPv6 are the widest", widest4, widest6)
	}
	r.scope, r.prefix = block, p
	return nil
}

// setHost makes r a rule for a name or one address.
func (r *rule) setHost(host string) error {
	switch {
	case strings.HasPrefix(host, "*."):
		r.scope, host = below, host[2:]
	case strings.HasPrefix(host, "."):
		r.scope, host = apex, host[1:]
	}
	if strings.Contains(host, "*") {
		return errors.New("has a star that is not the whole first label")
	}
	name, addr, err := canonicalRule(host)
	if err != nil {
		return err
	}
	if addr.IsValid() {
		if r.scope != exact {
			return errors.New("has an address with a star or a dot before it")
		}
		r.scope, r.prefix = block, netip.PrefixFrom(addr, addr.BitLen())
		return nil
	}
	if r.scope != exact {
		if suffix, _ := publicsuffix.PublicSuffix(name); suffix == name {
			return errors.New("covers a whole public suffix, under which anybody can have a name")
		}
	}
	r.name = name
	return nil
}

// canonicalRule is canonical for what an operator writes: names of other scripts
// become A-labels, and a form other than the canonical one is an error that shows
// it, so that the policy reads as it works.
func canonicalRule(host string) (string, netip.Addr, error) {
	ascii := host
	if strings.IndexFunc(host, func(r rune) bool { return r >= 0x80 }) >= 0 {
		a, err := idna.Lookup.ToASCII(host)
		if err != nil {
			return "", netip.Addr{}, errors.New("has no name that IDNA knows")
		}
		// A name that is mapped on the way (full-width forms, soft hyphens, other
		// dots) would be one that nobody sees in the policy.
		if u, err := idna.Lookup.ToUnicode(a); err != nil || u != host {
			return "", netip.Addr{}, fmt.Errorf("has a name that IDNA changes: write %s", a)
		}
		ascii = a
	}
	name, addr, err := canonical(ascii)
	if err != nil {
		return "", netip.Addr{}, err
	}
	if name != ascii && !addr.Is6() {
		return "", netip.Addr{}, fmt.Errorf("is not in the canonical form: write %s", name)
	}
	return name, addr, nil
}

// coversName reports whether a rule for names covers a canonical name.
func (r *rule) coversName(host string) bool {
	switch r.scope {
	case exact:
		return host == r.name
	case below, apex:
		if host == r.name {
			return r.scope == apex
		}
		before, ok := strings.CutSuffix(host, r.name)
		return ok && strings.HasSuffix(before, ".")
	case block:
	}
	return false
}

// coversPort reports whether the rule stands for a port.
func (r *rule) coversPort(port uint16) bool {
	return port == r.port || r.port == 0 && (port == 80 || port == 443)
}

// ports says which ports those are.
func (r *rule) ports() string {
	if r.port == 0 {
		return "80 and 443"
	}
	return fmt.Sprint(r.port)
}

// class is that of all the rule's addresses.
func (r *rule) class() address.Class { return address.ClassifyPrefix(r.prefix) }

// compare orders rules by precedence, see Rules.
func (r *rule) compare(o *rule) int {
	less := func(first, second bool) int {
		switch {
		case first == second:
			return 0
		case first:
			return -1
		}
		return 1
	}
	steps := []int{
		less(r.scope == exact, o.scope == exact),
		o.depth() - r.depth(),
		int(r.scope) - int(o.scope),
		less(r.port != 0, o.port != 0),
		less(!r.opaque, !o.opaque),
		r.order - o.order,
	}
	for _, s := range steps {
		if s != 0 {
			return s
		}
	}
	return 0
}

// depth is how narrow the rule is: labels of a name, bits of a block.
func (r *rule) depth() int {
	if r.scope == block {
		return r.prefix.Bits()
	}
	return strings.Count(r.name, ".")
}
