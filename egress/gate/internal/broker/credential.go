package broker

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

// secret is a text that no print shows. It is a function because fmt calls no
// method of a value in an unexported field, but never looks into a function.
type secret func() string

func conceal(text string) secret { return func() string { return text } }

// Set is the credentials of one policy, made ready. It is not changed after
// Compile and safe for concurrent use. A nil Set is empty.
type Set struct {
	bound map[string]*Bound
	// placeholders finds those of all credentials; nil where there is none.
	placeholders *matcher
	// folded are the placeholders in lower case, for the names of headers.
	folded []string
}

// Bound is one credential with its host.
type Bound struct {
	set         *Set
	id, host    string
	methods     []string
	paths       [][]string
	header      string
	prefix      string
	value       secret
	source      egress.Source
	placeholder string
	// rendered is the last secret with its matcher: secrets rotate seldom.
	rendered atomic.Pointer[rendered]
}

// rendered is a secret with what finds it again.
type rendered struct {
	value   secret
	matcher *matcher
}

// Compile checks credentials and makes them ready. All faults are in one
// errdefs.Invalid error, which has no secret in it.
func Compile(credentials []egress.Credential) (*Set, error) {
	s := &Set{bound: map[string]*Bound{}}
	var faults, placeholders []string
	for i := range credentials {
		c := &credentials[i]
		name := fmt.Sprintf("credential %d (%s)", i+1, clip(c.Host))
		for _, fault := range check(c) {
			faults = append(faults, name+": "+fault)
		}
		if _, twice := s.bound[c.Host]; twice {
			faults = append(faults, name+": another credential has the same host")
		}
		s.bound[c.Host] = bind(s, c)
		if c.Placeholder != "" {
			placeholders = append(placeholders, c.Placeholder)
			s.folded = append(s.folded, strings.ToLower(c.Placeholder))
		}
	}
	if len(faults) > 0 {
		return nil, errdefs.New(errdefs.Invalid, "compile credentials", faults...)
	}
	if len(placeholders) > 0 {
		s.placeholders = newMatcher(placeholders)
	}
	return s, nil
}

func bind(s *Set, c *egress.Credential) *Bound {
	b := &Bound{
		set: s, id: c.ID, host: c.Host, methods: slices.Clone(c.Methods), header: http.CanonicalHeaderKey(c.Header),
		prefix: c.Prefix, value: conceal(c.Value), source: c.Source, placeholder: c.Placeholder,
	}
	if b.id == "" {
		b.id = c.Host
	}
	if b.header == "" {
		b.header = "Authorization"
	}
	for _, path := range c.Paths {
		// check has refused those that cannot be taken apart.
		prefix, _ := segments(path)
		b.paths = append(b.paths, prefix)
	}
	return b
}

// check lists what is wrong with a credential.
func check(c *egress.Credential) []string {
	var out []string
	fault := func(bad bool, format string, args ...any) {
		if bad {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	canonical, err := egress.CanonicalHost(c.Host)
	fault(err != nil || canonical != c.Host || net.ParseIP(c.Host) != nil, "the host is not one canonical name")
	for _, method := range c.Methods {
		fault(!httpguts.ValidHeaderFieldName(method) || method != strings.ToUpper(method), "method %q is not one in capitals", method)
		fault(neverMethod(method), "method %q never carries a credential", method)
	}
	for _, path := range c.Paths {
		_, err := segments(path)
		fault(err != nil || strings.ContainsAny(path, "%?#"), "path %q is not a plain path", path)
	}
	fault(c.Header != "" && !httpguts.ValidHeaderFieldName(c.Header), "header %q is not the name of one", c.Header)
	fault(reserved(c.Header), "header %q is not one for credentials", c.Header)
	fault(!httpguts.ValidHeaderFieldValue(c.Prefix) || strings.TrimLeft(c.Prefix, " \t") != c.Prefix, "the prefix is not the beginning of a header's value")
	fault((c.Value == "") == (c.Source == nil), "exactly one of value and source is needed")
	if c.Value != "" {
		err := checkValue(c.Value)
		fault(err != nil, "the value %v", err)
	}
	if c.Placeholder != "" {
		err := checkValue(c.Placeholder)
		fault(err != nil, "the placeholder %v", err)
		fault(c.Value != "" && (strings.Contains(c.Value, c.Placeholder) || strings.Contains(c.Placeholder, c.Value)),
			"the placeholder and the value are not apart")
	}
	return out
}

// checkValue judges a secret or a placeholder; the error does not have it.
func checkValue(value string) error {
	switch {
	case len(value) < shortest:
		return fmt.Errorf("has less than %d bytes", shortest)
	case len(value) > longest:
		return fmt.Errorf("has more than %d bytes", longest)
	case !httpguts.ValidHeaderFieldValue(value) || strings.TrimSpace(value) != value:
		return fmt.Errorf("cannot be sent in a header")
	}
	return nil
}

// neverMethod names the methods that a server answers with the request itself,
// and the one that is not a request to it.
func neverMethod(method string) bool {
	return slices.ContainsFunc([]string{http.MethodTrace, "TRACK", http.MethodConnect}, func(m string) bool {
		return strings.EqualFold(m, method)
	})
}

// reserved names headers that frame or direct a request: a credential there would
// change what the request is.
func reserved(header string) bool {
	if header == "" {
		return false
	}
	return strip(header) || slices.Contains([]string{
		"host", "content-length", "transfer-encoding", "accept-encoding", "expect", "trailer", "content-type", "content-encoding",
		strings.ToLower(egress.HopHeader),
	}, folded(header))
}

// For gives the credential of a canonical host, nil where there is none.
func (s *Set) For(host string) *Bound {
	if s == nil {
		return nil
	}
	return s.bound[host]
}

// Hosts lists the hosts with a credential, sorted.
func (s *Set) Hosts() []string {
	if s == nil {
		return nil
	}
	out := make([]string, 0, len(s.bound))
	for host := range s.bound {
		out = append(out, host)
	}
	slices.Sort(out)
	return out
}

// ID names the credential in records.
func (b *Bound) ID() string { return b.id }

// Host is the canonical host.
func (b *Bound) Host() string { return b.host }

// revealing lists the texts that give a secret away: itself, and what it decodes
// to where it is a user and a password.
func (b *Bound) revealing(value string) []string {
	out := []string{value}
	if !strings.EqualFold(strings.TrimSpace(b.prefix), "basic") {
		return out
	}
	pair, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return out
	}
	_, password, _ := strings.Cut(string(pair), ":")
	for _, text := range []string{string(pair), password} {
		if len(text) >= shortest {
			out = append(out, text)
		}
	}
	return out
}

// matcherFor gives what finds a secret, made anew only when it has changed.
func (b *Bound) matcherFor(value string) *matcher {
	if have := b.rendered.Load(); have != nil && have.value() == value {
		return have.matcher
	}
	m := newMatcher(b.revealing(value))
	b.rendered.Store(&rendered{value: conceal(value), matcher: m})
	return m
}
