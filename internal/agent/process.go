package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/internal/gen/agentv1/agentv1connect"
)

var _ agentv1connect.ProcessHandler = (*processes)(nil)

// maxTimeout bounds what a client may ask for, in milliseconds, so that no sum
// overflows.
const maxTimeout = uint64(1<<62) / uint64(time.Millisecond)

// Start runs a command and streams its events.
func (p *processes) Start(ctx context.Context, req *agentv1.StartRequest, stream agentv1connect.ProcessStartServerStream) error {
	send := func(event *agentv1.ProcessEvent) error {
		return stream.Send(&agentv1.StartResponse{Event: event})
	}
	program, err := p.planner.plan(req.GetProcess(), req.GetPty() != nil)
	if err != nil {
		return refuseStart(err, req.GetTypedFailures(), send)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	sub := newSubscriber(req.GetKillOnClose(), p.stall)
	proc, err := p.start(wish{
		program: program, config: req.GetProcess(), tag: req.Tag, stdin: req.Stdin == nil || req.GetStdin(),
		timeout: time.Duration(min(req.GetTimeoutMs(), maxTimeout)) * time.Millisecond, first: sub,
		pty: req.GetPty(), keep: req.GetKeepBytes(),
	})
	if err != nil {
		return refuseStart(err, req.GetTypedFailures(), send)
	}
	defer proc.unsubscribe(sub)
	if err := newFollower(ctx, proc, sub, send).run(ctx); err != nil {
		return p.deserted(ctx, proc, req.GetKillOnClose(), err)
	}
	return nil
}

// refuseStart reports a command that did not start.
func refuseStart(err error, typed bool, send func(*agentv1.ProcessEvent) error) error {
	var fault *startError
	if !errors.As(err, &fault) {
		return err
	}
	if !typed {
		return connect.NewError(fault.reason.code(), fault.Error())
	}
	return send(&agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_End{End: &agentv1.ProcessEvent_EndEvent{
		ExitCode: -1, Status: "not started", Error: optional(fault.Error()), Reason: fault.reason.wire(),
	}}})
}

// wire gives the reason's number in the protocol.
func (r startReason) wire() agentv1.EndReason {
	switch r {
	case notFound:
		return agentv1.EndReason_END_REASON_NOT_FOUND
	case notExecutable:
		return agentv1.EndReason_END_REASON_NOT_EXECUTABLE
	case badDirectory:
		return agentv1.EndReason_END_REASON_BAD_DIRECTORY
	case processLimit:
		return agentv1.EndReason_END_REASON_PROCESS_LIMIT
	case startFailed:
	}
	return agentv1.EndReason_END_REASON_START_FAILED
}

// code gives envd's code for the reason.
func (r startReason) code() connect.Code {
	switch r {
	case processLimit:
		return connect.CodeResourceExhausted
	case startFailed:
		return connect.CodeInternal
	case notFound, notExecutable, badDirectory:
	}
	return connect.CodeInvalidArgument
}

// deserted decides what the end of its stream means for a command that still
// runs. Past the stream's deadline the tree ends, as it does for its owner; else
// it lives on, until the deadline if there is one.
func (p *processes) deserted(ctx context.Context, proc *process, owner bool, cause error) error {
	switch deadline, limited := ctx.Deadline(); {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		if err := proc.kill(); err != nil {
			return connect.Errorf(connect.CodeInternal, "the deadline has passed, but: %s", err).WithCause(err)
		}
		return connect.NewError(connect.CodeDeadlineExceeded, "the deadline has passed; the process was ended")
	case owner && !defence.CommandEndsWithStream.Off():
		return errors.Join(cause, proc.kill())
	case limited:
		p.limit(proc, time.Until(deadline))
	}
	return cause
}

