package agent

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// unpacker extracts a tar stream into a directory. Each name is walked component
// by component from the directory's descriptor and through no link, whoever made
// it. Files and links are made under a name of their own and renamed.
type unpacker struct {
	ctx    context.Context //nolint:containedctx // the request's
	buf    []byte
	most   unpackLimits
	report extracted
	// open are the directories on the way to the last entry, the destination
	// first.
	open []unpackedDir
}

// unpackLimits bound what is extracted.
type unpackLimits struct {
	entries int
	bytes   int64 // of content
}

func newUnpacker(ctx context.Context) *unpacker {
	return &unpacker{ctx: ctx, buf: make([]byte, copyBytes), most: unpackLimits{entries: 1_000_000, bytes: 1 << 40}}
}

// unpackedDir is a directory that entries are made in.
type unpackedDir struct {
	name string
	dir  *os.File
	// header has the mode and time that it gets when it is left, nil for none.
	header *tar.Header
}

// unpack extracts all of r. What was extracted before an error stays, because
// what it has replaced is gone.
func (u *unpacker) unpack(p string, r io.Reader) error {
	at, err := find(p, true, true)
	if err != nil {
		return err
	}
	defer at.close()
	made, err := u.enterTarget(&at)
	if err != nil {
		at.unmake()
		return err
	}
	whole := &endWatch{r: r}
	err = u.entries(tar.NewReader(whole))
	if err == nil && whole.ended && !defence.ArchiveWhole.Off() {
		err = faultf(connect.CodeInvalidArgument, "not a whole tar archive: it ends without tar's own end")
	}
	for len(u.open) > 0 {
		u.leave()
	}
	if err != nil && made && unix.Unlinkat(at.dir, at.name, unix.AT_REMOVEDIR) == nil {
		at.unmake()
	}
	return err
}

// endWatch notices that its reader has ended, which no reader of a whole archive
// comes to know: tar has an end of its own.
type endWatch struct {
	r     io.Reader
	ended bool
}

func (e *endWatch) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if errors.Is(err, io.EOF) {
		if n > 0 {
			return n, nil
		}
		e.ended = true
	}
	return n, err
}

// enterTarget opens the destination, and reports whether it made it.
func (u *unpacker) enterTarget(at *place) (bool, error) {
	if at.procfs {
		return false, unix.EACCES
	}
	err := unix.Mkdirat(at.dir, at.name, defaultDir)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return false, err
	}
	made := err == nil
	dir, err := openDir(at.dir, at.name)
	if err == nil {
		var procfs bool
		if procfs, err = isProcfs(int(dir.Fd())); err == nil && procfs {
			err = unix.EACCES
		}
		if err != nil {
			_ = dir.Close()
		}
	}
	if errors.Is(err, unix.ENOTDIR) {
		err = faultf(connect.CodeInvalidArgument, "extract to %q: not a directory", at.path)
	}
	if err != nil {
		return made, err
	}
	u.open = []unpackedDir{{dir: dir}}
	return made, nil
}

func (u *unpacker) entries(r *tar.Reader) error {
	for n := 0; ; n++ {
		if err := u.ctx.Err(); err != nil {
			return err
		}
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return readFault(err)
		}
		if n >= u.most.entries && !defence.ArchiveSize.Off() {
			return faultf(connect.CodeResourceExhausted, "the archive has more than %d entries", u.most.entries)
		}
		if err := u.entry(h, r); err != nil {
			return err
		}
	}
}

// readFault explains why the archive could not be read. A body that ended early
// is no fault of what the archive says.
func readFault(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrFieldTooLong) {
		return faultf(connect.CodeInvalidArgument, "not a whole tar archive: %v", err)
	}
	return err
}

// entryName takes a name apart. An empty one is the destination itself.
func entryName(name string) ([]string, error) {
	if strings.HasPrefix(name, "/") && !defence.ArchiveNames.Off() {
		return nil, faultf(connect.CodeInvalidArgument, "the archive has an absolute name: %.256q", name)
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == ".." && !defence.ArchiveNames.Off():
			return nil, faultf(connect.CodeInvalidArgument, `the archive has a name with "..": %.256q`, name)
		}
		parts = append(parts, part)
	}
	if len(parts) > maxArchiveDepth {
		return nil, faultf(connect.CodeInvalidArgument, "the archive has a name of %d levels, more than %d", len(parts), maxArchiveDepth)
	}
	return parts, nil
}

// entry extracts one entry.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil // such as this package's own
	}
	parts, err := entryName(h.Name)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		if h.Typeflag == tar.TypeDir {
			return nil // the destination keeps its mode and time
		}
		return faultf(connect.CodeInvalidArgument, "the archive has an entry without a name")
	}
	if h.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && (h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeDir) {
		u.report.skip(h.Name, "lost its set-id bits")
	}
	switch h.Typeflag {
	case tar.TypeDir, tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont, tar.TypeSymlink, tar.TypeLink:
	default:
		if !defence.ArchiveKinds.Off() || h.Typeflag != tar.TypeFifo {
			u.report.skip(h.Name, "is neither file, directory nor link")
			return nil
		}
	}
	if err := u.walkTo(parts[:len(parts)-1]); err != nil {
		return err
	}
	name := parts[len(parts)-1]
	parent := int(u.open[len(u.open)-1].dir.Fd())
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.dir(name, h)
	case tar.TypeSymlink:
		err = u.symlink(parent, name, h)
	case tar.TypeLink:
		err = u.hardLink(parent, name, h)
	case tar.TypeFifo: // without the defence alone
		err = unix.Mknodat(parent, name, unix.S_IFIFO|0o600, 0)
	default:
		err = u.file(parent, name, h, content)
	}
	if err != nil {
		return entryFault(h.Name, err)
	}
	u.report.Entries++
	return nil
}

