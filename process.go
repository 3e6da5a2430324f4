package berm

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
)

// DefaultKeepOutput is how much of each stream of a background command is kept
// for those who follow it later, in bytes, where MaxOutput does not say. The
// sandbox keeps at most 4 MiB, and less when many commands write much.
const DefaultKeepOutput = 1 << 20

// Process is a command in the background. It lives until it ends, until its
// Timeout, Kill or the end of its sandbox; no context and no caller has to stay
// with it. All methods may be called concurrently. A Process that has ended is
// forgotten after 30 seconds; then they give NotFound.
type Process struct {
	sandbox *Sandbox
	ref     agentclient.Ref
	command Command
	before  driver.Counters
}

// Start starts a command in the background. ctx bounds the start only. Stdin,
// Stdout and Stderr must be nil: Input and Follow are for them; StdinOpen keeps
// the input open, which else is empty. Errors are those of Exec before a command
// runs.
func (s *Sandbox) Start(ctx context.Context, command Command) (*Process, error) {
	const op = "start"
	reasons := command.faults()
	if command.Stdin != nil || command.Stdout != nil || command.Stderr != nil {
		reasons = append(reasons, "a background command has no Stdin, Stdout or Stderr; use StdinOpen with Process.Input, and Process.Follow")
	}
	if len(reasons) > 0 {
		return nil, &errdefs.Error{Kind: errdefs.Invalid, Op: op, Backend: s.provider.caps.Backend, Reasons: reasons}
	}
	r, err := s.newRun(ctx, command)
	if err != nil {
		return nil, err
	}
	r.background = true
	defer r.finish()
	if err := r.send(); err != nil {
		return nil, err
	}
	return &Process{sandbox: s, ref: r.ref, command: command, before: r.before}, nil
}

// Processes lists the commands of the sandbox that are running, by pid: those of
// Start, of Exec, and of other clients. Their texts are the sandbox's.
func (s *Sandbox) Processes(ctx context.Context) ([]*Process, error) {
	const op = "list processes"
	if s.isGone() {
		return nil, s.failed(ctx, op, nil)
	}
	list, err := s.client.List(ctx)
	if err != nil {
		return nil, s.failed(ctx, op, err)
	}
	before, err := s.counters(ctx)
	if err != nil {
		return nil, s.failed(ctx, op, err)
	}
	out := make([]*Process, 0, len(list))
	for _, p := range list {
		out = append(out, &Process{sandbox: s, ref: p.Ref, command: Command{Args: p.Args, Dir: p.Dir, Tag: p.Tag}, before: before})
	}
	return out, nil
}

// counters reads the limits' counters, zero where there is no meter.
func (s *Sandbox) counters(ctx context.Context) (driver.Counters, error) {
	if s.meter == nil {
		return driver.Counters{}, nil
	}
	return s.meter.Counters(ctx)
}

// PID is the leader's process id inside.
func (p *Process) PID() int { return int(p.ref.PID) }

// Args are the program and its arguments; the caller must not change them.
func (p *Process) Args() []string { return p.command.Args }

// Tag is the Command's.
func (p *Process) Tag() string { return p.command.Tag }

// Offsets say how much of a command's output was seen. The zero value is the
// beginning.
type Offsets struct {
	// Stdout, Stderr and TTY count bytes of each stream since the start.
	Stdout, Stderr, TTY uint64
	// Missing counts those among them that nobody followed in time and that were
	// not kept long enough.
	Missing uint64
}

// Follow gives a command's output from the offsets on, what was kept and then
// what comes, to the writers; nil discards a stream. It returns with the
// command's end, as Exec does, or with ctx; the command goes on then. When the
// connection breaks it makes another one and goes on where it was: each byte is
// given once. at is moved along and may be used to follow again; nil begins with
// what comes next, and what comes between two connections is then lost. An error of a writer ends it too.
func (p *Process) Follow(ctx context.Context, at *Offsets, stdout, stderr io.Writer) (*Result, error) {
	f := follow{process: p, at: at, run: &run{
		sandbox: p.sandbox, ref: p.ref, command: p.command, before: p.before, result: &Result{}, began: time.Now(), background: true,
	}}
	f.run.ctx, f.run.cancel = context.WithCancelCause(ctx)
	defer f.run.finish()
	f.run.out = [2]output{{to: writerOr(stdout)}, {to: writerOr(stderr)}}
	return f.loop()
}

// Wait is Follow without output.
func (p *Process) Wait(ctx context.Context) (*Result, error) { return p.Follow(ctx, nil, nil, nil) }

