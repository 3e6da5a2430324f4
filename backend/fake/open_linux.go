package fake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// opened is the driver.
type opened struct {
	caps driver.Capabilities
	// dir holds one directory per machine, below berm's state.
	dir string
	// image is the agent's program in memory, for the agent's own children.
	image *os.File

	mu     sync.RWMutex
	closed bool
}

var (
	_ driver.Driver  = (*opened)(nil)
	_ driver.Sweeper = (*opened)(nil)
)

// open makes ready what all machines share.
func open(ctx context.Context, host driver.Host, caps driver.Capabilities) (driver.Driver, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open fake: %w", err)
	}
	dir := filepath.Join(host.StateDir, Name)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil { // whatever the umask is
		return nil, errdefs.Wrap(errdefs.Unavailable, "open", err)
	}
	image, err := inMemory(host.Agent.Image)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Unavailable, "open", err)
	}
	return &opened{caps: caps, dir: dir, image: image}, nil
}

// imageFD is the lowest descriptor number of the image: low numbers are
// rearranged between fork and exec.
const imageFD = 64

// inMemory puts a program where it can be executed without a file on disk.
func inMemory(program []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("berm-agent", unix.MFD_CLOEXEC|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("berm-agent", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, fmt.Errorf("make a file in memory for the agent: %w", err)
	}
	low := os.NewFile(uintptr(fd), "berm-agent")
	defer func() { _ = low.Close() }()
	if _, err := low.Write(program); err != nil {
		return nil, fmt.Errorf("copy the agent into memory: %w", err)
	}
	high, err := unix.FcntlInt(low.Fd(), unix.F_DUPFD_CLOEXEC, imageFD)
	if err != nil {
		return nil, fmt.Errorf("move the agent's descriptor: %w", err)
	}
	return os.NewFile(uintptr(high), "berm-agent"), nil
}

// Capabilities is what was declared.
func (o *opened) Capabilities() driver.Capabilities { return o.caps }

// Create starts an agent. Errors: Unsupported for a network or a mount that
// cannot be given, Closed after Close.
func (o *opened) Create(ctx context.Context, spec *driver.Spec) (driver.Machine, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.closed {
		return nil, refused(errdefs.Closed, "the driver is closed")
	}
	root, reasons := workRoot(spec)
	if !slices.Contains(o.caps.Networks, spec.Network) {
		reasons = append(reasons, fmt.Sprintf("network %s cannot be given", spec.Network))
	}
	if len(reasons) > 0 {
		return nil, refused(errdefs.Unsupported, reasons...)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create fake machine: %w", err)
	}
	return newMachine(ctx, o, spec, root)
}

// Sweep removes the directories of machines whose host process is gone.
func (o *opened) Sweep(_ context.Context, ids []string) error {
	var errs []error
	for _, id := range ids {
		errs = append(errs, os.RemoveAll(filepath.Join(o.dir, filepath.Base(id))))
	}
	return errors.Join(errs...)
}

// Close frees the agent's image. The machines' common directory stays: another
// opening of the same state directory may be using it.
func (o *opened) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	o.closed = true
	return o.image.Close()
}

// workRoot picks the one mount that a plain process can have, its working
// directory, and refuses the others by name.
func workRoot(spec *driver.Spec) (root string, reasons []string) {
	for _, m := range spec.Mounts {
		switch {
		case m.Dest == spec.WorkRoot && m.Writable:
			root = m.Source
		case m.Source == "":
			// Ephemeral outputs beside another working directory: nobody can tell.
		default:
			reasons = append(reasons, fmt.Sprintf("mount %s cannot be given: only the working directory can be chosen", m.Name))
		}
	}
	return root, reasons
}

// refused builds an error of Create's.
func refused(kind errdefs.Kind, reasons ...string) error {
	return &errdefs.Error{Kind: kind, Op: "create", Backend: Name, Reasons: reasons}
}
