package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

const (
	maxName  = 253
	maxLabel = 63
)

// CanonicalHost returns the one form in which a host is judged, resolved and
// written down: a lower-case name without the root's dot, or an address as netip
// writes it, IPv4-mapped ones as IPv4. s has neither port nor brackets.
//
// What has more than one reading is an error, and never mapped to something: bytes
// beyond ASCII, percent signs, empty and overlong labels, hyphens at the ends of
// labels, A-labels that are not what IDNA makes, zones, and names whose last label
// some resolver takes for a number unless they are an address to netip.
func CanonicalHost(s string) (string, error) {
	host, _, err := canonical(s)
	return host, err
}

// canonical is CanonicalHost with the address of a literal, which is not valid for
// a name.
func canonical(s string) (string, netip.Addr, error) {
	switch {
	case s == "":
		return "", netip.Addr{}, errors.New("the host is empty")
	case len(s) > maxName+1:
		return "", netip.Addr{}, fmt.Errorf("the host has %d bytes; %d is the most", len(s), maxName)
	case strings.IndexByte(s, ':') >= 0:
		addr, err := netip.ParseAddr(s)
		if err != nil || addr.Zone() != "" {
			return "", netip.Addr{}, fmt.Errorf("host %q is no IPv6 address without a zone", s)
		}
		addr = addr.Unmap()
		return addr.String(), addr, nil
	}
	name := lower(strings.TrimSuffix(s, "."))
	if len(name) > maxName {
		return "", netip.Addr{}, fmt.Errorf("the host has %d bytes; %d is the most", len(name), maxName)
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if err := checkLabel(label); err != nil {
			return "", netip.Addr{}, fmt.Errorf("host %q: %w", s, err)
		}
		last = label
	}
	if !numeric(last) {
		return name, netip.Addr{}, nil
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return "", netip.Addr{}, fmt.Errorf("host %q ends in a number and is no IPv4 address of four decimal parts", s)
	}
	return addr.String(), addr, nil
}

// lower maps A to Z only: strings.ToLower would map the Kelvin sign to k before
// anything has looked at it.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// checkLabel wants letters, digits, hyphens inside, and underscores, which the
// names of services have. l is in lower case.
func checkLabel(l string) error {
	switch {
	case l == "":
		return errors.New("a label is empty")
	case len(l) > maxLabel:
		return fmt.Errorf("a label has %d bytes; %d is the most", len(l), maxLabel)
	case l[0] == '-' || l[len(l)-1] == '-':
		return fmt.Errorf("label %q begins or ends with a hyphen", l)
	}
	for i := range len(l) {
		c := l[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return fmt.Errorf("byte %#02x does not belong into a name", c)
		}
	}
	if !strings.HasPrefix(l, "xn--") {
		return nil
	}
	// There and back: an A-label that decodes to what another label encodes is a
	// second spelling of that one.
	u, err := idna.Lookup.ToUnicode(l)
	if err != nil {
		return fmt.Errorf("label %q is no A-label", l)
	}
	if a, err := idna.Lookup.ToASCII(u); err != nil || a != l || u == l {
		return fmt.Errorf("label %q is no A-label", l)
	}
	return nil
}

// numeric reports whether inet_aton would take a last label for a number: 10, 012,
// 0x7f, 0x.
func numeric(label string) bool {
	digits, hex := label, "0123456789"
	if rest, ok := strings.CutPrefix(label, "0x"); ok {
		digits, hex = rest, "0123456789abcdef"
	}
	return strings.Trim(digits, hex) == ""
}

// SplitAuthority takes `host`, `host:port`, `[v6]` or `[v6]:port` apart. The host
// comes back as it was written, without brackets, and has a canonical form. port is
// 0 where none was written, which Decide takes for malformed: whoever has a default
// puts it in. Anything else is an error, among it user information, port 0, signs,
// leading zeros, and an IPv6 address without brackets.
func SplitAuthority(s string) (host string, port int, err error) {
	rest, hasPort := "", false
	if strings.HasPrefix(s, "[") {
		var closed bool
		host, rest, closed = strings.Cut(s[1:], "]")
		if !closed || !strings.Contains(host, ":") {
			return "", 0, fmt.Errorf("%q has brackets without an IPv6 address", clip(s))
		}
		if rest != "" {
			if rest[0] != ':' {
				return "", 0, fmt.Errorf("%q has something other than a port after the bracket", clip(s))
			}
			rest, hasPort = rest[1:], true
		}
	} else if host, rest, hasPort = strings.Cut(s, ":"); strings.Contains(rest, ":") {
		return "", 0, fmt.Errorf("%q has more than one colon and no brackets", clip(s))
	}
	if _, _, err := canonical(host); err != nil {
		return "", 0, err
	}
	if !hasPort {
		return host, 0, nil
	}
	if port, err = parsePort(rest); err != nil {
		return "", 0, err
	}
	return host, port, nil
}

// parsePort wants 1 to 65535 in plain decimal.
func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s != strconv.FormatUint(n, 10) {
		return 0, fmt.Errorf("port %q is not one of 1 to 65535", clip(s))
	}
	return int(n), nil
}

// clip keeps hostile text in errors short.
func clip(s string) string {
	if len(s) > 300 {
		return s[:300]
	}
	return s
}
