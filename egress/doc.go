// Package egress decides what a sandbox may reach. It is pure: it reads nothing,
// resolves nothing and dials nothing; egress/gate does.
//
// A rule is one of
//
//	api.example.com        that name
//	.example.com           that name and every name below it
//	*.example.com          every name below it, not the name itself
//	api.example.com:8443   any of the above with a port
//	tcp://db.example.com:5432   any protocol, not only TLS and HTTP; a port is a must
//	192.0.2.7:443, 192.0.2.0/24, [2001:db8::1]:443, 2001:db8::/32
//	                       addresses that were asked for as literals
//	192.0.2.0/24:22, [2001:db8::/32]:22
//	                       blocks with a port
//
// Without a port a rule stands for 80 and 443. Only plain HTTP goes through port
// 80 and TLS through any other, unless the rule says tcp.
//
// Rules are written in the canonical form, or in Unicode that IDNA does not change.
// A rule that covers a whole public suffix (.com, *.co.uk, .github.io), or blocks
// wider than /8 and /16, is refused. So is one for addresses that are not public
// unless AllowInwardFor has them, which goes for those of the examples above: they
// are kept for documentation. Of several rules the narrowest one decides; see Rules.
package egress
