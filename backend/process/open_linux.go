package process

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berm-dev/berm/backend/process/cgroup"
	"github.com/berm-dev/berm/backend/process/seccomp"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

const (
	// trialLimit bounds the trial sandbox.
	trialLimit = 20 * time.Second
	// undoLimit bounds the clean-up after a failure, on a context of its own.
	undoLimit = 15 * time.Second
	// stateName is the backend's directory below the state directory.
	stateName = "process"
)

// bubble is the opened driver.
type bubble struct {
	cfg     Config
	caps    driver.Capabilities
	bwrap   bwrap
	cgroups *cgroup.Manager
	// leases is nil for an unprivileged caller.
	leases *leases
	forker *forker
	// sealed is closed when agent has been prepared.
	sealed chan struct{}
	// own is how bubblewrap leaves the host's mounts, for an unprivileged caller.
	own    ownMounts
	kit    *kit
	system []systemEntry
	mask   procMask
	// connecting guards the kit's copy of the agent's program, which the first
	// sandbox with a gate makes.
	connecting sync.Mutex
	connects   bool
	// ownConnectors: the kit lies where no program can be executed.
	ownConnectors bool
	// agent is the sealed program, filter the compiled system call filter, input
	// an input that is at its end.
	agent, filter, input *os.File

	closing sync.Once
	closed  error
}

var (
	_ driver.Driver  = (*bubble)(nil)
	_ driver.Sweeper = (*bubble)(nil)
	_ driver.Doctor  = (*bubble)(nil)
)

// open makes a driver: all that can be found wrong is in one error.
func open(ctx context.Context, cfg Config, host driver.Host) (driver.Driver, error) {
	tools := thisHost()
	d := &bubble{cfg: cfg, mask: readMask("/proc"), sealed: make(chan struct{})}
	var reasons []string
	var work sync.WaitGroup
	work.Go(func() { d.bwrap, reasons = tools.engine(ctx, cfg) })
	prepared := d.prepare(host)
	work.Wait()
	if prepared != nil {
		reasons = append(reasons, prepared.Error())
	}
	missing := tools.missing()
	// Without CAP_KILL a trial that hangs could not be ended.
	if len(reasons) == 0 && !slices.Contains(missing, "CAP_KILL") {
		limit, cancel := context.WithTimeoutCause(ctx, trialLimit, fmt.Errorf("it did not end within %v", trialLimit))
		defer cancel()
		if err := d.settle(limit, trialID(host.Instance)); err != nil {
			reasons = append(reasons, "the trial sandbox failed: "+err.Error())
		}
	}
	if len(missing) > 0 {
		reasons = append(reasons, lacking(missing))
	}
	switch {
	case len(reasons) == 0:
		d.caps = d.capabilities()
		return d, nil
	case ctx.Err() != nil:
		return nil, errors.Join(errdefs.Wrap(errdefs.KindOf(ctx.Err()), "open", context.Cause(ctx)), d.Close())
	}
	failure := tools.unready(cfg, d.bwrap, reasons)
	if err := d.Close(); err != nil {
		return nil, errors.Join(failure, err)
	}
	return nil, failure
}

// engine settles the mechanism and finds its program.
func (t toolbox) engine(ctx context.Context, cfg Config) (bwrap, []string) {
	var reasons []string
	if cfg.Engine == EngineSeatbelt {
		reasons = append(reasons, "engine seatbelt needs macOS")
		return bwrap{}, reasons
	}
	found, reasons := t.findBwrap(ctx, cfg.BwrapPath)
	if t.otherProc != nil && t.otherProc() {
		reasons = append(reasons, foreignProc)
	}
	if t.euid == 0 && !t.mapped(cfg.UIDBase, cfg.UIDCount) {
		reasons = append(reasons, fmt.Sprintf(
			"the uids %d to %d, which root's sandboxes run under, do not exist in this user namespace",
			cfg.UIDBase, cfg.UIDBase+cfg.UIDCount-1))
	}
	return found, reasons
}

// prepare makes what all sandboxes share. What it made before an error is in d,
// for Close.
func (d *bubble) prepare(host driver.Host) error {
	dir := filepath.Join(host.StateDir, stateName)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
		return err
	}
	var work sync.WaitGroup
	var faults [3]error
	work.Go(func() {
		defer close(d.sealed)
		d.agent, faults[0] = sealedProgram("berm-agent", host.Agent.Image)
	})
	work.Go(func() { d.kit, faults[1] = makeKit(sharedMemory, dir, "/etc") })
	work.Go(func() {
		d.forker = newForker()
		if faults[2] = d.prepareRest(host); faults[2] == nil {
			d.cgroups = cgroup.Open(cgroup.Host{Detach: d.detach})
		}
	})
	work.Wait()
	if d.kit != nil {
		d.ownConnectors = mountedNoexec(d.kit.dir)
	}
	return errors.Join(faults[:]...)
}

func (d *bubble) prepareRest(host driver.Host) error {
	program, err := seccomp.Program()
	if err != nil {
		return err
	}
	if d.filter, err = memFile("berm-filter", seccomp.Encode(program)); err != nil {
		return err
	}
	if d.input, err = emptyInput(); err != nil {
		return err
	}
	if d.system, err = readSystem("/"); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		d.leases, err = newLeases(leasesDir, d.cfg.UIDBase, d.cfg.UIDCount)
	}
	return err
}

