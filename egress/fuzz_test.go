package egress_test

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/idna"

	"github.com/berm-dev/berm/egress"
)

// hosts are seeds: the spellings that parsers have disagreed about.
func hosts() []string {
	return []string{
		"api.example.com", "API.Example.COM.", "a_b.example.com", "xn--bcher-kva.example", "xn--a.example.com", "xn--ap-ioc.example.com",
		"127.0.0.1", "127.1", "0x7f000001", "0177.0.0.1", "2130706433", "1.2.3.4.", "::1", "::ffff:127.0.0.1", "fe80::1%eth0", "64:ff9b::7f00:1",
		"a..b", ".a", "-a.b", "a-.b", "r3---sn-x.example.com", "api。example。com", "apі.example.com", "a%2eb", "a\x00b", "a@b", "a\\b", "a/b", "a b",
		"\u212a.example.com", "a.0x", "a.0x1f", "a.0xg", strings.Repeat("a", 64) + ".b", strings.Repeat("a.", 127), "",
	}
}

// FuzzCanonicalHost: what has a canonical form has one, and the standard library
// and IDNA take it for the same host.
func FuzzCanonicalHost(f *testing.F) {
	for _, h := range hosts() {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, err := egress.CanonicalHost(s)
		if err != nil {
			if host != "" {
				t.Fatalf("%q: %q beside an error", s, host)
			}
			return
		}
		if again, err := egress.CanonicalHost(host); err != nil || again != host {
			t.Fatalf("%q: %q is not stable: %q, %v", s, host, again, err)
		}
		if strings.Trim(host, "abcdefghijklmnopqrstuvwxyz0123456789-_.:") != "" || len(host) > 253 {
			t.Fatalf("%q: %q has foreign bytes or is too long", s, host)
		}
		if addr, err := netip.ParseAddr(host); err == nil {
			if addr.Is4In6() || addr.String() != host {
				t.Fatalf("%q: address %q is not the canonical form of %s", s, host, addr)
			}
			same, err := netip.ParseAddr(s)
			if err != nil || same.Unmap() != addr {
				t.Fatalf("%q is %s for netip, %v, and %s here", s, same, err, addr)
			}
			return
		}
		if !strings.EqualFold(strings.TrimSuffix(s, "."), host) {
			t.Fatalf("%q became %q: something was mapped", s, host)
		}
		u, err := url.Parse("http://" + s + "/")
		if err != nil || !strings.EqualFold(u.Hostname(), s) || u.Port() != "" || u.User != nil {
			t.Fatalf("%q: the standard library has %+v, %v", s, u, err)
		}
		// IDNA knows no underscores; what else it refuses is its own affair, but it
		// must not find another name.
		if a, err := idna.Lookup.ToASCII(host); err == nil && a != host {
			t.Fatalf("%q: IDNA makes %q of it", host, a)
		}
	})
}

// FuzzSplitAuthority: what it takes apart, net/url takes apart alike, and it can be
// put together again.
func FuzzSplitAuthority(f *testing.F) {
	for _, h := range hosts() {
		f.Add(h)
		f.Add(h + ":443")
		f.Add("[" + h + "]:443")
	}
	for _, s := range []string{"a:0", "a:", ":80", "a:99999", "a:+1", "a:01", "a:1:2", "[::1]", "[::1", "::1]", "[::1]]:1", "[::1]1", "u@a:1", "a@b:1@c", "a:1@b", "[a]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, port, err := egress.SplitAuthority(s)
		if err != nil {
			if host != "" || port != 0 {
				t.Fatalf("%q: %q %d beside an error", s, host, port)
			}
			return
		}
		joined := host
		if strings.Contains(host, ":") {
			joined = "[" + host + "]"
		}
		if port != 0 {
			joined += ":" + strconv.Itoa(port)
		}
		if joined != s || port < 0 || port > 65535 {
			t.Fatalf("%q came apart as %q and %d", s, host, port)
		}
		if _, err := egress.CanonicalHost(host); err != nil {
			t.Fatalf("%q: host %q: %v", s, host, err)
		}
		u, err := url.Parse("http://" + s + "/")
		if err != nil || u.User != nil || u.Hostname() != host || port != 0 && u.Port() != strconv.Itoa(port) || port == 0 && u.Port() != "" {
			t.Fatalf("%q: the standard library has %+v, %v", s, u, err)
		}
	})
}

