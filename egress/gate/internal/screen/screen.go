// Package screen is the one way out of a gate: it resolves a name that a verdict
// allows, looks at every address that comes back, and dials one of those that it
// has looked at. There is no second look-up between look and dial.
package screen

import (
	"net/netip"

	"github.com/berm-dev/berm/egress/internal/address"
)

// Class says where an address leads; the zero Class is Inward.
type Class = address.Class

// The classes.
const (
	Inward   = address.Inward
	Metadata = address.Metadata
	Public   = address.Public
)

// Screen classes an address by itself and by every IPv4 address that it carries
// (IPv4-mapped and -compatible, SIIT, NAT64, 6to4, Teredo, ISATAP); the worst
// counts. dns64 are the prefixes by which this network translates.
func Screen(addr netip.Addr, dns64 ...netip.Prefix) Class { return address.Classify(addr, dns64...) }
