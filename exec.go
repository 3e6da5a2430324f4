package berm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"syscall"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/internal/defence"
)

const opExec = "exec"

// Exec runs one command to its end. ctx is the command's life: when it ends, the
// whole tree of the command ends.
//
// What the program or its limits did is a Result with a nil error. Otherwise
// both are returned, the Result holding what is known: NotStarted (which also
// matches fs.ErrNotExist or fs.ErrPermission for a missing or unusable program),
// Cancelled or Timeout with ctx, TransportLost, Closed, Protocol. A fault in the
// Command is Invalid with a nil Result. An error of the caller's own writers is
// returned when the command has ended, with the Result.
func (s *Sandbox) Exec(ctx context.Context, command Command) (*Result, error) {
	run, err := s.start(ctx, command)
	if run == nil {
		return nil, err
	}
	if err != nil {
		return run.result, err
	}
	return run.wait()
}

// run is one command under way. It belongs to one goroutine.
type run struct {
	sandbox *Sandbox
	ctx     context.Context //nolint:containedctx // lives only as long as the command
	cancel  context.CancelCauseFunc
	command Command
	timeout time.Duration
	stream  *agentclient.Stream
	ref     agentclient.Ref
	began   time.Time
	before  driver.Counters
	result  *Result
	out     [2]output
	// background: the command's life is not the stream's.
	background bool
	// overdue fires when the agent has not ended the command in time by itself.
	overdue *overdue
}

// startPatience is how long the agent may take to start a command, or to say why
// it does not.
const startPatience = 30 * time.Second

// agentGrace is how long the agent may take to report a timeout that it has to
// carry out itself, before the host stops believing in it.
const agentGrace = 5 * time.Second

// start sends the command and waits until it runs. A nil run means that nothing
// was sent.
func (s *Sandbox) start(ctx context.Context, command Command) (*run, error) {
	reasons := command.faults()
	if command.StdinOpen {
		reasons = append(reasons, "StdinOpen is for Start")
	}
	if len(reasons) > 0 {
		return nil, &errdefs.Error{Kind: errdefs.Invalid, Op: opExec, Backend: s.provider.caps.Backend, Reasons: reasons}
	}
	r, err := s.newRun(ctx, command)
	if err != nil {
		return nil, err
	}
	if err := r.send(); err != nil {
		r.finish()
		return r, err
	}
	return r, nil
}

// newRun prepares a command that is right in itself.
func (s *Sandbox) newRun(ctx context.Context, command Command) (*run, error) {
	if s.isGone() {
		return nil, s.failed(ctx, opExec, nil)
	}
	r := &run{sandbox: s, command: command, result: &Result{}, began: time.Now()}
	r.timeout = command.Timeout
	if r.timeout == 0 {
		r.timeout = s.provider.cfg.Timeout
	}
	r.timeout = max(r.timeout, 0)
	r.outputs()
	before, err := s.counters(ctx)
	if err != nil {
		return nil, s.failed(ctx, opExec, err)
	}
	r.before = before
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	return r, nil
}

// expect ends the run when the agent has not done within limit what it owes, and
// has had some time more.
func (r *run) expect(limit time.Duration, duty string) {
	if defence.MuteAgent.Off() {
		limit = time.Hour
	}
	r.overdue = newOverdue(limit, func() { r.cancel(&lateError{duty}) })
}

// lateError says what the agent did not do in time.
type lateError struct{ duty string }

func (e *lateError) Error() string { return "the agent did not " + e.duty }

func (r *run) send() error {
	// From before the first byte: an agent that does not even answer is late too.
	patience := startPatience
	if r.timeout > 0 {
		patience = min(patience, r.timeout)
	}
	r.expect(patience, "start the command in time")
	stream, err := r.sandbox.client.Start(r.ctx, agentclient.StartRequest{
		Args: r.command.Args, Dir: r.dir(), Env: r.env(), Stdin: r.command.Stdin != nil || r.command.StdinOpen,
		Tag: r.command.Tag, Timeout: r.timeout, KillOnClose: !r.background, Terminal: r.command.TTY.size(), Keep: r.keep(),
	})
	if err != nil {
		return r.lost(err)
	}
	r.stream = stream
	event, err := stream.Recv()
	switch {
	case err != nil:
		return r.lost(err)
	case event.End != nil:
		return r.refused(event.End)
	}
	r.ref = event.Ref
	r.overdue.stop()
	r.overdue = nil
	if r.timeout > 0 && !r.background {
		r.expect(r.timeout, fmt.Sprintf("end the command within its timeout of %v", r.timeout))
	}
	r.feed()
	return nil
}

