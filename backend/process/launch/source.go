//go:build linux

package launch

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

// Identify opens a directory as the launcher will, following no symbolic link in
// any component, and says which it is. The error is errdefs.Invalid or
// errdefs.NotFound, with a reason.
func Identify(path string) (Identity, error) {
	fd, stat, err := openDir(path)
	if err != nil {
		kind := errdefs.Invalid
		if errors.Is(err, unix.ENOENT) {
			kind = errdefs.NotFound
		}
		return Identity{}, errdefs.Wrap(kind, "open directory", err)
	}
	if err := unix.Close(fd); err != nil {
		return Identity{}, errdefs.Wrap(errdefs.Internal, "open directory", err)
	}
	return identity(stat), nil
}

func identity(stat unix.Stat_t) Identity { return Identity{Device: uint64(stat.Dev), Inode: stat.Ino} }

// openDir gives an O_PATH descriptor of a directory and its metadata. A link
// anywhere on the way is refused: whoever may plant one would choose what is
// mounted.
func openDir(path string) (int, unix.Stat_t, error) {
	var stat unix.Stat_t
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if defence.SourceWithoutLinks.Off() {
		how.Resolve = 0
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Openat2(unix.AT_FDCWD, path, &how)
	}
	switch {
	case errors.Is(err, unix.ELOOP):
		return -1, stat, fmt.Errorf("%s is, or lies behind, a symbolic link: %w", path, err)
	case errors.Is(err, unix.ENOTDIR):
		return -1, stat, fmt.Errorf("%s is not a directory: %w", path, err)
	case err != nil:
		return -1, stat, fmt.Errorf("open %s: %w", path, err)
	}
	if err := unix.Fstat(fd, &stat); err != nil {
		_ = unix.Close(fd)
		return -1, stat, fmt.Errorf("stat %s: %w", path, err)
	}
	return fd, stat, nil
}
