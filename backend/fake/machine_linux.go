package fake

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agent"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/fdpass"
)

// cleanUpLimit bounds the removal of a machine that did not come up.
const cleanUpLimit = 30 * time.Second

// machine is one agent with its working directory.
type machine struct {
	id   string
	dir  string
	root string
	link *fdpass.Link
	// user and password are what the gate asks for: its listener is on the host's
	// own loopback. Empty without a gate.
	user, password string
	// served is closed when the agent has ended, with every process of its
	// commands; fault is set before.
	served chan struct{}
	fault  error
	// destroying serialises Destroy; gone is guarded by it.
	destroying chan struct{}
	gone       bool
}

var (
	_ driver.Machine = (*machine)(nil)
	_ driver.Rooted  = (*machine)(nil)

	_ driver.EgressLock = (*machine)(nil)
)

// newMachine starts an agent and waits until it answers. On failure nothing is
// left.
func newMachine(ctx context.Context, o *opened, spec *driver.Spec, root string) (driver.Machine, error) {
	m := &machine{
		id:         spec.ID,
		dir:        filepath.Join(o.dir, spec.ID),
		root:       root,
		served:     make(chan struct{}),
		destroying: make(chan struct{}, 1),
	}
	if err := m.makeDirs(); err != nil {
		return nil, errors.Join(errdefs.Wrap(errdefs.Unavailable, "create", err), os.RemoveAll(m.dir))
	}
	if err := m.start(o, spec); err != nil {
		return nil, errors.Join(errdefs.Wrap(errdefs.Unavailable, "create", err), os.RemoveAll(m.dir))
	}
	if err := m.link.Ready(ctx); err != nil {
		fresh, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpLimit)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("wait for the agent: %w", err), m.Destroy(fresh))
	}
	return m, nil
}

func (m *machine) makeDirs() error {
	work := filepath.Join(m.dir, "work")
	if m.root == "" {
		m.root = work
	}
	for _, dir := range []string{m.dir, work, m.home(), m.temp()} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
			return fmt.Errorf("make the machine's directory: %w", err)
		}
	}
	return nil
}

func (m *machine) home() string { return filepath.Join(m.dir, "home") }
func (m *machine) temp() string { return filepath.Join(m.dir, "tmp") }

// start runs the agent as a goroutine that Destroy waits for.
func (m *machine) start(o *opened, spec *driver.Spec) error {
	config := boot.Config{
		User: "user", Home: m.home(), Dir: m.root, TempDir: m.temp(),
		Path:      "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		DataBytes: spec.Limits.MemoryBytes,
		Mark:      true, Shared: true,
	}
	if spec.Network == driver.NetworkGated {
		m.user, m.password = "sandbox", rand.Text()
		config.EgressAddress, config.EgressUser, config.EgressPassword = "127.0.0.1:0", m.user, m.password
		config.TrustDir = filepath.Join(m.dir, "trust")
		config.Connector = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), o.image.Fd())
	}
	payload, err := config.Encode()
	if err != nil {
		return fmt.Errorf("prepare the agent: %w", err)
	}
	hostEnd, guestEnd, err := fdpass.Pair()
	if err != nil {
		return fmt.Errorf("make the control socket: %w", err)
	}
	if m.link, err = fdpass.New(hostEnd, payload, nil, fdpass.Options{}); err != nil {
		return errors.Join(fmt.Errorf("open the link: %w", err), guestEnd.Close())
	}
	executable := fmt.Sprintf("/proc/self/fd/%d", o.image.Fd())
	go func() {
		defer close(m.served)
		m.fault = agent.Serve(context.Background(), guestEnd, executable)
	}()
	return nil
}

// ID is the Spec's ID.
func (m *machine) ID() string { return m.id }

// WorkRoot is the working directory on the host.
func (m *machine) WorkRoot() string { return m.root }

// EgressKey is what the gate has to ask for.
func (m *machine) EgressKey() (user, password string) { return m.user, m.password }

// Link returns the machine's link.
func (m *machine) Link(context.Context) (link.Link, error) { return m.link, nil }

// Destroy ends the agent, and with it every process of its commands, and
// removes the machine's directory.
func (m *machine) Destroy(ctx context.Context) error {
	select {
	case m.destroying <- struct{}{}:
		defer func() { <-m.destroying }()
	case <-ctx.Done():
		return fmt.Errorf("destroy fake machine %s: %w", m.id, ctx.Err())
	}
	if m.gone {
		return nil
	}
	closing := m.link.Close()
	select {
	case <-m.served:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("destroy fake machine %s: the agent does not end: %w", m.id, ctx.Err()), closing)
	}
	if err := os.RemoveAll(m.dir); err != nil {
		return fmt.Errorf("destroy fake machine %s: %w", m.id, err)
	}
	m.gone = true
	if err := errors.Join(closing, m.fault); err != nil {
		return fmt.Errorf("destroy fake machine %s: %w", m.id, err)
	}
	return nil
}