// keep is how much of a background command's output the agent is to keep.
func (r *run) keep() uint32 {
	switch {
	case !r.background:
		return 0
	case r.command.MaxOutput == 0:
		return DefaultKeepOutput
	}
	return uint32(min(r.command.MaxOutput, math.MaxUint32)) //nolint:gosec // not negative
}

// writeFailed is the first error of the caller's writers.
func (r *run) writeFailed() error {
	return errdefs.Wrap(errdefs.Internal, "write output", errors.Join(r.out[0].err, r.out[1].err))
}

func (r *run) dir() string {
	if r.command.Dir == "" {
		return r.sandbox.WorkDir()
	}
	return r.sandbox.resolve(r.command.Dir)
}

func (r *run) env() map[string]string {
	common, _ := r.sandbox.settled.get()
	if len(r.command.Env) == 0 {
		return common
	}
	env := make(map[string]string, len(common)+len(r.command.Env))
	maps.Copy(env, common)
	maps.Copy(env, r.command.Env)
	return env
}

// feed copies the caller's input. The goroutine ends when the command does,
// unless the caller's Read blocks: that one is the caller's to end. A Read that
// fails ends the command: half an input must not look like a whole one.
func (r *run) feed() {
	if r.command.Stdin == nil {
		return
	}
	ctx, client, ref := r.ctx, r.sandbox.client, r.ref
	in := &failingReader{from: r.command.Stdin, failed: r.cancel}
	go func() {
		// A command that ended, or closed its input, does not want the rest; its
		// end is told by the stream of events.
		_ = client.Input(ctx, ref, in)
	}()
}

// failingReader reports the first error of a caller's reader.
type failingReader struct {
	from   io.Reader
	failed context.CancelCauseFunc
}

func (f *failingReader) Read(p []byte) (int, error) {
	n, err := f.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.failed(&inputError{err})
	}
	return n, err
}

// inputError is a failure of the caller's Stdin.
type inputError struct{ error }

func (e *inputError) Unwrap() error { return e.error }

// wait receives events until the command's end.
func (r *run) wait() (*Result, error) {
	defer r.finish()
	for {
		event, err := r.stream.Recv()
		if err != nil {
			return r.result, r.lost(err)
		}
		r.overdue.leave()
		r.out[0].write(event.Stdout)
		r.out[0].write(event.PTY)
		r.out[1].write(event.Stderr)
		r.overdue.back()
		if event.End != nil {
			return r.result, r.ended(event.End)
		}
	}
}

// finish frees what the command used and closes the result.
func (r *run) finish() {
	r.overdue.stop()
	r.cancel(nil)
	if r.stream != nil {
		_ = r.stream.Close()
	}
	r.result.Stdout, r.result.StdoutDropped = r.out[0].kept, r.out[0].dropped
	r.result.Stderr, r.result.StderrDropped = r.out[1].kept, r.out[1].dropped
	if r.result.Duration == 0 {
		r.result.Duration = time.Since(r.began)
	}
}

// lost explains a stream that broke.
func (r *run) lost(err error) error {
	backend := r.sandbox.provider.caps.Backend
	var late *lateError
	var input *inputError
	cause := context.Cause(r.ctx)
	r.result.Reason = Cancelled
	switch {
	case errors.As(cause, &input):
		return &errdefs.Error{Kind: errdefs.Cancelled, Op: "read stdin", Backend: backend, Err: input.error}
	case errors.As(cause, &late):
		r.result.Reason = TransportLost
		return &errdefs.Error{Kind: errdefs.TransportLost, Op: opExec, Backend: backend, Err: late}
	case cause == nil:
		r.result.Reason = TransportLost
	}
	switch kind := errdefs.KindOf(err); {
	case kind == errdefs.Protocol:
		return r.sandbox.provider.failed(opExec, kind, err)
	case kind != errdefs.NotStarted && kind != errdefs.Invalid && kind != errdefs.Exhausted:
		return r.sandbox.failed(r.ctx, opExec, err)
	case r.ref.PID != 0 && !defence.StartedStaysStarted.Off():
		// It runs, or ran: "nothing happened" would be a lie.
		return &errdefs.Error{Kind: errdefs.Protocol, Op: opExec, Backend: backend, Reasons: []string{"the agent says that a running command did not start"}, Err: errors.New(err.Error())}
	default:
		r.result.Reason = NotStarted
		return r.sandbox.provider.failed(opExec, kind, err)
	}
}

