package berm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/posture"
)

// settleNetwork picks the network that was not said: gated with a policy, else
// none, or the only one that the backend has beside a gated one.
func settleNetwork(asked driver.Network, policy *Egress, caps Capabilities) driver.Network {
	switch {
	case asked != "":
		return asked
	case policy != nil:
		return driver.NetworkGated
	}
	ungated := slices.DeleteFunc(slices.Clone(caps.Networks), func(n driver.Network) bool { return n == driver.NetworkGated })
	if len(ungated) == 1 {
		return ungated[0]
	}
	return driver.NetworkNone
}

// egressFaults lists what is wrong with a policy, and with the network that it
// was given for.
func egressFaults(policy *Egress, network driver.Network) []string {
	if policy == nil {
		return nil
	}
	var out []string
	if network != "" && network != driver.NetworkGated {
		out = append(out, fmt.Sprintf("an egress policy contradicts network %s: only %s has a gate", network, driver.NetworkGated))
	}
	if _, err := egress.Compile(policy, 0); err != nil {
		out = append(out, reasonsOf(err)...)
	}
	return out
}

// reasonsOf gives an error's reasons, or what it says where it has none.
func reasonsOf(err error) []string {
	var known *errdefs.Error
	if errors.As(err, &known) && len(known.Reasons) > 0 {
		return known.Reasons
	}
	return []string{err.Error()}
}

// egressOf settles the network and the policy of one sandbox.
func (p *Provider) egressOf(opts CreateOptions) (network driver.Network, policy *Egress, faults, refusals []string) {
	network, policy = p.network, p.cfg.Egress
	if opts.Egress == nil {
		return network, policy, nil, nil
	}
	// The operator's own word for a network stands; where none was said, a policy
	// for one sandbox is the wish for a gate.
	faults = egressFaults(opts.Egress, p.cfg.Network)
	if !slices.Contains(p.caps.Networks, driver.NetworkGated) {
		refusals = append(refusals, fmt.Sprintf("network %s is not supported by backend %s", driver.NetworkGated, p.caps.Backend))
	}
	return driver.NetworkGated, opts.Egress, faults, refusals
}

// outlet is one sandbox's egress gate with the goroutine that serves it.
type outlet struct {
	gate *gate.Gate
	stop context.CancelFunc
	// done is closed when the gate has ended with all of its goroutines.
	done chan struct{}
	// fault is what Close of the gate said, written before done is closed.
	fault error

	// setting lets one change at a time go on. installed is the authority that the
	// sandbox has.
	setting   sync.Mutex
	installed []byte
}

// openOutlet makes the gate of a sandbox on network gated and serves what its
// inside opens. It comes before the first command; the policy is not the
// machine's, so that any machine fits any caller.
func (s *Sandbox) openOutlet(ctx context.Context, policy *Egress) error {
	if s.spec.Network != driver.NetworkGated {
		return nil
	}
	if err := handedOver(ctx, s.link); err != nil {
		return fmt.Errorf("open the egress gate: %w", err)
	}
	cfg := gate.Config{Sandbox: s.ID(), Policy: policy, Sink: s.provider.cfg.Audit, Nameservers: s.provider.cfg.Nameservers, Roots: s.provider.cfg.UpstreamRoots}
	if locked, ok := driver.As[driver.EgressLock](s.machine); ok {
		cfg.Username, cfg.Password = locked.EgressKey()
	}
	opened, err := gate.New(cfg)
	if err != nil {
		return err
	}
	// The gate lives as long as the sandbox, not as the call that made it.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	o := &outlet{gate: opened, stop: stop, done: make(chan struct{})}
	accept := s.link.Accept
	go func() {
		defer close(o.done)
		// It ends with the link, with close, or because the inside broke the link's
		// rules: in each case there is no way out any more.
		_ = opened.Serve(serving, accept)
		stop()
		o.fault = opened.Close()
	}()
	s.outlet = o
	return o.install(ctx, s.client)
}

// handedOver refuses a link without a listener for the gate. A context that is
// over already makes Accept say so, or nothing.
func handedOver(ctx context.Context, l link.Link) error {
	over, cancel := context.WithCancel(ctx)
	cancel()
	conn, err := l.Accept(over)
	if conn != nil {
		_ = conn.Close() // nothing of the caller's runs yet
	}
	if errors.Is(err, errdefs.Unsupported) || errors.Is(err, errdefs.Closed) {
		return err
	}
	return nil
}

// gateFact is whether the sandbox gave its one way out to the host.
func gateFact(ctx context.Context, l link.Link) posture.Fact {
	fact := posture.Fact{Claim: posture.EgressGate, Witness: posture.Host, Held: true, Detail: "the host holds the listener that leads to the gate"}
	if err := handedOver(ctx, l); err != nil {
		fact.Held, fact.Detail = false, err.Error()
	}
	return fact
}

// install makes the inside trust the gate's authority, where that has changed.
func (o *outlet) install(ctx context.Context, client *agentclient.Client) error {
	authority := o.gate.CA()
	if bytes.Equal(authority, o.installed) {
		return nil
	}
	if err := client.Trust(ctx, authority); err != nil {
		return fmt.Errorf("give the sandbox its certificate authority: %w", err)
	}
	o.installed = authority
	return nil
}

// close ends the gate and everything that goes through it, and waits, at most
// until ctx ends. It may be called again.
func (o *outlet) close(ctx context.Context) error {
	if o == nil {
		return nil
	}
	o.stop()
	select {
	case <-o.done:
		return o.fault
	case <-ctx.Done():
		return fmt.Errorf("the egress gate has not ended yet: %w", context.Cause(ctx))
	}
}

// SetEgress replaces what the sandbox may reach; nil denies everything. When it
// returns nil, connections that the new policy does not allow are closed, and
// commands that start from then on trust the authority that its credentials need.
// Errors: Unsupported for a sandbox without a gate, Invalid with every reason for
// a policy that is wrong (the one before stays), Closed after Destroy. After
// another error the new policy is in force, and what it brokers may not be trusted
// inside.
func (s *Sandbox) SetEgress(ctx context.Context, policy *Egress) error {
	const op = "set egress"
	if s.outlet == nil {
		return &errdefs.Error{
			Kind: errdefs.Unsupported, Op: op, Backend: s.provider.caps.Backend,
			Reasons: []string{fmt.Sprintf("the sandbox has network %s, which has no gate", s.spec.Network)},
		}
	}
	if reasons := egressFaults(policy, ""); len(reasons) > 0 {
		return &errdefs.Error{Kind: errdefs.Invalid, Op: op, Backend: s.provider.caps.Backend, Reasons: reasons}
	}
	if s.isEnding() {
		return &errdefs.Error{Kind: errdefs.Closed, Op: op, Backend: s.provider.caps.Backend, Reasons: []string{fmt.Sprintf("sandbox %s is destroyed", s.ID())}}
	}
	o := s.outlet
	o.setting.Lock()
	defer o.setting.Unlock()
	if err := o.gate.SetPolicy(ctx, policy); err != nil {
		return s.failed(ctx, op, err)
	}
	if err := o.install(ctx, s.client); err != nil {
		return s.failed(ctx, op, err)
	}
	return nil
}
