// Package berm puts a wall around code that is not trusted.
//
// A host program opens a Provider on a backend, creates a Sandbox, and runs
// commands in it with the shapes it knows from os/exec, io/fs and net:
//
//	p, err := berm.Open(ctx, process.Config{}, berm.Config{
//		Require: berm.Isolation{Filesystem: true, Network: true, Processes: true},
//	})
//	if err != nil { ... }
//	defer p.Close()
//	sb, err := p.Create(ctx, berm.CreateOptions{})
//	if err != nil { ... }
//	defer sb.Close()
//	out, err := sb.CommandContext(ctx, "python3", "-c", "print(6*7)").Output()
//
// The backend is the only thing that changes when the wall does. What a backend
// cannot enforce is refused before anything starts, and each sandbox is measured
// before it is handed over (Sandbox.Posture).
//
// Every error is an *errdefs.Error and answers to errors.Is with its kind.
package berm

import (
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/posture"
)

// Structs of the rooms below, under the names that users of this package meet.
type (
	// Layout is the set of mounts that a task sees.
	Layout = driver.Layout
	// Volume is one mount's source and path.
	Volume = driver.Volume
	// Skill is a read-only mount with a name.
	Skill = driver.Skill
	// Source says where a mount's files are.
	Source = driver.Source
	// HostDir is a directory of the host.
	HostDir = driver.HostDir
	// Limits bound one sandbox.
	Limits = driver.Limits
	// Capabilities is what a backend can do.
	Capabilities = driver.Capabilities
	// Isolation names the four promises.
	Isolation = posture.Isolation
	// Egress is what a sandbox may reach through its gate; the zero value denies
	// everything.
	Egress = egress.Policy
	// Credential is a secret that the gate puts on requests and that never enters
	// the sandbox.
	Credential = egress.Credential
)

// Defaults, from docs/design.md. A default that a backend cannot enforce is
// left out, and the posture says so; a limit that was asked for is refused.
const (
	DefaultMemoryBytes = 1 << 30
	DefaultProcesses   = 256
	DefaultDiskBytes   = 512 << 20
	// DefaultMaxOutput is how many bytes of each stream a Result keeps.
	DefaultMaxOutput = 16 << 20
)

// HostVolume is a Volume of a host directory at the layout's default path.
func HostVolume(hostPath string) *Volume { return driver.HostVolume(hostPath) }
