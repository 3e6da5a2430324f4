package egress

import (
	"fmt"
	"slices"

	"github.com/berm-dev/berm/egress/internal/address"
)

// Explanation is a verdict with the way there.
type Explanation struct {
	Verdict Verdict
	// Steps has every rule, credential and switch that was looked at, in the order
	// of the policy.
	Steps []Step
	// Hint says what would change a denial; empty for what is allowed.
	Hint string
}

// Step is one thing that was looked at.
type Step struct {
	// Rule is as it was written.
	Rule string
	// Matched: it covers host and port. Of several the most specific one decided.
	Matched bool
	// Why says how it matched, or why it did not.
	Why string
}

// Explain decides and says why.
func (r *Rules) Explain(q Query) Explanation {
	v := r.Decide(q)
	out := Explanation{Verdict: v, Hint: v.Hint()}
	if r == nil || v.Reason == ReasonMalformed {
		return out
	}
	for _, x := range r.inOrder() {
		step := Step{Rule: x.text}
		step.Matched, step.Why = x.explain(v)
		out.Steps = append(out.Steps, step)
	}
	for i := range r.policy.Credentials {
		c := &r.policy.Credentials[i]
		usual := v.Port == 80 || v.Port == 443
		step := Step{Rule: "credential " + c.name(), Matched: c.Host == v.Host && usual, Why: "is for " + c.Host + ", on ports 80 and 443"}
		out.Steps = append(out.Steps, step)
	}
	if r.policy.AllowAny {
		step := Step{Rule: "allowAny", Matched: !v.Addr.IsValid() && publicName(v.Host), Why: "is for every public name"}
		if !step.Matched {
			step.Why += ", which this is not"
		}
		out.Steps = append(out.Steps, step)
	}
	return out
}

// inOrder lists all rules as the policy has them.
func (r *Rules) inOrder() []*rule {
	out := slices.Clone(r.blocks)
	for _, some := range []map[string][]*rule{r.names, r.suffixes} {
		for _, list := range some {
			out = append(out, list...)
		}
	}
	slices.SortFunc(out, func(a, b *rule) int { return a.order - b.order })
	return out
}

// explain says whether a rule covers a verdict's host and port, and why.
func (r *rule) explain(v Verdict) (bool, string) {
	switch {
	case r.scope == block && !v.Addr.IsValid():
		return false, "is for addresses that are asked for as such, and this is a name"
	case r.scope != block && v.Addr.IsValid():
		return false, "is for names, and this is an address"
	case r.scope == block && !r.prefix.Contains(v.Addr):
		return false, "does not contain the address"
	case r.scope == below && v.Host == r.name:
		return false, "covers names below " + r.name + ", not itself"
	case r.scope != block && !r.coversName(v.Host):
		return false, "is for another name"
	case !r.coversPort(v.Port):
		return false, "covers the host on " + r.ports() + ", not on " + fmt.Sprint(v.Port)
	}
	return true, "covers the host on " + r.ports()
}

// Hint says what would change a denial, in one sentence for whoever reads an error
// message; empty for what is allowed. It names no rule but the verdict's own.
func (v Verdict) Hint() string {
	if v.Allow {
		return ""
	}
	switch v.Reason {
	case ReasonNoRule:
		return fmt.Sprintf("no rule allows this host; the rule %q would", v.asRule())
	case ReasonPort:
		return fmt.Sprintf("the host is allowed on other ports; the rule %q would allow this one", v.asRule())
	case ReasonLiteral:
		if address.Classify(v.Addr) != address.Public {
			return "the address is not public, and no rule has it"
		}
		return fmt.Sprintf("addresses need a rule of their own; %q would be one, a rule for the name is better", v.asRule())
	case ReasonInward, ReasonSelf:
		return "the host leads to an address that is not public; the operator can exempt it in allowInwardFor"
	case ReasonMetadata:
		return "link-local and cloud metadata addresses are never allowed"
	case ReasonMalformed:
		return "write the host as a plain lower-case name or address, and a port from 1 to 65535"
	case ReasonResolver:
		return "the source of further rules did not answer"
	}
	return ""
}

// asRule writes the rule that would allow the verdict's target.
func (v Verdict) asRule() string {
	host := v.Host
	if v.Addr.Is6() {
		host = "[" + host + "]"
	}
	if v.Port == 80 || v.Port == 443 {
		return host
	}
	return fmt.Sprintf("%s:%d", host, v.Port)
}
