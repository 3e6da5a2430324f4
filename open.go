package berm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/state"
)

const opOpen = "open"

// Open probes the host and makes a Provider on a backend. Every fault that can
// be found is in the one error that it returns:
//
//   - Invalid: the configuration is wrong; nothing was touched.
//   - Unavailable: the host, or the agent's program, is not ready for the backend.
//   - Unsupported: the host cannot give a limit, a network, a mount or an
//     isolation that was asked for.
//
// It also removes what sandboxes of the same backend left behind when their host
// process was killed. ctx bounds the opening only.
func Open(ctx context.Context, backend driver.Backend, cfg Config) (*Provider, error) {
	if backend == nil {
		return nil, errdefs.New(errdefs.Invalid, opOpen, "no backend was given")
	}
	declared := backend.Declare()
	o := opening{backend: backend, declared: declared, cfg: cfg}
	if err := o.validate(); err != nil {
		return nil, err
	}
	return o.open(ctx)
}

// opening is the work of one Open.
type opening struct {
	backend  driver.Backend
	declared Capabilities
	cfg      Config
	stateDir string
	network  driver.Network
	tools    toolset
}

func (o *opening) fail(kind errdefs.Kind, err error, reasons ...string) error {
	var known *errdefs.Error
	if errors.As(err, &known) && known.Kind == kind && len(reasons) == 0 {
		out := *known
		out.Op, out.Backend = opOpen, o.declared.Backend
		return &out
	}
	return &errdefs.Error{Kind: kind, Op: opOpen, Backend: o.declared.Backend, Reasons: reasons, Err: err}
}

// validate checks all that needs no host beyond the layout's directories.
func (o *opening) validate() error {
	o.stateDir = o.cfg.StateDir
	if o.stateDir == "" {
		o.stateDir = state.DefaultDir()
	}
	reasons := o.cfg.faults()
	_, faults, unmountable := o.cfg.Layout.Resolve(o.declared, o.stateDir)
	reasons = append(reasons, faults...)
	o.tools, faults = findTools(o.cfg.Toolchains, o.cfg.Layout.Workdir)
	reasons = append(reasons, faults...)
	if len(reasons) > 0 {
		return o.fail(errdefs.Invalid, nil, reasons...)
	}
	o.network = settleNetwork(o.cfg.Network, o.cfg.Egress, o.declared)
	_, _, refusals := settleLimits(o.cfg.Limits, o.declared)
	refusals = append(append(refusals, unmountable...), o.impossible(o.declared)...)
	if len(refusals) > 0 {
		return o.fail(errdefs.Unsupported, nil, refusals...)
	}
	return nil
}

// impossible lists what caps cannot give of network and isolation.
func (o *opening) impossible(caps Capabilities) []string {
	var out []string
	if !slices.Contains(caps.Networks, o.network) {
		out = append(out, fmt.Sprintf("network %s is not supported by backend %s", o.network, caps.Backend))
	}
	for _, d := range o.cfg.Require.Missing(promised(caps, o.network)) {
		out = append(out, fmt.Sprintf("required isolation %s cannot be given by backend %s with network %s", d, caps.Backend, o.network))
	}
	return out
}

// promised is what a sandbox on a network is promised: the host's own network
// isolates nothing.
func promised(caps Capabilities, network driver.Network) Isolation {
	p := caps.Isolation
	if network == driver.NetworkHost {
		p.Network = false
	}
	return p
}

func (o *opening) open(ctx context.Context) (*Provider, error) {
	agent, err := o.cfg.Agent.load()
	if err != nil {
		return nil, o.fail(errdefs.Unavailable, &agentError{err})
	}
	dir, err := state.Open(o.stateDir)
	if err != nil {
		return nil, o.fail(kindOf(ctx, err, errdefs.Unavailable), err)
	}
	owner, err := dir.Claim()
	if err != nil {
		return nil, o.fail(kindOf(ctx, err, errdefs.Unavailable), err)
	}
	// A backend may try itself with a sandbox of the instance's name.
	if err := owner.Intend(owner.Instance(), o.declared.Backend); err != nil {
		return nil, errors.Join(o.fail(kindOf(ctx, err, errdefs.Unavailable), err), owner.Close())
	}
	drv, err := o.backend.Open(ctx, driver.Host{Agent: agent, StateDir: dir.Path(), Instance: owner.Instance()})
	forgotten := owner.Forget(owner.Instance())
	if err != nil {
		return nil, errors.Join(o.fail(kindOf(ctx, err, errdefs.Unavailable), err), forgotten, owner.Close())
	}
	if forgotten != nil {
		return nil, errors.Join(o.fail(errdefs.Unavailable, forgotten), drv.Close(), owner.Close())
	}
	p, err := o.provider(ctx, drv, owner)
	if err != nil {
		return nil, errors.Join(err, drv.Close(), owner.Close())
	}
	if err := sweep(ctx, dir, drv, o.declared.Backend); err != nil {
		// Leftovers that cannot be removed must not stop new work; they are told.
		p.notes = append(p.notes, fmt.Sprintf("sweep: %v", err))
	}
	return p, nil
}

// provider checks the opened driver against declaration and configuration.
func (o *opening) provider(ctx context.Context, drv driver.Driver, owner *state.Owner) (*Provider, error) {
	caps := drv.Capabilities()
	if over := caps.Exceeds(o.declared); len(over) > 0 && !defence.DeclaredBound.Off() {
		return nil, o.fail(errdefs.Internal, nil, over...)
	}
	limits, notes, reasons := settleLimits(o.cfg.Limits, caps)
	reasons = append(reasons, o.impossible(caps)...)
	mounts, faults, unmountable := o.cfg.Layout.Resolve(caps, o.stateDir)
	reasons = append(append(reasons, faults...), unmountable...)
	mounts, path, leftOut, faults := o.tools.mount(mounts, caps)
	notes, reasons = append(notes, leftOut...), append(reasons, faults...)
	if len(reasons) > 0 {
		return nil, o.fail(errdefs.Unsupported, nil, append(reasons, advice(drv)...)...)
	}
	control, err := listenControl(ctx, owner.Instance())
	if err != nil {
		return nil, o.fail(errdefs.Unavailable, err)
	}
	ready := o.cfg.ReadyTimeout
	if ready == 0 {
		ready = defaultReadyTimeout
	}
	return &Provider{
		drv: drv, owner: owner, caps: caps, control: control,
		cfg: o.cfg, stateDir: o.stateDir, network: o.network, limits: limits, tools: o.tools, mounts: mounts, path: path, notes: notes, ready: ready,
		live: map[string]*Sandbox{},
	}, nil
}

// advice is what the driver knows about why this host gives less than others.
func advice(drv driver.Driver) []string {
	doctor, ok := driver.As[driver.Doctor](drv)
	if !ok {
		return nil
	}
	_, reasons := driver.Unready(doctor.Diagnose())
	return reasons
}

// sweepTimeout bounds the clean-up after others.
const sweepTimeout = 10 * time.Second

// sweep removes what dead host processes left on this backend.
func sweep(ctx context.Context, dir *state.Dir, drv driver.Driver, backend string) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	orphans, err := dir.Orphans(backend)
	errs := []error{err}
	sweeper, able := driver.As[driver.Sweeper](drv)
	for _, o := range orphans {
		var sweepErr error
		if able && len(o.IDs) > 0 {
			sweepErr = sweeper.Sweep(ctx, o.IDs)
		}
		errs = append(errs, sweepErr, o.Release(sweepErr == nil))
	}
	return errors.Join(errs...)
}