// Connect follows a command from now on. One that ended a short while ago gives
// its start and its end.
func (p *processes) Connect(ctx context.Context, req *agentv1.ConnectRequest, stream agentv1connect.ProcessConnectServerStream) error {
	proc := p.table.find(req.GetProcess())
	if proc == nil {
		return unknown(req.GetProcess())
	}
	sub := newSubscriber(false, p.stall)
	proc.subscribe(sub, req.GetFrom())
	defer proc.unsubscribe(sub)
	return newFollower(ctx, proc, sub, func(event *agentv1.ProcessEvent) error {
		return stream.Send(&agentv1.ConnectResponse{Event: event})
	}).run(ctx)
}

// List names the commands whose leader is running.
func (p *processes) List(context.Context, *agentv1.ListRequest) (*agentv1.ListResponse, error) {
	out := &agentv1.ListResponse{}
	for _, proc := range p.table.list() {
		out.Processes = append(out.Processes, &agentv1.ProcessInfo{
			Config: proc.config, Pid: uint32(proc.pid), Tag: proc.tag, Id: proc.id, Tty: proc.terminal,
		})
	}
	return out, nil
}

// Update gives a terminal another size.
func (p *processes) Update(_ context.Context, req *agentv1.UpdateRequest) (*agentv1.UpdateResponse, error) {
	proc := p.table.find(req.GetProcess())
	if proc == nil || proc.life.Err() != nil {
		return nil, unknown(req.GetProcess())
	}
	if req.GetPty() != nil {
		if err := proc.resize(req.GetPty().GetSize()); err != nil {
			return nil, err
		}
	}
	return &agentv1.UpdateResponse{}, nil
}

// SendSignal sends SIGKILL to the whole tree, also after its leader's end, and
// every other signal to the leader's process group.
func (p *processes) SendSignal(_ context.Context, req *agentv1.SendSignalRequest) (*agentv1.SendSignalResponse, error) {
	number := req.GetSignalNumber()
	if number == 0 {
		number = int32(req.GetSignal())
	}
	if number < 1 || number > 64 {
		return nil, connect.Errorf(connect.CodeInvalidArgument, "signal %d is not one of 1 to 64", number)
	}
	proc := p.table.find(req.GetProcess())
	if proc == nil {
		return nil, unknown(req.GetProcess())
	}
	reached, err := proc.send(syscall.Signal(number))
	switch {
	case err != nil:
		return nil, connect.Errorf(connect.CodePermissionDenied, "signal process %d: %s", proc.pid, err).WithCause(err)
	case !reached:
		return nil, unknown(req.GetProcess())
	}
	return &agentv1.SendSignalResponse{}, nil
}

// SendInput writes to a command's standard input and waits until the pipe has
// taken it.
func (p *processes) SendInput(ctx context.Context, req *agentv1.SendInputRequest) (*agentv1.SendInputResponse, error) {
	proc := p.table.find(req.GetProcess())
	if proc == nil || proc.life.Err() != nil {
		return nil, unknown(req.GetProcess())
	}
	if err := proc.feed(ctx, req.GetInput()); err != nil {
		return nil, err
	}
	return &agentv1.SendInputResponse{}, nil
}

// StreamInput is SendInput for a stream of messages. Its end does not close the
// standard input: CloseStdin does.
func (p *processes) StreamInput(ctx context.Context, stream agentv1connect.ProcessStreamInputServerStream) (*agentv1.StreamInputResponse, error) {
	var proc *process
	for {
		req, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return &agentv1.StreamInputResponse{}, nil
		}
		if err != nil {
			return nil, err
		}
		switch event := req.GetEvent().(type) {
		case *agentv1.StreamInputRequest_Start:
			if proc != nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, "the stream has two start events")
			}
			proc = p.table.find(event.Start.GetProcess())
			if proc == nil || proc.life.Err() != nil {
				return nil, unknown(event.Start.GetProcess())
			}
		case *agentv1.StreamInputRequest_Data:
			if proc == nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, "the stream does not begin with a start event")
			}
			if err := proc.feed(ctx, event.Data.GetInput()); err != nil {
				return nil, err
			}
		}
	}
}

