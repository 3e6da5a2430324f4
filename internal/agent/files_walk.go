package agent

import (
	"errors"
	"path"
	"strings"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// Bounds of name resolution.
const (
	maxLinks     = 40       // as the kernel's own
	maxPathBytes = 4096     // of a path in a request, PATH_MAX
	maxRestBytes = 64 << 10 // of what is still to be resolved after links
	defaultDir   = 0o755
)

// place is one resolved name: an open directory and an entry of it that is
// there or not. Every file operation works relative to the descriptor, so a
// directory that is swapped meanwhile leads nowhere new.
type place struct {
	dir    int    // O_PATH descriptor, owned by the place
	name   string // "." when the path ends at the directory itself
	path   string // absolute, without links
	procfs bool   // dir lies in a proc file system
	made   []madeDir
}

// madeDir is a parent that was made on the way, so that it can be unmade.
type madeDir struct {
	parent int
	name   string
}

// close lets go of the descriptors.
func (p *place) close() {
	_ = unix.Close(p.dir)
	for _, m := range p.made {
		_ = unix.Close(m.parent)
	}
	p.made = nil
}

// unmake removes the parents that were made, as far as they are empty.
func (p *place) unmake() {
	for i := len(p.made) - 1; i >= 0; i-- {
		if unix.Unlinkat(p.made[i].parent, p.made[i].name, unix.AT_REMOVEDIR) != nil {
			return
		}
	}
}

// walk resolves a path component by component, each opened relative to the one
// before and without following links, which the walk follows itself. That is
// openat2's RESOLVE_NO_MAGICLINKS without openat2, which the system call filter
// of the process tier refuses.
//
// The rule about procfs: nothing that belongs to a process is reached, neither
// by number nor through a link. The agent opens files with its own identity, and
// its own entries there (environment, memory, descriptors) are not for the data
// plane; a link such as /proc/self/fd/N would lead out of procfs again, so that
// a check of the file that was opened would come too late.
type walk struct {
	cur    int
	dev    uint64
	procfs bool
	names  []string
	rest   []string
	links  int
	made   []madeDir
}

// newWalk begins at the root directory.
func newWalk(rest string) (*walk, error) {
	w := &walk{cur: -1, rest: strings.Split(rest, "/")}
	if err := w.toRoot(); err != nil {
		return nil, err
	}
	return w, nil
}

// newWalkAt begins at an open directory, which the caller keeps, whose path
// without links is at.
func newWalkAt(dir int, at, rest string) (*walk, error) {
	fd, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	w := &walk{cur: fd, rest: strings.Split(rest, "/")}
	if at != "/" {
		w.names = strings.Split(strings.TrimPrefix(at, "/"), "/")
	}
	if err := w.arrive(); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return w, nil
}

// resolve gives the place that a path names. With follow a link at the end is
// resolved too; with parents missing directories on the way are made.
func (w *walk) resolve(follow, parents bool) (place, error) {
	for {
		name, last := w.next()
		if name == "" {
			return w.end("."), nil
		}
		if name == ".." {
			if err := w.up(); err != nil {
				return place{}, w.fail(err)
			}
			continue
		}
		if w.procfs && isNumber(name) && !defence.FilesProcfs.Off() {
			return place{}, w.fail(unix.EACCES)
		}
		if last && !follow {
			return w.end(name), nil
		}
		done, err := w.step(name, last, parents)
		if err != nil {
			return place{}, w.fail(err)
		}
		if done {
			return w.end(name), nil
		}
	}
}

// step goes through one component and reports whether it is where the path ends.
func (w *walk) step(name string, last, parents bool) (bool, error) {
	fd, err := w.open(name, parents && !last)
	if errors.Is(err, unix.ENOENT) && last {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return false, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		err := w.follow(fd)
		_ = unix.Close(fd)
		return false, err
	case unix.S_IFDIR:
		if last {
			_ = unix.Close(fd)
			return true, nil
		}
		_ = unix.Close(w.cur)
		w.cur = fd
		w.names = append(w.names, name)
		return false, w.entered(&st)
	default:
		_ = unix.Close(fd)
		if last {
			return true, nil
		}
		return false, unix.ENOTDIR
	}
}

// open opens a component as a mere handle, making a directory of that name if
// there is none and make says so.
func (w *walk) open(name string, make bool) (int, error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(w.cur, name, flags, 0)
	if !make || !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	made := false
	switch err := unix.Mkdirat(w.cur, name, defaultDir); {
	case err == nil:
		made = true
	case !errors.Is(err, unix.EEXIST):
		return -1, err
	}
	fd, err = unix.Openat(w.cur, name, flags, 0)
	if err == nil && made {
		if parent, dupErr := unix.FcntlInt(uintptr(w.cur), unix.F_DUPFD_CLOEXEC, 0); dupErr == nil {
			w.made = append(w.made, madeDir{parent: parent, name: name})
		}
	}
	return fd, err
}

// follow puts a link's content in front of what is still to be resolved.
func (w *walk) follow(fd int) error {
	if w.procfs && !defence.FilesProcfs.Off() {
		return unix.EACCES
	}
	w.links++
	if w.links > maxLinks && !defence.FilesLinkLoops.Off() {
		return unix.ELOOP
	}
	content, err := readlink(fd, "")
	if err != nil {
		return err
	}
	rest := strings.Split(content, "/")
	size := 0
	for _, name := range w.rest {
		size += len(name) + 1
	}
	if size+len(content) > maxRestBytes && !defence.FilesLinkLength.Off() {
		return unix.ENAMETOOLONG
	}
	w.rest = append(rest, w.rest...)
	if strings.HasPrefix(content, "/") {
		return w.toRoot()
	}
	return nil
}

// next takes the next component that says something, "" for none, and tells
// whether it is the last. What ends in "/" or "/.", as a link's content can, is
// a directory or nothing: its last name is not the last.
func (w *walk) next() (string, bool) {
	for len(w.rest) > 0 {
		name := w.rest[0]
		w.rest = w.rest[1:]
		if name != "" && name != "." {
			return name, len(w.rest) == 0
		}
	}
	return "", true
}

// up goes to the parent directory; at the root it stays there.
func (w *walk) up() error {
	fd, err := unix.Openat(w.cur, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_ = unix.Close(w.cur)
	w.cur = fd
	if len(w.names) > 0 {
		w.names = w.names[:len(w.names)-1]
	}
	return w.arrive()
}

func (w *walk) toRoot() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if w.cur >= 0 {
		_ = unix.Close(w.cur)
	}
	w.cur, w.names = fd, nil
	return w.arrive()
}

// arrive looks at the current directory afresh.
func (w *walk) arrive() error {
	var st unix.Stat_t
	if err := unix.Fstat(w.cur, &st); err != nil {
		return err
	}
	w.dev = st.Dev + 1 // anything else, so that entered looks
	return w.entered(&st)
}

// entered notes which kind of file system the current directory is in. Only a
// change of device can change that.
func (w *walk) entered(st *unix.Stat_t) error {
	if st.Dev == w.dev {
		return nil
	}
	procfs, err := isProcfs(w.cur)
	if err != nil {
		return err
	}
	w.dev, w.procfs = st.Dev, procfs
	return nil
}

// end hands the current directory over to a place.
func (w *walk) end(name string) place {
	full := "/" + strings.Join(w.names, "/")
	return place{dir: w.cur, name: name, path: path.Join(full, name), procfs: w.procfs, made: w.made}
}

// fail lets go of everything, made parents included.
func (w *walk) fail(err error) error {
	p := place{dir: w.cur, made: w.made}
	p.unmake()
	p.close()
	return err
}

func isProcfs(fd int) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return false, err
	}
	return fs.Type == unix.PROC_SUPER_MAGIC, nil
}

