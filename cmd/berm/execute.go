package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"syscall"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

// run is `berm run`: everything that it makes is gone when it returns.
func (a *app) run(ctx context.Context, f *runFlags, args []string) error {
	plan, err := a.newPlan(f, args)
	if err != nil {
		a.reportFailure(err, f.json)
		return statusFailure
	}
	ctx, signals := watch(ctx)
	defer signals.stop()
	dirs, err := makeDirs(plan.missing)
	if err != nil {
		a.reportFailure(errdefs.Wrap(errdefs.KindOf(err), runName, err), plan.json)
		return statusFailure
	}
	s := &session{app: a, plan: plan, signals: signals}
	if err := s.create(ctx); err != nil {
		dirs.remove()
		cleanup := s.close()
		a.reportFailure(errors.Join(explain(ctx, err), cleanup), plan.json)
		return interruptStatus(ctx)
	}
	code := s.command(ctx)
	if err := s.close(); err != nil {
		a.say("%v", err)
		if code == 0 {
			code = statusFailure
		}
	}
	if code == 0 {
		return nil
	}
	return code
}

// session is one sandbox with one command.
type session struct {
	app      *app
	plan     *plan
	signals  *watcher
	provider *berm.Provider
	sandbox  *berm.Sandbox
	// audit is the open file of the gate's records, nil for none.
	audit io.Closer
}

// create opens the backend and makes the sandbox. The posture is written before
// anything runs.
func (s *session) create(ctx context.Context) error {
	sink, file, err := s.app.openAudit(s.plan.audit)
	if err != nil {
		return err
	}
	s.audit, s.plan.config.Audit = file, sink
	if s.provider, err = berm.Open(ctx, s.plan.backend, s.plan.config); err != nil {
		return err
	}
	if s.sandbox, err = s.provider.Create(ctx, berm.CreateOptions{}); err != nil {
		return err
	}
	if err := s.app.writePosture(s.plan.posture, s.sandbox.Posture()); err != nil {
		return errdefs.Wrap(errdefs.KindOf(err), "write posture", err)
	}
	return nil
}

// close removes everything. It is not bound to the run's context, which may have
// ended; each step has a limit of its own.
func (s *session) close() error {
	var errs []error
	if s.sandbox != nil {
		errs = append(errs, s.sandbox.Close())
	}
	if s.provider != nil {
		errs = append(errs, s.provider.Close())
	}
	if s.audit != nil {
		errs = append(errs, s.audit.Close())
	}
	return errors.Join(errs...)
}

// command runs the command and gives the exit status of berm.
func (s *session) command(ctx context.Context) status {
	cmd := s.sandbox.CommandContext(ctx, s.plan.args[0], s.plan.args[1:]...)
	cmd.Stdin = s.app.stdin
	if !s.plan.json {
		cmd.Stdout = &stream{to: s.app.stdout, gone: s.signals.cancel}
		cmd.Stderr = &stream{to: s.app.stderr, gone: s.signals.cancel}
	}
	if s.plan.terminal >= 0 {
		size := sizeOf(s.plan.terminal)
		cmd.TTY = &size
	}
	s.signals.hold()
	err := cmd.Start()
	if err == nil {
		s.signals.attach(cmd)
		err = s.attend(ctx, cmd)
	}
	var ended *berm.ExitError
	if errors.As(err, &ended) {
		err = nil
	}
	result := cmd.Result
	if result == nil {
		result = &berm.Result{Reason: berm.NotStarted}
	}
	code := exitStatus(ctx, result, err)
	if !s.report(ctx, result, explain(ctx, err)) && code == 0 {
		return statusFailure
	}
	return code
}

// attend sees a command that runs to its end.
func (s *session) attend(ctx context.Context, cmd *berm.Cmd) error {
	if s.plan.terminal < 0 {
		return cmd.Wait()
	}
	restore, err := raw(ctx, s.plan.terminal, cmd)
	if err != nil {
		s.signals.cancel(&outputError{err})
		return errors.Join(err, cmd.Wait())
	}
	defer restore()
	return cmd.Wait()
}

// stream passes output on. When the other end is gone it ends the run, as a pipe
// would end the command, instead of letting it work for nobody.
type stream struct {
	to   io.Writer
	gone context.CancelCauseFunc
}

func (s *stream) Write(data []byte) (int, error) {
	n, err := s.to.Write(data)
	switch {
	case errors.Is(err, syscall.EPIPE):
		s.gone(errReaderGone)
	case err != nil:
		s.gone(&outputError{err})
	}
	return n, err
}

// outputError is why a run's context has ended: the output cannot be written.
type outputError struct{ error }

// Unwrap gives the failure itself.
func (e *outputError) Unwrap() error { return e.error }

// exitStatus is what a shell would give.
func exitStatus(ctx context.Context, result *berm.Result, err error) status {
	switch {
	case err != nil:
		return errorStatus(ctx, err)
	case result.Reason == berm.TimedOut:
		return statusTimeout
	case result.ExitCode != nil:
		return status(*result.ExitCode)
	case result.Reason == berm.OutOfMemory:
		return statusSignal + status(syscall.SIGKILL)
	case result.Signal != 0:
		return statusSignal + status(result.Signal)
	}
	return statusFailure
}

func errorStatus(ctx context.Context, err error) status {
	var path *fs.PathError
	isProgram := errors.Is(err, errdefs.NotStarted) && (!errors.As(err, &path) || path.Op != "chdir")
	switch {
	case isProgram && errors.Is(err, fs.ErrNotExist):
		return statusNotFound
	case isProgram && errors.Is(err, fs.ErrPermission):
		return statusNotExecutable
	}
	return interruptStatus(ctx)
}

// interruptStatus is 128+n when a signal to berm ended the run, else 125.
func interruptStatus(ctx context.Context) status {
	cause := context.Cause(ctx)
	var interrupted interruptedError
	switch {
	case errors.As(cause, &interrupted):
		return statusSignal + status(interrupted.signal)
	case errors.Is(cause, errReaderGone):
		return statusSignal + status(syscall.SIGPIPE)
	}
	return statusFailure
}

// explain gives what ended the run instead of what failed because of it.
func explain(ctx context.Context, err error) error {
	var interrupted interruptedError
	var output *outputError
	switch cause := context.Cause(ctx); {
	case err == nil:
		return nil
	case errors.As(cause, &interrupted):
		return &errdefs.Error{Kind: errdefs.Cancelled, Err: interrupted}
	case errors.As(cause, &output):
		return errdefs.Wrap(errdefs.KindOf(output.error), "write output", output.error)
	}
	return err
}
