package agent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path"
	"strconv"
	"time"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// watchMask is what a watched directory tells, the same for all watchers: the
// kernel has one mask for each directory of an instance.
const watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MODIFY | unix.IN_ATTRIB |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

// notifier is one inotify instance. It is used directly and not through a
// library: directories are watched by descriptor here, so that none that is
// swapped for a link leads elsewhere, and libraries take names.
type notifier struct {
	file *os.File
	fd   int // of file; valid while watches.notes is this one
	dirs map[int32][]*watchedDir
	// fresh are the directories with seen names.
	fresh []*watchedDir
	// draft is the cookie of the last draft of ours that got its name.
	draft    uint32
	deadline time.Time // when the reader wakes up by itself, zero for never
}

// watchedDir is a directory that one watcher watches.
type watchedDir struct {
	watcher *watcher
	name    string // relative to the watcher's root
	wd      int32
	// seen are names that were told as created when the directory was listed, and
	// of which the kernel may tell the same once more. It is nil later.
	seen map[string]struct{}
}

func newNotifier() (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if errors.Is(err, unix.EMFILE) {
		return nil, faultf(connect.CodeResourceExhausted, "the host's user has no inotify instance left (fs.inotify.max_user_instances)")
	}
	if err != nil {
		return nil, err
	}
	return &notifier{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, dirs: map[int32][]*watchedDir{}}, nil
}

// close ends the reader.
func (n *notifier) close() { _ = n.file.Close() }

// wakeAt makes the reader look for idle watchers not later than at.
func (n *notifier) wakeAt(at time.Time) {
	if at.IsZero() || !n.deadline.IsZero() && n.deadline.Before(at) {
		return
	}
	n.deadline = at
	_ = n.file.SetReadDeadline(at)
}

// watchDir watches an open directory for a watcher. The caller holds the lock.
func (ws *watches) watchDir(w *watcher, name string, dir *os.File) (*watchedDir, error) {
	if ws.notes == nil || w.fault != nil {
		return nil, unix.ESHUTDOWN // it has ended, with its reason
	}
	wd, err := unix.InotifyAddWatch(ws.notes.fd, "/proc/self/fd/"+strconv.Itoa(int(dir.Fd())), watchMask)
	if err != nil {
		return nil, err
	}
	d := &watchedDir{watcher: w, name: name, wd: int32(wd)} //nolint:gosec // the kernel's is an int32
	if old := w.dirs[name]; old != nil {
		if old.wd == d.wd {
			return nil, nil //nolint:nilnil // it is watched already
		}
		ws.unwatch(old)
	}
	w.dirs[name] = d
	ws.notes.dirs[d.wd] = append(ws.notes.dirs[d.wd], d)
	ws.dirs++
	return d, nil
}

// unwatch stops watching a directory for its watcher. The caller holds the lock.
func (ws *watches) unwatch(d *watchedDir) {
	if d.watcher.dirs[d.name] != d {
		return
	}
	delete(d.watcher.dirs, d.name)
	ws.dirs--
	if ws.notes == nil {
		return
	}
	left := ws.notes.dirs[d.wd]
	for i := range left {
		if left[i] == d {
			left = append(left[:i:i], left[i+1:]...)
			break
		}
	}
	if len(left) > 0 {
		ws.notes.dirs[d.wd] = left
		return
	}
	delete(ws.notes.dirs, d.wd)
	// It fails for a directory that is gone, which the kernel has stopped to
	// watch by itself.
	_, _ = unix.InotifyRmWatch(ws.notes.fd, uint32(d.wd)) //nolint:gosec // not negative
}

// read hands on what the kernel tells, until the notifier is closed.
func (ws *watches) read(notes *notifier) {
	buf := make([]byte, 64<<10)
	for {
		n, err := notes.file.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = notes.file.SetReadDeadline(time.Time{})
			ws.expire(notes)
			continue
		case err != nil:
			ws.broken(notes, err)
			return
		}
		for _, e := range kernelEvents(buf[:n]) {
			ws.handle(notes, e)
		}
		ws.drained(notes)
	}
}

// broken ends the watchers of a notifier that cannot be read any more, which is
// no news when it was closed.
func (ws *watches) broken(notes *notifier, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.notes != notes {
		return
	}
	for w := range ws.all {
		ws.end(w, fileFault("watch", w.path, err))
	}
}

// drained forgets the seen names when everything that the kernel had to tell
// about the time before they were seen is told.
func (ws *watches) drained(notes *notifier) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.notes != notes || len(notes.fresh) == 0 {
		return
	}
	if left, err := unix.IoctlGetInt(notes.fd, unix.TIOCINQ); err != nil || left > 0 {
		return
	}
	for _, d := range notes.fresh {
		d.seen = nil
	}
	notes.fresh = nil
}

// kernelEvent is a struct inotify_event.
type kernelEvent struct {
	wd   int32
	mask uint32
	// cookie is the same in the two events of a rename, 0 in others.
	cookie uint32
	name   string // empty for the directory itself
}

