package passthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/fdpass"
)

const (
	// commandPath is the PATH of commands: the system's, whatever the caller's is.
	commandPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// agentGrace is how long an agent may take to end its commands after its
	// control socket is gone, before it is killed.
	agentGrace = 2 * time.Second
	// destroyLimit bounds Destroy in all when a caller gives no deadline.
	destroyLimit = 30 * time.Second
)

// machine is one agent with its working directory.
type machine struct {
	id   string
	dir  string // removed at the end: holds home, tmp and an ephemeral work root
	root string
	link *fdpass.Link
	// agent is the child; exited is closed when it has been waited for.
	agent  *exec.Cmd
	exited chan struct{}
	// marks is what the marks of all its commands begin with.
	marks uint64
	noise *tail

	// destroying serialises Destroy.
	destroying chan struct{}
	gone       bool // guarded by destroying
}

var (
	_ driver.Machine = (*machine)(nil)
	_ driver.Rooted  = (*machine)(nil)
)

// newMachine starts an agent and waits until it answers. On failure nothing is
// left.
func newMachine(ctx context.Context, h *host, spec *driver.Spec, root string) (driver.Machine, error) {
	m := &machine{
		id:         spec.ID,
		dir:        filepath.Join(h.dir, spec.ID),
		root:       root,
		exited:     make(chan struct{}),
		marks:      boot.NewMarkBase(),
		noise:      &tail{},
		destroying: make(chan struct{}, 1),
	}
	if err := m.makeDirs(); err != nil {
		return nil, errors.Join(errdefs.Wrap(errdefs.Unavailable, "create", err), os.RemoveAll(m.dir))
	}
	if err := m.start(h, spec); err != nil {
		return nil, errors.Join(errdefs.Wrap(errdefs.Unavailable, "create", err), os.RemoveAll(m.dir))
	}
	if err := m.ready(ctx); err != nil {
		// The caller's context may be the reason; cleaning up needs its own.
		fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyLimit)
		defer cancel()
		return nil, errors.Join(err, m.Destroy(fresh))
	}
	return m, nil
}

// makeDirs makes the private directories.
func (m *machine) makeDirs() error {
	if err := errors.Join(os.Mkdir(m.dir, 0o700), os.Chmod(m.dir, 0o700)); err != nil {
		return fmt.Errorf("make the machine's directory: %w", err)
	}
	if m.root == "" {
		m.root = filepath.Join(m.dir, "work")
	}
	for _, dir := range []string{m.home(), m.temp(), filepath.Join(m.dir, "work")} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
			return fmt.Errorf("make the machine's directory: %w", err)
		}
	}
	return nil
}

func (m *machine) home() string { return filepath.Join(m.dir, "home") }
func (m *machine) temp() string { return filepath.Join(m.dir, "tmp") }

// start runs the agent with its boot message under way.
func (m *machine) start(h *host, spec *driver.Spec) error {
	payload, err := m.boot(spec)
	if err != nil {
		return err
	}
	hostEnd, guestEnd, err := fdpass.Pair()
	if err != nil {
		return fmt.Errorf("make the control socket: %w", err)
	}
	defer func() { _ = guestEnd.Close() }()
	if m.link, err = fdpass.New(hostEnd, payload, nil, fdpass.Options{}); err != nil {
		return fmt.Errorf("open the link: %w", err)
	}
	m.agent = &exec.Cmd{
		Path:       fmt.Sprintf("/proc/self/fd/%d", h.image.Fd()),
		Args:       []string{"berm-agent", "serve"},
		Env:        []string{},
		Dir:        "/",
		Stderr:     m.noise,
		ExtraFiles: []*os.File{guestEnd},
		// A session of its own keeps the caller's terminal and its signals away.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		WaitDelay:   agentGrace,
	}
	if err := m.agent.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the agent: %w", err), m.link.Close())
	}
	go func() {
		defer close(m.exited)
		// How the agent ended says nothing that the link does not.
		_ = m.agent.Wait()
	}()
	return nil
}

// boot encodes the agent's first message.
func (m *machine) boot(spec *driver.Spec) ([]byte, error) {
	name := "user"
	if me, err := user.Current(); err == nil {
		name = me.Username
	}
	return boot.Config{
		User:      name,
		Home:      m.home(),
		Dir:       m.root,
		Path:      commandPath,
		TempDir:   m.temp(),
		DataBytes: spec.Limits.MemoryBytes,
		Mark:      true,
		MarkBase:  m.marks,
		Shared:    true,
	}.Encode()
}

// ready waits for the agent's hello.
func (m *machine) ready(ctx context.Context) error {
	err := m.link.Ready(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("wait for the agent: %w", context.Cause(ctx))
	default:
		if said := m.noise.String(); said != "" {
			return &errdefs.Error{Kind: errdefs.Unavailable, Op: "create", Backend: Name,
				Reasons: []string{"the agent did not start: " + said}, Err: err}
		}
		return errdefs.Wrap(errdefs.Unavailable, "create", err)
	}
}

// ID is the Spec's ID.
func (m *machine) ID() string { return m.id }

// WorkRoot is the working directory on the host.
func (m *machine) WorkRoot() string { return m.root }

// Link returns the machine's link.
func (m *machine) Link(context.Context) (link.Link, error) { return m.link, nil }

// Destroy ends the agent and every descendant, then removes the machine's
// directory. It is idempotent, and needs no answer from the agent.
func (m *machine) Destroy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, destroyLimit)
	defer cancel()
	select {
	case m.destroying <- struct{}{}:
		defer func() { <-m.destroying }()
	case <-ctx.Done():
		return fmt.Errorf("destroy passthrough machine %s: %w", m.id, ctx.Err())
	}
	if m.gone {
		return nil
	}
	closing := m.link.Close() // end of file: the agent ends its commands and itself
	if err := m.end(ctx); err != nil {
		return errors.Join(fmt.Errorf("destroy passthrough machine %s: %w", m.id, err), closing)
	}
	if err := os.RemoveAll(m.dir); err != nil {
		return fmt.Errorf("destroy passthrough machine %s: %w", m.id, err)
	}
	m.gone = true
	return nil
}

// end waits for the agent, kills it when it takes too long, and sees to it that
// none of its commands is left.
func (m *machine) end(ctx context.Context) error {
	grace := time.NewTimer(agentGrace)
	defer grace.Stop()
	select {
	case <-m.exited:
	case <-grace.C:
		_ = m.agent.Process.Kill() // it may just have ended
	case <-ctx.Done():
		_ = m.agent.Process.Kill()
	}
	select {
	case <-m.exited:
	case <-ctx.Done():
		return fmt.Errorf("the agent (pid %d) does not end: %w", m.agent.Process.Pid, ctx.Err())
	}
	return endMarked(ctx, m.marks)
}

// tail keeps the last bytes that the agent wrote to stderr. It is safe for
// concurrent use.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// tailBytes bounds a tail.
const tailBytes = 2 << 10

// Write never fails: an agent must not block on its own noise.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailBytes; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

// String gives the text with control bytes escaped.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.buf) == 0 {
		return ""
	}
	quoted := fmt.Sprintf("%q", t.buf)
	return quoted[1 : len(quoted)-1]
}
