package address

import (
	"net/netip"
	"slices"
)

// embedded lists the IPv4 addresses that an IPv6 address may carry by any of the
// ways in which a host or a router would send the packet on to them.
func embedded(addr netip.Addr) []netip.Addr {
	if addr.Is4() {
		return nil
	}
	b := addr.As16()
	last := v4(b[12:])
	zeros := func(from, to int) bool { return !slices.ContainsFunc(b[from:to], func(x byte) bool { return x != 0 }) }
	var out []netip.Addr
	switch {
	case zeros(0, 12) && b[12] != 0, zeros(0, 8) && b[8] == 0xff && b[9] == 0xff && zeros(10, 12):
		// IPv4-compatible, and SIIT's ::ffff:0:a.b.c.d.
		out = append(out, last)
	case b[0] == 0x00 && b[1] == 0x64 && b[2] == 0xff && b[3] == 0x9b:
		// NAT64. The local-use /48 may be divided as its network likes, so it is read
		// with each length that fits.
		out = append(out, last)
		if b[5] == 1 {
			for _, bits := range []int{48, 56, 64} {
				out = append(out, at(b, bits))
			}
		}
	case b[0] == 0x20 && b[1] == 0x02:
		// 6to4.
		out = append(out, v4(b[2:]))
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0:
		// Teredo: the server, and the client with all bits flipped.
		out = append(out, v4(b[4:]), v4([]byte{^b[12], ^b[13], ^b[14], ^b[15]}))
	}
	if b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe {
		// ISATAP, below any prefix.
		out = append(out, last)
	}
	return out
}

// translate classes an address below a DNS64 prefix by what it translates to.
func translate(addr netip.Addr, dns64 []netip.Prefix) (Class, bool) {
	for _, p := range dns64 {
		if !p.IsValid() || !p.Contains(addr) {
			continue
		}
		b := addr.As16()
		if !ValidDNS64(p) || p.Bits() < 96 && b[8] != 0 {
			return Inward, true
		}
		return table(at(b, p.Bits())), true
	}
	return Inward, false
}

// Reached is the address that packets to addr end up at: what it translates to where
// it is below a DNS64 prefix, itself otherwise, unmapped and without a zone.
func Reached(addr netip.Addr, dns64 ...netip.Prefix) netip.Addr {
	addr = addr.WithZone("").Unmap()
	for _, p := range dns64 {
		if ValidDNS64(p) && p.Contains(addr) {
			return at(addr.As16(), p.Bits())
		}
	}
	return addr
}

// ValidDNS64 reports whether a prefix has one of the forms of RFC 6052.
func ValidDNS64(p netip.Prefix) bool {
	return p.IsValid() && p.Addr().Is6() && !p.Addr().Is4In6() && slices.Contains([]int{32, 40, 48, 56, 64, 96}, p.Bits())
}

// at reads the IPv4 address behind a prefix of so many bits, which steps over the
// ninth byte.
func at(b [16]byte, bits int) netip.Addr {
	var four []byte
	for i := bits / 8; len(four) < 4; i++ {
		if i != 8 || bits == 96 {
			four = append(four, b[i])
		}
	}
	return v4(four)
}

func v4(b []byte) netip.Addr { return netip.AddrFrom4([4]byte{b[0], b[1], b[2], b[3]}) }
