package egress

import "net/netip"

// Protocol is how a request came to the gate.
type Protocol string

// The protocols.
const (
	// HTTP: a plain request with an absolute URI.
	HTTP Protocol = "http"
	// Connect: HTTP CONNECT.
	Connect Protocol = "connect"
	// SOCKS: SOCKS5 CONNECT.
	SOCKS Protocol = "socks"
	// Terminated: a request inside a tunnel whose TLS the gate ended.
	Terminated Protocol = "terminated"
)

// Query is one thing to decide. Host is as the client wrote it, without port and
// brackets; it is judged in its canonical form.
type Query struct {
	Protocol Protocol
	Host     string
	Port     int
}

// Verdict is the answer to a Query.
type Verdict struct {
	// Allow is false in the zero Verdict.
	Allow bool
	// Reason is never empty in a verdict that Decide returned.
	Reason Reason
	// Rule is the rule or credential that decided, as it was written; empty when
	// none did.
	Rule string
	// Host is the canonical form; empty when there is none.
	Host string
	// Addr is set where the host is a literal; nothing is resolved then.
	Addr netip.Addr
	// Port is the target's.
	Port uint16
	// Opaque is set where the rule says tcp: what is inside the tunnel is not
	// looked at.
	Opaque bool
	// Inward is set where the policy exempts this host and port.
	Inward bool
	// Brokered is set where the host has a credential.
	Brokered bool
	// Generation is that of the rules that decided.
	Generation uint64
}

// Reason is a stable code of why something was allowed or denied. Codes are
// lower-case words with dashes.
type Reason string

// The reasons.
const (
	ReasonRule           Reason = "rule"               // a rule allows it
	ReasonAny            Reason = "any"                // AllowAny allows it
	ReasonCredential     Reason = "credential"         // a credential's host
	ReasonNoRule         Reason = "no-rule"            // nothing allows it
	ReasonPort           Reason = "port"               // the name is allowed, on other ports
	ReasonLiteral        Reason = "literal"            // an address without a rule of its own
	ReasonMalformed      Reason = "malformed"          // no canonical form, or a broken request
	ReasonResolver       Reason = "resolver"           // the Resolver failed
	ReasonInward         Reason = "inward"             // an address is not public
	ReasonMetadata       Reason = "metadata"           // an address is link-local or a cloud's metadata
	ReasonSelf           Reason = "self"               // an address is the gate's own machine's
	ReasonDNS            Reason = "dns"                // the name did not resolve
	ReasonDial           Reason = "dial"               // no address answered
	ReasonSNI            Reason = "sni"                // TLS names another host, or none
	ReasonECH            Reason = "ech"                // an encrypted ClientHello with another outer name
	ReasonNotTLS         Reason = "not-tls"            // a tunnel without TLS and without a tcp rule
	ReasonTLSTimeout     Reason = "tls-timeout"        // a silent tunnel
	ReasonHost           Reason = "host"               // Host or :authority is not the tunnel's target
	ReasonTLSVerify      Reason = "tls-verify"         // the upstream's certificate is not good
	ReasonClientCA       Reason = "client-rejected-ca" // the client does not trust the sandbox's authority
	ReasonMethod         Reason = "method"             // the credential's rules do not have the method
	ReasonPath           Reason = "path"               // the credential's rules do not have the path
	ReasonCredentialLost Reason = "credential-source"  // the credential's Source failed
	ReasonPlaceholder    Reason = "placeholder-misplaced"
	ReasonUnterminated   Reason = "unterminated"      // brokered, and the gate cannot end its TLS
	ReasonUpstream       Reason = "upstream"          // the upstream broke the protocol
	ReasonUpgrade        Reason = "upgrade"           // a protocol switch to a brokered host
	ReasonLoop           Reason = "loop"              // the request has passed this gate already
	ReasonAuth           Reason = "auth"              // the client lacks the credential of the listener
	ReasonLimit          Reason = "limit"             // a limit of the sandbox's is reached
	ReasonTimeout        Reason = "timeout"           // a phase took too long
	ReasonGeneration     Reason = "policy-generation" // the policy changed under an open flow
	ReasonAudit          Reason = "audit"             // the record could not be kept
	ReasonCommand        Reason = "command"           // a SOCKS command other than CONNECT
	ReasonInternal       Reason = "internal"          // a fault of the gate's own
	ReasonClosed         Reason = "closed"            // the gate is closing
	ReasonDone           Reason = "done"              // the flow ended by itself
)
