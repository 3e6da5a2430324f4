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

// Doctor is a power of a Driver: it says what was found when it was opened.
type Doctor interface {
	// Diagnose does no I/O. Its problems are those of a host that works, and gives
	// less than the backend declared: none is fatal.
	Diagnose() Diagnosis
}

// Diagnosis is what a backend knows about a host.
type Diagnosis struct {
	// Problems, each with what to do about it.
	Problems []Problem
	// Facts that were seen, for people: versions and mechanisms.
	Facts []string
}

// Problem is one thing that is missing, and what to do about it.
type Problem struct {
	// Reason is one sentence without a full stop.
	Reason string `json:"reason"`
	// Fix is the command to type or the setting to change; empty when there is
	// none.
	Fix string `json:"fix,omitempty"`
	// Fatal: the backend cannot be used at all, or not as it was asked for.
	Fatal bool `json:"fatal"`
}

// String is the reason with its fix.
func (p Problem) String() string {
	if p.Fix == "" {
		return p.Reason
	}
	return p.Reason + "; fix: " + p.Fix
}

// UnreadyError is in the chain of an error of Open or Create when the backend
// knows what the host lacks. The error's Reasons say the same in words.
type UnreadyError struct{ Diagnosis }

// Error does not repeat the problems: they are the reasons of the error that has
// this one as its cause.
func (*UnreadyError) Error() string { return "the backend cannot be used here" }

// Unready makes the cause and the reasons of an error from problems.
func Unready(found Diagnosis) (cause *UnreadyError, reasons []string) {
	for _, p := range found.Problems {
		reasons = append(reasons, p.String())
	}
	return &UnreadyError{found}, reasons
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

// EgressLock is a power of a Machine whose loopback is not its own: on network
// gated, others of the host can reach what its agent listens on.
type EgressLock interface {
	// EgressKey is the user name and password that the agent has told its
	// payloads, and that the gate has to ask for. Both are random and not empty
	// where the machine's network is gated.
	EgressKey() (user, password string)
}
