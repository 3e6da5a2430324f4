package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/agent/execmode"
)

const (
	// agentThreads is added to a limit on processes that works by rlimit: the
	// kernel counts the agent's and the starter's threads too.
	agentThreads = 16
	// shimPatience bounds the time that the start shim needs.
	shimPatience = 10 * time.Second
)

// shim starts commands through the agent's own exec mode, which sets what only
// the process itself can set. It is gone when the command runs.
type shim struct {
	executable string
	limits     execmode.Limits
}

// newShim returns nil when commands need none.
func newShim(config Config) *shim {
	b := config.Boot
	if !b.Mark && !b.Shared && b.Processes == 0 && b.DataBytes == 0 {
		return nil
	}
	limits := execmode.Limits{DataBytes: b.DataBytes, Optional: b.Shared}
	if b.Processes > 0 {
		limits.Processes = b.Processes + agentThreads
	}
	return &shim{executable: config.Executable, limits: limits}
}

// start runs the shim and waits until it has become the program.
func (h *shim) start(s *spawner, p program, in *start) (spawned, error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return spawned{}, &startError{text: "make a pipe: " + err.Error(), err: err}
	}
	status, err := pollable(pipe[0], "status")
	if err != nil {
		_ = unix.Close(pipe[1])
		return spawned{}, &startError{text: err.Error(), err: err}
	}
	defer status.Close()
	limits := h.limits
	limits.Mark = in.mark
	wrapped := program{path: h.executable, dir: p.dir, args: append([]string{"berm-agent", "exec", limits.Encode(), p.path}, p.args...)}
	for _, entry := range p.env {
		wrapped.env = append(wrapped.env, execmode.EnvPrefix+entry)
	}
	direct := *in
	direct.files = append(direct.files[:len(direct.files):len(direct.files)], uintptr(pipe[1]))
	out := s.fork(wrapped, &direct)
	_ = unix.Close(pipe[1])
	if out.err != nil {
		return spawned{}, diagnoseShim(p, h.executable, out.err)
	}
	if err := awaitShim(status); err != nil {
		abandon(out)
		return spawned{}, shimFault(p, err)
	}
	return out, nil
}

// awaitShim reads until the pipe's end, which execve closed.
func awaitShim(status *os.File) error {
	if err := status.SetReadDeadline(time.Now().Add(shimPatience)); err != nil {
		return fmt.Errorf("wait for the start: %w", err)
	}
	var buf [execmode.StatusBytes]byte
	n, err := io.ReadFull(status, buf[:])
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("wait for the start: %w", err)
	}
	return execmode.DecodeStatus(buf)
}

// shimFault turns the shim's report into a start error.
func shimFault(p program, err error) *startError {
	var status *execmode.Status
	if errors.As(err, &status) {
		switch status.Step {
		case execmode.StepExec, execmode.StepFork:
			return diagnose(p, status.Errno)
		case execmode.StepLimits, execmode.StepFilter:
		}
	}
	return &startError{text: err.Error(), err: err}
}

// diagnoseShim explains a shim that did not start: the working directory and
// the limit on processes are the command's, the rest is the agent's own fault.
func diagnoseShim(p program, executable string, err error) *startError {
	known := diagnose(p, err)
	if known.reason == badDirectory || known.reason == processLimit {
		return known
	}
	return &startError{text: "start " + strconv.Quote(executable) + ": " + err.Error(), err: err}
}

// abandon ends and collects a shim.
func abandon(child spawned) {
	_ = unix.Kill(child.pid, unix.SIGKILL)
	for {
		_, err := unix.Wait4(child.pid, nil, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if child.pidfd >= 0 {
		_ = unix.Close(child.pidfd)
	}
}
