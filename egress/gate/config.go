package gate

import (
	"crypto/x509"
	"log/slog"
	"net/netip"
	"time"

	"github.com/berm-dev/berm/egress"
)

// Config is what a Gate is made of. Nothing in it is changed while in use.
type Config struct {
	// Sandbox names the sandbox in every record.
	Sandbox string
	// Policy is the first policy; nil denies everything.
	Policy *egress.Policy
	// Sink keeps the records; nil drops them.
	Sink egress.Sink
	// Nameservers are asked instead of those of the host's resolv.conf. Each is an
	// address, with or without a port.
	Nameservers []string
	// DNS64 is the prefix under which this network's resolvers embed IPv4 addresses,
	// 64:ff9b::/96 as a rule; the zero Prefix for none, and then what is embedded is
	// not reached.
	DNS64 netip.Prefix
	// Roots verify the upstreams of brokered hosts; nil for the system's.
	Roots *x509.CertPool
	// Username and Password, when set, have to be given by every client: as Basic
	// Proxy-Authorization or as SOCKS5 user name and password. Both or neither.
	Username, Password string
	// Limits and Timeouts bound one gate, which is one sandbox's.
	Limits   Limits
	Timeouts Timeouts
	// Logger gets faults of the gate's own; nil is silent.
	Logger *slog.Logger
}

// Limits bound what one sandbox can use up. A zero field stands for its default.
type Limits struct {
	// Connections that are open at a time, tunnels included; 1,200.
	Connections int
	// Tunnels that are open at a time; 1,100.
	Tunnels int
	// Requests that are being answered at a time, those in tunnels that are looked
	// into included; 1,200. Each may need a connection to an upstream.
	Requests int
	// AcceptsPerSecond is how many connections are taken; the others wait in the
	// sandbox's own queue; 1,000.
	AcceptsPerSecond int
	// HeaderBytes of one request or response; 64 KiB.
	HeaderBytes int
	// HeaderFields of one request or response; 256.
	HeaderFields int
}

// Timeouts bound the phases of a connection. A zero field stands for its default.
type Timeouts struct {
	// Header is for one request's whole header, and for all that SOCKS asks for
	// before the tunnel; 10 s.
	Header time.Duration
	// Hello is for the ClientHello of a tunnel, and the TLS handshake of one that
	// is ended here; 10 s.
	Hello time.Duration
	// Dial is for resolving and connecting, and for the upstream's TLS; 20 s.
	Dial time.Duration
	// Idle is between two requests of a connection, on both sides; 60 s.
	Idle time.Duration
	// Body is between two pieces of a request's body; 30 s.
	Body time.Duration
	// Flow is how long nothing may move in a tunnel or a response; 1 h.
	Flow time.Duration
	// Sink is for writing one record; 5 s.
	Sink time.Duration
}

func (l Limits) withDefaults() Limits {
	orInt(&l.Connections, 1200)
	orInt(&l.Tunnels, 1100)
	orInt(&l.Requests, 1200)
	orInt(&l.AcceptsPerSecond, 1000)
	orInt(&l.HeaderBytes, 64<<10)
	orInt(&l.HeaderFields, 256)
	return l
}

func (t Timeouts) withDefaults() Timeouts {
	orDuration(&t.Header, 10*time.Second)
	orDuration(&t.Hello, 10*time.Second)
	orDuration(&t.Dial, 20*time.Second)
	orDuration(&t.Idle, time.Minute)
	orDuration(&t.Body, 30*time.Second)
	orDuration(&t.Flow, time.Hour)
	orDuration(&t.Sink, 5*time.Second)
	return t
}

func orInt(p *int, value int) {
	if *p == 0 {
		*p = value
	}
}

func orDuration(p *time.Duration, value time.Duration) {
	if *p == 0 {
		*p = value
	}
}

// faults lists what is wrong with the numbers and the credential.
func (c *Config) faults() []string {
	var out []string
	l, t := c.Limits, c.Timeouts
	if min(l.Connections, l.Tunnels, l.Requests, l.AcceptsPerSecond, l.HeaderBytes, l.HeaderFields) < 0 {
		out = append(out, "a limit is negative")
	}
	if min(t.Header, t.Hello, t.Dial, t.Idle, t.Body, t.Flow, t.Sink) < 0 {
		out = append(out, "a timeout is negative")
	}
	if (c.Username == "") != (c.Password == "") {
		out = append(out, "of user name and password only one is set")
	}
	if len(c.Username) > 255 || len(c.Password) > 255 {
		out = append(out, "a user name or password is longer than 255 bytes")
	}
	return out
}
