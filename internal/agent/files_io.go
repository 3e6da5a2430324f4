package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// copyBytes is the size of one read or write of bulk data.
const copyBytes = 256 << 10

// openRegular opens a regular file for reading. Nothing else is ever opened: a
// FIFO would hang, a device would act. What lies in procfs has no size and is
// the agent's view rather than the payload's, so that it is refused as a whole.
func openRegular(p string) (*os.File, os.FileInfo, error) {
	at, err := find(p, true, false)
	if err != nil {
		return nil, nil, err
	}
	defer at.close()
	if at.procfs && !defence.FilesProcfs.Off() {
		return nil, nil, unix.EACCES
	}
	var st unix.Stat_t
	if err := unix.Fstatat(at.dir, at.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, nil, err
	}
	if err := regular(p, &st); err != nil {
		return nil, nil, err
	}
	// The name may have been swapped since: O_NONBLOCK keeps a FIFO from
	// hanging, and the file itself is looked at again.
	const flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(at.dir, at.name, flags, 0)
	if err != nil {
		return nil, nil, err
	}
	file, err := checkedFile(fd, p)
	if err != nil {
		_ = unix.Close(fd)
		return nil, nil, err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// checkedFile makes a file of a descriptor that turned out to be regular.
func checkedFile(fd int, p string) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if err := regular(p, &st); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), p), nil
}

// regular refuses anything but a regular file.
func regular(p string, st *unix.Stat_t) error {
	if defence.FilesRegular.Off() {
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return faultf(connect.CodeInvalidArgument, "%q is a directory", p)
	default:
		return faultf(connect.CodeInvalidArgument, "%q is not a regular file", p)
	}
}

// readAtMost reads up to n bytes and takes what came before an error.
func readAtMost(r io.Reader, n int64) []byte {
	data, err := io.ReadAll(io.LimitReader(r, n))
	if err != nil {
		return nil
	}
	return data
}

func (localFiles) open(_ context.Context, p string) (*os.File, os.FileInfo, error) {
	return openRegular(p)
}

// write streams body into a temporary file beside the target and renames it over
// it, so that readers see the old file or the new one whole. A link at the end of
// the path stays, and its target is replaced. After a failure nothing is left.
func (localFiles) write(_ context.Context, p string, options writeOptions, body io.Reader) (entry, error) {
	at, err := find(p, !options.exclusive, true)
	if err != nil {
		return entry{}, unfit(err, connect.CodeInvalidArgument, "write", p)
	}
	defer at.close()
	e, err := writeAt(&at, p, options, body)
	if err != nil {
		at.unmake()
	}
	return e, err
}

func writeAt(at *place, p string, options writeOptions, body io.Reader) (entry, error) {
	mode, err := replaceable(at, p, options)
	if err != nil {
		return entry{}, err
	}
	temp, err := tempName()
	if err != nil {
		return entry{}, err
	}
	if defence.FilesAtomic.Off() {
		temp = at.name
		_ = unix.Unlinkat(at.dir, temp, 0)
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(at.dir, temp, flags, 0o600)
	if err != nil {
		return entry{}, err
	}
	err = fill(os.NewFile(uintptr(fd), p), body, mode, options.metadata)
	if err == nil {
		err = settle(at, temp, options.exclusive)
	}
	if err != nil && !defence.FilesDraftRemoved.Off() {
		_ = unix.Unlinkat(at.dir, temp, 0)
	}
	if err != nil {
		return entry{}, err
	}
	return at.describe(p, false)
}

// replaceable refuses what may not be replaced and gives the mode that the file
// is to have: the old one's permission bits, or the one asked for.
func replaceable(at *place, p string, options writeOptions) (uint32, error) {
	if at.procfs && !defence.FilesProcfs.Off() {
		return 0, unix.EACCES
	}
	mode := options.mode
	if mode == 0 {
		mode = 0o644
	}
	var st unix.Stat_t
	err := unix.Fstatat(at.dir, at.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return mode, nil
	case err != nil:
		return 0, err
	case options.exclusive && !defence.FilesExclusive.Off():
		return 0, unix.EEXIST
	}
	return st.Mode & 0o777, regular(p, &st)
}

// fill writes the body into a file, with what is noted beside it, and closes it.
func fill(file *os.File, body io.Reader, mode uint32, metadata map[string]string) error {
	err := writeMetadata(int(file.Fd()), metadata)
	if err == nil {
		// Neither side's own copying is wanted: it would use smaller blocks.
		_, err = io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{body}, make([]byte, copyBytes))
	}
	if err == nil {
		err = unix.Fchmod(int(file.Fd()), mode)
	}
	return errors.Join(err, file.Close())
}

// settle gives the finished file its name.
func settle(at *place, temp string, exclusive bool) error {
	if !exclusive || defence.FilesExclusive.Off() {
		return unix.Renameat(at.dir, temp, at.dir, at.name)
	}
	err := unix.Renameat2(at.dir, temp, at.dir, at.name, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	// File systems that cannot do that can link, which never replaces either.
	if err := unix.Linkat(at.dir, temp, at.dir, at.name, 0); err != nil {
		return err
	}
	return unix.Unlinkat(at.dir, temp, 0)
}

// The name of a draft is random between these, in hexadecimal.
const (
	draftPrefix = ".berm-"
	draftBytes  = 12
	draftSuffix = ".tmp"
)

// tempName gives a name that nobody can guess.
func tempName() (string, error) {
	var raw [draftBytes]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", err
	}
	return draftPrefix + hex.EncodeToString(raw[:]) + draftSuffix, nil
}

// isDraft reports a name that looks like one of tempName's. A payload can choose
// such a name too.
func isDraft(name string) bool {
	inner, ok := strings.CutPrefix(name, draftPrefix)
	inner, ok2 := strings.CutSuffix(inner, draftSuffix)
	_, err := hex.DecodeString(inner)
	return ok && ok2 && len(inner) == 2*draftBytes && err == nil
}
