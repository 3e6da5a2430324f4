package passthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// host is the opened driver.
type host struct {
	caps driver.Capabilities
	// dir holds one directory per machine, below berm's state.
	dir string
	// image is the agent's program as a sealed file in memory.
	image *os.File

	mu     sync.RWMutex
	closed bool
}

var (
	_ driver.Driver  = (*host)(nil)
	_ driver.Sweeper = (*host)(nil)
)

// open makes ready what all machines share.
func open(ctx context.Context, lent driver.Host) (driver.Driver, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open passthrough: %w", err)
	}
	dir := filepath.Join(lent.StateDir, Name)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil { // whatever the umask is
		return nil, errdefs.Wrap(errdefs.Unavailable, "open", err)
	}
	image, err := sealed(lent.Agent.Image)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Unavailable, "open", err)
	}
	return &host{caps: Config{}.Declare(), dir: dir, image: image}, nil
}

// Capabilities is what was declared: every Linux host is alike here.
func (h *host) Capabilities() driver.Capabilities { return h.caps }

// Create starts an agent. Errors: Unsupported for a network or a mount that
// cannot be given, Closed after Close.
func (h *host) Create(ctx context.Context, spec *driver.Spec) (driver.Machine, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.closed {
		return nil, refused(errdefs.Closed, "create", "the driver is closed")
	}
	root, reasons := workRoot(spec)
	if !slices.Contains(h.caps.Networks, spec.Network) {
		reasons = append(reasons, fmt.Sprintf("network %s cannot be given: commands have the host's network", spec.Network))
	}
	if len(reasons) > 0 {
		return nil, refused(errdefs.Unsupported, "create", reasons...)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create passthrough machine: %w", err)
	}
	return newMachine(ctx, h, spec, root)
}

// Sweep removes the directories of machines whose host process is gone. Their
// agents have ended by themselves, at the end of their control sockets.
func (h *host) Sweep(_ context.Context, ids []string) error {
	var errs []error
	for _, id := range ids {
		errs = append(errs, os.RemoveAll(filepath.Join(h.dir, filepath.Base(id))))
	}
	return errors.Join(errs...)
}

// Close frees the agent's image. The machines' common directory stays: another
// opening of the same state directory may be using it.
func (h *host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	return h.image.Close()
}

// workRoot picks the one mount that a plain process can have, its working
// directory, and refuses the others by name. An empty root is ephemeral.
func workRoot(spec *driver.Spec) (root string, reasons []string) {
	for _, m := range spec.Mounts {
		switch {
		case m.Dest == spec.WorkRoot && m.Writable:
			root = m.Source
		case m.Name == "outputs" && m.Source == "":
			// Nobody asked for it: it is there because every layout has outputs.
		default:
			reasons = append(reasons, fmt.Sprintf("mount %s cannot be given: only the working directory can be chosen", m.Name))
		}
	}
	return root, reasons
}
