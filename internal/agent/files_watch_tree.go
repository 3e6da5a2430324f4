package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path"
	"strings"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// maxSeen bounds the seen names of one directory. Of what is above it, the
// creation may be told twice.
const maxSeen = 16 << 10

// Kinds of network file systems that golang.org/x/sys does not name.
const (
	smb2Magic = 0xFE534D42
	gfs2Magic = 0x01161970
	lustre    = 0x0BD00BD0
)

// isNetwork reports the file systems whose changes can be made elsewhere, where
// the kernel does not see them. FUSE counts as one: most of it is.
func isNetwork(kind int64) bool {
	switch uint32(kind) { //nolint:gosec // magic numbers have 32 bits
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, smb2Magic, unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC,
		unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC, unix.CODA_SUPER_MAGIC, unix.NCP_SUPER_MAGIC, gfs2Magic, lustre:
		return true
	}
	return false
}

func fileSystemKind(fd int) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, err
	}
	return int64(fs.Type), nil //nolint:unconvert // it has 32 bits on some machines
}

// findRoot opens the directory that is to be watched and notes which it is.
func (ws *watches) findRoot(w *watcher) (*os.File, error) {
	at, err := find(w.path, true, false)
	if err != nil {
		return nil, err
	}
	defer at.close()
	dir, err := openDir(at.dir, at.name)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, faultf(connect.CodeInvalidArgument, "watch %q: not a directory", w.path)
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	kind, err := ws.kindOf(int(dir.Fd()))
	if err == nil {
		err = unix.Fstat(int(dir.Fd()), &st)
	}
	if err == nil && kind == unix.PROC_SUPER_MAGIC {
		err = unix.EACCES // nothing is told of what happens there
	}
	if err == nil && isNetwork(kind) && !w.network {
		err = faultf(connect.CodeInvalidArgument, "watch %q: changes on a network file system are not all seen; allow network mounts to watch it nevertheless", w.path)
	}
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	w.root, w.dev, w.ino = at.path, st.Dev, st.Ino
	return dir, nil
}

// openBelow opens a directory of a watcher's tree by its name, through no link.
// The root is looked up anew: a directory that is held open cannot be seen to be
// removed.
func (ws *watches) openBelow(w *watcher, name string) (*os.File, error) {
	if defence.WatchLinks.Off() {
		return os.Open(path.Join(w.root, name))
	}
	at, err := find(w.root, false, false)
	if err != nil {
		return nil, err
	}
	defer at.close()
	dir, err := openDir(at.dir, at.name)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil || st.Dev != w.dev || st.Ino != w.ino {
		_ = dir.Close()
		return nil, unix.ENOENT
	}
	if name == "." {
		return dir, nil
	}
	for part := range strings.SplitSeq(name, "/") {
		next, err := openDir(int(dir.Fd()), part)
		_ = dir.Close()
		if err != nil {
			return nil, err
		}
		dir = next
	}
	return dir, nil
}

// addTree watches a directory, which it closes, and with a recursive watcher all
// below it. With told, what is found is told as created: it came before anybody
// watched.
func (ws *watches) addTree(ctx context.Context, w *watcher, name string, dir *os.File, told bool) error {
	todo := []string{name}
	for len(todo) > 0 {
		if ctx.Err() != nil {
			_ = dir.Close()
			return ctx.Err()
		}
		name, todo = todo[len(todo)-1], todo[:len(todo)-1]
		if dir == nil {
			var err error
			if dir, err = ws.openBelow(w, name); err != nil {
				if exhausted(err) {
					return err
				}
				continue // gone since, or not readable
			}
		}
		more, err := ws.addDir(w, name, dir, told)
		_ = dir.Close()
		dir = nil
		if err != nil && (name == "." || exhausted(err) || errors.Is(err, unix.ESHUTDOWN)) {
			return err
		}
		todo = append(todo, more...)
	}
	return nil
}

// exhausted tells the errors that mean that the tree is not watched as a whole.
func exhausted(err error) bool {
	return codeOf(err) == connect.CodeResourceExhausted || fileFault("", "", err).code == connect.CodeResourceExhausted
}

// addDir watches one directory and gives the names of those in it that are to be
// watched too.
func (ws *watches) addDir(w *watcher, name string, dir *os.File, told bool) ([]string, error) {
	if skip, err := ws.skipped(w, name, dir); skip || err != nil {
		return nil, err
	}
	ws.mu.Lock()
	d, err := ws.watchBounded(w, name, dir)
	ws.mu.Unlock()
	if err != nil || d == nil || !w.recursive {
		return nil, err
	}
	var subs []string
	for {
		names, err := dir.Readdirnames(listBatch)
		ws.mu.Lock()
		if told {
			ws.tellFound(d, names)
		}
		ended := w.fault != nil
		ws.mu.Unlock()
		for _, found := range names {
			var st unix.Stat_t
			full := path.Join(name, found)
			if unix.Fstatat(int(dir.Fd()), found, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && len(full) < maxPathBytes {
				subs = append(subs, full)
			}
		}
		if ended || len(names) == 0 {
			if ended || errors.Is(err, io.EOF) {
				err = nil
			}
			return subs, err
		}
		if len(subs) > ws.limits.directories && !defence.WatchDirectories.Off() {
			return nil, ws.tooMany()
		}
	}
}

// watchBounded is watchDir within the bounds.
func (ws *watches) watchBounded(w *watcher, name string, dir *os.File) (*watchedDir, error) {
	if (len(w.dirs) >= ws.limits.directories || ws.dirs >= ws.limits.allDirs) && !defence.WatchDirectories.Off() {
		return nil, ws.tooMany()
	}
	d, err := ws.watchDir(w, name, dir)
	if errors.Is(err, unix.ENOSPC) {
		return nil, faultf(connect.CodeResourceExhausted, "the host's user has no inotify watch left (fs.inotify.max_user_watches)")
	}
	return d, err
}

func (ws *watches) tooMany() error {
	return faultf(connect.CodeResourceExhausted, "there are more directories than can be watched, %d by one watcher and %d by all", ws.limits.directories, ws.limits.allDirs)
}

// tellFound queues a creation for what a listing has found. The caller holds the
// lock.
func (ws *watches) tellFound(d *watchedDir, names []string) {
	if d.seen == nil && len(names) > 0 && ws.notes != nil {
		d.seen = map[string]struct{}{}
		ws.notes.fresh = append(ws.notes.fresh, d)
	}
	for _, name := range names {
		if isDraft(name) {
			continue
		}
		if len(d.seen) < maxSeen && d.seen != nil {
			d.seen[name] = struct{}{}
		}
		ws.push(d.watcher, watchEvent{name: path.Join(d.name, name), kind: agentv1.EventType_EVENT_TYPE_CREATE})
	}
}

// skipped tells a directory below the root that is not watched: procfs, which
// tells nothing, and network file systems without leave.
func (ws *watches) skipped(w *watcher, name string, dir *os.File) (bool, error) {
	if name == "." {
		return false, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return false, err
	}
	if st.Dev == w.dev {
		return false, nil
	}
	kind, err := ws.kindOf(int(dir.Fd()))
	return kind == unix.PROC_SUPER_MAGIC || isNetwork(kind) && !w.network, err
}

// unwatchTree stops watching a directory and all below it. The caller holds the
// lock.
func (ws *watches) unwatchTree(w *watcher, name string) {
	if w.dirs[name] == nil {
		return
	}
	for _, d := range w.dirs {
		if d.name == name || strings.HasPrefix(d.name, name+"/") {
			ws.unwatch(d)
		}
	}
}