// kernelEvents takes a buffer of the kernel's apart.
func kernelEvents(buf []byte) []kernelEvent {
	var out []kernelEvent
	for len(buf) >= unix.SizeofInotifyEvent {
		size := binary.NativeEndian.Uint32(buf[12:])
		if uint64(size) > uint64(len(buf)-unix.SizeofInotifyEvent) {
			break // never
		}
		name, _, _ := bytes.Cut(buf[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+int(size)], []byte{0})
		out = append(out, kernelEvent{
			wd:   int32(binary.NativeEndian.Uint32(buf)), //nolint:gosec // that is what it is
			mask: binary.NativeEndian.Uint32(buf[4:]), cookie: binary.NativeEndian.Uint32(buf[8:]), name: string(name),
		})
		buf = buf[unix.SizeofInotifyEvent+int(size):]
	}
	return out
}

// handle turns one event of the kernel into those of the watchers, and begins to
// watch the directories that have come.
func (ws *watches) handle(notes *notifier, e kernelEvent) {
	for _, came := range ws.tell(notes, e) {
		dir, err := ws.openBelow(came.watcher, came.name)
		if err != nil {
			continue // gone again, no directory, or not readable
		}
		if err := ws.addTree(context.Background(), came.watcher, came.name, dir, true); err != nil {
			ws.mu.Lock()
			ws.end(came.watcher, fileFault("watch", path.Join(came.watcher.path, came.name), err))
			ws.mu.Unlock()
		}
	}
}

// tell queues the events and gives the directories that came.
func (ws *watches) tell(notes *notifier, e kernelEvent) []watchedDir {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.notes != notes {
		return nil
	}
	if e.mask&unix.IN_Q_OVERFLOW != 0 {
		for w := range ws.all {
			ws.end(w, eventsLost())
		}
		return nil
	}
	// How an upload gets its name is nobody's business: it is told as what the
	// client did, a file that was written.
	if isDraft(e.name) {
		if e.mask&unix.IN_MOVED_FROM != 0 {
			notes.draft = e.cookie
		}
		return nil
	}
	uploaded := e.mask&unix.IN_MOVED_TO != 0 && e.cookie == notes.draft
	var came []watchedDir
	for _, d := range append([]*watchedDir(nil), notes.dirs[e.wd]...) {
		if e.name == "" {
			ws.tellSelf(d, e)
			continue
		}
		name := path.Join(d.name, e.name)
		if _, told := d.seen[e.name]; told {
			delete(d.seen, e.name)
			if e.mask&unix.IN_CREATE != 0 {
				continue
			}
			if e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) == 0 {
				d.seen[e.name] = struct{}{}
			}
		}
		if e.mask&unix.IN_ISDIR != 0 && e.mask&(unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_MOVED_TO) != 0 {
			ws.unwatchTree(d.watcher, name)
		}
		if kind := kindOfMask(e.mask); kind != agentv1.EventType_EVENT_TYPE_UNSPECIFIED {
			ws.push(d.watcher, watchEvent{name: name, kind: kind})
		}
		if uploaded {
			ws.push(d.watcher, watchEvent{name: name, kind: agentv1.EventType_EVENT_TYPE_WRITE})
		}
		if e.mask&unix.IN_ISDIR != 0 && e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 && d.watcher.recursive {
			came = append(came, watchedDir{watcher: d.watcher, name: name})
		}
	}
	return came
}

// tellSelf handles what happens to a watched directory itself. Its parent tells
// the same with a name, except for the root, which has none that is watched.
func (ws *watches) tellSelf(d *watchedDir, e kernelEvent) {
	root := d.name == "."
	switch {
	case root && e.mask&unix.IN_ATTRIB != 0:
		ws.push(d.watcher, watchEvent{name: ".", kind: agentv1.EventType_EVENT_TYPE_CHMOD})
	case root && e.mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0:
		kind := agentv1.EventType_EVENT_TYPE_REMOVE
		if e.mask&unix.IN_MOVE_SELF != 0 {
			kind = agentv1.EventType_EVENT_TYPE_RENAME
		}
		ws.push(d.watcher, watchEvent{name: ".", kind: kind})
		ws.end(d.watcher, faultf(connect.CodeNotFound, "watch %q: the directory is gone", d.watcher.path))
	case e.mask&(unix.IN_IGNORED|unix.IN_UNMOUNT) != 0:
		ws.unwatch(d)
	}
}

// kindOfMask is envd's table, which is fsnotify's.
func kindOfMask(mask uint32) agentv1.EventType {
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		return agentv1.EventType_EVENT_TYPE_CREATE
	case mask&unix.IN_DELETE != 0:
		return agentv1.EventType_EVENT_TYPE_REMOVE
	case mask&unix.IN_MODIFY != 0:
		return agentv1.EventType_EVENT_TYPE_WRITE
	case mask&unix.IN_MOVED_FROM != 0:
		return agentv1.EventType_EVENT_TYPE_RENAME
	case mask&unix.IN_ATTRIB != 0:
		return agentv1.EventType_EVENT_TYPE_CHMOD
	default:
		return agentv1.EventType_EVENT_TYPE_UNSPECIFIED
	}
}
