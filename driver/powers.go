package driver

import (
	"context"

	"github.com/berm-dev/berm/posture"
)

// Witness is a power of a Machine: it measures, from outside, what the posture
// table of its tier asks of the host.
type Witness interface {
	// Witness returns host-side facts. It never asks the agent.
	Witness(ctx context.Context) ([]posture.Fact, error)
}

// Meter is a power of a Machine: it reads the counters of its limits.
type Meter interface {
	// Counters is cheap enough to be called around every command.
	Counters(ctx context.Context) (Counters, error)
}

// Counters count how often each limit of a machine was hit since it was made.
// They only grow.
type Counters struct {
	// MemoryKills counts processes that were killed for memory.
	MemoryKills uint64
	// ProcessRefusals counts forks that were refused.
	ProcessRefusals uint64
}

// Sweeper is a power of a Driver: it removes what machines of a host process
// that is gone have left behind.
type Sweeper interface {
	// Sweep removes what belongs to these machine IDs. A machine of which nothing
	// is left is no error.
	Sweep(ctx context.Context, ids []string) error
}

// Doctor is a power of a Backend: it says what is wrong with this host.
type Doctor interface {
	// Diagnose probes the host without starting a machine.
	Diagnose(ctx context.Context) Diagnosis
}

// Diagnosis is what Doctor found.
type Diagnosis struct {
	Backend   string `json:"backend"`
	Available bool   `json:"available"`
	// Problems, when the backend is not available or weaker than declared.
	Problems []Problem `json:"problems,omitempty"`
	// Capabilities of this host, nil when it is not available.
	Capabilities *Capabilities `json:"capabilities,omitempty"`
	// Facts that were seen, for people: versions and mechanisms.
	Facts []string `json:"facts,omitempty"`
}

// Problem is one thing that is missing, and what to do about it.
type Problem struct {
	// Reason is one sentence without a full stop.
	Reason string `json:"reason"`
	// Fix is the command to type or the setting to change; empty when there is
	// none.
	Fix string `json:"fix,omitempty"`
	// Fatal: the backend cannot be opened at all.
	Fatal bool `json:"fatal"`
}

// Unwrapper is implemented by decorators of a Backend, Driver or Machine.
type Unwrapper[T any] interface{ Unwrap() T }

// As finds a power in v or in what it decorates. P is the power's interface,
// T one of Backend, Driver and Machine.
func As[P, T any](v T) (P, bool) {
	for {
		if power, ok := any(v).(P); ok {
			return power, true
		}
		wrapped, ok := any(v).(Unwrapper[T])
		if !ok {
			var none P
			return none, false
		}
		v = wrapped.Unwrap()
	}
}

// Rooted is a power of a Machine whose paths are the host's own (ContainedPaths
// is false): it says where the working directory really is.
type Rooted interface {
	// WorkRoot is an absolute path, the same on every call.
	WorkRoot() string
}