// capabilities says what this host gives.
func (d *bubble) capabilities() driver.Capabilities {
	caps := Config{}.Declare()
	support := d.cgroups.Support()
	if !support.Memory {
		caps.Memory = driver.Partial
		caps.Notes = append(caps.Notes, "Memory is bounded for each process only, not for the sandbox: there is no memory cgroup",
			"The number of files in the sandbox's own file systems is not bounded: only a memory cgroup would bound it")
	}
	if !support.CPUs {
		caps.CPUs = driver.Unenforced
		caps.Notes = append(caps.Notes, "Processor time is not bounded: there is no cpu cgroup")
	}
	if !support.Processes {
		caps.Notes = append(caps.Notes, "Processes are bounded by an rlimit in the sandbox's own user namespace, "+
			"which counts the agent's threads too; refused forks are not counted")
	}
	if !support.Kill {
		caps.TreeKill = driver.KillMark
	}
	caps.Isolation.Limits = support.Memory && support.Processes
	caps.Notes = append(caps.Notes, support.Reasons...)
	caps.Notes = append(caps.Notes,
		"A sandbox can read the host paths of its mounts in /proc/self/mountinfo",
		"A unix socket that lies in a mounted directory can be connected to, also through a read-only mount")
	if d.leases != nil && !thisHost().capable(capSysAdmin) {
		// Its launcher could not prepare the mounts.
		caps.HostDirs = false
	}
	if d.leases == nil {
		caps.Notes = append(caps.Notes, "All sandboxes run under the caller's own uid, and share what the kernel counts for a user: "+
			"inotify instances and pipe buffers; one sandbox may have a sixteenth of the queued signals and timers")
	}
	stays := d.leases == nil && d.own == (ownMounts{}) || d.leases != nil && !thisHost().capable(capSysAdmin)
	if stays && sharedRoot("/proc/self/mountinfo") {
		caps.Notes = append(caps.Notes, "What the host mounts later below a mounted directory or below /usr appears in running sandboxes, "+
			"also writable: the host's mounts are shared ones, and this caller has no way to leave them")
	}
	if d.forker.priority != nil {
		caps.Notes = append(caps.Notes, fmt.Sprintf("Sandboxes run with the caller's own priority: %v", d.forker.priority))
	}
	if d.forker.keyring != nil {
		caps.Notes = append(caps.Notes, fmt.Sprintf("The caller's session keyring could not be left: %v", d.forker.keyring))
	}
	return caps
}

// sharedRoot reports whether a mount of the host hands on what is mounted below.
func sharedRoot(mountInfo string) bool {
	data, err := os.ReadFile(mountInfo)
	return err != nil || strings.Contains(string(data), " shared:") || strings.Contains(string(data), " master:")
}

// Capabilities is what was found on this host.
func (d *bubble) Capabilities() driver.Capabilities { return d.caps }

// Close frees what the sandboxes shared.
func (d *bubble) Close() error {
	d.closing.Do(func() {
		if d.forker != nil {
			d.forker.close()
		}
		for _, file := range []*os.File{d.agent, d.filter, d.input} {
			if file != nil {
				d.closed = errors.Join(d.closed, file.Close())
			}
		}
		if d.leases != nil {
			d.leases.close()
		}
		if d.kit != nil {
			d.closed = errors.Join(d.closed, d.kit.close())
		}
		if d.cgroups != nil {
			d.cgroups.Close()
		}
	})
	return d.closed
}

// Sweep ends and removes what is left of sandboxes whose host process is gone.
// Their processes have ended with that; cgroups stay.
func (d *bubble) Sweep(ctx context.Context, ids []string) error {
	var faults []error
	for _, id := range ids {
		if err := d.cgroups.Sweep(ctx, id); err != nil {
			faults = append(faults, fmt.Errorf("sandbox %s: %w", id, err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return errdefs.Wrap(errdefs.Internal, "sweep", err)
	}
	return nil
}

// settle finds out how sandboxes start here, by trials. The last one's failure is
// the host's.
func (d *bubble) settle(ctx context.Context, id string) error {
	if d.leases != nil {
		return d.trial(ctx, id, "version")
	}
	ways := waysApart()
	if defence.LaterMounts.Off() {
		ways = ways[len(ways)-1:]
	}
	var err error
	for _, d.own = range ways {
		if err = d.trial(ctx, id, "version"); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

// trial starts a sandbox as Create does, whose first process is the agent's
// program with command as its argument, and has to end well.
func (d *bubble) trial(ctx context.Context, id, command string) (err error) {
	m := newMachine(d, id)
	defer func() {
		fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		err = errors.Join(err, m.Destroy(fresh))
	}()
	sizes, err := splitDisk(0, nil, driver.NetworkNone)
	if err != nil {
		return err
	}
	err = m.enter(ctx, order{network: driver.NetworkNone, sizes: sizes, control: d.input, command: command}, cgroup.Limits{})
	// It may well have ended before anybody looked.
	if err != nil && !errors.Is(err, errFirstGone) {
		return m.explain(err)
	}
	select {
	case <-m.child.exited:
		if m.child.state != nil && m.child.state.Success() {
			return nil
		}
	case <-ctx.Done():
	}
	return m.explain(context.Cause(ctx))
}

// trialID names the trial sandbox by the instance, which berm.Open has recorded:
// what a killed process leaves of the trial is then found by the next sweep.
func trialID(instance string) string {
	if len(instance) == 20 {
		return instance
	}
	return randomID()
}

// randomID makes an id of the form that sandboxes have.
func randomID() string {
	var raw [16]byte
	// It never fails on Linux: it would end the program first.
	_, _ = rand.Read(raw[:])
	return strings.ToLower(base32.StdEncoding.EncodeToString(raw[:]))[:20]
}
