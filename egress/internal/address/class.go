// Package address tells public addresses from those that lead inward, to the
// machine itself, its neighbours or its cloud, whatever they are dressed as. It is
// pure, and safe for concurrent use.
package address

import "net/netip"

// Class says where an address leads. The zero Class is Inward, so that a
// forgotten one denies.
type Class uint8

// The classes.
const (
	// Inward: private, loopback, reserved, multicast, or not global unicast.
	Inward Class = iota
	// Metadata: link-local, or a cloud's own services. Never exempt.
	Metadata
	// Public: the internet.
	Public
)

// String names the class.
func (c Class) String() string {
	switch c {
	case Public:
		return "public"
	case Metadata:
		return "metadata"
	case Inward:
	}
	return "inward"
}

// block is one row of the table.
type block struct {
	prefix netip.Prefix
	class  Class
	name   string
}

// global is all that IANA has given to the internet so far: any other IPv6
// address is inward without being listed.
var global = netip.MustParsePrefix("2000::/3")

// Classify classes an address by itself and by every IPv4 address that it
// carries: the worst counts. dns64 are the prefixes by which this network
// translates to IPv4, of 32, 40, 48, 56, 64 or 96 bits (RFC 6052); an address below
// one is what it translates to. The invalid address and one with a zone are Inward
// or worse.
func Classify(addr netip.Addr, dns64 ...netip.Prefix) Class {
	if !addr.IsValid() {
		return Inward
	}
	zoned := addr.Zone() != ""
	addr = addr.WithZone("").Unmap()
	class, translated := translate(addr, dns64)
	if !translated {
		class = table(addr)
		for _, inner := range embedded(addr) {
			class = worse(class, table(inner))
		}
	}
	if zoned {
		class = worse(class, Inward)
	}
	return class
}

// worse orders Metadata before Inward before Public.
func worse(a, b Class) Class {
	switch {
	case a == Metadata || b == Metadata:
		return Metadata
	case a == Inward || b == Inward:
		return Inward
	}
	return Public
}

// table looks up the address as it is, without disguises.
func table(addr netip.Addr) Class {
	class := Public
	if addr.Is6() && !global.Contains(addr) {
		class = Inward
	}
	for _, b := range special {
		if b.prefix.Contains(addr) {
			class = worse(class, b.class)
		}
	}
	return class
}

// ClassifyPrefix is Metadata or Inward where the whole block is, and Public where
// any of it may be public.
func ClassifyPrefix(p netip.Prefix) Class {
	p = p.Masked()
	if p.IsSingleIP() {
		return Classify(p.Addr())
	}
	class := Public
	if p.Addr().Is6() && !global.Overlaps(p) {
		class = Inward
	}
	for _, b := range special {
		if b.prefix.Bits() <= p.Bits() && b.prefix.Contains(p.Addr()) {
			class = worse(class, b.class)
		}
	}
	return class
}

// Name is the registry's name of the narrowest special block with the address;
// empty for none.
func Name(addr netip.Addr) string {
	addr = addr.WithZone("").Unmap()
	name, bits := "", -1
	for _, b := range special {
		if b.prefix.Contains(addr) && b.prefix.Bits() > bits {
			name, bits = b.name, b.prefix.Bits()
		}
	}
	return name
}
