package agentclient

import (
	"context"
	"errors"
	"io"
	"math"
	"syscall"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// endGrace is how long the stream of a command that has ended may take to end.
const endGrace = 2 * time.Second

// StartRequest is a command.
type StartRequest struct {
	// Args has the program and its arguments; it is not empty.
	Args []string
	// Dir is the working directory; empty is the agent's default.
	Dir string
	// Env is added to the agent's environment for commands. It may be nil.
	Env map[string]string
	// Stdin gives the command a pipe, to be filled by Input; without it the
	// command reads /dev/null.
	Stdin bool
	// Tag is another name for the process; empty is none.
	Tag string
	// Timeout ends the command's tree; 0 is none.
	Timeout time.Duration
	// KillOnClose makes the end of the stream the end of the command's tree.
	KillOnClose bool
	// Terminal makes all three streams one terminal; nil for pipes.
	Terminal *Size
	// Keep is how many bytes of each stream the agent keeps for Connect.
	Keep uint32
}

// Size is a terminal's, in characters, each from 1 to 65535.
type Size struct{ Columns, Rows int }

func (s *Size) message() *agentv1.PTY {
	if s == nil {
		return nil
	}
	return &agentv1.PTY{Size: &agentv1.PTY_Size{Cols: uint32(s.Columns), Rows: uint32(s.Rows)}} //nolint:gosec // the agent refuses what is none
}

// Ref names a command for the calls about it. ID is 0 for an agent that is not
// ours; then PID counts.
type Ref struct {
	PID uint32
	ID  uint64
	// Terminal: the command's streams are one.
	Terminal bool
}

func (r Ref) selector() *agentv1.ProcessSelector {
	if r.ID != 0 {
		return &agentv1.ProcessSelector{Selector: &agentv1.ProcessSelector_Id{Id: r.ID}}
	}
	return &agentv1.ProcessSelector{Selector: &agentv1.ProcessSelector_Pid{Pid: r.PID}}
}

// Offsets count the bytes of each stream since a command's start.
type Offsets struct{ Stdout, Stderr, PTY uint64 }

// Stream has the events of one command. Recv is for one goroutine at a time;
// Close may be called at any time.
type Stream struct {
	ctx    context.Context //nolint:containedctx // the caller's, which lives as long as the stream
	cancel context.CancelFunc
	// receive and close are the stream's own.
	receive func() (*agentv1.ProcessEvent, error)
	close   func() error
	order   order
	last    error
}

// Start starts a command and opens its stream, whose life ctx bounds; a deadline
// of ctx is not the command's. Whether the command runs at all is told by the
// first events. Errors: Invalid, and what the link and the agent may give.
func (c *Client) Start(ctx context.Context, req StartRequest) (*Stream, error) {
	message, err := req.message()
	if err != nil {
		return nil, err
	}
	own, cancel := context.WithCancel(context.WithValue(quiet{ctx}, loanKey{}, &loan{}))
	stream, err := c.processes.Start(own, message)
	if err != nil {
		cancel()
		return nil, fault(ctx, "start", err)
	}
	return &Stream{ctx: ctx, cancel: cancel, close: stream.Close, order: order{terminal: req.Terminal != nil}, receive: func() (*agentv1.ProcessEvent, error) {
		message, err := stream.Receive()
		return message.GetEvent(), err
	}}, nil
}

// Connect follows a command that was started before: from where offsets say, as
// far as that was kept, or from now on when from is nil. It gives the same events
// as Start; one of a command that has ended a short while ago has its end.
// Errors, also at the first Recv: NotFound.
func (c *Client) Connect(ctx context.Context, ref Ref, from *Offsets) (*Stream, error) {
	req := &agentv1.ConnectRequest{Process: ref.selector()}
	state := order{terminal: ref.Terminal}
	if from != nil {
		req.From = &agentv1.Offsets{Stdout: from.Stdout, Stderr: from.Stderr, Pty: from.PTY}
		state.counted, state.at = true, *from
	}
	own, cancel := context.WithCancel(quiet{ctx})
	stream, err := c.processes.Connect(own, req)
	if err != nil {
		cancel()
		return nil, fault(ctx, "connect", err)
	}
	return &Stream{ctx: ctx, cancel: cancel, close: stream.Close, order: state, receive: func() (*agentv1.ProcessEvent, error) {
		message, err := stream.Receive()
		return message.GetEvent(), err
	}}, nil
}

// message checks the request.
func (r *StartRequest) message() (*agentv1.StartRequest, error) {
	if len(r.Args) == 0 || r.Args[0] == "" {
		return nil, errdefs.New(errdefs.Invalid, "start", "there is no program")
	}
	if r.Timeout < 0 {
		return nil, errdefs.New(errdefs.Invalid, "start", "the timeout is negative")
	}
	size := 0
	check := func(what, text string) error {
		size += len(text)
		return checkText("start", what, text)
	}
	err := errors.Join(check("directory", r.Dir), check("tag", r.Tag))
	for _, arg := range r.Args {
		err = errors.Join(err, check("argument", arg))
	}
	for key, value := range r.Env {
		err = errors.Join(err, check("environment key", key), check("environment value of "+clean(key), value))
	}
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Invalid, "start", err)
	}
	if size > maxRequestBytes {
		return nil, errdefs.New(errdefs.Invalid, "start", "arguments and environment are larger than 8 MiB")
	}
	out := &agentv1.StartRequest{
		Process:       &agentv1.ProcessConfig{Cmd: r.Args[0], Args: r.Args[1:], Envs: r.Env},
		Stdin:         &r.Stdin,
		KillOnClose:   r.KillOnClose,
		TimeoutMs:     uint64((r.Timeout + time.Millisecond - 1) / time.Millisecond), //nolint:gosec // not negative
		TypedFailures: true,
		Pty:           r.Terminal.message(),
		KeepBytes:     r.Keep,
	}
	if r.Dir != "" {
		out.Process.Cwd = &r.Dir
	}
	if r.Tag != "" {
		out.Tag = &r.Tag
	}
	return out, nil
}

