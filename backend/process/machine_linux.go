package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/berm-dev/berm/backend/process/cgroup"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/fdpass"
)

// commandPath is the PATH of commands.
const commandPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const (
	// egressAddress is where clients inside find the gate: the usual port of a proxy.
	egressAddress = "127.0.0.1:3128"
	// connectorPath is the agent's program as payloads see it, for its connect mode.
	connectorPath = "/run/berm/berm-agent"
)

// machine is one resident sandbox.
type machine struct {
	id     string
	driver *bubble
	limits driver.Limits
	disk   map[string]int64

	lease *lease
	group *cgroup.Group
	child *child
	link  *fdpass.Link

	// destroying serialises Destroy.
	destroying chan struct{}
	gone       bool // guarded by destroying
}

var (
	_ driver.Machine = (*machine)(nil)
	_ driver.Witness = (*machine)(nil)
	_ driver.Meter   = (*machine)(nil)
)

func newMachine(d *bubble, id string) *machine {
	return &machine{id: id, driver: d, destroying: make(chan struct{}, 1)}
}

// Create makes a sandbox and waits for its agent. On failure it leaves nothing.
func (d *bubble) Create(ctx context.Context, spec *driver.Spec) (driver.Machine, error) {
	if reasons := d.refusals(spec); len(reasons) > 0 {
		return nil, refused(errdefs.Unsupported, "create", reasons...)
	}
	sizes, err := splitDisk(spec.Limits.DiskBytes, spec.Mounts, spec.Network)
	if err != nil {
		return nil, refused(errdefs.Invalid, "create", err.Error())
	}
	m := newMachine(d, spec.ID)
	m.limits, m.disk = spec.Limits, sizes
	if err := m.start(ctx, spec); err != nil {
		// The caller's context may be the reason: clean-up has its own.
		fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		if defence.FailedCreateUndone.Off() {
			return nil, m.failure(ctx, err)
		}
		return nil, errors.Join(m.failure(ctx, err), m.Destroy(fresh))
	}
	return m, nil
}

// refusals lists what spec asks for and this host cannot enforce.
func (d *bubble) refusals(spec *driver.Spec) []string {
	var out []string
	if !slices.Contains(d.caps.Networks, spec.Network) {
		out = append(out, fmt.Sprintf("network %s is not supported", spec.Network))
	}
	for _, m := range spec.Mounts {
		if reason := d.unmountable(m.Dest); reason != "" {
			out = append(out, m.Name+": "+reason)
		}
	}
	if spec.Limits.BestEffort || defence.LimitsRefused.Off() {
		return out
	}
	if spec.Limits.MemoryBytes > 0 && d.caps.Memory != driver.Enforced {
		out = append(out, "a memory limit cannot be enforced for the sandbox as a whole: there is no memory cgroup")
	}
	if spec.Limits.Processes > 0 && d.caps.Processes != driver.Enforced {
		out = append(out, "a process limit cannot be enforced")
	}
	if spec.Limits.CPUs > 0 && d.caps.CPUs != driver.Enforced {
		out = append(out, "a processor limit cannot be enforced: there is no cpu cgroup")
	}
	return out
}

// unmountable says why nothing can be mounted at dest: /etc is a selection that
// must not be covered by the host's, and in what is shown read-only no directory
// can be made for a mount.
func (d *bubble) unmountable(dest string) string {
	if inside(dest, "/etc") && !defence.EtcUncovered.Off() {
		return "/etc is the sandbox's own, and read-only"
	}
	i := slices.IndexFunc(d.system, func(e systemEntry) bool { return inside(dest, e.path) })
	if i < 0 || dest == d.system[i].path {
		return ""
	}
	if info, err := os.Lstat(dest); err == nil && info.IsDir() && d.system[i].link == "" {
		return ""
	}
	return fmt.Sprintf("%s has no directory %s in the sandbox, and is read-only", d.system[i].path, dest)
}

