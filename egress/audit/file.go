package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

// FileOptions are what a File can do more.
type FileOptions struct {
	// Sync waits after each record until it is on the disk.
	Sync bool
}

// File appends records to a file, each as one line in one write. It is safe for
// concurrent use; other programs may append to the same file.
//
// Rotation is somebody else's: who renames the file calls Reopen afterwards.
type File struct {
	path    string
	options FileOptions
	// turn is held by the one who writes; a channel, so that waiting for a disk
	// that hangs ends with the context.
	turn chan struct{}
	// Below, of whoever has the turn.
	file *os.File
	// torn: the file ends within a line.
	torn bool
}

// OpenFile opens or makes a file with mode 0600. The path's last part is not
// followed where it is a link; what is there has to be a regular file with one
// name that nobody else may write (errdefs.Invalid).
func OpenFile(path string, o FileOptions) (*File, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Invalid, "open audit file", err)
	}
	f := &File{path: absolute, options: o, turn: make(chan struct{}, 1)}
	if f.file, f.torn, err = openFile(absolute); err != nil {
		return nil, err
	}
	return f, nil
}

func openFile(path string) (file *os.File, torn bool, err error) {
	// Without O_NONBLOCK a pipe with the name of the file would hold us here.
	const flags = os.O_RDWR | os.O_APPEND | os.O_CREATE | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	file, err = os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, false, errdefs.Wrap(errdefs.Invalid, "open audit file", err)
	}
	if torn, err = judge(file); err != nil {
		return nil, false, errors.Join(errdefs.Wrap(errdefs.Invalid, "open audit file", err), file.Close())
	}
	return file, torn, nil
}

// judge looks at what was opened, and whether it ends within a line.
func judge(file *os.File) (torn bool, err error) {
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return false, &os.PathError{Op: "fstat", Path: file.Name(), Err: err}
	}
	switch {
	case !info.Mode().IsRegular():
		return false, fmt.Errorf("%s is no regular file", file.Name())
	case stat.Nlink != 1:
		return false, fmt.Errorf("%s has %d names", file.Name(), stat.Nlink)
	case info.Mode().Perm()&0o022 != 0:
		return false, fmt.Errorf("%s can be written by others (%v)", file.Name(), info.Mode())
	case info.Size() == 0:
		return false, nil
	}
	var last [1]byte
	if _, err := file.ReadAt(last[:], info.Size()-1); err != nil {
		return false, err
	}
	return last[0] != '\n', nil
}

// take waits for the turn.
func (f *File) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return errdefs.Wrap(errdefs.KindOf(err), "write audit record", err)
	}
	select {
	case f.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return errdefs.Wrap(errdefs.KindOf(ctx.Err()), "write audit record", ctx.Err())
	}
}

func (f *File) give() { <-f.turn }

// Write implements egress.Sink: it returns when the system has taken the line, or
// the disk has with FileOptions.Sync.
func (f *File) Write(ctx context.Context, r *egress.Record) error {
	line, err := Line(r)
	if err != nil {
		return err
	}
	if err := f.take(ctx); err != nil {
		return err
	}
	defer f.give()
	if f.file == nil {
		return errdefs.New(errdefs.Closed, "write audit record", "the file is closed")
	}
	if f.torn {
		// The rest of a line that a full disk cut off must not run into this one.
		line = append([]byte{'\n'}, line...)
	}
	n, err := f.file.Write(line)
	if n > 0 {
		f.torn = n < len(line)
	}
	if err == nil && f.options.Sync {
		err = f.file.Sync()
	}
	return errdefs.Wrap(errdefs.KindOf(err), "write audit record", err)
}

// Reopen opens the path again, after somebody has renamed the file. With an error
// the file that was open stays in use.
func (f *File) Reopen(ctx context.Context) error {
	if err := f.take(ctx); err != nil {
		return err
	}
	defer f.give()
	if f.file == nil {
		return errdefs.New(errdefs.Closed, "reopen audit file", "the file is closed")
	}
	file, torn, err := openFile(f.path)
	if err != nil {
		return err
	}
	old := f.file
	f.file, f.torn = file, torn
	return errdefs.Wrap(errdefs.Internal, "close audit file", old.Close())
}

// Close waits for the write that is going on and closes the file; later writes
// fail. A second Close does nothing.
func (f *File) Close() error {
	f.turn <- struct{}{}
	defer f.give()
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return errdefs.Wrap(errdefs.Internal, "close audit file", err)
}
