package egress

import (
	"context"
	"fmt"
	"time"
)

// Policy is what one sandbox may reach: plain data, not changed while in use.
// The zero Policy denies everything.
type Policy struct {
	// Allow lists rules, see the package's documentation for their forms.
	Allow []string
	// AllowAny allows every public name on every port as TCP; addresses stay
	// screened. Address literals need a rule of their own also then.
	AllowAny bool
	// Resolver adds rules when they are asked for; nil for none. See Resolver.
	Resolver Resolver
	// AllowInwardFor lists names, each `host` or `host:port`, whose addresses may
	// be private, loopback or otherwise inward. It allows nothing by itself. Link-
	// local addresses and cloud metadata are never exempt. An address or a block, with
	// or without a port, exempts what is asked for as an address.
	AllowInwardFor []string
	// Credentials are put on by the gate and never enter the sandbox.
	Credentials []Credential
}

// Resolver returns rules that are added to a policy's. The gate calls it for a
// decision that needs it, within ResolverTimeout, and uses what it returned for
// ResolverCache. A Resolver that fails, is late or returns a rule that is not one
// denies whatever the policy itself does not allow. Calls do not overlap.
type Resolver func(ctx context.Context) ([]string, error)

const (
	// ResolverCache is how long the rules of a Resolver are used.
	ResolverCache = 30 * time.Second
	// ResolverTimeout bounds one call of a Resolver.
	ResolverTimeout = 5 * time.Second
	// HopHeader carries the gates that a plain request has passed, so that a chain
	// of gates that leads back to itself ends.
	HopHeader = "Berm-Hop"
)

// Credential is a secret that the gate puts on the requests to one host. A host
// with a credential is brokered: the gate ends TLS for it, with a certificate
// authority of the sandbox's own, and judges each request.
type Credential struct {
	// ID names the credential in records; empty for the host's name. It is not
	// secret.
	ID string
	// Host is one canonical host name, without a port. It needs no rule in Allow;
	// having the credential allows it on ports 80 (upgraded to HTTPS) and 443.
	Host string
	// Methods are the methods that carry the credential; empty for all but TRACE
	// and CONNECT. Others are denied.
	Methods []string
	// Paths are prefixes of the paths that carry the credential, matched by whole
	// segments on the cleaned path; empty for all. Others are denied.
	Paths []string
	// Header is the header's name, "Authorization" when empty.
	Header string
	// Prefix goes before the value, for example "Bearer ".
	Prefix string
	// Value is the secret. Exactly one of Value and Source is set.
	Value string
	// Source returns the secret; it is called for each request, so that it may
	// rotate. A failing Source denies the request.
	Source Source
	// Placeholder, when not empty, is a value without meaning that the sandbox may
	// hold: only requests that carry it in Header are sent, with the secret in its
	// place, and one that carries it anywhere else is denied.
	Placeholder string
}

// Format prints which credential it is and never its value, whatever the verb, so
// that a policy can stand in a log.
func (c Credential) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "credential %q for %q", c.ID, c.Host)
}

// Source returns a secret. Calls may overlap.
type Source func(ctx context.Context) (string, error)
