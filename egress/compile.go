package egress

import (
	"errors"
	"fmt"
	"slices"

	"github.com/berm-dev/berm/egress/internal/address"
	"github.com/berm-dev/berm/errdefs"
)

// The most that a policy may have.
const (
	maxRules       = 10_000
	maxCredentials = 256
)

// Compile checks a policy and makes it ready to decide, under a generation number
// of the caller's. A nil policy denies everything. Every fault comes in one
// errdefs.Invalid error, which never has a secret. The policy is copied.
func Compile(p *Policy, generation uint64) (*Rules, error) {
	r := &Rules{generation: generation}
	if p == nil {
		return r, nil
	}
	r.policy = *p
	r.policy.Allow = slices.Clone(p.Allow)
	r.policy.AllowInwardFor = slices.Clone(p.AllowInwardFor)
	r.policy.Credentials = cloneCredentials(p.Credentials)
	var faults []string
	faults = append(faults, r.addExemptions()...)
	faults = append(faults, r.addCredentials()...)
	faults = append(faults, r.addRules()...)
	if len(faults) > 0 {
		return nil, errdefs.New(errdefs.Invalid, "egress policy", faults...)
	}
	return r, nil
}

// With returns the rules of the same policy and generation with more rules, as a
// Resolver gives them. One that is not a rule makes an errdefs.Invalid error.
func (r *Rules) With(extra []string) (*Rules, error) {
	if r == nil {
		return Compile(&Policy{Allow: extra}, 0)
	}
	p := r.policy
	p.Allow = slices.Concat(p.Allow, extra)
	return Compile(&p, r.generation)
}

// addExemptions reads AllowInwardFor.
func (r *Rules) addExemptions() (faults []string) {
	if n := len(r.policy.AllowInwardFor); n > maxRules {
		return []string{fmt.Sprintf("allowInwardFor has %d entries; %d is the most", n, maxRules)}
	}
	for _, text := range r.policy.AllowInwardFor {
		e, err := parseRule(text)
		switch {
		case err != nil:
			faults = append(faults, fmt.Sprintf("allowInwardFor %q %v", clip(text), err))
		case e.opaque || e.scope == below || e.scope == apex:
			faults = append(faults, fmt.Sprintf("allowInwardFor %q is not one host, without a scheme, star or leading dot", clip(text)))
		case e.scope == block && e.class() == address.Metadata:
			faults = append(faults, fmt.Sprintf("allowInwardFor %q is link-local or cloud metadata, which is never exempt", clip(text)))
		default:
			r.exempt = append(r.exempt, &e)
		}
	}
	return faults
}

// addRules reads Allow, after exemptions and credentials.
func (r *Rules) addRules() (faults []string) {
	if n := len(r.policy.Allow); n > maxRules {
		return []string{fmt.Sprintf("allow has %d rules; %d is the most", n, maxRules)}
	}
	r.names, r.suffixes = map[string][]*rule{}, map[string][]*rule{}
	for i, text := range r.policy.Allow {
		x, err := parseRule(text)
		if err == nil {
			err = r.fits(&x)
		}
		if err != nil {
			faults = append(faults, fmt.Sprintf("rule %q %v", clip(text), err))
			continue
		}
		x.order = i
		switch x.scope {
		case exact:
			r.names[x.name] = append(r.names[x.name], &x)
		case below, apex:
			r.suffixes[x.name] = append(r.suffixes[x.name], &x)
		case block:
			r.blocks = append(r.blocks, &x)
		}
	}
	return faults
}

// fits judges a rule against the rest of the policy.
func (r *Rules) fits(x *rule) error {
	if x.scope != block {
		if x.opaque && x.scope == exact && r.brokered[x.name] != nil && (x.coversPort(80) || x.coversPort(443)) {
			return errors.New("says tcp for the web of a host with a credential, whose requests are looked into")
		}
		return nil
	}
	switch x.class() {
	case address.Metadata:
		return errors.New("is link-local or cloud metadata, which is never allowed")
	case address.Inward:
		if !contains(r.exempt, x.prefix, x.coversPort) {
			return fmt.Errorf("is not public (%s), and allowInwardFor does not have it", address.Name(x.prefix.Addr()))
		}
	case address.Public:
	}
	return nil
}
