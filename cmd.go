package berm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/berm-dev/berm/errdefs"
)

// Cmd runs a Command with the verbs of os/exec. Like exec.Cmd it holds its
// context, serves one run, and is for one goroutine at a time, except that
// Signal may be called while Wait waits.
//
// Unlike exec.Cmd, a nil Stdout or Stderr is thrown away only after MaxOutput
// bytes: Result keeps the rest.
type Cmd struct {
	Command

	// Result is how the command ended; nil before Wait has returned.
	Result *Result

	ctx     context.Context //nolint:containedctx // os/exec's own liberty
	sandbox *Sandbox
	run     *run
	waited  bool
	// ended is closed when the command's end has been seen; result and err are
	// set before.
	ended  chan struct{}
	result *Result
	err    error
	// atEnd is closed at the command's end, atWait when Wait is called.
	atEnd, atWait []io.Closer
}

// Command makes a Cmd that nothing but its own end, its Timeout or Signal ends.
func (s *Sandbox) Command(name string, args ...string) *Cmd {
	return s.CommandContext(context.Background(), name, args...)
}

// CommandContext makes a Cmd whose whole tree ends with ctx. A nil ctx is not
// allowed.
func (s *Sandbox) CommandContext(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Command: Command{Args: append([]string{name}, args...)}, ctx: ctx, sandbox: s}
}

// String is the command for people; it is not quoted for any shell.
func (c *Cmd) String() string { return strings.Join(c.Args, " ") }

// Start starts the command and returns when it runs. Errors are those of Exec.
func (c *Cmd) Start() error {
	if err := c.begin(); err != nil {
		return err
	}
	// Output flows from here on, so that pipes can be read before Wait. The
	// goroutine ends with the command or with ctx; Wait waits for it.
	go c.follow()
	return nil
}

// begin is Start without anybody who takes the output.
func (c *Cmd) begin() error {
	if c.run != nil || c.Result != nil {
		return errdefs.New(errdefs.Invalid, opExec, "the command was started already")
	}
	r, err := c.sandbox.start(c.ctx, c.Command)
	if err != nil {
		if r != nil {
			c.Result = r.result
		}
		return errors.Join(err, closeAll(c.atEnd), closeAll(c.atWait))
	}
	c.run, c.ended = r, make(chan struct{})
	return nil
}

// follow takes the command's output until its end.
func (c *Cmd) follow() {
	defer close(c.ended)
	c.result, c.err = c.run.wait()
	if err := closeAll(c.atEnd); c.err == nil && err != nil {
		c.err = errdefs.Wrap(errdefs.Internal, opExec, err)
	}
}

// Wait waits for the command's end and for all of its output. The error is nil
// when it exited 0, an *ExitError when it ran and ended otherwise, else that of
// Exec. It does not wait for Stdin's reader.
func (c *Cmd) Wait() error {
	switch {
	case c.run == nil:
		return errdefs.New(errdefs.Invalid, opExec, "the command was not started")
	case c.waited:
		return errdefs.New(errdefs.Invalid, opExec, "Wait was called already")
	}
	c.waited = true
	waitErr := closeAll(c.atWait)
	<-c.ended
	c.Result = c.result
	switch {
	case c.err != nil:
		return c.err
	case !c.result.Success():
		return &ExitError{Result: c.result}
	case waitErr != nil:
		return errdefs.Wrap(errdefs.Internal, opExec, waitErr)
	}
	return nil
}

// Run is Start and Wait.
func (c *Cmd) Run() error {
	if err := c.begin(); err != nil {
		return err
	}
	// On this goroutine: a hand-over would cost as much as the rest.
	c.follow()
	return c.Wait()
}

// Output runs the command and returns its standard output, all of it. Stdout
// must be nil.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errdefs.New(errdefs.Invalid, opExec, "Stdout is set already")
	}
	var out bytes.Buffer
	c.Stdout = &out
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the command and returns both streams in the order in which
// they arrived. Stdout and Stderr must be nil.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errdefs.New(errdefs.Invalid, opExec, "Stdout or Stderr is set already")
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// Signal sends a signal to the running command's process group; SIGKILL ends its
// whole tree, daemons too. Errors: NotFound when the command has ended, Invalid
// when it was not started.
func (c *Cmd) Signal(sig syscall.Signal) error {
	if c.run == nil {
		return errdefs.New(errdefs.Invalid, "signal", "the command was not started")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), signalTimeout)
	defer cancel()
	if err := c.sandbox.client.Signal(ctx, c.run.ref, sig); err != nil {
		return c.sandbox.failed(ctx, "signal", err)
	}
	return nil
}

// Resize gives the command's terminal another size. Errors: Invalid for a size
// that is none or for a command without a terminal.
func (c *Cmd) Resize(ctx context.Context, size Size) error {
	if c.run == nil {
		return errdefs.New(errdefs.Invalid, "resize", "the command was not started")
	}
	return (&Process{sandbox: c.sandbox, ref: c.run.ref}).Resize(ctx, size)
}

// signalTimeout bounds one signal, which outlives the command's context so that
// a cancelled command can still be told.
const signalTimeout = 10 * time.Second

// Pid is the command's process id inside, 0 before Start.
func (c *Cmd) Pid() int {
	if c.run == nil {
		return 0
	}
	return int(c.run.ref.PID)
}

// StdinPipe returns a pipe to the command's input. Closing it is the input's
// end; the command's end closes it too.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	if c.Stdin != nil || c.run != nil {
		return nil, errdefs.New(errdefs.Invalid, opExec, "Stdin is set already, or the command was started")
	}
	reader, writer := io.Pipe()
	c.Stdin = reader
	// To close the reading end wakes both the feeding goroutine and the caller's
	// Write.
	c.atEnd = append(c.atEnd, reader)
	return writer, nil
}

// StdoutPipe returns a pipe from the command's output, which ends with the
// command. All of it must be read before Wait, which closes it.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stdout) }

// StderrPipe is StdoutPipe for the standard error.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stderr) }

func (c *Cmd) outputPipe(to *io.Writer) (io.ReadCloser, error) {
	if *to != nil || c.run != nil {
		return nil, errdefs.New(errdefs.Invalid, opExec, "the stream is set already, or the command was started")
	}
	reader, writer := io.Pipe()
	*to = pipeWriter{writer}
	c.atEnd = append(c.atEnd, writer)
	c.atWait = append(c.atWait, reader)
	// A reader that has stopped must not hold a command whose life is over.
	context.AfterFunc(c.ctx, func() { _ = reader.CloseWithError(context.Cause(c.ctx)) })
	return reader, nil
}

// pipeWriter throws away what nobody reads any more.
type pipeWriter struct{ *io.PipeWriter }

func (p pipeWriter) Write(data []byte) (int, error) {
	if _, err := p.PipeWriter.Write(data); err != nil {
		return len(data), nil //nolint:nilerr // the reader is gone by its own will
	}
	return len(data), nil
}

func closeAll(closers []io.Closer) error {
	var errs []error
	for _, closer := range closers {
		errs = append(errs, closer.Close())
	}
	return errors.Join(errs...)
}
