package agent

import (
	"context"
	"path"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/internal/gen/agentv1/agentv1connect"
)

// Bounds of one answer about events.
const (
	watchBatch      = 10_000
	watchBatchBytes = 4 << 20 // estimated size of the message
)

// watchWish is what WatchDir and CreateWatcher ask for.
type watchWish interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

// watch opens a watcher, which the caller releases.
func (f *files) watch(ctx context.Context, wish watchWish) (*watcher, error) {
	p, err := cleanPath(f.home, wish.GetPath())
	if err != nil {
		return nil, fileFault("watch", wish.GetPath(), err)
	}
	w, err := f.watches.open(ctx, watchRequest{
		path: p, recursive: wish.GetRecursive(), entries: wish.GetIncludeEntry(), network: wish.GetAllowNetworkMounts(),
	})
	if err != nil {
		return nil, fileFault("watch", p, err)
	}
	return w, nil
}

// WatchDir streams what happens in a directory: a start event first, and then
// events until the caller goes or the watcher ends. One that lost events, or its
// directory, ends with an error after the events that it still has.
func (f *files) WatchDir(ctx context.Context, req *agentv1.WatchDirRequest, stream agentv1connect.FilesystemWatchDirServerStream) error {
	w, err := f.watch(ctx, req)
	if err != nil {
		return fileFault("watch", req.GetPath(), err).rpc()
	}
	defer f.watches.release(w)
	start := &agentv1.WatchDirResponse{Event: &agentv1.WatchDirResponse_Start{Start: &agentv1.WatchDirResponse_StartEvent{}}}
	if err := stream.Send(start); err != nil {
		return err
	}
	gate, interval := gateOf(ctx), keepaliveOf(ctx)
	// A burst of events is one write, not one for each.
	gate.hold()
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		events, fault := f.watches.take(w, watchBatch, watchBatchBytes)
		for _, e := range f.eventMessages(ctx, w, events) {
			if err := stream.Send(&agentv1.WatchDirResponse{Event: &agentv1.WatchDirResponse_Filesystem{Filesystem: e}}); err != nil {
				return err
			}
		}
		if len(events) > 0 {
			gate.flush()
			timer.Reset(interval)
			continue
		}
		if fault != nil {
			return fault.rpc()
		}
		select {
		case <-w.wake:
		case <-timer.C:
			alive := &agentv1.WatchDirResponse{Event: &agentv1.WatchDirResponse_Keepalive{Keepalive: &agentv1.WatchDirResponse_KeepAlive{}}}
			if err := stream.Send(alive); err != nil {
				return err
			}
			gate.flush()
			timer.Reset(interval)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CreateWatcher begins to collect events for GetWatcherEvents. A watcher that
// nobody asks for ten minutes is forgotten.
func (f *files) CreateWatcher(ctx context.Context, req *agentv1.CreateWatcherRequest) (*agentv1.CreateWatcherResponse, error) {
	w, err := f.watch(ctx, req)
	if err != nil {
		return nil, fileFault("watch", req.GetPath(), err).rpc()
	}
	id, err := f.watches.keep(w)
	if err != nil {
		f.watches.release(w)
		return nil, fileFault("watch", req.GetPath(), err).rpc()
	}
	return &agentv1.CreateWatcherResponse{WatcherId: id}, nil
}

// GetWatcherEvents takes the events that have come, as many as fit an answer.
func (f *files) GetWatcherEvents(ctx context.Context, req *agentv1.GetWatcherEventsRequest) (*agentv1.GetWatcherEventsResponse, error) {
	w := f.watches.find(req.GetWatcherId())
	if w == nil {
		return nil, unknownWatcher(req.GetWatcherId())
	}
	events, fault := f.watches.take(w, watchBatch, watchBatchBytes)
	if len(events) == 0 && fault != nil {
		f.watches.release(w)
		return nil, fault.rpc()
	}
	return &agentv1.GetWatcherEventsResponse{Events: f.eventMessages(ctx, w, events)}, nil
}

// RemoveWatcher ends a watcher of CreateWatcher.
func (f *files) RemoveWatcher(_ context.Context, req *agentv1.RemoveWatcherRequest) (*agentv1.RemoveWatcherResponse, error) {
	w := f.watches.find(req.GetWatcherId())
	if w == nil {
		return nil, unknownWatcher(req.GetWatcherId())
	}
	f.watches.release(w)
	return &agentv1.RemoveWatcherResponse{}, nil
}

func unknownWatcher(id string) error {
	return faultf(connect.CodeNotFound, "there is no watcher %.64q", id).rpc()
}

// eventMessages gives events as envd's clients know them, with entries where they
// were asked for and what they are about is still there.
func (f *files) eventMessages(ctx context.Context, w *watcher, events []watchEvent) []*agentv1.FilesystemEvent {
	var names *ownerNames
	if w.entries && len(events) > 0 {
		names = loadNames()
	}
	out := make([]*agentv1.FilesystemEvent, len(events))
	for i, e := range events {
		out[i] = &agentv1.FilesystemEvent{Name: text(e.name), Type: e.kind}
		if names == nil || e.kind == agentv1.EventType_EVENT_TYPE_REMOVE || e.kind == agentv1.EventType_EVENT_TYPE_RENAME {
			continue
		}
		if found, err := f.work.stat(ctx, path.Join(w.path, e.name), false); err == nil {
			out[i].Entry = found.message(names)
		}
	}
	return out
}
