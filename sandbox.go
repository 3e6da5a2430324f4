package berm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/posture"
)

// Sandbox is one running sandbox. All methods may be called concurrently. After
// Destroy they return Closed.
type Sandbox struct {
	provider *Provider
	machine  driver.Machine
	spec     *driver.Spec
	meter    driver.Meter // nil when the backend has no counters
	settled  settled

	link   link.Link
	client *agentclient.Client
	record posture.Record
	// outlet is the egress gate, nil without one.
	outlet *outlet

	destroying sync.Mutex
	mu         sync.Mutex
	ending     bool
	gone       bool
}

func newSandbox(p *Provider, machine driver.Machine, spec *driver.Spec, env map[string]string) *Sandbox {
	sb := &Sandbox{provider: p, machine: machine, spec: spec, settled: settled{created: env, env: env, dir: spec.WorkRoot}}
	if rooted, ok := driver.As[driver.Rooted](machine); ok {
		sb.settled.dir = rooted.WorkRoot()
	}
	if meter, ok := driver.As[driver.Meter](machine); ok {
		sb.meter = meter
	}
	return sb
}

// ID is the sandbox's name: 20 characters of [a-z0-9].
func (s *Sandbox) ID() string { return s.spec.ID }

// WorkDir is the absolute path that commands start in when they name none, and
// against which relative paths are resolved. Init may change it.
func (s *Sandbox) WorkDir() string {
	_, dir := s.settled.get()
	return dir
}

// Posture is what was measured before the sandbox was handed over.
func (s *Sandbox) Posture() posture.Record { return s.record }

// Env is the environment that every command gets besides its own. Init may
// change it.
func (s *Sandbox) Env() map[string]string {
	env, _ := s.settled.get()
	return maps.Clone(env)
}

// Done is closed when the sandbox's link has ended: the sandbox was destroyed,
// or it died.
func (s *Sandbox) Done() <-chan struct{} { return s.link.Done() }

// Close is Destroy with 30 seconds of its own.
func (s *Sandbox) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	return s.Destroy(ctx)
}

// Destroy ends everything in the sandbox and frees all that it used; commands
// under way end with TransportLost. It needs no working link. A call after a
// successful one returns nil; after a failed one it tries again. The error says
// what is left.
func (s *Sandbox) Destroy(ctx context.Context) error {
	s.destroying.Lock()
	defer s.destroying.Unlock()
	if s.isGone() {
		return nil
	}
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	if s.outlet != nil {
		// First, and beside the rest: nothing gets out any more.
		s.outlet.stop()
	}
	if err := errors.Join(s.machine.Destroy(ctx), s.outlet.close(ctx)); err != nil {
		return s.provider.failed("destroy", kindOf(ctx, err, errdefs.Internal), err)
	}
	s.mu.Lock()
	s.gone = true
	s.mu.Unlock()
	s.provider.remove(s.ID())
	if err := s.provider.owner.Forget(s.ID()); err != nil {
		return s.provider.failed("destroy", errdefs.Internal, err)
	}
	return nil
}

func (s *Sandbox) isGone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// failed turns a failure of the link or the agent into the one error of an
// operation.
func (s *Sandbox) failed(ctx context.Context, op string, err error) error {
	if s.isGone() {
		return &errdefs.Error{Kind: errdefs.Closed, Op: op, Backend: s.provider.caps.Backend, Reasons: []string{fmt.Sprintf("sandbox %s is destroyed", s.ID())}, Err: err}
	}
	return s.provider.failed(op, kindOf(ctx, err, errdefs.TransportLost), err)
}

// isEnding reports that Destroy has begun.
func (s *Sandbox) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// measure opens the link, gathers facts from the host side and from a probe
// child, and compares them with what was promised and required.
func (s *Sandbox) measure(ctx context.Context) error {
	l, client, err := connect(ctx, s.machine)
	if err != nil {
		return fmt.Errorf("open the link: %w", err)
	}
	s.link, s.client = l, client
	want := promised(s.provider.caps, s.spec.Network)
	table := posture.TableFor(string(s.provider.caps.Tier))
	var facts []posture.Fact
	if len(table) > 0 {
		if facts, err = s.witness(ctx); err != nil {
			return err
		}
	}
	if s.spec.Network == driver.NetworkGated {
		table, facts = table.WithGate(), append(facts, gateFact(ctx, l))
	}
	record := posture.Check(table, want, facts)
	record.Backend, record.Tier = s.provider.caps.Backend, string(s.provider.caps.Tier)
	record.MeasuredAt = now()
	record.Notes = append(s.provider.Notes(), s.provider.caps.Notes...)
	s.record = record
	reasons := record.Failures()
	for _, d := range s.provider.cfg.Require.Missing(record.Achieved) {
		reasons = append(reasons, fmt.Sprintf("required isolation %s was not seen to hold", d))
	}
	if len(reasons) > 0 && !defence.PostureRequired.Off() {
		return errdefs.New(errdefs.Unproven, "create", reasons...)
	}
	return nil
}

// witness asks both witnesses at once; they do not depend on each other.
func (s *Sandbox) witness(ctx context.Context) ([]posture.Fact, error) {
	var hostFacts []posture.Fact
	var hostErr error
	var wg sync.WaitGroup
	if witness, ok := driver.As[driver.Witness](s.machine); ok {
		wg.Go(func() { hostFacts, hostErr = witness.Witness(ctx) })
	}
	probeFacts, probeErr := s.probe(ctx)
	wg.Wait()
	if err := errors.Join(hostErr, probeErr); err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	return append(hostFacts, probeFacts...), nil
}
