package berm

import (
	"fmt"
	"io"
	"math"
	"strings"
	"syscall"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
)

// Command is what to run, as data. The zero value of each field but Args is
// usable. A Command is not changed by the methods that take it.
type Command struct {
	// Args are the program and its arguments; a program without a slash is looked
	// up in the command's PATH, inside. No shell is involved.
	Args []string
	// Dir is the working directory inside; empty for the sandbox's WorkDir. When
	// it is missing, nothing runs.
	Dir string
	// Env is added to the sandbox's environment; nothing of the host's gets in.
	Env map[string]string
	// Stdin is copied in until its end or the command's; nil is an empty input.
	// A Read that blocks is not waited for.
	Stdin io.Reader
	// StdinOpen, for Start alone, keeps the input open for Process.Write and
	// Process.Input.
	StdinOpen bool
	// Stdout and Stderr take the output as it comes, all of it. A stream without a
	// writer is kept in the Result, up to MaxOutput bytes. The same comparable
	// value for both gets both, one Write at a time.
	Stdout, Stderr io.Writer
	// Timeout ends the command's whole tree; zero takes the Provider's, NoTimeout
	// none.
	Timeout time.Duration
	// MaxOutput bounds what the Result keeps of each stream, in bytes; zero for
	// DefaultMaxOutput. With Start it is what the sandbox keeps for Process.Follow,
	// zero for DefaultKeepOutput.
	MaxOutput int64
	// TTY gives the command a terminal of this size; nil gives it pipes. Output is
	// then all Stdout's, and TERM is set unless Env has it.
	TTY *Size
	// Tag names the command for other clients of the sandbox; it may be empty.
	Tag string
}

// Size is a terminal's, in characters, each from 1 to 65535.
type Size struct{ Columns, Rows int }

func (s *Size) faults() []string {
	if s == nil || s.Columns > 0 && s.Columns <= math.MaxUint16 && s.Rows > 0 && s.Rows <= math.MaxUint16 {
		return nil
	}
	return []string{fmt.Sprintf("a terminal of %d columns and %d rows", s.Columns, s.Rows)}
}

func (s *Size) size() *agentclient.Size {
	if s == nil {
		return nil
	}
	return &agentclient.Size{Columns: s.Columns, Rows: s.Rows}
}

// faults lists what is wrong with the command by itself.
func (c Command) faults() []string {
	var out []string
	if len(c.Args) == 0 || c.Args[0] == "" {
		out = append(out, "no program was given")
	}
	for i, arg := range c.Args {
		if strings.ContainsRune(arg, 0) {
			out = append(out, fmt.Sprintf("argument %d has a NUL byte", i))
		}
	}
	if reason := pathFault(c.Dir); c.Dir != "" && reason != "" {
		out = append(out, fmt.Sprintf("working directory %q %s", c.Dir, reason))
	}
	if strings.ContainsRune(c.Tag, 0) {
		out = append(out, "the tag has a NUL byte")
	}
	if c.Stdin != nil && c.StdinOpen {
		out = append(out, "Stdin and StdinOpen are both set")
	}
	if c.MaxOutput < 0 {
		out = append(out, fmt.Sprintf("a maximum output of %d bytes is negative", c.MaxOutput))
	}
	out = append(out, c.TTY.faults()...)
	out = append(out, envFaults("env", c.Env)...)
	return append(out, timeoutFaults("timeout", c.Timeout)...)
}

// Reason says how a command ended.
type Reason string

// The reasons. The first six come with a nil error: they are what the program
// or its limits did. The last three come with an error.
const (
	Exited      Reason = "exited"
	Signaled    Reason = "signaled"
	TimedOut    Reason = "timed-out"
	OutOfMemory Reason = "out-of-memory"
	// ProcessLimit and DiskLimit are said only where that limit's own counter
	// moved during the command and the command did not exit 0. Where the kernel
	// counts no refusals, that the limit was reached is what is counted, as far as
	// it was seen.
	ProcessLimit Reason = "processes"
	DiskLimit    Reason = "disk"

	NotStarted    Reason = "not-started"
	Cancelled     Reason = "cancelled"
	TransportLost Reason = "transport-lost"
)

// Result is how a command ended and what was kept of its output.
type Result struct {
	Reason Reason
	// ExitCode is the leader's exit status; nil when it did not exit by itself or
	// when that is not known. It is never made up.
	ExitCode *int
	// Signal is what ended the leader, 0 when nothing did.
	Signal syscall.Signal
	// Stdout and Stderr are what was kept of streams without a writer; Dropped
	// counts the bytes beyond MaxOutput.
	Stdout, Stderr               []byte
	StdoutDropped, StderrDropped int64
	// OutputIncomplete: a child of the command still held its output when the
	// leader had ended; what the child writes later is not here.
	OutputIncomplete bool
	// Lingering are processes of the command that were alive when the leader had
	// ended, as pids inside. They go on, within the limits, until the timeout or
	// the sandbox's end.
	Lingering []int
	// Duration is from the start to the leader's end, as the agent measured it,
	// or the host when the agent did not say.
	Duration time.Duration
}

// Success reports an exit with status 0.
func (r *Result) Success() bool { return r.Reason == Exited && r.ExitCode != nil && *r.ExitCode == 0 }

// String is what os/exec says of a process state.
func (r *Result) String() string {
	switch {
	case r.Reason == Exited && r.ExitCode != nil:
		return fmt.Sprintf("exit status %d", *r.ExitCode)
	case r.Signal != 0:
		return fmt.Sprintf("%s (signal: %v)", r.Reason, r.Signal)
	case r.ExitCode != nil:
		return fmt.Sprintf("%s (exit status %d)", r.Reason, *r.ExitCode)
	default:
		return string(r.Reason)
	}
}

// ExitError is what Cmd returns for a command that ran and did not exit 0.
type ExitError struct {
	// Result is never nil. When Cmd.Output captured the output, Stderr holds the
	// kept part of the standard error.
	*Result
}

// Error is the result in words.
func (e *ExitError) Error() string { return e.String() }

// Is matches errdefs.Exhausted when a limit ended the command, and
// errdefs.Timeout when its timeout did.
func (e *ExitError) Is(target error) bool {
	switch e.Reason {
	case TimedOut:
		return target == errdefs.Timeout //nolint:errorlint // called by errors.Is
	case OutOfMemory, ProcessLimit, DiskLimit:
		return target == errdefs.Exhausted //nolint:errorlint // called by errors.Is
	case Exited, Signaled, NotStarted, Cancelled, TransportLost:
	}
	return false
}