// refused explains a command that never ran.
func (r *run) refused(end *agentclient.End) error {
	r.result.Reason = NotStarted
	var cause error
	switch end.Reason {
	case agentclient.EndNotFound:
		cause = &fs.PathError{Op: opExec, Path: r.command.Args[0], Err: fs.ErrNotExist}
	case agentclient.EndNotExecutable:
		cause = &fs.PathError{Op: opExec, Path: r.command.Args[0], Err: fs.ErrPermission}
	case agentclient.EndBadDirectory:
		cause = &fs.PathError{Op: "chdir", Path: r.dir(), Err: fs.ErrNotExist}
	case agentclient.EndProcessLimit:
		r.result.Reason = ProcessLimit
		cause = fmt.Errorf("the limit on processes is reached: %w", errdefs.Exhausted)
	default:
		cause = errors.New(end.Error)
	}
	return &errdefs.Error{Kind: errdefs.NotStarted, Op: opExec, Backend: r.sandbox.provider.caps.Backend, Err: cause}
}

// ended fills the result from the agent's end event and the host's counters.
func (r *run) ended(end *agentclient.End) error {
	if r.sandbox.isEnding() {
		// Destroy ends commands too, and an agent may live long enough to tell: that
		// is not how the program would have ended.
		r.result.Reason = TransportLost
		return &errdefs.Error{Kind: errdefs.Closed, Op: opExec, Backend: r.sandbox.provider.caps.Backend, Reasons: []string{"the sandbox was destroyed meanwhile"}}
	}
	r.result.Duration = end.Duration
	r.result.Lingering = end.Lingering
	r.result.OutputIncomplete = end.OutputIncomplete
	switch end.Reason {
	case agentclient.EndExited:
		r.result.Reason = Exited
		code := end.ExitCode
		r.result.ExitCode = &code
	case agentclient.EndSignaled:
		r.result.Reason = Signaled
		r.result.Signal = syscall.Signal(end.Signal)
	case agentclient.EndTimedOut:
		r.result.Reason = TimedOut
		r.result.Signal = syscall.Signal(end.Signal)
	default:
		return r.refused(end)
	}
	if err := r.limits(end); err != nil {
		return r.sandbox.failed(r.ctx, opExec, err)
	}
	return r.writeFailed()
}

// limits names the limit that a failed command ran into, by what moved while it
// ran: the host's own counter, or, where the kernel has none, what the agent saw
// of a limit that is declared as enforced.
func (r *run) limits(end *agentclient.End) error {
	if r.result.Success() || r.result.Reason == TimedOut {
		return nil
	}
	after := r.before
	if r.sandbox.meter != nil {
		var err error
		if after, err = r.sandbox.meter.Counters(r.ctx); err != nil {
			return fmt.Errorf("read the counters: %w", err)
		}
	}
	caps := r.sandbox.provider.caps
	switch {
	case after.MemoryKills > r.before.MemoryKills:
		r.result.Reason = OutOfMemory
	case after.ProcessRefusals > r.before.ProcessRefusals, end.ProcessLimit && caps.Processes == driver.Enforced:
		r.result.Reason = ProcessLimit
	case end.DiskLimit && caps.Disk == driver.Enforced:
		r.result.Reason = DiskLimit
	}
	return nil
}

// outputs settles where each stream goes.
func (r *run) outputs() {
	limit := r.command.MaxOutput
	if limit == 0 {
		limit = DefaultMaxOutput
	}
	stdout, stderr := r.command.Stdout, r.command.Stderr
	r.out[0] = output{to: stdout, room: limit}
	r.out[1] = output{to: stderr, room: limit}
}

// output takes one stream.
type output struct {
	to      io.Writer
	room    int64
	kept    []byte
	dropped int64
	err     error
}

// write passes data on, or keeps it. After the writer has failed the rest is
// thrown away, so that the command does not block on a writer that is gone.
func (o *output) write(data []byte) {
	switch {
	case len(data) == 0 || o.err != nil:
	case o.to != nil:
		if n, err := o.to.Write(data); err != nil {
			o.err = err
		} else if n < len(data) {
			o.err = io.ErrShortWrite
		}
	default:
		keep := min(int64(len(data)), o.room)
		if defence.OutputCap.Off() {
			keep = int64(len(data))
		}
		o.kept = append(o.kept, data[:keep]...)
		o.room -= keep
		o.dropped += int64(len(data)) - keep
	}
}