// entryFault adds an entry's name to a fault.
func entryFault(name string, err error) error {
	f := fileFault("", "", err)
	var known *fault
	if errors.As(err, &known) {
		return known
	}
	return &fault{code: f.code, text: faultf(f.code, "entry %.256q: %v", name, err).text, err: err}
}

// walkTo makes the directories on the way to an entry the open ones: it keeps
// those that it shares with the one before, and makes what is missing.
func (u *unpacker) walkTo(parents []string) error {
	shared := 0
	for shared < len(parents) && shared+1 < len(u.open) && u.open[shared+1].name == parents[shared] {
		shared++
	}
	for len(u.open) > shared+1 {
		u.leave()
	}
	for _, name := range parents[shared:] {
		dir, err := u.openOrMake(int(u.open[len(u.open)-1].dir.Fd()), name)
		if err != nil {
			return entryFault(strings.Join(parents, "/"), err)
		}
		u.open = append(u.open, unpackedDir{name: name, dir: dir})
	}
	return nil
}

// openOrMake opens a directory of a directory.
func (u *unpacker) openOrMake(parent int, name string) (*os.File, error) {
	if defence.ArchiveLinks.Off() {
		_ = unix.Mkdirat(parent, name, defaultDir)
		fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return os.NewFile(uintptr(fd), name), err
	}
	err := unix.Mkdirat(parent, name, defaultDir)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	dir, err := openDir(parent, name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, faultf(connect.CodeInvalidArgument, "the archive's name leads through %.256q, which is no directory", name)
	}
	return dir, err
}

// leave closes the last open directory and gives it what its entry said.
func (u *unpacker) leave() {
	last := u.open[len(u.open)-1]
	u.open = u.open[:len(u.open)-1]
	defer func() { _ = last.dir.Close() }()
	if last.header == nil {
		return
	}
	fd := int(last.dir.Fd())
	err := unix.Fchmod(fd, archiveMode(uint32(last.header.Mode), true)) //nolint:gosec // masked
	if err = errors.Join(err, setTime(fd, ".", last.header.ModTime)); err != nil {
		u.report.skip(last.header.Name, "did not get its mode and time: "+err.Error())
	}
}

// setTime sets the time of an entry of an open directory; that of the last access
// is not changed.
func setTime(dir int, name string, at time.Time) error {
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// dir makes a directory and enters it. It can be written to until it is left.
func (u *unpacker) dir(name string, h *tar.Header) error {
	if err := u.walkTo(u.path(name)); err != nil {
		return err
	}
	u.open[len(u.open)-1].header = h
	return nil
}

// path gives the names of the open directories and one more.
func (u *unpacker) path(name string) []string {
	var out []string
	for _, d := range u.open[1:] {
		out = append(out, d.name)
	}
	return append(out, name)
}

// file writes a file under a temporary name and renames it.
func (u *unpacker) file(parent int, name string, h *tar.Header, content io.Reader) error {
	if (h.Size < 0 || h.Size > u.most.bytes-u.report.Bytes) && !defence.ArchiveSize.Off() {
		return faultf(connect.CodeResourceExhausted, "the archive has more than %d bytes of content", u.most.bytes)
	}
	return u.settle(parent, name, func(temp string) error {
		const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
		fd, err := unix.Openat(parent, temp, flags, 0o600)
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), name)
		n, err := io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{cancelled{u.ctx, content}}, u.buf)
		u.report.Bytes += n
		if err != nil {
			return errors.Join(readFault(err), file.Close())
		}
		err = unix.Fchmod(fd, archiveMode(uint32(h.Mode), false)) //nolint:gosec // masked
		return errors.Join(err, file.Close(), setTime(parent, temp, h.ModTime))
	})
}

// cancelled ends a copy with its context.
type cancelled struct {
	ctx context.Context //nolint:containedctx // a reader has no room for one
	r   io.Reader
}

func (c cancelled) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

func (u *unpacker) symlink(parent int, name string, h *tar.Header) error {
	return u.settle(parent, name, func(temp string) error {
		if err := unix.Symlinkat(h.Linkname, parent, temp); err != nil {
			return err
		}
		return setTime(parent, temp, h.ModTime)
	})
}

// hardLink makes another name for a regular file of the destination.
func (u *unpacker) hardLink(parent int, name string, h *tar.Header) error {
	parts, err := entryName(h.Linkname)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return faultf(connect.CodeInvalidArgument, "the archive has a hard link to the destination")
	}
	dir := u.open[0].dir
	for i, part := range parts[:len(parts)-1] {
		next, err := openDir(int(dir.Fd()), part)
		if i > 0 {
			_ = dir.Close()
		}
		if err != nil {
			return err
		}
		dir = next
	}
	if len(parts) > 1 {
		defer func() { _ = dir.Close() }()
	}
	last := parts[len(parts)-1]
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), last, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return faultf(connect.CodeInvalidArgument, "the archive has a hard link to %.256q, which is no file", h.Linkname)
	}
	return u.settle(parent, name, func(temp string) error {
		return unix.Linkat(int(dir.Fd()), last, parent, temp, 0)
	})
}

// settle makes something under a temporary name and gives it its own. After a
// failure nothing is left.
func (u *unpacker) settle(parent int, name string, make func(temp string) error) error {
	temp, err := tempName()
	if err != nil {
		return err
	}
	err = make(temp)
	if err == nil {
		err = unix.Renameat(parent, temp, parent, name)
	}
	// Two names of one file stay both when one is renamed to the other.
	if unlinkErr := unix.Unlinkat(parent, temp, 0); err == nil && unlinkErr != nil && !errors.Is(unlinkErr, unix.ENOENT) {
		err = unlinkErr
	}
	return err
}