func writerOr(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// follow is one Follow.
type follow struct {
	process *Process
	run     *run
	at      *Offsets
	// moved is true when the last connection gave something.
	moved bool
}

const (
	// followTries is how many connections in a row may give nothing.
	followTries = 5
	// followPause is the time before the second of them, doubled for each more.
	followPause = 50 * time.Millisecond
)

func (f *follow) loop() (*Result, error) {
	pause := followPause
	for tries := 0; ; tries++ {
		end, err := f.connection()
		switch {
		case end != nil:
			return f.run.result, f.run.ended(end)
		case f.run.writeFailed() != nil:
			return f.run.result, f.run.writeFailed()
		case f.moved:
			tries, pause = 0, followPause
		}
		if tries >= followTries || f.run.ctx.Err() != nil || !again(err) || f.process.sandbox.isGone() {
			return f.run.result, f.run.lost(err)
		}
		select {
		case <-time.After(pause):
		case <-f.run.ctx.Done():
		case <-f.process.sandbox.link.Done():
			return f.run.result, f.run.lost(err)
		}
		pause *= 2
	}
}

// again reports a failure of the connection, and one of a reader that was too
// slow for it.
func again(err error) bool {
	return errors.Is(err, errdefs.TransportLost) || errors.Is(err, errdefs.Exhausted)
}

// connection follows until its end; a nil End comes with an error.
func (f *follow) connection() (*agentclient.End, error) {
	f.moved = false
	var from *agentclient.Offsets
	if f.at != nil {
		from = &agentclient.Offsets{Stdout: f.at.Stdout, Stderr: f.at.Stderr, PTY: f.at.TTY}
	}
	stream, err := f.process.sandbox.client.Connect(f.run.ctx, f.process.ref, from)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	for {
		event, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if event.End != nil {
			return event.End, nil
		}
		if event.Started {
			if f.at == nil {
				// From here on it is known where the output is.
				f.moved = true
			}
			continue
		}
		f.take(event)
		if err := f.run.writeFailed(); err != nil {
			return nil, err
		}
	}
}

// take hands one piece of output on.
func (f *follow) take(event agentclient.Event) {
	f.moved = true
	f.run.out[0].write(event.Stdout)
	f.run.out[0].write(event.PTY)
	f.run.out[1].write(event.Stderr)
	if f.at == nil {
		return
	}
	count := func(offset *uint64, data []byte) {
		if len(data) > 0 {
			*offset += event.Missing + uint64(len(data))
		}
	}
	count(&f.at.Stdout, event.Stdout)
	count(&f.at.Stderr, event.Stderr)
	count(&f.at.TTY, event.PTY)
	f.at.Missing += event.Missing
}

// Signal sends a signal to the command's process group, SIGKILL to its whole
// tree. Errors: NotFound when it has ended.
func (p *Process) Signal(ctx context.Context, signal syscall.Signal) error {
	return p.call(ctx, "signal", func() error { return p.sandbox.client.Signal(ctx, p.ref, signal) })
}

// Kill ends the command's whole tree.
func (p *Process) Kill(ctx context.Context) error { return p.Signal(ctx, syscall.SIGKILL) }

// Resize gives the command's terminal another size. Errors: Invalid for a size
// that is none or for a command without a terminal.
func (p *Process) Resize(ctx context.Context, size Size) error {
	if reasons := (&size).faults(); len(reasons) > 0 {
		return &errdefs.Error{Kind: errdefs.Invalid, Op: "resize", Backend: p.sandbox.provider.caps.Backend, Reasons: reasons}
	}
	if !p.ref.Terminal {
		return &errdefs.Error{Kind: errdefs.Invalid, Op: "resize", Backend: p.sandbox.provider.caps.Backend, Reasons: []string{"the command has no terminal"}}
	}
	return p.call(ctx, "resize", func() error { return p.sandbox.client.Resize(ctx, p.ref, *size.size()) })
}

// Write sends input, all of it, and leaves the input open.
func (p *Process) Write(ctx context.Context, data []byte) error {
	return p.call(ctx, "send input", func() error { return p.sandbox.client.Send(ctx, p.ref, data) })
}

// Input sends all that r gives, and ends the command's input. On a terminal the
// end is the end-of-file character. A Read that blocks is not interrupted.
func (p *Process) Input(ctx context.Context, r io.Reader) error {
	return p.call(ctx, "send input", func() error { return p.sandbox.client.Input(ctx, p.ref, r) })
}

func (p *Process) call(ctx context.Context, op string, do func() error) error {
	if p.sandbox.isGone() {
		return p.sandbox.failed(ctx, op, nil)
	}
	if err := do(); err != nil {
		return p.sandbox.failed(ctx, op, err)
	}
	return nil
}
