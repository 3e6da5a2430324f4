package agent

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// watchLimits bound what watchers hold.
type watchLimits struct {
	watchers    int
	directories int           // of one watcher
	allDirs     int           // of all
	events      int           // that wait for one watcher's client
	allBytes    int           // of the names of all events that wait
	idle        time.Duration // that a polled watcher lives without being asked
}

func defaultWatchLimits() watchLimits {
	return watchLimits{
		watchers: 256, directories: 16 << 10, allDirs: 64 << 10,
		events: 16 << 10, allBytes: 16 << 20, idle: 10 * time.Minute,
	}
}

// watches are all watchers of an agent. They share one inotify instance, which is
// there while there are watchers: the kernel counts instances by the host's user
// (128 by default), and all sandboxes of a user share that count.
type watches struct {
	limits watchLimits
	// kindOf tells the kind of file system that a descriptor is on.
	kindOf func(fd int) (int64, error)

	mu      sync.Mutex
	notes   *notifier // nil while there is no watcher
	all     map[*watcher]struct{}
	polled  map[string]*watcher
	dirs    int // watched by all watchers, counted by watcher
	bytes   int // in all queues
	closed  bool
	readers sync.WaitGroup
}

func newWatches() *watches {
	return &watches{
		limits: defaultWatchLimits(), kindOf: fileSystemKind,
		all: map[*watcher]struct{}{}, polled: map[string]*watcher{},
	}
}

// watchRequest is what one watcher is to do. Path is absolute and clean.
type watchRequest struct {
	path                        string
	recursive, entries, network bool
}

// watcher is one client's view of one directory. Its fields from dirs on belong
// to watches.mu.
type watcher struct {
	watchRequest

	root     string // path without links
	dev, ino uint64 // of the directory
	// wake has a token when there is something to take.
	wake chan struct{}

	dirs    map[string]*watchedDir // by name relative to the root, which is "."
	queue   []watchEvent
	bytes   int
	fault   *fault // why it ended, nil while it lives
	id      string // of a polled watcher
	expires time.Time
}

// watchEvent is one event that waits.
type watchEvent struct {
	name string
	kind agentv1.EventType
}

// eventCost is what an event costs beside its name, in bytes.
const eventCost = 48

func (e watchEvent) size() int { return len(e.name) + eventCost }

// open begins to watch a directory.
func (ws *watches) open(ctx context.Context, req watchRequest) (*watcher, error) {
	w := &watcher{watchRequest: req, wake: make(chan struct{}, 1), dirs: map[string]*watchedDir{}}
	root, err := ws.findRoot(w)
	if err != nil {
		return nil, err
	}
	if err := ws.enter(w); err != nil {
		_ = root.Close()
		return nil, err
	}
	err = ws.addTree(ctx, w, ".", root, false)
	ws.mu.Lock()
	// A watcher that has ended already says why at once.
	if w.fault != nil {
		err = w.fault
	}
	ws.mu.Unlock()
	if err != nil {
		ws.release(w)
		return nil, err
	}
	return w, nil
}

// enter counts a new watcher and sees to the inotify instance.
func (ws *watches) enter(w *watcher) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return faultf(connect.CodeUnavailable, "the sandbox ends")
	}
	if len(ws.all) >= ws.limits.watchers && !defence.WatchCount.Off() {
		return faultf(connect.CodeResourceExhausted, "there are %d watchers already", len(ws.all))
	}
	if ws.notes == nil {
		notes, err := newNotifier()
		if err != nil {
			return err
		}
		ws.notes = notes
		ws.readers.Go(func() { ws.read(notes) })
	}
	ws.all[w] = struct{}{}
	return nil
}

// release ends a watcher and forgets it. A second call does nothing.
func (ws *watches) release(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.forget(w)
}

