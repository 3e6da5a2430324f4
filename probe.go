package berm

import (
	"context"
	"errors"
	"fmt"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/posture"
)

// Diagnosis is what Probe found out about a backend on this host. Its JSON names
// do not change.
type Diagnosis struct {
	// Backend is the backend's name.
	Backend string `json:"backend"`
	// Available: Open and Create work with the probed configuration, and no check
	// failed.
	Available bool `json:"available"`
	// Problems say what is missing, and what to do about it. Not available means
	// that at least one is fatal.
	Problems []driver.Problem `json:"problems,omitempty"`
	// Capabilities is what this host can do, less what a failed check disproved;
	// nil when the backend could not be opened.
	Capabilities *Capabilities `json:"capabilities,omitempty"`
	// Achieved are the isolations that were measured to hold with the configured
	// network.
	Achieved Isolation `json:"achieved"`
	// Checks are the parts of the self-test, empty when no sandbox could be made.
	Checks []Check `json:"checks,omitempty"`
	// Facts that were seen, for people: versions and mechanisms.
	Facts []string `json:"facts,omitempty"`
}

// CheckOutcome says how a Check went.
type CheckOutcome string

// The outcomes.
const (
	// CheckPassed: what a sandbox has to refuse was tried, and was refused.
	CheckPassed CheckOutcome = "passed"
	// CheckFailed: it was not refused, or the attempt measured nothing.
	CheckFailed CheckOutcome = "failed"
	// CheckNotApplicable: the sandbox does not promise it here.
	CheckNotApplicable CheckOutcome = "not-applicable"
)

// Check is one part of a self-test.
type Check struct {
	// Name is a claim's of the posture, or says what was tried.
	Name      string            `json:"name"`
	Dimension posture.Dimension `json:"dimension"`
	Outcome   CheckOutcome      `json:"outcome"`
	// Detail is what was seen, for people.
	Detail string `json:"detail,omitempty"`
}

// String is one sentence.
func (c Check) String() string {
	return fmt.Sprintf("%s: check %s %s: %s", c.Dimension, c.Name, c.Outcome, c.Detail)
}

// claimChecks are a posture's findings as checks.
func claimChecks(record posture.Record) []Check {
	var out []Check
	for _, f := range record.Findings {
		c := Check{Name: string(f.Claim), Dimension: f.Dimension, Outcome: CheckFailed, Detail: f.Detail}
		if f.Status == posture.Held {
			c.Outcome = CheckPassed
		}
		out = append(out, c)
	}
	return out
}

// The limits of the sandbox that tests itself: small, so that they are reached
// at once and nobody else notices.
const (
	probeMemory    = 96 << 20
	probeProcesses = 64
	probeDisk      = 16 << 20
)

// Probe says what a backend is worth on this host by trying it: it opens the
// backend as Open does, makes one real sandbox, measures its posture, and then
// attempts from inside what must not work: to write outside the layout and to
// sysctls, to connect to a listener of the host (which the host itself reaches),
// to attach to the agent, to see processes of the host, to make system calls that
// the filter refuses, and to take more memory, processes and temporary storage
// than the sandbox has. Each attempt is a Check. The sandbox has small limits of
// its own and none of cfg's mounts, and is gone when Probe returns.
//
// A host that lacks something is no error: the Diagnosis then is not Available,
// and its problems name what is missing and the fix, also for what cfg requires
// and this host cannot give. A check that fails is a fatal problem, and takes
// what it disproved out of Capabilities and Achieved. Errors: Invalid for a wrong
// configuration or a nil backend, Cancelled and Timeout with ctx. It may be
// called concurrently with everything else.
func Probe(ctx context.Context, backend driver.Backend, cfg Config) (*Diagnosis, error) {
	const op = "probe"
	if backend == nil {
		return nil, errdefs.New(errdefs.Invalid, op, "no backend was given")
	}
	o := opening{backend: backend, declared: backend.Declare(), cfg: cfg}
	found := &Diagnosis{Backend: o.declared.Backend}
	if err := o.validate(); errors.Is(err, errdefs.Invalid) {
		return nil, err
	} else if err != nil {
		found.blame(err)
		return found, nil
	}
	trial := o
	trial.cfg.Layout, trial.cfg.Require = Layout{}, Isolation{}
	trial.cfg.Limits = Limits{MemoryBytes: probeMemory, Processes: probeProcesses, DiskBytes: probeDisk, BestEffort: true}
	p, err := trial.open(ctx)
	if err == nil {
		caps := p.caps
		found.Capabilities = &caps
		found.try(ctx, p)
		found.hold(&o)
		if err := p.Close(); err != nil {
			found.blame(fmt.Errorf("the self-test left something behind: %w", err))
		}
	} else {
		found.blame(err)
	}
	if ctx.Err() != nil {
		return nil, errdefs.Wrap(errdefs.KindOf(ctx.Err()), op, context.Cause(ctx))
	}
	found.Available = !found.fatal()
	return found, nil
}

