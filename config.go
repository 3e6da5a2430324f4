package berm

import (
	"crypto/x509"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/egress"
)

// NoTimeout as a timeout means that there is none; zero means "not said".
const NoTimeout time.Duration = -1

// Config is what all sandboxes of a Provider share. The zero value is usable
// where the agent can be found: no network, ephemeral outputs, default limits,
// nothing required.
type Config struct {
	// Agent is the agent's program; see AgentProgram for where it is looked for.
	Agent AgentProgram
	// StateDir is an absolute directory for berm's own records, made with mode
	// 0700; empty for /run/berm (root), $XDG_RUNTIME_DIR/berm or /tmp/berm-UID.
	StateDir string
	// Layout is validated once, in Open.
	Layout Layout
	// Toolchains are found once, in Open.
	Toolchains Toolchains
	// Limits, where zero, are the defaults.
	Limits Limits
	// Network, when empty, is driver.NetworkGated where Egress is set, else
	// driver.NetworkNone, or the backend's only network when that is the host's
	// (passthrough). The host's is used by name only. Gated by name, without an
	// Egress, denies everything until SetEgress.
	Network driver.Network
	// Egress is what each sandbox may reach, through a gate of its own; nil for
	// none. An empty one denies everything, and SetEgress can change it. It must not
	// be changed while the Provider is in use.
	Egress *Egress
	// Audit gets a record of each decision of every gate, and one at each flow's
	// end; an error denies what the record is about. Nil keeps no records.
	Audit egress.Sink
	// Nameservers are the DNS servers that gates ask, each an address with or
	// without a port; empty for those of the host's /etc/resolv.conf.
	Nameservers []string
	// UpstreamRoots are the authorities by which gates verify servers that get a
	// credential; nil for the host's.
	UpstreamRoots *x509.CertPool
	// Require refuses, in Open and in Create, without these promises.
	Require Isolation
	// Timeout bounds each command that names none; zero or NoTimeout for none.
	Timeout time.Duration
	// ReadyTimeout bounds Create, from the start to the finished measurement;
	// zero for 30 s.
	ReadyTimeout time.Duration
	// Env is the environment of every command, below its own Env.
	Env map[string]string
}

// CreateOptions differ from sandbox to sandbox. The zero value takes all from
// the Provider's Config.
type CreateOptions struct {
	// Layout replaces the Config's layout; nil keeps it.
	Layout *Layout
	// Egress replaces the Config's Egress; nil keeps it. With a Config that names no
	// network it gives this one sandbox a gate.
	Egress *Egress
	// Env is added to the Config's Env.
	Env map[string]string
	// Labels go on every resource that can carry them. Keys are not empty and
	// hold no "=".
	Labels map[string]string
}

const (
	defaultReadyTimeout = 30 * time.Second
	// maxTimeout keeps durations within what the agent's milliseconds, and the
	// configuration's, can say: 2,147,483,647 ms.
	maxTimeout = math.MaxInt32 * time.Millisecond
)

// faults lists what is wrong with the configuration by itself, whatever the
// backend.
func (c Config) faults() []string {
	var out []string
	out = append(out, envFaults("env", c.Env)...)
	out = append(out, limitFaults(c.Limits)...)
	out = append(out, timeoutFaults("timeout", c.Timeout)...)
	if c.ReadyTimeout < 0 || c.ReadyTimeout > maxTimeout {
		out = append(out, fmt.Sprintf("ready timeout %v is not within 0 and %v", c.ReadyTimeout, maxTimeout))
	}
	networks := []driver.Network{"", driver.NetworkNone, driver.NetworkGated, driver.NetworkHost}
	if !slices.Contains(networks, c.Network) {
		out = append(out, fmt.Sprintf("network %q is unknown; known: none, gated, host", c.Network))
	}
	out = append(out, egressFaults(c.Egress, c.Network)...)
	for _, server := range c.Nameservers {
		if _, err := netip.ParseAddrPort(server); err == nil {
			continue
		}
		if _, err := netip.ParseAddr(server); err != nil {
			out = append(out, fmt.Sprintf("name server %q is not an address, with or without a port", server))
		}
	}
	return out
}

