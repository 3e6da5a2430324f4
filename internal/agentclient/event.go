package agentclient

import (
	"math"
	"syscall"
	"time"

	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// Bounds of events.
const (
	maxSignal    = 64
	maxLingering = 4096
)

// Event is one thing that a command's stream tells; exactly one of Started,
// Stdout, Stderr, PTY and End is set. Output is the receiver's until it
// asks for the next event; Lingering is for good.
type Event struct {
	// Started is true for the first event of a command that runs; Ref is set.
	Started bool
	Ref
	// Stdout, Stderr and PTY are output as it comes, cut anywhere.
	Stdout, Stderr, PTY []byte
	// Missing counts bytes of the stream before this output that were not kept
	// long enough. Connect with offsets alone tells of them.
	Missing uint64
	// End is the last event.
	End *End
}

// Reason says how a command ended, or why it did not start.
type Reason int

// The reasons. Those from EndNotFound on mean that nothing ran.
const (
	EndExited Reason = iota + 1
	EndSignaled
	EndTimedOut
	EndNotFound
	EndNotExecutable
	EndBadDirectory
	EndProcessLimit
	EndStartFailed
)

// End is how a command ended.
type End struct {
	Reason Reason
	// ExitCode is 0 to 255 for EndExited, -1 for anything else.
	ExitCode int
	// Signal ended the leader, 0 when none did.
	Signal syscall.Signal
	// Error says why nothing ran, escaped and at most 4 KiB; empty when it ran.
	Error string
	// Lingering has the pids that were alive when the leader ended, nil for none.
	Lingering []int
	// OutputIncomplete says that a child still held the output when the stream
	// was cut.
	OutputIncomplete bool
	// Duration is from the start to the leader's end, as the agent says.
	Duration time.Duration
	// DiskLimit and ProcessLimit say that the command failed and that this limit
	// was reached while it ran.
	DiskLimit, ProcessLimit bool
}

// order checks the sequence of events: one start, data, one end; or nothing but
// an end that says why nothing ran.
type order struct {
	started, ended bool
	// terminal: the command has one, and no other stream.
	terminal bool
	// counted: data says where it belongs, and at is where each stream goes on.
	counted bool
	at      Offsets
}

// next checks and turns over one event. The second result is false for one that
// says nothing.
func (o *order) next(event *agentv1.ProcessEvent) (Event, bool, error) {
	if o.ended {
		return Event{}, false, broken("receive", "an event after the end event")
	}
	switch {
	case event.GetKeepalive() != nil:
		return Event{}, false, nil
	case event.GetStart() != nil:
		pid := event.GetStart().GetPid()
		if o.started && !defence.ClientEventOrder.Off() {
			return Event{}, false, broken("receive", "a second start event")
		}
		if (pid == 0 || pid > math.MaxInt32) && !defence.ClientPID.Off() {
			return Event{}, false, broken("receive", "pid %d", pid)
		}
		o.started = true
		return Event{Started: true, Ref: Ref{PID: pid, ID: event.GetStart().GetId(), Terminal: o.terminal}}, true, nil
	case event.GetData() != nil:
		if !o.started && !defence.ClientEventOrder.Off() {
			return Event{}, false, broken("receive", "data before the start event")
		}
		return o.data(event.GetData())
	case event.GetEnd() != nil:
		end, err := o.end(event.GetEnd())
		if err != nil {
			return Event{}, false, err
		}
		o.ended = true
		return Event{End: end}, true, nil
	}
	return Event{}, false, broken("receive", "an event of no known kind")
}

func (o *order) data(event *agentv1.ProcessEvent_DataEvent) (Event, bool, error) {
	var out Event
	var bytes []byte
	var next *uint64
	terminal := false
	switch output := event.GetOutput().(type) {
	case *agentv1.ProcessEvent_DataEvent_Stdout:
		bytes, next = output.Stdout, &o.at.Stdout
		out.Stdout = bytes
	case *agentv1.ProcessEvent_DataEvent_Stderr:
		bytes, next = output.Stderr, &o.at.Stderr
		out.Stderr = bytes
	case *agentv1.ProcessEvent_DataEvent_Pty:
		bytes, next, terminal = output.Pty, &o.at.PTY, true
		out.PTY = bytes
	default:
		return out, false, broken("receive", "output of no known stream")
	}
	if terminal != o.terminal {
		return Event{}, false, broken("receive", "output of a terminal: %t, asked for: %t", terminal, o.terminal)
	}
	if o.counted {
		first := event.GetOffset()
		if first < *next || first > math.MaxInt64 {
			return Event{}, false, broken("receive", "output at %d, expected at %d", first, *next)
		}
		out.Missing, *next = first-*next, first+uint64(len(bytes))
	}
	return out, len(bytes) > 0, nil
}

// end checks the end event against itself and against what came before.
func (o *order) end(event *agentv1.ProcessEvent_EndEvent) (*End, error) {
	reason, err := reasonOf(event)
	if err != nil {
		return nil, err
	}
	if (reason < EndNotFound) != o.started && !defence.ClientEventOrder.Off() {
		return nil, broken("receive", "end reason %d with started=%t", reason, o.started)
	}
	end := &End{
		Reason:           reason,
		ExitCode:         -1,
		Signal:           syscall.Signal(event.GetSignal()),
		OutputIncomplete: event.GetOutputIncomplete(),
		DiskLimit:        event.GetDiskLimit(),
		ProcessLimit:     event.GetProcessLimit(),
	}
	if reason >= EndNotFound {
		end.Error = clean(event.GetError())
	}
	if err := end.numbers(event); err != nil {
		return nil, err
	}
	return end, nil
}

// numbers takes the event's numbers as far as they can be true.
func (e *End) numbers(event *agentv1.ProcessEvent_EndEvent) error {
	if (event.GetSignal() < 0 || event.GetSignal() > maxSignal) && !defence.ClientSignal.Off() {
		return broken("receive", "signal %d", event.GetSignal())
	}
	if e.Reason == EndExited {
		if (event.GetExitCode() < 0 || event.GetExitCode() > math.MaxUint8 || event.GetSignal() != 0) && !defence.ClientExitCode.Off() {
			return broken("receive", "exit code %d with signal %d", event.GetExitCode(), event.GetSignal())
		}
		e.ExitCode = int(event.GetExitCode())
	}
	if e.Reason == EndSignaled && event.GetReason() != agentv1.EndReason_END_REASON_UNSPECIFIED && event.GetSignal() == 0 {
		return broken("receive", "a fatal signal without a number")
	}
	if event.GetDurationUs() > math.MaxInt64/uint64(time.Microsecond) && !defence.ClientDuration.Off() {
		return broken("receive", "duration of %d us", event.GetDurationUs())
	}
	e.Duration = time.Duration(event.GetDurationUs()) * time.Microsecond //nolint:gosec // checked
	if len(event.GetLingering()) > maxLingering && !defence.ClientLingering.Off() {
		return broken("receive", "%d lingering processes", len(event.GetLingering()))
	}
	for _, pid := range event.GetLingering() {
		if (pid == 0 || pid > math.MaxInt32) && !defence.ClientLingering.Off() {
			return broken("receive", "lingering pid %d", pid)
		}
		e.Lingering = append(e.Lingering, int(pid))
	}
	return nil
}

// reasonOf maps the reasons; other agents than ours give none.
func reasonOf(event *agentv1.ProcessEvent_EndEvent) (Reason, error) {
	switch event.GetReason() {
	case agentv1.EndReason_END_REASON_UNSPECIFIED:
		if event.GetExited() {
			return EndExited, nil
		}
		return EndSignaled, nil
	case agentv1.EndReason_END_REASON_EXITED:
		return EndExited, nil
	case agentv1.EndReason_END_REASON_SIGNALED:
		return EndSignaled, nil
	case agentv1.EndReason_END_REASON_TIMED_OUT:
		return EndTimedOut, nil
	case agentv1.EndReason_END_REASON_NOT_FOUND:
		return EndNotFound, nil
	case agentv1.EndReason_END_REASON_NOT_EXECUTABLE:
		return EndNotExecutable, nil
	case agentv1.EndReason_END_REASON_BAD_DIRECTORY:
		return EndBadDirectory, nil
	case agentv1.EndReason_END_REASON_PROCESS_LIMIT:
		return EndProcessLimit, nil
	case agentv1.EndReason_END_REASON_START_FAILED:
		return EndStartFailed, nil
	default:
		return 0, broken("receive", "end reason %d", event.GetReason())
	}
}
