// Package driver is the contract between berm and its backends. A backend
// implements Backend, Driver and Machine; everything that it can do beyond that
// is an optional power, one method each, found by As. Policy, posture checks,
// layout validation and the public API are written once, in package berm.
//
// The conformance suite in package drivertest proves an implementation.
package driver

import (
	"context"

	"github.com/berm-dev/berm/link"
)

// Backend describes a mechanism before it is opened. It holds configuration
// only; methods do not change it and may be called concurrently.
type Backend interface {
	// Declare is the upper bound of what any host could give. It does no I/O.
	Declare() Capabilities
	// Open probes the host and makes ready what all machines share. It returns
	// one error with every reason: Unavailable when the host lacks something,
	// Invalid when the configuration is wrong. ctx bounds the opening only.
	Open(ctx context.Context, host Host) (Driver, error)
}

// Host is what berm lends to a driver.
type Host struct {
	// Agent is the agent's program.
	Agent Agent
	// StateDir is berm's own directory: absolute, mode 0700, owned by the
	// caller. The driver keeps what must outlive the process there, so that a
	// later sweep finds it.
	StateDir string
	// Instance names this opening; it holds a lock as long as it lives.
	Instance string
}

// Agent is the agent's program as bytes. Backends that need a file make one.
type Agent struct {
	// Image is the static executable. It is never changed.
	Image []byte
	// Origin says where it came from, for error messages.
	Origin string
}

// Driver makes machines. All methods may be called concurrently.
type Driver interface {
	// Capabilities is what this host can do: a subset of Backend.Declare.
	Capabilities() Capabilities
	// Create starts one machine, with its agent answering. It either returns a
	// machine or leaves nothing behind, also when ctx ends in the middle. spec is
	// validated and never nil; the driver must not keep or change it. Errors:
	// Unsupported with every reason for what cannot be enforced, before anything
	// was started.
	Create(ctx context.Context, spec *Spec) (Machine, error)
	// Close frees what machines shared. Machines are destroyed before it. A
	// second call returns nil.
	Close() error
}

// Machine is one running instance. All methods may be called concurrently.
type Machine interface {
	// ID is the Spec's ID.
	ID() string
	// Link returns the machine's link, the same one on every call. It belongs to
	// the machine: Destroy closes it.
	Link(ctx context.Context) (link.Link, error)
	// Destroy ends every process of the machine and frees all that it used. It
	// needs no link and is idempotent; a call after a failed one tries again. Its
	// error says what is left.
	Destroy(ctx context.Context) error
}

// Spec is what cannot change later about a machine. Backends may rely on
// everything in it having been validated.
type Spec struct {
	// ID is 20 characters of [a-z0-9], unique, chosen before Create.
	ID string
	// Mounts are in the order in which they must be made. Destinations are clean,
	// absolute, distinct and not nested.
	Mounts []Mount
	// WorkRoot is the working directory of commands that name none; one of the
	// mounts is there.
	WorkRoot string
	// Path has directories of the mounts that go before the backend's own PATH.
	Path []string
	// Limits has every default filled in; a zero field is not limited.
	Limits Limits
	// Network is how the machine reaches the outside.
	Network Network
	// Labels go on every resource that can carry them.
	Labels map[string]string
	// Probe is what the agent will be asked to measure first, nil for nothing. A
	// backend may tell its agent ahead (boot.Config.Probe), which only saves time.
	Probe *Probe
}

// Probe names what a probe tries inside.
type Probe struct {
	// WritePaths are tried for writing, AbstractSockets (names without the @) for
	// connecting; SizePaths lie on file systems whose sizes are wanted.
	WritePaths, AbstractSockets, SizePaths []string
}

// Mount is one resolved mount.
type Mount struct {
	// Name is the layout's word for it: "outputs", "skills/pdf", "workdir".
	Name string
	// Source is an absolute host directory or file. Empty means ephemeral
	// storage of the sandbox's own, within Limits.DiskBytes.
	Source string
	// Dest is the path inside.
	Dest string
	// Writable is false for a read-only mount.
	Writable bool
}

// TrustPath is where a machine of a contained tier with network gated keeps the
// certificates that its payloads are to trust, on a file system in memory that
// counts as the others do.
const TrustPath = "/run/berm/trust"

// Network says how a machine reaches the outside.
type Network string

// The networks.
const (
	// NetworkNone: no route and no gate.
	NetworkNone Network = "none"
	// NetworkGated: no route either; the only way out is the egress gate.
	NetworkGated Network = "gated"
	// NetworkHost: the host's own network. Nothing is isolated.
	NetworkHost Network = "host"
)

// Limits bound one machine's payloads together. Zero means "not said" in a
// configuration, where the default then applies if it can be enforced, and "not
// limited" in a Spec.
type Limits struct {
	// MemoryBytes bounds memory, in bytes.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	// Processes bounds processes and threads together.
	Processes int `json:"processes,omitempty"`
	// CPUs bounds processor time, in whole or part processors.
	CPUs float64 `json:"cpus,omitempty"`
	// DiskBytes bounds the sandbox's own (in-memory) file systems together, in
	// bytes.
	DiskBytes int64 `json:"diskBytes,omitempty"`
	// BestEffort accepts a limit that can be applied only in part, or not at all.
	BestEffort bool `json:"bestEffort,omitempty"`
}

// Enforcement says how well a limit can be kept.
type Enforcement string

// The enforcements, weakest first.
const (
	// Unenforced: the limit has no effect.
	Unenforced Enforcement = ""
	// Partial: bounded per process, or only for some uses.
	Partial Enforcement = "partial"
	// Enforced: bounded for the machine as a whole.
	Enforced Enforcement = "enforced"
)

// TreeKill says what ends a command's descendants.
type TreeKill string

// The ways to end a command's tree, weakest first.
const (
	// KillGroup: the process group and known descendants; a daemon may survive
	// until the machine ends.
	KillGroup TreeKill = "group"
	// KillMark: every descendant, found by a mark that it cannot shed.
	KillMark TreeKill = "mark"
	// KillCgroup: every descendant, by a cgroup of the command's own.
	KillCgroup TreeKill = "cgroup"
)
