package egress

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/berm-dev/berm/egress/internal/address"
)

// Rules is a compiled policy: immutable, and safe for concurrent use. A nil *Rules
// denies everything, as generation 0.
//
// Where several rules cover a host and port, the first of these decides what kind
// of traffic it is: a name before a suffix, a longer suffix or narrower block
// before a wider one, `*.` before `.`, a written port before the usual ones, and of
// two that say the same, the one without tcp.
type Rules struct {
	policy     Policy
	generation uint64
	names      map[string][]*rule // by exact name
	suffixes   map[string][]*rule // by the name that a suffix ends in
	blocks     []*rule
	exempt     []*rule
	brokered   map[string]*Credential
}

// Generation is the number that Compile was given.
func (r *Rules) Generation() uint64 {
	if r == nil {
		return 0
	}
	return r.generation
}

// Credential returns the credential of a canonical host.
func (r *Rules) Credential(host string) (Credential, bool) {
	if r == nil || r.brokered[host] == nil {
		return Credential{}, false
	}
	return *r.brokered[host], true
}

// Credentials returns all of them, in the policy's order. The slice is the
// caller's.
func (r *Rules) Credentials() []Credential {
	if r == nil {
		return nil
	}
	return slices.Clone(r.policy.Credentials)
}

// Resolver is the policy's; nil for none.
func (r *Rules) Resolver() Resolver {
	if r == nil {
		return nil
	}
	return r.policy.Resolver
}

// AskResolver reports whether a verdict of these rules is a denial that the rules
// of the policy's Resolver could change.
func (r *Rules) AskResolver(v Verdict) bool {
	if v.Allow || r.Resolver() == nil {
		return false
	}
	return v.Reason == ReasonNoRule || v.Reason == ReasonPort || v.Reason == ReasonLiteral
}

// Decide judges a query. It neither resolves nor dials, so a name that it allows
// can still lead to an address that the gate refuses.
func (r *Rules) Decide(q Query) Verdict {
	v := Verdict{Reason: ReasonMalformed, Generation: r.Generation()}
	host, addr, err := canonical(q.Host)
	if err != nil {
		return v
	}
	v.Host, v.Addr = host, addr
	if q.Port < 1 || q.Port > 65535 {
		return v
	}
	v.Port = uint16(q.Port)
	switch {
	case r == nil && addr.IsValid():
		v.Reason = ReasonLiteral
	case r == nil:
		v.Reason = ReasonNoRule
	case addr.IsValid():
		r.decideLiteral(&v)
	default:
		r.decideName(&v)
	}
	return v
}

// decideLiteral wants a rule for addresses, and screens the address: a block may
// be wider than what is public in it.
func (r *Rules) decideLiteral(v *Verdict) {
	hit, near := first(r.covering(*v), v.Port)
	if hit == nil {
		v.Reason = ReasonLiteral
		if near != nil {
			v.Reason, v.Rule = ReasonPort, near.text
		}
		return
	}
	v.Rule, v.Inward = hit.text, r.inward(*v)
	switch class := address.Classify(v.Addr); {
	case class == address.Metadata:
		v.Reason, v.Inward = ReasonMetadata, false
	case class == address.Inward && !v.Inward:
		v.Reason = ReasonInward
	default:
		v.Allow, v.Reason, v.Opaque = true, ReasonRule, hit.opaque
	}
}

// decideName looks at rules, then at credentials, then at AllowAny.
func (r *Rules) decideName(v *Verdict) {
	secret := r.brokered[v.Host]
	hit, near := first(r.covering(*v), v.Port)
	switch {
	case hit != nil:
		v.Reason, v.Rule, v.Opaque = ReasonRule, hit.text, hit.opaque
	case secret != nil && (v.Port == 80 || v.Port == 443):
		v.Reason, v.Rule = ReasonCredential, secret.name()
	case r.policy.AllowAny && publicName(v.Host):
		v.Reason, v.Opaque = ReasonAny, true
	case near != nil:
		v.Reason, v.Rule = ReasonPort, near.text
		return
	case secret != nil:
		v.Reason, v.Rule = ReasonPort, secret.name()
		return
	default:
		v.Reason = ReasonNoRule
		return
	}
	v.Allow, v.Inward = true, r.inward(*v)
	// A brokered host is looked into whatever wider rules say. Its own rule for tcp
	// is for other ports than the web's, such as git's by ssh.
	v.Brokered = secret != nil && (hit == nil || !hit.opaque || hit.scope != exact)
	v.Opaque = v.Opaque && !v.Brokered
}

// covering lists the rules for a verdict's host, on whatever port, by precedence.
func (r *Rules) covering(v Verdict) []*rule {
	var out []*rule
	if v.Addr.IsValid() {
		for _, b := range r.blocks {
			if b.prefix.Contains(v.Addr) {
				out = append(out, b)
			}
		}
	} else {
		out = append(out, r.names[v.Host]...)
		for rest, more := v.Host, true; more; _, rest, more = strings.Cut(rest, ".") {
			for _, s := range r.suffixes[rest] {
				if s.coversName(v.Host) {
					out = append(out, s)
				}
			}
		}
	}
	slices.SortFunc(out, (*rule).compare)
	return out
}

// first returns the first rule for a port, and the first for any.
func first(rules []*rule, port uint16) (hit, near *rule) {
	for _, x := range rules {
		if x.coversPort(port) {
			return x, rules[0]
		}
	}
	if len(rules) > 0 {
		near = rules[0]
	}
	return nil, near
}

// inward reports whether AllowInwardFor has the host and port.
func (r *Rules) inward(v Verdict) bool {
	return slices.ContainsFunc(r.exempt, func(e *rule) bool {
		if e.port != 0 && e.port != v.Port {
			return false
		}
		if v.Addr.IsValid() {
			return e.scope == block && e.prefix.Contains(v.Addr)
		}
		return e.coversName(v.Host)
	})
}

// publicName reports whether a name could be one of the public DNS: one with a dot
// that is not under what RFC 6761 and its like keep for local use. Such names mean
// something else on each network, and AllowAny is about the public one.
func publicName(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	switch last {
	case host, "localhost", "local", "internal", "onion", "alt", "invalid":
		return false
	}
	return host != "home.arpa" && !strings.HasSuffix(host, ".home.arpa")
}

// name is what records call the credential.
func (c *Credential) name() string {
	if c.ID != "" {
		return c.ID
	}
	return c.Host
}

// HostAllowed reports whether a host, without a port, is covered by one of the
// rules on some port. A host or a rule that is malformed allows nothing, nor does a
// rule allow an address that is not public.
func HostAllowed(host string, rules ...string) bool {
	p := Policy{Allow: rules}
	name, addr, err := canonical(host)
	if err != nil || addr.IsValid() && address.Classify(addr) != address.Public {
		return false
	}
	r, err := Compile(&p, 0)
	return err == nil && len(r.covering(Verdict{Host: name, Addr: addr})) > 0
}

// contains reports whether one of the exemptions covers a whole rule for
// addresses.
func contains(exempt []*rule, p netip.Prefix, ports func(uint16) bool) bool {
	return slices.ContainsFunc(exempt, func(e *rule) bool {
		return e.scope == block && e.prefix.Bits() <= p.Bits() && e.prefix.Contains(p.Addr()) && (e.port == 0 || ports(e.port))
	})
}
