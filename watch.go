package berm

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"sync"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
)

// WatchOptions say what is watched.
type WatchOptions struct {
	// Recursive watches everything below the directory too, directories that come
	// later included. Links are not followed.
	Recursive bool
	// Info adds to each event what is at its name, which costs a look inside.
	Info bool
}

// WatchOp is what happened to a name.
type WatchOp int

// The operations. A rename is told as WatchRename of the old name and as
// WatchCreate of the new one, each where it is watched.
const (
	WatchCreate WatchOp = iota + 1
	WatchWrite
	WatchRemove
	WatchRename
	WatchChmod
)

// String gives the operation's name.
func (o WatchOp) String() string {
	names := [...]string{"unknown", "create", "write", "remove", "rename", "chmod"}
	if o < 0 || int(o) >= len(names) {
		o = 0
	}
	return names[o]
}

// WatchEvent is one thing that happened.
type WatchEvent struct {
	// Name is relative to the watched directory and slash-separated; "." is the
	// directory itself. Commands inside choose the names.
	Name string
	Op   WatchOp
	// Info describes the name itself, links not resolved, as it is when the event
	// is sent. It is nil without WatchOptions.Info, for WatchRemove and
	// WatchRename, and when nothing is there any more.
	Info fs.FileInfo
}

// Watcher tells what happens in a directory. Events is for one goroutine at a
// time; the rest may be called concurrently. It has no goroutine.
type Watcher struct {
	sandbox *Sandbox
	ctx     context.Context //nolint:containedctx // it bounds the watcher's life
	stream  *agentclient.WatchStream

	mu     sync.Mutex
	err    error
	closed bool
}

// Watch tells what happens in a directory from its return on; ctx bounds the
// watcher, which the caller closes. Events wait inside, up to about 16,000, until
// they are asked for. Errors are those of Files; Invalid for what is no directory
// or lies on a network file system, and Exhausted for too many watchers or
// directories.
func (f Files) Watch(ctx context.Context, name string, opts WatchOptions) (*Watcher, error) {
	w := &Watcher{sandbox: f.sandbox, ctx: ctx}
	err := f.do(ctx, "watch", name, func(path string) (err error) {
		w.stream, err = f.sandbox.client.Watch(ctx, path, opts.Recursive, opts.Info)
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Events gives the events in their order and waits for more until the watcher
// ends; Err says why then. Breaking out of the loop loses none: the next one goes
// on.
func (w *Watcher) Events() iter.Seq[WatchEvent] {
	return func(yield func(WatchEvent) bool) {
		for {
			e, err := w.stream.Recv()
			if err != nil {
				w.failed(err)
				return
			}
			event := WatchEvent{Name: e.Name, Op: WatchOp(e.Op)}
			if e.Entry != nil {
				event.Info = fileInfo{*e.Entry}
			}
			if !yield(event) {
				return
			}
		}
	}
}

func (w *Watcher) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil || w.closed && !errors.Is(err, errdefs.Exhausted) {
		return
	}
	if w.sandbox.isEnding() && errors.Is(err, errdefs.TransportLost) {
		w.err = &errdefs.Error{Kind: errdefs.Closed, Op: "watch", Backend: w.sandbox.provider.caps.Backend, Reasons: []string{"the sandbox is being destroyed"}, Err: err}
		return
	}
	w.err = w.sandbox.failed(w.ctx, "watch", err)
}

// Err says why Events ended: Exhausted when there were more events than could
// wait, so that some were lost and the directory has to be looked at afresh;
// NotFound when the directory itself is gone; nil after Close, and before the end.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close ends the watcher, and Events with it. A second call does nothing.
func (w *Watcher) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	return w.stream.Close()
}
