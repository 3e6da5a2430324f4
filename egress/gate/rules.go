package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/broker"
	"github.com/berm-dev/berm/errdefs"
)

// failedFor is how long a failed Resolver is not asked again.
const failedFor = time.Second

// snapshot is one policy in the form in which requests use it. It does not
// change, apart from what its Resolver gave.
type snapshot struct {
	rules       *egress.Rules
	credentials *broker.Set
	authority   *broker.Authority // nil without credentials

	mu   sync.Mutex
	last *answer // of the Resolver; nil before the first
}

// answer is what one call of a Resolver gave, once done is closed.
type answer struct {
	done  chan struct{}
	rules *egress.Rules
	extra []string
	err   error
	until time.Time
}

func (s *snapshot) generation() uint64 { return s.rules.Generation() }

// newSnapshot compiles a policy; before is the one in force, nil for none. The
// authority is kept where it covers all that is needed, because the sandbox knows
// that one.
func newSnapshot(p *egress.Policy, generation uint64, before *snapshot) (*snapshot, error) {
	rules, err := egress.Compile(p, generation)
	if err != nil {
		return nil, err
	}
	s := &snapshot{rules: rules}
	if s.credentials, err = broker.Compile(rules.Credentials()); err != nil {
		return nil, err
	}
	hosts := s.credentials.Hosts()
	if len(hosts) == 0 {
		return s, nil
	}
	if before != nil && before.authority != nil && !slices.ContainsFunc(hosts, func(h string) bool { return !before.authority.Covers(h) }) {
		s.authority = before.authority
		return s, nil
	}
	if s.authority, err = broker.NewAuthority(hosts, nil); err != nil {
		return nil, errdefs.Wrap(errdefs.Internal, "make certificate authority", err)
	}
	return s, nil
}

// decide judges a query, and asks the policy's Resolver where only that could
// allow it. The whole decision is made by one snapshot.
func (g *Gate) decide(ctx context.Context, q egress.Query) (*snapshot, egress.Verdict) {
	s := g.current.Load()
	v := s.rules.Decide(q)
	if !s.rules.AskResolver(v) {
		return s, v
	}
	rules, err := g.resolved(ctx, s)
	if err != nil {
		g.log(ctx, "policy resolver", err)
		v.Reason = egress.ReasonResolver
		return s, v
	}
	return s, rules.Decide(q)
}

// resolved gives the rules with what the Resolver adds.
func (g *Gate) resolved(ctx context.Context, s *snapshot) (*egress.Rules, error) {
	s.mu.Lock()
	a := s.last
	if a == nil || a.over() {
		a = &answer{done: make(chan struct{})}
		before := s.last
		s.last = a
		if !g.spawn(func() { g.ask(s, a, before) }) {
			a.err = errdefs.New(errdefs.Closed, "ask resolver", "the gate is closing")
			close(a.done)
		}
	}
	s.mu.Unlock()
	timer := time.NewTimer(egress.ResolverTimeout)
	defer timer.Stop()
	select {
	case <-a.done:
		return a.rules, a.err
	case <-timer.C:
		return nil, errdefs.New(errdefs.Timeout, "ask resolver", "it did not answer in time")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// over reports whether an answer is there and is used no longer.
func (a *answer) over() bool {
	select {
	case <-a.done:
		return time.Now().After(a.until)
	default:
		return false
	}
}

// ask calls the Resolver. The slot makes calls of all policies follow each other.
func (g *Gate) ask(s *snapshot, a, before *answer) {
	ctx, cancel := context.WithTimeout(g.ctx, egress.ResolverTimeout)
	defer cancel()
	select {
	case g.asking <- struct{}{}:
		a.extra, a.err = call(ctx, s.rules.Resolver())
		<-g.asking
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	if a.err == nil && ctx.Err() != nil {
		// Late, and it did not notice.
		a.err = ctx.Err()
	}
	if a.err == nil {
		a.rules, a.err = s.rules.With(a.extra)
	}
	a.until = time.Now().Add(egress.ResolverCache)
	if a.err != nil {
		a.rules, a.until = nil, time.Now().Add(failedFor)
	}
	close(a.done)
	// After a failure it is not known what the open flows were allowed by.
	if a.err == nil && before != nil && (before.err != nil || !slices.Equal(before.extra, a.extra)) {
		g.rejudge()
	}
}

// call runs the Resolver, which is the host program's and may break down.
func call(ctx context.Context, ask egress.Resolver) (extra []string, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			extra, err = nil, fmt.Errorf("the resolver broke down: %v", fault)
		}
	}()
	if ask == nil {
		return nil, errors.New("there is no resolver")
	}
	return ask(ctx)
}

// keeps reports whether an open flow may go on. It asks nobody: a Resolver's
// rules count as they were last given, also when they have run out.
func (s *snapshot) keeps(f *flow) bool {
	v := s.rules.Decide(f.query)
	if s.rules.AskResolver(v) {
		v = s.lastRules().Decide(f.query)
	}
	old := f.verdict
	switch {
	case !v.Allow, v.Brokered != old.Brokered:
		return false
	case old.Opaque && !v.Opaque, old.Inward && !v.Inward:
		return false
	}
	if f.carries != nil && !s.credentials.For(v.Host).Allows(f.carries) {
		return false
	}
	return !v.Brokered || s.authority != nil && s.authority.Covers(v.Host)
}

// lastRules are those of the last answer that was one.
func (s *snapshot) lastRules() *egress.Rules {
	s.mu.Lock()
	a := s.last
	s.mu.Unlock()
	if a == nil {
		return s.rules
	}
	select {
	case <-a.done:
		if a.rules != nil {
			return a.rules
		}
	default:
	}
	return s.rules
}
