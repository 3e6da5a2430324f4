package egress

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// minPlaceholder is the shortest placeholder: a shorter one would be found by
// chance in what has nothing to do with it.
const minPlaceholder = 8

// A shorter secret would be found, and masked, by chance in what has nothing to
// do with it; a longer one does not fit into what servers take as a header.
const (
	minSecret = 8
	maxSecret = 8192
)

func cloneCredentials(in []Credential) []Credential {
	out := slices.Clone(in)
	for i := range out {
		out[i].Methods, out[i].Paths = slices.Clone(out[i].Methods), slices.Clone(out[i].Paths)
	}
	return out
}

// addCredentials checks the credentials. Faults name them by place and host, never
// by value.
func (r *Rules) addCredentials() (faults []string) {
	if n := len(r.policy.Credentials); n > maxCredentials {
		return []string{fmt.Sprintf("there are %d credentials; %d is the most", n, maxCredentials)}
	}
	r.brokered = map[string]*Credential{}
	ids := map[string]bool{}
	for i := range r.policy.Credentials {
		c := &r.policy.Credentials[i]
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Sprintf("credential %d for %q: ", i, clip(c.Host))+fmt.Sprintf(format, args...))
		}
		for _, err := range c.faults() {
			fault("%v", err)
		}
		host, addr, err := canonicalRule(c.Host)
		switch {
		case err != nil:
			fault("the host %v", err)
			continue
		case addr.IsValid():
			fault("the host is an address; a certificate needs a name")
			continue
		case r.brokered[host] != nil:
			fault("the host has a credential already")
		case ids[c.name()]:
			fault("the id %q is another credential's", clip(c.name()))
		}
		c.Host = host
		ids[c.name()] = true
		r.brokered[host] = c
	}
	return faults
}

// faults checks a credential by itself, all but its host.
func (c *Credential) faults() (out []error) {
	check := func(bad bool, text string) {
		if bad {
			out = append(out, errors.New(text))
		}
	}
	check((c.Value == "") == (c.Source == nil), "exactly one of value and source has to be set")
	check(!httpguts.ValidHeaderFieldValue(c.Prefix+c.Value+"x") || !ascii(c.Prefix+c.Value), "the prefix or the value cannot be in a header")
	check(c.Value != "" && (len(c.Value) < minSecret || len(c.Value) > maxSecret), fmt.Sprintf("the value has not %d to %d bytes", minSecret, maxSecret))
	check(c.Value != strings.TrimSpace(c.Value), "the value has space around it")
	check(c.Header != "" && !httpguts.ValidHeaderFieldName(c.Header), "the header's name is none")
	check(reserved(c.Header), "the header is one that the gate itself sets or removes")
	check(!ascii(c.ID) || len(c.ID) > 128, "the id is not printable ASCII of at most 128 bytes")
	check(c.Placeholder != "" && (len(c.Placeholder) < minPlaceholder || !ascii(c.Placeholder) || strings.Contains(c.Placeholder, " ")),
		fmt.Sprintf("the placeholder is not at least %d printable ASCII characters without spaces", minPlaceholder))
	check(c.Placeholder != "" && c.Value != "" && (strings.Contains(c.Value, c.Placeholder) || strings.Contains(c.Placeholder, c.Value)),
		"the placeholder has the value in it, or the other way round")
	for _, m := range c.Methods {
		check(!httpguts.ValidHeaderFieldName(m) || m != strings.ToUpper(m), fmt.Sprintf("method %q is none in capitals", clip(m)))
		check(m == "TRACE" || m == "CONNECT", fmt.Sprintf("method %s never carries a credential", m))
	}
	for _, p := range c.Paths {
		check(!cleanPath(p), fmt.Sprintf("path %q is not absolute and clean, or has one of %%?#\\ or a control character", clip(p)))
	}
	return out
}

// cleanPath reports whether p is a prefix that can be compared with cleaned paths.
// A slash at the end is taken for what it says to a reader.
func cleanPath(p string) bool {
	bare := p
	if len(p) > 1 {
		bare = strings.TrimSuffix(p, "/")
	}
	return strings.HasPrefix(p, "/") && path.Clean(bare) == bare && ascii(p) && !strings.ContainsAny(p, "%?#\\ ")
}

// ascii reports whether s is printable ASCII.
func ascii(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < 0x20 || r > 0x7e }) < 0
}

// reserved reports whether a header is about the connection, the message's frame
// or its target.
func reserved(name string) bool {
	return slices.ContainsFunc([]string{
		"Host", "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authorization", "Proxy-Authenticate", "TE", "Trailer",
		"Transfer-Encoding", "Content-Length", "Content-Encoding", "Accept-Encoding", "Upgrade", "Expect", "Forwarded",
		"X-Forwarded-Host", "X-Host", "X-Original-URL", "X-Rewrite-URL", "X-HTTP-Method-Override", "HTTP2-Settings", HopHeader,
	}, func(r string) bool { return strings.EqualFold(r, name) })
}
