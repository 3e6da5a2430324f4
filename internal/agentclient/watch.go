package agentclient

import (
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/internal/gen/agentv1/agentv1connect"
)

// Bounds of a watch.
const (
	maxWatchMessage = 64 << 10 // bytes of an event with its entry
	maxWatchName    = 3 * maxPathBytes
	// maxKeepalives may come in one second more than it has seconds.
	maxKeepalives = 1000
)

// WatchOp is what happened, with envd's numbers.
type WatchOp int

// The operations.
const (
	WatchCreate WatchOp = iota + 1
	WatchWrite
	WatchRemove
	WatchRename
	WatchChmod
)

// WatchEvent is one thing that happened in a directory.
type WatchEvent struct {
	// Name is relative to the directory, which itself is ".". It is clean and has
	// no "..", and no slash unless the watch is recursive.
	Name string
	Op   WatchOp
	// Entry describes what is there now, nil when nobody asked, it is gone or the
	// operation took it away.
	Entry *Entry
}

// WatchStream has the events of one directory. Recv is for one goroutine at a
// time; Close may be called at any time.
type WatchStream struct {
	ctx       context.Context //nolint:containedctx // the caller's, which lives as long as the stream
	own       context.Context //nolint:containedctx // the stream's, with the cause of its end
	cancel    context.CancelCauseFunc
	stream    agentv1connect.FilesystemWatchDirClientStream
	dir       string
	recursive bool
	began     time.Time
	alive     int
	last      error
}

// Watch begins to watch a directory, with recursive all below it, whose events
// are there from its return on. ctx bounds the stream. Errors: NotFound; Invalid
// for what is no directory or lies on a network file system; Exhausted.
func (c *Client) Watch(ctx context.Context, p string, recursive, entries bool) (*WatchStream, error) {
	const op = "watch"
	p, err := cleanPath(op, p)
	if err != nil {
		return nil, err
	}
	own, cancel := context.WithCancelCause(quiet{ctx})
	timer := time.AfterFunc(callTimeout, func() { cancel(errStalled) })
	defer timer.Stop()
	s := &WatchStream{ctx: ctx, own: own, cancel: cancel, dir: p, recursive: recursive, began: time.Now()}
	s.stream, err = c.files.WatchDir(own, &agentv1.WatchDirRequest{Path: p, Recursive: recursive, IncludeEntry: entries})
	if err != nil {
		err = s.fault(err)
		cancel(nil)
		return nil, err
	}
	first, err := s.stream.Receive()
	switch {
	case err != nil:
		err = s.fault(err)
	case first.GetStart() == nil && !defence.ClientWatchOrder.Off():
		err = broken(op, "an event before the start event")
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Recv waits for the next event. Errors, which stay: Exhausted when events were
// lost, NotFound when the directory is gone, TransportLost, Protocol, the
// context's.
func (s *WatchStream) Recv() (WatchEvent, error) {
	for s.last == nil {
		message, err := s.stream.Receive()
		if err != nil {
			s.stop(s.fault(err))
			break
		}
		event, seen, err := s.next(message)
		switch {
		case err != nil:
			s.stop(err)
		case seen:
			return event, nil
		}
	}
	return WatchEvent{}, s.last
}

// next checks one message; it is false for one that says nothing.
func (s *WatchStream) next(message *agentv1.WatchDirResponse) (WatchEvent, bool, error) {
	const op = "watch"
	switch {
	case message.GetKeepalive() != nil:
		s.alive++
		if float64(s.alive) > maxKeepalives+time.Since(s.began).Seconds() && !defence.ClientKeepalives.Off() {
			return WatchEvent{}, false, broken(op, "%d signs of life in %v", s.alive, time.Since(s.began))
		}
		return WatchEvent{}, false, nil
	case message.GetStart() != nil && !defence.ClientWatchOrder.Off():
		return WatchEvent{}, false, broken(op, "a second start event")
	case message.GetFilesystem() == nil && !defence.ClientWatchOrder.Off():
		return WatchEvent{}, false, broken(op, "an event of no known kind")
	}
	event := message.GetFilesystem()
	if (!isWatchName(event.GetName()) || !s.recursive && strings.Contains(event.GetName(), "/")) && !defence.ClientWatchName.Off() {
		return WatchEvent{}, false, broken(op, "name %q", event.GetName())
	}
	if (event.GetType() < agentv1.EventType_EVENT_TYPE_CREATE || event.GetType() > agentv1.EventType_EVENT_TYPE_CHMOD) && !defence.ClientWatchOrder.Off() {
		return WatchEvent{}, false, broken(op, "event type %d", event.GetType())
	}
	out := WatchEvent{Name: event.GetName(), Op: WatchOp(event.GetType())}
	if info := event.GetEntry(); info != nil && out.Op != WatchRemove && out.Op != WatchRename {
		full := path.Join(s.dir, out.Name)
		if info.GetPath() != full && !defence.ClientFilePath.Off() {
			return WatchEvent{}, false, broken(op, "path %q of %q in %q", info.GetPath(), out.Name, s.dir)
		}
		entry, err := ownEntry(op, full, info)
		if err != nil {
			return WatchEvent{}, false, err
		}
		out.Entry = &entry
	}
	return out, true, nil
}

// isWatchName is true for a name that leads into the watched directory.
func isWatchName(name string) bool {
	if name == "." {
		return true
	}
	if len(name) > maxWatchName {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if !isName(part) {
			return false
		}
	}
	return true
}

func (s *WatchStream) stop(err error) {
	s.last = err
	s.cancel(nil)
}

// fault explains why the stream ended.
func (s *WatchStream) fault(err error) error {
	const op = "watch"
	if errors.Is(err, io.EOF) {
		return broken(op, "the stream ended without an error")
	}
	if cause := context.Cause(s.own); cause != nil && s.ctx.Err() == nil {
		var stalled *errdefs.Error
		if errors.As(cause, &stalled) {
			return fault(s.ctx, op, cause)
		}
	}
	return fault(s.ctx, op, err)
}

// Close ends the watch. A second call does nothing.
func (s *WatchStream) Close() error {
	s.cancel(nil)
	_ = s.stream.Close()
	return nil
}