// CloseStdin ends a command's standard input. It is no fault to do so twice.
func (p *processes) CloseStdin(_ context.Context, req *agentv1.CloseStdinRequest) (*agentv1.CloseStdinResponse, error) {
	proc := p.table.find(req.GetProcess())
	if proc == nil {
		return nil, unknown(req.GetProcess())
	}
	if proc.terminal {
		return nil, connect.NewError(connect.CodeUnknown, "a terminal is not closed; send its end-of-file character")
	}
	proc.stdin.close()
	return &agentv1.CloseStdinResponse{}, nil
}

// send is SendSignal's work on one process.
func (p *process) send(number syscall.Signal) (bool, error) {
	if number != syscall.SIGKILL {
		return p.signal(number)
	}
	// A tree that is empty is like one that never was.
	p.mu.Lock()
	leader := !p.reaped
	p.mu.Unlock()
	if !leader && p.tree.release() {
		return false, nil
	}
	return true, p.kill()
}

// feed writes one message's input.
func (p *process) feed(ctx context.Context, in *agentv1.ProcessInput) error {
	data, forTerminal := in.GetStdin(), false
	if keys, ok := in.GetInput().(*agentv1.ProcessInput_Pty); ok {
		data, forTerminal = keys.Pty, true
	}
	if forTerminal != p.terminal {
		return connect.Errorf(connect.CodeInternal, "process %d has a terminal: %t", p.pid, p.terminal)
	}
	err := p.stdin.write(ctx, data)
	if errors.Is(err, errStdinClosed) {
		return connect.Errorf(connect.CodeInternal, "process %d: %s", p.pid, err).WithCause(err)
	}
	return err
}

// unknown is the error for a selector that finds nothing.
func unknown(selector *agentv1.ProcessSelector) error {
	switch by := selector.GetSelector().(type) {
	case *agentv1.ProcessSelector_Pid:
		return connect.Errorf(connect.CodeNotFound, "no process with pid %d", by.Pid)
	case *agentv1.ProcessSelector_Id:
		return connect.Errorf(connect.CodeNotFound, "no process with id %d", by.Id)
	case *agentv1.ProcessSelector_Tag:
		return connect.Errorf(connect.CodeNotFound, "no process with tag %q", by.Tag)
	}
	return connect.NewError(connect.CodeInvalidArgument, "no process is selected")
}

// maxSelf bounds what runSelf returns, in bytes.
const maxSelf = 4 << 20

// runSelf starts the agent's own program by the path of a command and gives its
// standard output. Its tree is ended before it returns. Errors: a status other
// than 0, too much output, the context's.
func (p *processes) runSelf(ctx context.Context, args []string, stdin []byte) ([]byte, error) {
	env, _ := p.planner.environment(nil, false)
	sub := newSubscriber(true, p.stall)
	proc, err := p.start(wish{
		program: program{path: p.config.Executable, args: append([]string{"berm-agent"}, args...), env: env, dir: p.planner.dir},
		config:  &agentv1.ProcessConfig{Cmd: p.config.Executable, Args: args}, stdin: true, first: sub,
	})
	if err != nil {
		return nil, err
	}
	defer proc.unsubscribe(sub)
	defer func() { _ = proc.kill() }()
	if err := proc.stdin.write(ctx, stdin); err != nil && !errors.Is(err, errStdinClosed) {
		return nil, err
	}
	proc.stdin.close()
	var out bytes.Buffer
	err = (&follower{process: proc, sub: sub, gate: &gate{}, keepalive: defaultKeepalive, send: func(event *agentv1.ProcessEvent) error {
		out.Write(event.GetData().GetStdout())
		if out.Len() > maxSelf {
			return errors.New("the agent's own program wrote too much")
		}
		if end := event.GetEnd(); end != nil && (!end.GetExited() || end.GetExitCode() != 0) {
			return fmt.Errorf("the agent's own program ended with %s", end.GetStatus())
		}
		return nil
	}}).run(ctx)
	return out.Bytes(), err
}
