// Package fake is a backend for tests: the real agent runs as goroutines of the
// calling process, and starts real children of the host in a temporary
// directory. It isolates nothing and says so.
//
// Its faults, each off by default, make it break one promise at a time. They
// exist to prove that the conformance suite notices; they are decorators of the
// driver, the machine and the link, so that the agent stays as it is.
package fake

import (
	"context"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/posture"
)

// Name is the backend's name.
const Name = "fake"

// Config is the backend's configuration. The zero value is healthy.
type Config struct {
	Faults Faults
}

// Faults are the promises that a fake breaks. The zero value breaks none.
type Faults struct {
	// LoseOutput drops the last byte of each piece of output.
	LoseOutput bool
	// InventExit reports exit status 0 for every end: a signal, a failure, a lost
	// transport.
	InventExit bool
	// IgnoreKill keeps the agent from hearing of timeouts and cancellations.
	IgnoreKill bool
	// LeakOnCancel leaves the machine of a Create that was cancelled.
	LeakOnCancel bool
	// SkipDestroy makes Destroy return nil at once and end nothing; the driver's
	// Close ends it, so that no process is left on the host.
	SkipDestroy bool
	// LieInPosture promises all isolation, and has both witnesses say that it
	// holds.
	LieInPosture bool
	// OverDeclare declares limits and contained paths that nothing enforces.
	OverDeclare bool
	// RefuseMounts declares mounts of host directories and refuses each.
	RefuseMounts bool
	// HangCreate, HangLink and HangDestroy let the call do nothing until its
	// context ends; of Destroy only the first call for each machine.
	HangCreate, HangLink, HangDestroy bool
	// DropLinkAfter ends the link after so many bytes of responses; 0 never.
	DropLinkAfter int64
}

var _ driver.Backend = Config{}

// Declare says that nothing is isolated, unless a fault makes it lie.
func (c Config) Declare() driver.Capabilities {
	caps := driver.Capabilities{
		Backend:  Name,
		Tier:     driver.TierPassthrough,
		Networks: []driver.Network{driver.NetworkGated, driver.NetworkHost},
		Memory:   driver.Partial,
		TreeKill: driver.KillMark,
		HostDirs: true,
		Notes: []string{
			"The fake backend is for tests: commands are processes of the host, and nothing is isolated",
			"With network gated, commands of the fake backend are led to the gate, and can go around it",
		},
	}
	if c.Faults.OverDeclare {
		caps.Memory, caps.Processes, caps.CPUs, caps.Disk = driver.Enforced, driver.Enforced, driver.Enforced, driver.Enforced
		caps.ContainedPaths = true
	}
	if c.Faults.LieInPosture {
		caps.Tier = driver.TierProcess
		caps.Networks = []driver.Network{driver.NetworkNone, driver.NetworkHost}
		caps.Isolation = posture.Isolation{Filesystem: true, Network: true, Processes: true, Limits: true}
	}
	return caps
}

// Open returns the driver. It starts nothing.
func (c Config) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	d, err := open(ctx, host, c.Declare())
	if err != nil || c.Faults == (Faults{}) {
		return d, err
	}
	return &faultyDriver{Driver: d, faults: c.Faults}, nil
}
