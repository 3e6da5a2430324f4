package berm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/state"
	"github.com/berm-dev/berm/link"
)

// cleanupTimeout bounds clean-up that goes on after the caller's own context has
// ended.
const cleanupTimeout = 30 * time.Second

// Provider makes sandboxes on one opened backend. All methods may be called
// concurrently.
type Provider struct {
	drv      driver.Driver
	owner    *state.Owner
	caps     Capabilities
	control  *controlSocket
	cfg      Config
	stateDir string
	network  driver.Network
	limits   Limits
	tools    toolset
	mounts   []driver.Mount
	path     []string
	notes    []string
	ready    time.Duration

	mu      sync.Mutex
	closed  bool
	live    map[string]*Sandbox
	pending sync.WaitGroup
}

// Capabilities is what this host can do with the backend.
func (p *Provider) Capabilities() Capabilities { return p.caps }

// Notes are what Open had to leave out or could not clean up, one sentence each.
func (p *Provider) Notes() []string { return slices.Clone(p.notes) }

// Create makes one sandbox, measures it, and hands it over only if every promise
// holds. A Create that fails or is cancelled leaves nothing behind. Errors:
// Invalid and Unsupported before anything was started, Unproven when a promised
// isolation was not seen to hold, Cancelled and Timeout with ctx, Closed after
// Close.
func (p *Provider) Create(ctx context.Context, opts CreateOptions) (*Sandbox, error) {
	sb, err := p.create(ctx, opts)
	if err != nil {
		return nil, err
	}
	return sb, nil
}

// create is Create. A sandbox whose measurement failed comes with the error: it
// is destroyed, and has its record.
func (p *Provider) create(ctx context.Context, opts CreateOptions) (*Sandbox, error) {
	const op = "create"
	if err := p.begin(); err != nil {
		return nil, err
	}
	defer p.pending.Done()
	spec, policy, env, err := p.spec(opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.ready,
		errdefs.New(errdefs.Timeout, op, fmt.Sprintf("the sandbox was not ready within %v", p.ready)))
	defer cancel()
	if err := p.intend(spec.ID); err != nil {
		return nil, p.failed(op, kindOf(ctx, err, errdefs.Unavailable), err)
	}
	machine, err := p.drv.Create(ctx, spec)
	if err != nil {
		err = p.failed(op, kindOf(ctx, err, errdefs.Unavailable), explained(ctx, err))
		return nil, errors.Join(err, p.owner.Forget(spec.ID))
	}
	sb := newSandbox(p, machine, spec, env)
	if err := sb.measure(ctx); err != nil {
		err = p.failed(op, kindOf(ctx, err, errdefs.Unproven), explained(ctx, err))
		return sb, errors.Join(err, sb.Close())
	}
	if err := sb.openOutlet(ctx, policy); err != nil {
		err = p.failed(op, kindOf(ctx, err, errdefs.Unavailable), explained(ctx, err))
		return nil, errors.Join(err, sb.Close())
	}
	if err := p.add(sb); err != nil {
		return nil, errors.Join(err, sb.Close())
	}
	return sb, nil
}

// intend makes a record before anything of the sandbox exists, by which a later
// Open finds what this process could not remove.
func (p *Provider) intend(id string) error {
	if defence.StateRecord.Off() {
		return nil
	}
	return p.owner.Intend(id, p.caps.Backend)
}

// kindOf classifies a failure: the end of the caller's context explains all that
// failed because of it.
func kindOf(ctx context.Context, err error, otherwise errdefs.Kind) errdefs.Kind {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return errdefs.Cancelled
	case ctx.Err() != nil:
		return errdefs.Timeout
	}
	if kind := errdefs.KindOf(err); kind != errdefs.Internal {
		return kind
	}
	return otherwise
}

// explained puts a bound of ours that has passed before what failed because of it.
func explained(ctx context.Context, err error) error {
	var cause *errdefs.Error
	if !errors.As(context.Cause(ctx), &cause) {
		return err
	}
	out := *cause
	out.Err = err
	return &out
}

// failed wraps err once, with operation and backend.
func (p *Provider) failed(op string, kind errdefs.Kind, err error) error {
	var known *errdefs.Error
	if errors.As(err, &known) && known.Kind == kind {
		out := *known
		out.Op, out.Backend = op, p.caps.Backend
		return &out
	}
	return &errdefs.Error{Kind: kind, Op: op, Backend: p.caps.Backend, Err: err}
}

// begin refuses new work after Close, and lets Close wait for what was begun.
func (p *Provider) begin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return &errdefs.Error{Kind: errdefs.Closed, Op: "create", Backend: p.caps.Backend, Reasons: []string{"the provider is closed"}}
	}
	p.pending.Add(1)
	return nil
}

func (p *Provider) add(sb *Sandbox) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return &errdefs.Error{Kind: errdefs.Closed, Op: "create", Backend: p.caps.Backend, Reasons: []string{"the provider was closed meanwhile"}}
	}
	p.live[sb.ID()] = sb
	return nil
}

func (p *Provider) remove(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, id)
}

// spec turns options into what the driver gets.
func (p *Provider) spec(opts CreateOptions) (*driver.Spec, *Egress, map[string]string, error) {
	reasons := append(envFaults("env", opts.Env), labelFaults(opts.Labels)...)
	mounts, path := p.mounts, p.path
	network, policy, faults, refusals := p.egressOf(opts)
	reasons = append(reasons, faults...)
	if opts.Layout != nil {
		var unfit, unmountable []string
		mounts, faults, unfit = opts.Layout.Resolve(p.caps, p.stateDir)
		mounts, path, _, unmountable = p.tools.mount(mounts, p.caps)
		reasons, refusals = append(reasons, faults...), slices.Concat(refusals, unfit, unmountable)
	}
	// Only what is right in itself can be impossible here.
	kind := errdefs.Invalid
	if len(reasons) == 0 {
		kind = errdefs.Unsupported
	}
	if reasons = append(reasons, refusals...); len(reasons) > 0 {
		return nil, nil, nil, &errdefs.Error{Kind: kind, Op: "create", Backend: p.caps.Backend, Reasons: reasons}
	}
	env := maps.Clone(p.cfg.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, opts.Env)
	layout := p.cfg.Layout
	if opts.Layout != nil {
		layout = *opts.Layout
	}
	return &driver.Spec{
		ID:       state.NewID(),
		Mounts:   slices.Clone(mounts),
		WorkRoot: layout.WorkRoot(),
		Path:     slices.Clone(path),
		Limits:   p.limits,
		Network:  network,
		Labels:   maps.Clone(opts.Labels),
		Probe:    p.probeFor(mounts, network),
	}, policy, env, nil
}

// Close destroys every sandbox of the provider and frees what they shared. It
// waits for Creates under way, at most as long as they may take. A second call
// returns nil.
func (p *Provider) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	sandboxes := slices.Collect(maps.Values(p.live))
	p.mu.Unlock()

	errs := make([]error, len(sandboxes))
	var wg sync.WaitGroup
	for i, sb := range sandboxes {
		wg.Go(func() { errs[i] = sb.Close() })
	}
	wg.Wait()
	p.pending.Wait()
	errs = append(errs, p.control.Close(), p.drv.Close(), p.owner.Close())
	return errdefs.Wrap(errdefs.Internal, "close", errors.Join(errs...))
}

// connect opens the machine's link and a client on it.
func connect(ctx context.Context, machine driver.Machine) (link.Link, *agentclient.Client, error) {
	l, err := machine.Link(ctx)
	if err != nil {
		return nil, nil, err
	}
	return l, agentclient.New(l), nil
}

func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