func timeoutFaults(what string, d time.Duration) []string {
	if d == NoTimeout || d >= 0 && d <= maxTimeout {
		return nil
	}
	return []string{fmt.Sprintf("%s %v is not within 0 and %v", what, d, maxTimeout)}
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// envFaults checks names and values of environment variables.
func envFaults(what string, env map[string]string) []string {
	var out []string
	for _, key := range sortedKeys(env) {
		if !envName.MatchString(key) {
			out = append(out, fmt.Sprintf("%s: %q is not the name of an environment variable", what, key))
		}
		if strings.ContainsRune(env[key], 0) {
			out = append(out, fmt.Sprintf("%s: the value of %q has a NUL byte", what, key))
		}
	}
	return out
}

func labelFaults(labels map[string]string) []string {
	var out []string
	for _, key := range sortedKeys(labels) {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.ContainsRune(labels[key], 0) {
			out = append(out, fmt.Sprintf("label %q: a key must not be empty or hold \"=\", and neither side a NUL byte", key))
		}
	}
	return out
}

func limitFaults(l Limits) []string {
	var out []string
	// The smallest values with which an agent and a shell still run.
	if l.MemoryBytes != 0 && l.MemoryBytes < 4<<20 {
		out = append(out, fmt.Sprintf("memory limit of %d bytes is below 4 MiB", l.MemoryBytes))
	}
	if l.Processes != 0 && (l.Processes < 1 || l.Processes > 1<<22) {
		out = append(out, fmt.Sprintf("process limit %d is not within 1 and %d", l.Processes, 1<<22))
	}
	if l.CPUs != 0 && !(l.CPUs >= 0.01 && l.CPUs <= 4096) {
		out = append(out, fmt.Sprintf("cpu limit %v is not within 0.01 and 4096", l.CPUs))
	}
	if l.DiskBytes != 0 && l.DiskBytes < 1<<20 {
		out = append(out, fmt.Sprintf("disk limit of %d bytes is below 1 MiB", l.DiskBytes))
	}
	return out
}

// settleLimits fills in defaults and refuses what was asked for and cannot be
// kept. Notes say what was left out.
func settleLimits(asked Limits, caps Capabilities) (settled Limits, notes, refusals []string) {
	settled = Limits{BestEffort: asked.BestEffort}
	settle := func(name string, have driver.Enforcement, isAsked, isDefault bool) (use bool) {
		switch {
		case !isAsked && !isDefault:
			return false
		case have == driver.Enforced:
			return true
		case !isAsked:
			notes = append(notes, fmt.Sprintf("the default limit on %s is not set: backend %s cannot enforce it here", name, caps.Backend))
			return false
		case !asked.BestEffort:
			refusals = append(refusals, fmt.Sprintf("the limit on %s cannot be enforced by backend %s here; accept less with best effort", name, caps.Backend))
			return false
		case have == driver.Unenforced:
			notes = append(notes, fmt.Sprintf("the limit on %s has no effect: backend %s cannot apply it here", name, caps.Backend))
			return false
		default:
			notes = append(notes, fmt.Sprintf("the limit on %s is applied in part only", name))
			return true
		}
	}
	if settle("memory", caps.Memory, asked.MemoryBytes != 0, true) {
		settled.MemoryBytes = orDefault(asked.MemoryBytes, DefaultMemoryBytes)
	}
	if settle("processes", caps.Processes, asked.Processes != 0, true) {
		settled.Processes = orDefault(asked.Processes, DefaultProcesses)
	}
	if settle("cpus", caps.CPUs, asked.CPUs != 0, false) {
		settled.CPUs = asked.CPUs
	}
	if settle("disk", caps.Disk, asked.DiskBytes != 0, true) {
		settled.DiskBytes = orDefault(asked.DiskBytes, DefaultDiskBytes)
	}
	return settled, notes, refusals
}

func orDefault[T int | int64](asked, otherwise T) T {
	if asked != 0 {
		return asked
	}
	return otherwise
}
