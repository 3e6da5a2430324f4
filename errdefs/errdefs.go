// Package errdefs is berm's one vocabulary of failure: a Kind for what went
// wrong, and an Error that carries it with the operation, the backend, every
// reason and the cause. It imports the standard library only, so that any room
// may use it.
package errdefs

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
)

// Kind is the class of an error. Kinds are errors themselves, so a caller asks
// errors.Is(err, errdefs.Unsupported). Their text is part of the wire format
// (Encode) and does not change.
type Kind string

// The kinds. Where the standard library has a sentinel of the same meaning,
// errors.Is finds the error by either.
const (
	// Invalid: the caller's input is wrong; nothing was started.
	Invalid Kind = "invalid"
	// Unsupported: what was asked for cannot be enforced or done here. Matches
	// errors.ErrUnsupported.
	Unsupported Kind = "unsupported"
	// Unavailable: the host lacks something that the backend needs.
	Unavailable Kind = "unavailable"
	// NotFound matches fs.ErrNotExist.
	NotFound Kind = "not-found"
	// Exists matches fs.ErrExist.
	Exists Kind = "exists"
	// Denied matches fs.ErrPermission.
	Denied Kind = "denied"
	// NotStarted: the command's program never ran.
	NotStarted Kind = "not-started"
	// Cancelled: the caller's context was cancelled. Matches context.Canceled.
	Cancelled Kind = "cancelled"
	// Timeout: the caller's deadline, or one of berm's own, has passed. Matches
	// context.DeadlineExceeded and os.ErrDeadlineExceeded. A command that
	// outlives its own timeout is a Result, not this.
	Timeout Kind = "timeout"
	// TransportLost: the link to the sandbox ended in the middle; what the other
	// side did is unknown.
	TransportLost Kind = "transport-lost"
	// Unproven: a promised isolation was not seen to hold.
	Unproven Kind = "unproven"
	// Exhausted: a limit or a resource is used up.
	Exhausted Kind = "exhausted"
	// Closed: the sandbox, the provider or the link was closed before. Matches
	// fs.ErrClosed and net.ErrClosed.
	Closed Kind = "closed"
	// Protocol: the other side broke the protocol.
	Protocol Kind = "protocol"
	// Internal: a fault of berm's own.
	Internal Kind = "internal"
)

// Error gives the kind's name.
func (k Kind) Error() string { return string(k) }

// sentinels lists the standard library's errors that mean the same as a kind.
func (k Kind) sentinels() []error {
	switch k {
	case Unsupported:
		return []error{errors.ErrUnsupported}
	case NotFound:
		return []error{fs.ErrNotExist}
	case Exists:
		return []error{fs.ErrExist}
	case Denied:
		return []error{fs.ErrPermission}
	case Cancelled:
		return []error{context.Canceled}
	case Timeout:
		return []error{context.DeadlineExceeded, os.ErrDeadlineExceeded}
	case Closed:
		return []error{fs.ErrClosed, net.ErrClosed}
	case Invalid, Unavailable, NotStarted, TransportLost, Unproven, Exhausted, Protocol, Internal:
	}
	return nil
}

// Error is the one error type of berm's API. It is immutable once returned and
// safe for concurrent use.
type Error struct {
	// Kind is never empty in an error that berm returns.
	Kind Kind
	// Op is the operation in one or two words: "create", "read file".
	Op string
	// Backend is the backend's name, empty when none was concerned.
	Backend string
	// Reasons has every fault that was found, each a sentence without a full
	// stop. It may be empty when Err says it all.
	Reasons []string
	// Err is the cause, nil when berm itself found the fault.
	Err error
}

// New returns an error of a kind with its reasons.
func New(kind Kind, op string, reasons ...string) *Error {
	return &Error{Kind: kind, Op: op, Reasons: reasons}
}

// Wrap gives err a kind and an operation. A nil err stays nil. An err that is an
// *Error already keeps its kind, reasons and backend; only an empty Op is
// filled, so that each error is wrapped once.
func Wrap(kind Kind, op string, err error) error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		if known.Op != "" {
			return err
		}
		filled := *known
		filled.Op = op
		return &filled
	}
	return &Error{Kind: kind, Op: op, Err: err}
}

// Error joins operation, backend, reasons and cause on one line.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		if e.Backend != "" {
			b.WriteString(" (" + e.Backend + ")")
		}
		b.WriteString(": ")
	}
	switch {
	case len(e.Reasons) > 0:
		b.WriteString(strings.Join(e.Reasons, "; "))
		if e.Err != nil {
			b.WriteString(": " + e.Err.Error())
		}
	case e.Err != nil:
		b.WriteString(e.Err.Error())
	default:
		b.WriteString(string(e.Kind))
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the error's kind or a standard error of the same
// meaning.
func (e *Error) Is(target error) bool {
	if kind, ok := target.(Kind); ok { //nolint:errorlint // a Kind is a value, never wrapped
		return kind == e.Kind
	}
	for _, sentinel := range e.Kind.sentinels() {
		if target == sentinel { //nolint:errorlint // called by errors.Is, which unwraps
			return true
		}
	}
	return false
}

// KindOf returns the kind of the outermost *Error in err's chain, or what the
// standard library's own errors and the system's "no more of it" mean, or
// Internal. A nil err gives "".
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var known *Error
	if errors.As(err, &known) {
		return known.Kind
	}
	for _, kind := range []Kind{Unsupported, NotFound, Exists, Denied, Cancelled, Timeout, Closed} {
		for _, sentinel := range kind.sentinels() {
			if errors.Is(err, sentinel) {
				return kind
			}
		}
	}
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return Exhausted
		}
	}
	return Internal
}

// Encoded is an error made ready for transport, with JSON names that do not
// change.
type Encoded struct {
	Name    string   `json:"name"`
	Message string   `json:"message"`
	Reasons []string `json:"reasons,omitempty"`
	Cause   string   `json:"cause,omitempty"`
}

// Encode turns any error into its transport form. A nil error gives the zero
// value.
func Encode(err error) Encoded {
	if err == nil {
		return Encoded{}
	}
	out := Encoded{Name: string(KindOf(err)), Message: err.Error()}
	var known *Error
	if errors.As(err, &known) {
		out.Reasons = known.Reasons
		if known.Err != nil {
			out.Cause = known.Err.Error()
		}
	}
	return out
}