// FuzzRules: a policy of one rule allows what a second, simple reading of the rule
// says, and never an address that is not public.
func FuzzRules(f *testing.F) {
	rules := []string{
		"api.example.com", ".example.com", "*.example.com", "a.example.com:8443", "tcp://db.example.com:5432", "tcp://*.example.com:1",
		"93.184.216.34", "93.184.0.0/16:22", "[2606:4700::1]:443", "2606:4700::/32", "100.0.0.0/8", ".com", "*", "a:0", "tcp://a", "http://a", "bücher.example",
		"1.1.1.1/32", "::/0", "[::ffff:1.1.1.1]", "_a.b", "a.b.c.d:65535",
	}
	for i, h := range hosts() {
		f.Add(rules[i%len(rules)], h, 443)
	}
	for _, r := range rules {
		f.Add(r, "a.example.com", 443)
	}
	f.Fuzz(func(t *testing.T, rule, host string, port int) {
		r, err := egress.Compile(&egress.Policy{Allow: []string{rule}}, 1)
		if err != nil {
			if r != nil {
				t.Fatalf("%q: rules beside %v", rule, err)
			}
			return
		}
		v := r.Decide(egress.Query{Host: host, Port: port})
		if v.Reason == "" || v.Generation != 1 {
			t.Fatalf("%q for %q: %+v", rule, host, v)
		}
		if e := r.Explain(egress.Query{Host: host, Port: port}); e.Verdict != v || v.Reason != egress.ReasonMalformed && len(e.Steps) != 1 {
			t.Fatalf("%q for %q: explained as %+v, decided %+v", rule, host, e, v)
		}
		if !v.Allow {
			return
		}
		if v.Rule != rule || v.Inward || v.Brokered || int(v.Port) != port {
			t.Fatalf("%q for %q: %+v", rule, host, v)
		}
		if !simply(rule, v) {
			t.Fatalf("%q allows %q as %+v", rule, host, v)
		}
	})
}

// simply reads a rule that is known to be good by cutting strings.
func simply(rule string, v egress.Verdict) bool {
	rest, tcp := strings.CutPrefix(rule, "tcp://")
	if tcp != v.Opaque {
		return false
	}
	ports, name := " 80 443 ", rest
	if i := strings.LastIndexByte(rest, ':'); i >= 0 && !strings.ContainsAny(rest[i:], "]/") {
		ports, name = " "+rest[i+1:]+" ", rest[:i]
	}
	if !strings.Contains(ports, " "+strconv.Itoa(int(v.Port))+" ") {
		return false
	}
	name = strings.Trim(name, "[]")
	if v.Addr.IsValid() {
		if !v.Addr.IsGlobalUnicast() || v.Addr.IsPrivate() {
			return false
		}
		if p, err := netip.ParsePrefix(name); err == nil {
			return p.Contains(v.Addr)
		}
		a, err := netip.ParseAddr(name)
		return err == nil && a == v.Addr
	}
	if a, err := idna.Punycode.ToASCII(strings.TrimLeft(name, "*.")); err == nil {
		name = name[:len(name)-len(strings.TrimLeft(name, "*."))] + a
	}
	switch {
	case strings.HasPrefix(name, "*."):
		return strings.HasSuffix(v.Host, name[1:])
	case strings.HasPrefix(name, "."):
		return strings.HasSuffix("."+v.Host, name)
	}
	return v.Host == name
}