// inside reports whether p is dir or below it. Both are clean and absolute.
func inside(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// start makes the sandbox and waits for its agent's hello.
func (m *machine) start(ctx context.Context, spec *driver.Spec) error {
	control, guest, err := fdpass.Pair()
	if err != nil {
		return fmt.Errorf("make the control socket: %w", err)
	}
	err = m.enter(ctx, order{
		network: spec.Network, mounts: spec.Mounts, sizes: m.disk, control: guest, command: "serve",
	}, cgroup.Limits{MemoryBytes: spec.Limits.MemoryBytes, Processes: spec.Limits.Processes, CPUs: spec.Limits.CPUs})
	// With only the sandbox holding the other end, its end is the link's end.
	err = errors.Join(err, guest.Close())
	if err != nil {
		return errors.Join(err, control.Close())
	}
	config, files := m.boot(spec)
	payload, err := config.Encode()
	if err != nil {
		return errors.Join(err, control.Close())
	}
	if m.link, err = fdpass.New(control, payload, files, fdpass.Options{}); err != nil {
		return err
	}
	if err := m.link.Ready(ctx); err != nil {
		return fmt.Errorf("the agent does not answer: %w", err)
	}
	return nil
}

// enter leases, makes cgroups and starts bubblewrap, until its first process
// exists and all limits are set. What it made is in m also after an error.
func (m *machine) enter(ctx context.Context, o order, limits cgroup.Limits) error {
	uid, gid := os.Geteuid(), os.Getegid()
	if m.driver.leases != nil {
		var err error
		if m.lease, err = m.driver.leases.take(ctx); err != nil {
			return err
		}
		o.uid = m.lease.uid
		uid, gid = int(o.uid), int(o.uid)
	}
	var err error
	if m.group, err = m.driver.cgroups.New(m.id, uid, gid); err != nil {
		return err
	}
	o.cgroup = m.group.Start()
	if m.child, err = m.driver.spawn(o); err != nil {
		return err
	}
	if m.group.NeedsAdoption() {
		if err := m.child.ready(ctx); err != nil {
			return err
		}
		if err := m.group.Adopt(m.child.proc.Pid, m.child.first.pid); err != nil {
			return err
		}
		return m.group.Limit(limits)
	}
	// The limits are made while bubblewrap works: the agent starts nothing before
	// it has the boot message.
	limited := make(chan error, 1)
	var work sync.WaitGroup
	work.Go(func() { limited <- m.group.Limit(limits) })
	err = m.child.ready(ctx)
	work.Wait()
	return errors.Join(err, <-limited)
}

// searchPath is the PATH of a sandbox's commands.
func searchPath(spec *driver.Spec) string {
	return strings.Join(append(slices.Clone(spec.Path), commandPath), ":")
}

// boot is the first message for the agent, and its descriptors.
func (m *machine) boot(spec *driver.Spec) (boot.Config, []*os.File) {
	c := boot.Config{User: "user", Home: homePath, Dir: workRoot(spec.Mounts), Path: searchPath(spec), TempDir: tmpPath, Probe: ahead(spec.Probe)}
	var files []*os.File
	if payload := m.group.Payload(); payload != nil {
		c.Files, files = append(c.Files, boot.CgroupDir), append(files, payload)
	} else {
		c.Mark = true
	}
	tasks := m.group.Tasks()
	for _, name := range slices.Sorted(maps.Keys(tasks)) {
		c.Files, files = append(c.Files, boot.TasksPrefix+name), append(files, tasks[name])
	}
	support := m.driver.cgroups.Support()
	if !support.Processes {
		c.Processes = spec.Limits.Processes
	}
	if !support.Memory {
		c.DataBytes = spec.Limits.MemoryBytes
	}
	c.SizedPaths = sizedPaths(spec.Mounts)
	c.MemoryBytes, c.CPUs = spec.Limits.MemoryBytes, spec.Limits.CPUs
	if spec.Network == driver.NetworkGated {
		c.EgressAddress, c.Connector, c.TrustDir = egressAddress, connectorPath, driver.TrustPath
	}
	return c, files
}

// maxAhead bounds the probe that goes with the boot message, in bytes of names.
const maxAhead = 8 << 10

// ahead is the probe for the boot message; nil for one that is too large for it,
// which is then begun when it is asked for.
func ahead(p *driver.Probe) *boot.Probe {
	if p == nil {
		return nil
	}
	size := 0
	for _, name := range slices.Concat(p.WritePaths, p.AbstractSockets, p.SizePaths) {
		size += len(name)
	}
	if size > maxAhead {
		return nil
	}
	return &boot.Probe{WritePaths: p.WritePaths, AbstractSockets: p.AbstractSockets, SizePaths: p.SizePaths}
}

// workRoot is where commands start that say nothing else.
func workRoot(mounts []driver.Mount) string {
	for _, name := range []string{"workdir", "outputs"} {
		for _, m := range mounts {
			if m.Name == name {
				return m.Dest
			}
		}
	}
	return homePath
}

// failure adds what is known about a failed start.
func (m *machine) failure(ctx context.Context, err error) error {
	kind := errdefs.Unavailable
	if ctx.Err() != nil {
		kind = errdefs.KindOf(ctx.Err())
	} else {
		var known *errdefs.Error
		if errors.As(err, &known) {
			kind = known.Kind
		}
		if kind == errdefs.TransportLost || kind == errdefs.Closed {
			kind = errdefs.Unavailable
		}
	}
	out := &errdefs.Error{Kind: kind, Op: "create", Backend: Name, Err: m.explain(err)}
	if kind != errdefs.Unavailable || m.child == nil || m.child.noise.reason() == "" {
		return out
	}
	// The host may have changed since the trial: what it lacks now is named.
	if unready := thisHost().unready(m.driver.cfg, m.driver.bwrap, []string{out.Err.Error()}); len(unready.Reasons) > 1 {
		unready.Op = "create"
		return unready
	}
	return out
}

// explain joins an error with bubblewrap's end and last words.
func (m *machine) explain(err error) error {
	var parts []error
	if err != nil {
		parts = append(parts, err)
	}
	if m.child != nil {
		m.child.settle()
		for _, text := range []string{m.child.status(), m.child.noise.reason()} {
			if text != "" {
				parts = append(parts, errors.New(text))
			}
		}
	}
	if len(parts) == 0 {
		return errors.New("the sandbox did not start")
	}
	return joined(parts)
}

// joined is errors.Join on one line.
func joined(parts []error) error {
	out := parts[0]
	for _, part := range parts[1:] {
		out = fmt.Errorf("%w; %w", out, part)
	}
	return out
}

// ID is the Spec's.
func (m *machine) ID() string { return m.id }

// Link returns the link.
func (m *machine) Link(context.Context) (link.Link, error) { return m.link, nil }

// Destroy ends the sandbox and frees what it used: first the processes, which
// needs no link, then the link, the cgroups and the uid.
func (m *machine) Destroy(ctx context.Context) error {
	select {
	case m.destroying <- struct{}{}:
	case <-ctx.Done():
		return errdefs.Wrap(errdefs.KindOf(ctx.Err()), "destroy", context.Cause(ctx))
	}
	defer func() { <-m.destroying }()
	if m.gone {
		return nil
	}
	if err := m.tearDown(ctx); err != nil {
		return errdefs.Wrap(errdefs.Internal, "destroy", err)
	}
	m.gone = true
	return nil
}

func (m *machine) tearDown(ctx context.Context) error {
	if m.child != nil {
		if err := m.child.end(ctx); err != nil {
			return errors.Join(err, m.killGroup())
		}
	}
	var faults []error
	if m.link != nil {
		faults = append(faults, m.link.Close())
	}
	if m.group != nil {
		faults = append(faults, m.group.Kill(), m.group.Remove(ctx))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if m.lease != nil {
		m.lease.release()
		m.lease = nil
	}
	return nil
}

// killGroup is the last resort for a sandbox that does not end.
func (m *machine) killGroup() error {
	if m.group == nil {
		return nil
	}
	return m.group.Kill()
}

// Counters reads the limits' counters.
func (m *machine) Counters(context.Context) (driver.Counters, error) {
	kills, refusals, err := m.group.Counters()
	if err != nil {
		return driver.Counters{}, errdefs.Wrap(errdefs.Internal, "read counters", err)
	}
	return driver.Counters{MemoryKills: kills, ProcessRefusals: refusals}, nil
}
