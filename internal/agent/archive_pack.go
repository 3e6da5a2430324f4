package agent

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"time"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// packer writes a tree as a tar stream: depth first, each directory before its
// entries and these in the order of their bytes, so that a reader can check with
// a few names in its hand that no name comes twice or through something else than
// a directory. Hard links are files of their own.
type packer struct {
	ctx   context.Context //nolint:containedctx // the request's
	tar   *tar.Writer
	buf   []byte
	names int // bytes of the names of the directories that are open
}

// source is what is to be archived: an open directory or a regular file.
type source struct {
	file *os.File
	stat unix.Stat_t
	name string // of a file
}

// openSource opens what a path leads to.
func openSource(p string) (*source, error) {
	at, err := find(p, true, false)
	if err != nil {
		return nil, err
	}
	defer at.close()
	s := &source{name: path.Base(p)}
	s.file, err = openDir(at.dir, at.name)
	if errors.Is(err, unix.ENOTDIR) {
		s.file, _, err = openRegular(p)
	}
	if err != nil {
		return nil, err
	}
	procfs, err := isProcfs(int(s.file.Fd()))
	if err == nil {
		err = unix.Fstat(int(s.file.Fd()), &s.stat)
	}
	if err == nil && procfs && !defence.ArchiveProcfs.Off() {
		err = unix.EACCES
	}
	if err != nil {
		_ = s.file.Close()
		return nil, err
	}
	return s, nil
}

// pack writes the entries of a source, which it closes.
func (pk *packer) pack(s *source) error {
	if s.stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		return pk.dir(s.file, &s.stat, "", 0)
	}
	defer func() { _ = s.file.Close() }()
	return pk.content(s.file, &s.stat, s.name)
}

// record writes a global header.
func (pk *packer) record(records map[string]string) error {
	return pk.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: records})
}

// skip tells that a name is left out, or not as it was.
func (pk *packer) skip(name, reason string) error {
	return pk.record(map[string]string{recordSkipped: text(name), recordReason: text(reason)})
}

// dir writes the entries of a directory, which it closes.
func (pk *packer) dir(dir *os.File, st *unix.Stat_t, prefix string, depth int) error {
	defer func() { _ = dir.Close() }()
	names, size, err := pk.list(dir)
	defer func() { pk.names -= size }()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := pk.entry(dir, st.Dev, name, path.Join(prefix, name), depth); err != nil {
			return err
		}
	}
	return nil
}

// list gives the names in a directory in order, and counts them.
func (pk *packer) list(dir *os.File) (names []string, size int, err error) {
	for {
		if err := pk.ctx.Err(); err != nil {
			return nil, size, err
		}
		batch, err := dir.Readdirnames(listBatch)
		for _, name := range batch {
			size += len(name) + 16
			pk.names += len(name) + 16
		}
		names = append(names, batch...)
		if pk.names > maxArchiveNames {
			return nil, size, faultf(connect.CodeResourceExhausted, "the names of directories in one another have more than %d bytes", maxArchiveNames)
		}
		if errors.Is(err, io.EOF) || err == nil && len(batch) == 0 {
			slices.Sort(names)
			return names, size, nil
		}
		if err != nil {
			return nil, size, err
		}
	}
}

// entry writes one entry of a directory, and what is below it.
func (pk *packer) entry(dir *os.File, dev uint64, name, full string, depth int) error {
	if err := pk.ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil // gone since
		}
		return pk.skip(full, err.Error())
	}
	if len(full) >= maxPathBytes {
		return pk.skip(full, "the path is too long")
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return pk.file(dir, name, full)
	case unix.S_IFDIR:
		return pk.descend(dir, dev, &st, name, full, depth)
	case unix.S_IFLNK:
		return pk.link(dir, &st, name, full)
	case unix.S_IFSOCK:
		return pk.skip(full, "is a socket")
	case unix.S_IFIFO:
		return pk.skip(full, "is a FIFO")
	default:
		return pk.skip(full, "is a device")
	}
}

// header is what all kinds of entries have.
func header(kind byte, st *unix.Stat_t, name string) *tar.Header {
	return &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(archiveMode(st.Mode, kind == tar.TypeDir)),
		ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX,
	}
}

func (pk *packer) link(dir *os.File, st *unix.Stat_t, name, full string) error {
	content, err := readlink(int(dir.Fd()), name)
	if err != nil {
		return pk.skip(full, err.Error())
	}
	h := header(tar.TypeSymlink, st, full)
	h.Linkname = content
	return pk.tar.WriteHeader(h)
}

func (pk *packer) descend(dir *os.File, dev uint64, st *unix.Stat_t, name, full string, depth int) error {
	if err := pk.tar.WriteHeader(header(tar.TypeDir, st, full+"/")); err != nil {
		return err
	}
	if depth+1 >= maxArchiveDepth {
		return pk.skip(full, "has what is below it left out: there are too many levels")
	}
	sub, err := openDir(int(dir.Fd()), name)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return err
	}
	if err != nil {
		return pk.skip(full, "has what is below it left out: "+err.Error())
	}
	err = unix.Fstat(int(sub.Fd()), st)
	procfs := false
	if err == nil && st.Dev != dev {
		procfs, err = isProcfs(int(sub.Fd()))
	}
	if err != nil {
		return errors.Join(err, sub.Close())
	}
	if procfs && !defence.ArchiveProcfs.Off() {
		return errors.Join(pk.skip(full, "has what is below it left out: it is a proc file system"), sub.Close())
	}
	return pk.dir(sub, st, full, depth+1)
}

// file opens a regular file and writes it. The name may have been swapped since
// it was looked at: the file itself is looked at again.
func (pk *packer) file(dir *os.File, name, full string) error {
	const flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(dir.Fd()), name, flags, 0)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return err
	}
	if err != nil {
		return pk.skip(full, err.Error())
	}
	file, err := checkedFile(fd, full)
	if err != nil {
		_ = unix.Close(fd)
		return pk.skip(full, err.Error())
	}
	defer func() { _ = file.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return pk.skip(full, err.Error())
	}
	return pk.content(file, &st, full)
}

// content writes a file as large as it was when it was opened. What it has lost
// meanwhile, or cannot be read, is zeros, and told.
func (pk *packer) content(file *os.File, st *unix.Stat_t, full string) error {
	h := header(tar.TypeReg, st, full)
	h.Size = st.Size
	if err := pk.tar.WriteHeader(h); err != nil {
		return err
	}
	left, reason := st.Size, "became shorter while it was read"
	for left > 0 {
		if err := pk.ctx.Err(); err != nil {
			return err
		}
		n, err := file.Read(pk.buf[:min(left, int64(len(pk.buf)))])
		if _, err := pk.tar.Write(pk.buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			reason = err.Error()
		}
		if left > 0 {
			return errors.Join(pk.zeros(left), pk.skip(full, "is padded with zeros: "+reason))
		}
	}
	return nil
}

func (pk *packer) zeros(left int64) error {
	clear(pk.buf)
	for left > 0 {
		n, err := pk.tar.Write(pk.buf[:min(left, int64(len(pk.buf)))])
		if err != nil {
			return err
		}
		left -= int64(n)
		if err := pk.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}
