package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/backend/process/launch"
)

const (
	// maxNoise is how much of bubblewrap's and the agent's messages is kept: the
	// last bytes.
	maxNoise = 4 << 10
	// maxInfo bounds what bubblewrap says on --info-fd.
	maxInfo = 4 << 10
	// infoPoll is how often it is looked for what bubblewrap says.
	infoPoll = 200 * time.Microsecond
	// infoGrace is how long a failing start waits for the sandbox's first process
	// to be named, before bubblewrap is ended without that knowledge.
	infoGrace = 2 * time.Second
	// endGrace is how long bubblewrap may take to follow its sandbox's end.
	endGrace = 5 * time.Second
)

// child is bubblewrap with its sandbox. All methods may be called concurrently.
type child struct {
	proc *os.Process
	// exited is closed when proc has been waited for.
	exited chan struct{}
	state  *os.ProcessState
	noise  *tail
	// named is closed when first is known, or will never be.
	named chan struct{}
	first *firstProcess
	// pipes are the read ends, closed to end their readers.
	pipes []*os.File
	work  sync.WaitGroup
}

// firstProcess is the sandbox's PID 1, by its number outside and by a descriptor
// that cannot come to mean another process. pid and fault do not change after it
// was named.
type firstProcess struct {
	pid   int
	fault error

	mu    sync.Mutex
	pidfd int
}

// kill ends it. ESRCH says that it has ended.
func (f *firstProcess) kill() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pidfd < 0 {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(f.pidfd, unix.SIGKILL, nil, 0)
}

// alive reports that it has not ended, as a zombie has.
func (f *firstProcess) alive() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pidfd < 0 {
		return false
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(f.pidfd), Events: unix.POLLIN}}, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 0
		}
	}
}

func (f *firstProcess) set(pid, pidfd int, fault error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pid, f.pidfd, f.fault = pid, pidfd, fault
}

func (f *firstProcess) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pidfd >= 0 {
		_ = unix.Close(f.pidfd)
		f.pidfd = -1
	}
}

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - maxNoise; over > 0 {
		t.data = append(t.data[:0], t.data[over:]...)
	}
	return len(p), nil
}

// reason gives what was kept as one sentence, "" when there is nothing.
func (t *tail) reason() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.data))
	if text == "" {
		return ""
	}
	// It may come from inside: quoted, it cannot play with a terminal.
	return "bubblewrap said " + strconv.Quote(text)
}

// watch makes a child of a started process. It owns the pipes' read ends; status
// is nil without a launcher.
func watch(proc *os.Process, noise, info, status *os.File) *child {
	c := &child{
		proc: proc, exited: make(chan struct{}), noise: &tail{}, named: make(chan struct{}),
		first: &firstProcess{pidfd: -1}, pipes: []*os.File{noise, info},
	}
	c.work.Go(func() {
		// The writers are bubblewrap and the agent; the end of both ends this.
		_, _ = io.Copy(c.noise, noise)
	})
	if status != nil {
		c.pipes = append(c.pipes, status)
	}
	c.work.Go(func() {
		defer close(c.named)
		if status != nil {
			// Its end is bubblewrap's beginning.
			if err := launch.ReadStatus(status); err != nil {
				c.first.set(0, -1, err)
				return
			}
		}
		c.first.set(readFirst(info, proc.Pid))
	})
	c.work.Go(func() {
		defer close(c.exited)
		// Wait fails only for a process that is not a child of ours.
		c.state, _ = proc.Wait()
	})
	return c
}

// errFirstGone says that the sandbox's first process had ended before it could be
// opened.
var errFirstGone = errors.New("the sandbox's first process has ended")

// readFirst reads the pid of the sandbox's first process from bubblewrap and
// opens it.
func readFirst(info *os.File, parent int) (pid, pidfd int, err error) {
	var told struct {
		ChildPID int `json:"child-pid"`
	}
	// Anonymous memory wakes nobody: it is looked at until it holds the answer.
	buf := make([]byte, maxInfo)
	for {
		over := ended(parent)
		n, err := info.ReadAt(buf, 0)
		if json.Unmarshal(buf[:n], &told) == nil {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) || over {
			return 0, -1, errors.New("bubblewrap ended before it had made the sandbox")
		}
		time.Sleep(infoPoll)
	}
	if told.ChildPID <= 1 {
		return 0, -1, fmt.Errorf("bubblewrap named process %d", told.ChildPID)
	}
	fd, err := unix.PidfdOpen(told.ChildPID, 0)
	if errors.Is(err, unix.ESRCH) {
		return 0, -1, errFirstGone
	}
	if err != nil {
		return 0, -1, fmt.Errorf("open the sandbox's first process: %w", err)
	}
	// The number may have been reused since. bubblewrap's child it cannot be then.
	ppid, err := statusField(filepath.Join("/proc", strconv.Itoa(told.ChildPID), "status"), "PPid:")
	if err != nil || ppid != strconv.Itoa(parent) {
		return 0, -1, errors.Join(errFirstGone, unix.Close(fd))
	}
	return told.ChildPID, fd, nil
}

// ended reports whether a child of this process has ended, waited for or not.
func ended(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// ready waits until the first process is known.
func (c *child) ready(ctx context.Context) error {
	select {
	case <-c.named:
		return c.first.fault
	case <-ctx.Done():
	}
	select {
	case <-c.named: // first, whatever else has ended
		return c.first.fault
	default:
		return context.Cause(ctx)
	}
}

// end kills the sandbox, waits for bubblewrap and for everything that was
// started for it here. It can be called again after an error.
func (c *child) end(ctx context.Context) error {
	if err := c.stop(ctx); err != nil {
		return err
	}
	for _, pipe := range c.pipes {
		_ = pipe.Close()
	}
	c.work.Wait()
	c.first.close()
	return nil
}

// stop kills the first process, which takes all others in its namespace with
// it, and waits for bubblewrap to notice. To kill bubblewrap first would leave
// the first process to whoever adopts orphans here, as a zombie.
func (c *child) stop(ctx context.Context) error {
	grace, cancel := context.WithTimeout(ctx, infoGrace)
	defer cancel()
	if c.ready(grace) == nil {
		if err := c.first.kill(); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill the sandbox: %w", err)
		}
		if c.gone(ctx, endGrace) {
			return c.firstGone(ctx)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("bubblewrap (process %d) has not ended yet: %w", c.proc.Pid, context.Cause(ctx))
	}
	if err := c.proc.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill bubblewrap: %w", err)
	}
	if !c.gone(ctx, endGrace) {
		return fmt.Errorf("bubblewrap (process %d) does not end", c.proc.Pid)
	}
	return c.firstGone(ctx)
}

// firstGone waits for the first process where bubblewrap has ended before it,
// because somebody killed it.
func (c *child) firstGone(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, endGrace)
	defer cancel()
	for c.first.alive() {
		select {
		case <-time.After(infoPoll):
		case <-limit.Done():
			return fmt.Errorf("the sandbox's first process (%d) does not end: %w", c.first.pid, context.Cause(limit))
		}
	}
	return nil
}

// gone waits for bubblewrap's end.
func (c *child) gone(ctx context.Context, grace time.Duration) bool {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.exited:
		return true
	case <-ctx.Done():
	case <-timer.C:
	}
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// status says how bubblewrap ended, "" while it lives.
func (c *child) status() string {
	select {
	case <-c.exited:
		if c.state == nil {
			return "bubblewrap is gone"
		}
		return "bubblewrap ended with " + c.state.String()
	default:
		return ""
	}
}