// blame makes fatal problems of an error: those that the backend knows, else its
// reasons.
func (d *Diagnosis) blame(err error) {
	var unready *driver.UnreadyError
	if errors.As(err, &unready) {
		d.Problems = append(d.Problems, unready.Problems...)
		d.Facts = append(d.Facts, unready.Facts...)
		return
	}
	fix := ""
	if agent := (*agentError)(nil); errors.As(err, &agent) {
		err, fix = agent, agentFix
	}
	reasons := []string{err.Error()}
	var known *errdefs.Error
	if errors.As(err, &known) && len(known.Reasons) > 0 {
		reasons = known.Reasons
	}
	for _, reason := range reasons {
		d.Problems = append(d.Problems, driver.Problem{Reason: reason, Fix: fix, Fatal: true})
	}
}

func (d *Diagnosis) fatal() bool {
	for _, p := range d.Problems {
		if p.Fatal {
			return true
		}
	}
	return false
}

// try makes a sandbox and runs the self-test in it.
func (d *Diagnosis) try(ctx context.Context, p *Provider) {
	if doctor, ok := driver.As[driver.Doctor](p.drv); ok {
		known := doctor.Diagnose()
		d.Problems, d.Facts = append(d.Problems, known.Problems...), append(d.Facts, known.Facts...)
	}
	sb, err := p.create(ctx, CreateOptions{})
	if sb != nil {
		d.Achieved, d.Checks = sb.record.Achieved, claimChecks(sb.record)
	}
	if err != nil {
		d.Achieved = Isolation{}
		d.blame(err)
		return
	}
	t := &selfTest{sandbox: sb, promised: sb.record.Promised}
	for _, check := range t.run(ctx) {
		d.Checks = append(d.Checks, check)
		if check.Outcome == CheckFailed {
			d.disprove(check)
		}
	}
	if err := sb.Close(); err != nil {
		d.blame(err)
	}
}

// disprove takes out what a failed check was about.
func (d *Diagnosis) disprove(check Check) {
	d.Problems = append(d.Problems, driver.Problem{Reason: check.String(), Fatal: true})
	d.Achieved = d.Achieved.With(check.Dimension, false)
	d.Capabilities.Isolation = d.Capabilities.Isolation.With(check.Dimension, false)
	switch check.Name {
	case checkMemory:
		d.Capabilities.Memory = driver.Unenforced
	case checkProcesses:
		d.Capabilities.Processes = driver.Unenforced
	case checkDisk:
		d.Capabilities.Disk = driver.Unenforced
	}
}

// hold compares what the configuration asks for with what was found, as Open
// will.
func (d *Diagnosis) hold(o *opening) {
	caps := *d.Capabilities
	_, _, reasons := settleLimits(o.cfg.Limits, caps)
	reasons = append(reasons, o.impossible(caps)...)
	_, faults, unmountable := o.cfg.Layout.Resolve(caps, o.stateDir)
	for _, reason := range append(append(reasons, faults...), unmountable...) {
		d.Problems = append(d.Problems, driver.Problem{Reason: reason, Fatal: true})
	}
}
