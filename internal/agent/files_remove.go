package agent

import (
	"context"
	"errors"
	"io"
	"os"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// maxRemoveDepth bounds the memory of a removal; a tree so deep cannot be made
// by accident.
const maxRemoveDepth = 1 << 16

// remove removes an entry, never what a link points to. Strict is rm or rmdir of
// one entry that has to be there; otherwise it is rm -rf, except that mount
// points and other file systems below are refused, and that the first failure
// ends it.
func (localFiles) remove(ctx context.Context, p string, strict bool) error {
	at, err := find(p, false, false)
	if errors.Is(err, unix.ENOENT) && !strict {
		return nil
	}
	if err != nil {
		return err
	}
	defer at.close()
	if at.name == "." {
		return faultf(connect.CodeInvalidArgument, "remove %q: it cannot be removed", p)
	}
	if at.procfs {
		return unix.EACCES
	}
	err = removeOne(at.dir, at.name)
	switch {
	case err == nil:
		return nil
	case strict:
		return err
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return removeTree(ctx, at.dir, at.name)
	}
	return err
}

// removeOne removes anything but a directory with entries. rmdir tells a mount
// point (EBUSY) before it looks whether the directory is empty.
func removeOne(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	// EPERM is what POSIX says for a directory, EISDIR what Linux says.
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if dirErr := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); !errors.Is(dirErr, unix.ENOTDIR) {
		return dirErr
	}
	return err
}

// level is a directory on the way down. Only the deepest is open; the way up is
// taken by ".." and checked, so that depth costs no descriptors and a directory
// that is moved away meanwhile leads nowhere else.
type level struct {
	name     string
	dev, ino uint64 // of the directory that holds it
}

// removeTree empties and removes a directory.
func removeTree(ctx context.Context, dir int, name string) error {
	top, err := openDir(dir, name)
	if err != nil {
		return err
	}
	cur := top
	defer func() { _ = cur.Close() }()
	var down []level
	for {
		child, err := empty(ctx, cur)
		if err != nil {
			return err
		}
		var next *os.File
		switch {
		case child != "":
			if len(down) >= maxRemoveDepth {
				return faultf(connect.CodeResourceExhausted, "remove: more than %d levels of directories", maxRemoveDepth)
			}
			var l level
			next, l, err = enter(cur, child)
			down = append(down, l)
		case len(down) == 0:
			return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
		default:
			next, err = leave(cur, down[len(down)-1])
			down = down[:len(down)-1]
		}
		if err != nil {
			return err
		}
		_ = cur.Close()
		cur = next
	}
}

// empty removes what it can from a directory and gives the first entry that has
// entries of its own, "" when none is left.
func empty(ctx context.Context, dir *os.File) (string, error) {
	fd := int(dir.Fd())
	for {
		// Removing while reading may skip names, so it reads from the start until
		// nothing is there.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return "", err
		}
		names, err := dir.Readdirnames(listBatch)
		if len(names) == 0 {
			if errors.Is(err, io.EOF) {
				return "", nil
			}
			return "", err
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		for _, name := range names {
			err := removeOne(fd, name)
			switch {
			case err == nil, errors.Is(err, unix.ENOENT):
			case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
				return name, nil
			default:
				return "", &os.PathError{Op: "remove", Path: name, Err: err}
			}
		}
	}
}

// enter opens a directory that has entries, on the same file system.
func enter(dir *os.File, name string) (*os.File, level, error) {
	var here, there unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &here); err != nil {
		return nil, level{}, err
	}
	next, err := openDir(int(dir.Fd()), name)
	if err != nil {
		return nil, level{}, err
	}
	err = unix.Fstat(int(next.Fd()), &there)
	if err == nil && there.Dev != here.Dev {
		err = unix.EXDEV
	}
	if err != nil {
		_ = next.Close()
		return nil, level{}, &os.PathError{Op: "enter", Path: name, Err: err}
	}
	return next, level{name: name, dev: here.Dev, ino: here.Ino}, nil
}

// leave goes back up and removes the directory that was emptied. Where new
// entries have appeared in it, it stays and is entered again.
func leave(dir *os.File, l level) (*os.File, error) {
	up, err := openDir(int(dir.Fd()), "..")
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(int(up.Fd()), &st)
	if err == nil && (st.Dev != l.dev || st.Ino != l.ino) && !defence.FilesMovedTrees.Off() {
		err = faultf(connect.CodeAborted, "remove: the tree was moved meanwhile")
	}
	if err == nil {
		err = unix.Unlinkat(int(up.Fd()), l.name, unix.AT_REMOVEDIR)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
			err = nil
		}
	}
	if err != nil {
		_ = up.Close()
		return nil, err
	}
	return up, nil
}