// Recv waits for the next event. After the event with End it gives io.EOF.
// Errors: TransportLost when the link went away in mid-command, so that nobody
// knows how it ended; Protocol; the context's; what the agent refused with.
func (s *Stream) Recv() (Event, error) {
	for s.last == nil {
		message, err := s.receive()
		if err != nil {
			s.stop(s.cut(err))
			break
		}
		event, seen, err := s.order.next(message)
		switch {
		case err != nil:
			s.stop(err)
		case event.End != nil:
			if err := s.finish(); err != nil {
				s.stop(err)
				break
			}
			s.stop(io.EOF)
			return event, nil
		case seen:
			return event, nil
		}
	}
	return Event{}, s.last
}

// stop ends the stream with what later calls are told.
func (s *Stream) stop(err error) {
	s.last = err
	s.cancel()
}

// cut explains why a stream ended before its command.
func (s *Stream) cut(err error) error {
	if errors.Is(err, io.EOF) {
		return broken("receive", "the stream ended without an end event")
	}
	return fault(s.ctx, "receive", err)
}

// finish reads the end of the stream after the last event, so that its
// connection can be used again. How the command ended is known by then, and a
// link that goes away now does not change that.
func (s *Stream) finish() error {
	if !defence.ClientEndGrace.Off() {
		timer := time.AfterFunc(endGrace, s.cancel)
		defer timer.Stop()
	}
	if _, err := s.receive(); err == nil && !defence.ClientOneEnd.Off() {
		return broken("receive", "an event after the end event")
	}
	return nil
}

// Close gives the stream up. With KillOnClose that ends the command's tree if it
// is still alive. A second call does nothing.
func (s *Stream) Close() error {
	s.cancel()
	// The stream has no more to say; what its connection said is no news.
	_ = s.close()
	return nil
}

// Signal sends a signal to a command's leader, KILL to its whole tree. Errors:
// NotFound when it has ended.
func (c *Client) Signal(ctx context.Context, ref Ref, signal syscall.Signal) error {
	if signal < 1 || signal > maxSignal {
		return errdefs.New(errdefs.Invalid, "signal", "there is no such signal")
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err := c.processes.SendSignal(ctx, &agentv1.SendSignalRequest{
		Process:      ref.selector(),
		SignalNumber: int32(signal), //nolint:gosec // checked
	})
	return fault(ctx, "signal", err)
}

// Resize gives a command's terminal another size. Errors: Invalid for a size
// that is none, NotFound when the command has ended, Internal without a terminal.
func (c *Client) Resize(ctx context.Context, ref Ref, size Size) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err := c.processes.Update(ctx, &agentv1.UpdateRequest{Process: ref.selector(), Pty: size.message()})
	return fault(ctx, "resize", err)
}

// Process is a command that is running.
type Process struct {
	Ref
	Args []string
	Dir  string
	Tag  string
}

// List lists the running commands. Their texts are the agent's.
func (c *Client) List(ctx context.Context) ([]Process, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	res, err := c.processes.List(ctx, &agentv1.ListRequest{})
	if err != nil {
		return nil, fault(ctx, "list processes", err)
	}
	out := make([]Process, 0, len(res.GetProcesses()))
	for _, p := range res.GetProcesses() {
		if p.GetPid() == 0 || p.GetPid() > math.MaxInt32 {
			return nil, broken("list processes", "pid %d", p.GetPid())
		}
		out = append(out, Process{
			Ref:  Ref{PID: p.GetPid(), ID: p.GetId(), Terminal: p.GetTty()},
			Args: append([]string{p.GetConfig().GetCmd()}, p.GetConfig().GetArgs()...),
			Dir:  p.GetConfig().GetCwd(),
			Tag:  p.GetTag(),
		})
	}
	return out, nil
}
