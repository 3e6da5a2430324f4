package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// Bounds of one listing.
const (
	maxListEntries = 100_000
	maxListBytes   = 12 << 20 // estimated size of the message
	maxListDepth   = 128      // levels, each of which holds a descriptor
	listBatch      = 512      // names read at once
)

// localFiles does file work in the agent's own process.
type localFiles struct{}

var _ fileWork = localFiles{}

// find resolves a path from the root.
func find(p string, follow, parents bool) (place, error) {
	w, err := newWalk(p)
	if err != nil {
		return place{}, err
	}
	return w.resolve(follow, parents)
}

func (localFiles) stat(_ context.Context, p string, noFollow bool) (entry, error) {
	at, err := find(p, false, false)
	if err != nil {
		return entry{}, err
	}
	defer at.close()
	return at.describe(p, noFollow)
}

// describe looks at a place that the caller knows as shown.
func (p *place) describe(shown string, noFollow bool) (entry, error) {
	// The directory's own path ends with the name where the name is ".".
	at := p.path
	if p.name != "." {
		at = path.Dir(p.path)
	}
	e, err := describe(p.dir, at, p.name, shown, noFollow)
	e.name = path.Base(shown)
	return e, err
}

func (localFiles) makeDir(_ context.Context, p string, mode uint32, existOK bool) (entry, error) {
	at, err := find(p, false, true)
	if err != nil {
		return entry{}, unfit(err, connect.CodeInvalidArgument, "make directory", p)
	}
	defer at.close()
	if mode == 0 {
		mode = defaultDir
	}
	err = unix.Mkdirat(at.dir, at.name, mode)
	if errors.Is(err, unix.EEXIST) {
		return existing(&at, p, existOK)
	}
	if err == nil {
		err = settleMode(at.dir, at.name, mode)
	}
	if err != nil {
		at.unmake()
		return entry{}, err
	}
	return at.describe(p, false)
}

// existing answers a makeDir that found something.
func existing(at *place, p string, existOK bool) (entry, error) {
	e, err := at.describe(p, false)
	if err != nil {
		return entry{}, err
	}
	if e.seen().Mode&unix.S_IFMT != unix.S_IFDIR {
		return entry{}, faultf(connect.CodeInvalidArgument, "make directory %q: something else is there", p)
	}
	if !existOK {
		return entry{}, unix.EEXIST
	}
	return e, nil
}

// settleMode gives a new directory its exact mode where the umask took some.
func settleMode(dir int, name string, mode uint32) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		// A directory that its maker may not read keeps what the umask left.
		return nil //nolint:nilerr // the directory is made
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&0o777 == mode {
		return nil
	}
	return unix.Fchmod(fd, mode)
}

func (localFiles) move(_ context.Context, from, to string) (entry, error) {
	src, err := find(from, false, false)
	if err != nil {
		return entry{}, err
	}
	defer src.close()
	var st unix.Stat_t
	if err := unix.Fstatat(src.dir, src.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return entry{}, err
	}
	dst, err := find(to, false, true)
	if err != nil {
		return entry{}, unfit(err, connect.CodeFailedPrecondition, "move to", to)
	}
	defer dst.close()
	if err := unix.Renameat(src.dir, src.name, dst.dir, dst.name); err != nil {
		dst.unmake()
		return entry{}, unfit(err, connect.CodeFailedPrecondition, "move to", to)
	}
	return dst.describe(to, false)
}

// unfit gives a place where nothing can be made, because what should be a
// directory is none, the operation's own code: that is not the same as a missing
// source.
func unfit(err error, code connect.Code, op, p string) error {
	if errors.Is(err, unix.ENOTDIR) {
		return faultf(code, "%s %q: %v", op, p, unix.ENOTDIR)
	}
	return err
}

// listing collects entries within bounds.
type listing struct {
	entries []entry
	bytes   int
}

func (localFiles) list(ctx context.Context, p string, depth int) ([]entry, error) {
	at, err := find(p, true, false)
	if err != nil {
		return nil, err
	}
	defer at.close()
	fd, err := openDir(at.dir, at.name)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, faultf(connect.CodeInvalidArgument, "list %q: not a directory", p)
	}
	if err != nil {
		return nil, err
	}
	var l listing
	if err := l.add(ctx, fd, at.path, p, depth); err != nil {
		return nil, err
	}
	return l.entries, nil
}

// openDir opens a directory for reading without following a link.
func openDir(dir int, name string) (*os.File, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// add appends a directory's entries, and theirs as far as depth goes. It closes
// the directory.
func (l *listing) add(ctx context.Context, dir *os.File, at, shown string, depth int) error {
	defer func() { _ = dir.Close() }()
	names, err := l.names(ctx, dir)
	if err != nil {
		return err
	}
	fd := int(dir.Fd())
	for _, name := range names {
		e, err := describe(fd, at, name, path.Join(shown, name), false)
		if errors.Is(err, unix.ENOENT) {
			continue // gone since
		}
		if err != nil {
			return err
		}
		if err := l.take(e); err != nil {
			return err
		}
		if depth <= 1 || e.self.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		if err := l.descend(ctx, fd, path.Join(at, name), e, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// descend adds what is in a directory of the listing. One that cannot be opened
// is listed without entries, and procfs is never descended.
func (l *listing) descend(ctx context.Context, dir int, at string, e entry, depth int) error {
	sub, err := openDir(dir, e.name)
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return err
	case err != nil:
		return nil //nolint:nilerr // not readable, or swapped for something else
	}
	procfs, err := isProcfs(int(sub.Fd()))
	if err != nil || procfs {
		return sub.Close()
	}
	return l.add(ctx, sub, at, e.path, depth)
}

func (l *listing) take(e entry) error {
	l.bytes += e.size()
	l.entries = append(l.entries, e)
	if (len(l.entries) > maxListEntries || l.bytes > maxListBytes) && !defence.FilesListing.Off() {
		return l.tooLong()
	}
	return nil
}

func (l *listing) tooLong() error {
	return faultf(connect.CodeResourceExhausted, "listing has more than %d entries or %d bytes", maxListEntries, maxListBytes)
}

// names gives the names in a directory in lexical order.
func (l *listing) names(ctx context.Context, dir *os.File) ([]string, error) {
	var all []string
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		batch, err := dir.Readdirnames(listBatch)
		all = append(all, batch...)
		if len(l.entries)+len(all) > maxListEntries && !defence.FilesListing.Off() {
			return nil, l.tooLong()
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(all)
	return all, nil
}