func isNumber(name string) bool {
	for _, c := range []byte(name) {
		if c < '0' || c > '9' {
			return false
		}
	}
	return name != ""
}

// readlink gives a link's content; with an empty name dir is the link itself.
func readlink(dir int, name string) (string, error) {
	buf := make([]byte, maxPathBytes)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// cleanPath gives the absolute form of a path in a request: "~" and relative
// paths begin at home.
func cleanPath(home, p string) (string, error) {
	switch {
	case p == "":
		return "", faultf(connect.CodeInvalidArgument, "path is empty")
	case len(p) > maxPathBytes:
		return "", faultf(connect.CodeInvalidArgument, "path has %d bytes, more than %d", len(p), maxPathBytes)
	case strings.IndexByte(p, 0) >= 0:
		return "", faultf(connect.CodeInvalidArgument, "path contains a NUL byte")
	case p == "~":
		p = home
	case strings.HasPrefix(p, "~/"):
		p = path.Join(home, p[2:])
	case strings.HasPrefix(p, "~"):
		return "", faultf(connect.CodeInvalidArgument, "path names another user's home: %q", p)
	case p[0] != '/':
		p = path.Join(home, p)
	}
	p = path.Clean(p)
	switch {
	case p[0] != '/':
		return "", faultf(connect.CodeInvalidArgument, "path is relative and there is no home directory")
	case len(p) > maxPathBytes:
		return "", faultf(connect.CodeInvalidArgument, "path has %d bytes from the root, more than %d", len(p), maxPathBytes)
	}
	return p, nil
}
