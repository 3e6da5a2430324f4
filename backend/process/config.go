// Package process is the default backend: each sandbox is one resident
// bubblewrap sandbox on this host, with berm's agent as its first process. A
// command costs a fork inside; nothing is installed, and nothing stays behind.
//
// # What a sandbox sees
//
// A read-only system (/usr and what the host links into it), an /etc with the
// selected files that programs need and nothing secret, a masked /proc, no /sys,
// a read-only /dev, the layout's mounts, and in-memory file systems whose sizes
// together are Limits.DiskBytes. Of those bytes /tmp and each ephemeral mount
// get eight parts, /home/user and /dev/shm four, /run one (see splitDisk).
//
// # Who holds what
//
// Namespaces for users, mounts, processes, IPC, host name, cgroups and (but for
// network host) network come from bubblewrap; a system call filter is on the agent and
// its payloads alike. A root caller's sandboxes each run under a leased
// unprivileged uid of the host. Limits are kept by cgroups, version 2 or 1,
// where the caller may make them; else the process limit is an rlimit in the
// sandbox's own user namespace and memory is not bounded as a whole.
//
// End of the host process is the end of its sandboxes: bubblewrap, the agent and
// the control socket each see to that.
package process

import (
	"context"
	"fmt"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/posture"
)

// Name is the backend's name.
const Name = "process"

// The engines.
const (
	EngineAuto       = "auto"
	EngineBubblewrap = "bubblewrap"
	EngineSeatbelt   = "seatbelt"
)

// The range of uids for sandboxes of a root caller, when none is configured.
const (
	DefaultUIDBase  = 1_900_000_000
	DefaultUIDCount = 65_536
)

// Config is the backend's configuration. The zero value is ready for use. It is
// plain data and is never changed.
type Config struct {
	// Engine picks the mechanism; empty means EngineAuto: bubblewrap on Linux.
	Engine string
	// BwrapPath is an absolute path of bubblewrap; empty searches PATH.
	BwrapPath string
	// UIDBase is the first of the host uids that a root caller's sandboxes run
	// under, UIDCount how many there are; zero means the defaults. Nothing else
	// may use these uids. They are not used by unprivileged callers.
	UIDBase  uint32
	UIDCount uint32
}

var _ driver.Backend = Config{}

// Declare says what the best host gives: all four promises, and cgroups.
func (Config) Declare() driver.Capabilities {
	return driver.Capabilities{
		Backend:        Name,
		Tier:           driver.TierProcess,
		Isolation:      posture.Isolation{Filesystem: true, Network: true, Processes: true, Limits: true},
		Networks:       []driver.Network{driver.NetworkNone, driver.NetworkGated, driver.NetworkHost},
		Memory:         driver.Enforced,
		Processes:      driver.Enforced,
		CPUs:           driver.Enforced,
		Disk:           driver.Enforced,
		TreeKill:       driver.KillCgroup,
		HostDirs:       true,
		ContainedPaths: true,
	}
}

// Open probes the host, with one real trial sandbox, and returns a driver.
// Errors: Invalid for a wrong configuration, Unavailable with every reason and
// what to do about it, which are in its driver.UnreadyError too.
func (c Config) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	if faults := c.faults(); len(faults) > 0 {
		return nil, refused(errdefs.Invalid, "open", faults...)
	}
	return open(ctx, c.withDefaults(), host)
}

// faults checks the configuration by itself.
func (c Config) faults() []string {
	var out []string
	switch c.Engine {
	case "", EngineAuto, EngineBubblewrap, EngineSeatbelt:
	default:
		out = append(out, fmt.Sprintf("engine %q is not one of %s, %s, %s", c.Engine, EngineAuto, EngineBubblewrap, EngineSeatbelt))
	}
	if c.BwrapPath != "" && c.BwrapPath[0] != '/' {
		out = append(out, fmt.Sprintf("bwrapPath %q is not absolute", c.BwrapPath))
	}
	full := c.withDefaults()
	switch {
	case full.UIDBase < 1000:
		out = append(out, fmt.Sprintf("uidBase %d belongs to the system; give at least 1000", full.UIDBase))
	case uint64(full.UIDBase)+uint64(full.UIDCount) >= 1<<32-1:
		out = append(out, fmt.Sprintf("uidBase %d and uidCount %d go beyond the last uid", full.UIDBase, full.UIDCount))
	}
	return out
}

func (c Config) withDefaults() Config {
	if c.Engine == "" {
		c.Engine = EngineAuto
	}
	if c.UIDBase == 0 {
		c.UIDBase = DefaultUIDBase
	}
	if c.UIDCount == 0 {
		c.UIDCount = DefaultUIDCount
	}
	return c
}

// Factory describes the backend to the configuration reader.
func Factory() driver.Factory {
	return driver.Factory{
		Tier:    driver.TierProcess,
		Key:     "engine",
		Values:  []string{EngineAuto, EngineBubblewrap, EngineSeatbelt},
		Name:    Name,
		Default: func() driver.Backend { return Config{} },
		Decode:  decode,
		Keys:    []string{"engine", "bwrapPath", "uidBase", "uidCount"},
	}
}

// decode reads the fields of a configuration object.
func decode(fields *driver.Fields) (driver.Backend, []string) {
	var c Config
	var reasons []string
	for _, reason := range []string{
		driver.Take(fields, "engine", &c.Engine),
		driver.Take(fields, "bwrapPath", &c.BwrapPath),
		driver.Take(fields, "uidBase", &c.UIDBase),
		driver.Take(fields, "uidCount", &c.UIDCount),
	} {
		if reason != "" {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) == 0 {
		reasons = c.faults()
	}
	if len(reasons) > 0 {
		return nil, reasons
	}
	return c, nil
}

// refused builds an error of this backend.
func refused(kind errdefs.Kind, op string, reasons ...string) *errdefs.Error {
	return &errdefs.Error{Kind: kind, Op: op, Backend: Name, Reasons: reasons}
}