// forget is release for those who hold the lock.
func (ws *watches) forget(w *watcher) {
	if _, known := ws.all[w]; !known {
		return
	}
	ws.end(w, faultf(connect.CodeNotFound, "the watcher was removed"))
	ws.bytes -= w.bytes
	w.queue, w.bytes = nil, 0
	delete(ws.all, w)
	delete(ws.polled, w.id)
	if len(ws.all) == 0 && ws.notes != nil {
		ws.notes.close()
		ws.notes = nil
	}
}

// end stops a watcher's watching; what it has queued stays to be taken, and then
// the fault. The caller holds the lock.
func (ws *watches) end(w *watcher, f *fault) {
	if w.fault != nil {
		return
	}
	w.fault = f
	for _, d := range w.dirs {
		ws.unwatch(d)
	}
	w.signal()
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// push queues an event, or ends a watcher whose client is too slow for its
// events: one that was left out in silence would be believed not to have
// happened. The caller holds the lock.
func (ws *watches) push(w *watcher, e watchEvent) {
	if w.fault != nil {
		return
	}
	if n := len(w.queue); n > 0 && w.queue[n-1] == e && (e.kind == agentv1.EventType_EVENT_TYPE_WRITE || e.kind == agentv1.EventType_EVENT_TYPE_CHMOD) {
		return // says nothing new
	}
	if (len(w.queue) >= ws.limits.events || ws.bytes+e.size() > ws.limits.allBytes) && !defence.WatchQueue.Off() {
		ws.end(w, eventsLost())
		return
	}
	w.queue = append(w.queue, e)
	w.bytes += e.size()
	ws.bytes += e.size()
	w.signal()
}

func eventsLost() *fault {
	return faultf(connect.CodeResourceExhausted, "events were lost: there were more than were taken; look at the directory afresh and watch again")
}

// take gives the next events, and the fault of a watcher that has ended when there
// are none.
func (ws *watches) take(w *watcher, most, mostBytes int) ([]watchEvent, *fault) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	n, size := 0, 0
	for n < len(w.queue) && n < most && size < mostBytes {
		size += w.queue[n].size()
		if w.entries {
			size += 512
		}
		ws.bytes -= w.queue[n].size()
		w.bytes -= w.queue[n].size()
		n++
	}
	events := w.queue[:n:n]
	w.queue = w.queue[n:]
	if len(w.queue) == 0 {
		w.queue = nil
	}
	if n == 0 {
		return nil, w.fault
	}
	return events, nil
}

// keep gives a watcher a name by which it can be polled.
func (ws *watches) keep(w *watcher) (string, error) {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.fault != nil {
		return "", w.fault
	}
	w.id, w.expires = hex.EncodeToString(raw[:]), time.Now().Add(ws.limits.idle)
	ws.polled[w.id] = w
	ws.notes.wakeAt(w.expires)
	return w.id, nil
}

// find gives a polled watcher and lets it live on, nil when there is none.
func (ws *watches) find(id string) *watcher {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.polled[id]
	if w != nil {
		w.expires = time.Now().Add(ws.limits.idle)
	}
	return w
}

// expire forgets the polled watchers that nobody asked for too long.
func (ws *watches) expire(notes *notifier) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.notes != notes {
		return
	}
	notes.deadline = time.Time{}
	var next time.Time
	for _, w := range ws.polled {
		switch {
		case !time.Now().Before(w.expires) && !defence.WatchIdle.Off():
			ws.forget(w)
		case next.IsZero() || w.expires.Before(next):
			next = w.expires
		}
	}
	if ws.notes == notes {
		notes.wakeAt(next)
	}
}

// close ends all watchers and waits for the goroutine.
func (ws *watches) close() {
	ws.mu.Lock()
	ws.closed = true
	for w := range ws.all {
		ws.end(w, faultf(connect.CodeUnavailable, "the sandbox ends"))
		if w.id != "" {
			ws.forget(w)
		}
	}
	if ws.notes != nil {
		ws.notes.close()
		ws.notes = nil
	}
	ws.mu.Unlock()
	ws.readers.Wait()
}
