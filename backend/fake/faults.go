package fake

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/posture"
)

// faultyDriver breaks promises of Create.
type faultyDriver struct {
	driver.Driver

	faults Faults
	// skipped are the machines that Close ends after all, because a test must
	// leave no process on the host.
	mu      sync.Mutex
	skipped []driver.Machine
}

// Unwrap gives the healthy driver.
func (d *faultyDriver) Unwrap() driver.Driver { return d.Driver }

// Close ends what Destroy was made to skip.
func (d *faultyDriver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	var errs []error
	for _, m := range d.skipped {
		errs = append(errs, m.Destroy(ctx))
	}
	return errors.Join(append(errs, d.Driver.Close())...)
}

// closeLimit bounds the end of what was skipped.
const closeLimit = 30 * time.Second

// Create breaks what the faults name, or makes a machine that will.
func (d *faultyDriver) Create(ctx context.Context, spec *driver.Spec) (driver.Machine, error) {
	if d.faults.HangCreate {
		<-ctx.Done()
		return nil, fmt.Errorf("create fake machine: %w", ctx.Err())
	}
	if d.faults.RefuseMounts {
		for _, m := range spec.Mounts {
			if m.Source != "" {
				return nil, &errdefs.Error{Kind: errdefs.Unsupported, Op: "create", Backend: Name, Reasons: []string{"mount " + m.Name + " is refused"}}
			}
		}
	}
	healthy := ctx
	if d.faults.LeakOnCancel {
		healthy = context.WithoutCancel(ctx)
	}
	m, err := d.Driver.Create(healthy, spec)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create fake machine: %w", err) // and the machine stays
	}
	if d.faults.SkipDestroy {
		d.mu.Lock()
		d.skipped = append(d.skipped, m)
		d.mu.Unlock()
	}
	faulty := &faultyMachine{Machine: m, faults: d.faults}
	if d.faults.LieInPosture {
		return lyingMachine{faulty}, nil
	}
	return faulty, nil
}

// faultyMachine breaks promises of a machine and its link.
type faultyMachine struct {
	driver.Machine

	faults Faults
	hung   atomic.Bool
	once   sync.Once
	link   *faultyLink
}

// Unwrap gives the healthy machine.
func (m *faultyMachine) Unwrap() driver.Machine { return m.Machine }

// Link gives a link that breaks promises.
func (m *faultyMachine) Link(ctx context.Context) (link.Link, error) {
	if m.faults.HangLink {
		<-ctx.Done()
		return nil, fmt.Errorf("open the link: %w", ctx.Err())
	}
	healthy, err := m.Machine.Link(ctx)
	if err != nil {
		return nil, err
	}
	m.once.Do(func() { m.link = &faultyLink{Link: healthy, faults: m.faults} })
	return m.link, nil
}

// Destroy hangs, or does nothing.
func (m *faultyMachine) Destroy(ctx context.Context) error {
	if m.faults.HangDestroy && m.hung.CompareAndSwap(false, true) {
		<-ctx.Done()
		return fmt.Errorf("destroy fake machine: %w", ctx.Err())
	}
	if m.faults.SkipDestroy {
		return nil
	}
	return m.Machine.Destroy(ctx)
}

// lyingMachine has a witness that says what is wanted.
type lyingMachine struct{ *faultyMachine }

// Witness claims everything that the host side has to claim.
func (lyingMachine) Witness(context.Context) ([]posture.Fact, error) {
	var facts []posture.Fact
	for _, rule := range posture.TableFor(string(driver.TierProcess)) {
		if rule.Witness == posture.Host {
			facts = append(facts, posture.Fact{Claim: rule.Claim, Witness: posture.Host, Held: true, Detail: "all good"})
		}
	}
	return facts, nil
}

// faultyLink breaks promises on the wire.
type faultyLink struct {
	link.Link

	faults   Faults
	received atomic.Int64
}

// RoundTrip changes the request or the response as the faults say.
func (l *faultyLink) RoundTrip(req *http.Request) (*http.Response, error) {
	if l.faults.LieInPosture && isCall(req, "Control/Probe") {
		return lyingProbe(req)
	}
	if l.faults.IgnoreKill && isCall(req, "Process/Start") {
		req = req.Clone(req.Context())
		req.Body = rewrite(req.Body, rewriter{edit: deafen})
		req.ContentLength = -1
	}
	resp, err := l.Link.RoundTrip(req)
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, err
	}
	if isCall(req, "Process/Start") && resp.StatusCode == http.StatusOK {
		switch {
		case l.faults.LoseOutput:
			resp.Body = rewrite(resp.Body, rewriter{edit: loseOutput})
		case l.faults.InventExit:
			resp.Body = rewrite(resp.Body, rewriter{edit: inventExit, broken: inventedEnd})
		}
	}
	if l.faults.DropLinkAfter > 0 {
		resp.Body = &countedBody{ReadCloser: resp.Body, link: l}
	}
	return resp, nil
}
