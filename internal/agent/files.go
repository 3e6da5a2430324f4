package agent

import (
	"context"
	"io"
	"net/http"
	"os"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/internal/gen/agentv1/agentv1connect"
)

// fileWork does the work with the payload's identity and view. It is a seam:
// where the agent has another identity than its payloads, a helper under theirs
// does the same. Paths are absolute and clean. Errors are errnos, faults or the
// context's error.
type fileWork interface {
	stat(ctx context.Context, path string, noFollow bool) (entry, error)
	list(ctx context.Context, path string, depth int) ([]entry, error)
	makeDir(ctx context.Context, path string, mode uint32, existOK bool) (entry, error)
	move(ctx context.Context, from, to string) (entry, error)
	remove(ctx context.Context, path string, strict bool) error
	// open gives a regular file for reading, with its size and time.
	open(ctx context.Context, path string) (*os.File, os.FileInfo, error)
	write(ctx context.Context, path string, options writeOptions, body io.Reader) (entry, error)
}

// writeOptions says how a file is replaced.
type writeOptions struct {
	// mode is for a new file; 0 is 0644.
	mode uint32
	// exclusive refuses a path that is there, links included.
	exclusive bool
	// metadata is noted beside the content, where the file system can do that.
	metadata map[string]string
}

// files is the data plane's file service: envd's filesystem.Filesystem and its
// /files routes. Watchers are all that it keeps between requests.
type files struct {
	user, home string
	session    *session
	work       fileWork
	watches    *watches
}

// newFiles takes the payloads' user, the only one that requests may name, and
// the home directory, where relative paths and "~" begin.
func newFiles(config boot.Config, sess *session) *files {
	return &files{user: config.User, home: config.Home, session: sess, work: localFiles{}, watches: newWatches()}
}

// register adds the Filesystem service.
func (f *files) register(server *connect.Server) {
	agentv1connect.RegisterFilesystemHandler(server, f)
}

// mount adds the routes for whole files.
func (f *files) mount(mux *http.ServeMux) {
	mux.HandleFunc("GET /files", f.download)
	mux.HandleFunc("POST /files", f.upload)
	f.mountArchive(mux)
	mux.HandleFunc("POST /files/compose", f.compose)
}

// Stat describes one entry.
func (f *files) Stat(ctx context.Context, req *agentv1.StatRequest) (*agentv1.StatResponse, error) {
	path, err := cleanPath(f.home, req.GetPath())
	if err != nil {
		return nil, fileFault("stat", req.GetPath(), err).rpc()
	}
	e, err := f.work.stat(ctx, path, req.GetNoFollow())
	if err != nil {
		return nil, fileFault("stat", path, err).rpc()
	}
	return &agentv1.StatResponse{Entry: e.message(loadNames())}, nil
}

// MakeDir makes a directory and its missing parents.
func (f *files) MakeDir(ctx context.Context, req *agentv1.MakeDirRequest) (*agentv1.MakeDirResponse, error) {
	path, err := cleanPath(f.home, req.GetPath())
	if err != nil {
		return nil, fileFault("make directory", req.GetPath(), err).rpc()
	}
	if req.GetMode()&^0o777 != 0 && !defence.FilesMode.Off() {
		return nil, faultf(connect.CodeInvalidArgument, "mode %#o has more than permission bits", req.GetMode()).rpc()
	}
	e, err := f.work.makeDir(ctx, path, req.GetMode(), req.GetExistOk())
	if err != nil {
		return nil, fileFault("make directory", path, err).rpc()
	}
	return &agentv1.MakeDirResponse{Entry: e.message(loadNames())}, nil
}

// Move renames an entry and makes the destination's missing parents.
func (f *files) Move(ctx context.Context, req *agentv1.MoveRequest) (*agentv1.MoveResponse, error) {
	from, err := cleanPath(f.home, req.GetSource())
	if err != nil {
		return nil, fileFault("move", req.GetSource(), err).rpc()
	}
	to, err := cleanPath(f.home, req.GetDestination())
	if err != nil {
		return nil, fileFault("move to", req.GetDestination(), err).rpc()
	}
	e, err := f.work.move(ctx, from, to)
	if err != nil {
		return nil, fileFault("move", from, err).rpc()
	}
	return &agentv1.MoveResponse{Entry: e.message(loadNames())}, nil
}

// ListDir lists a directory in lexical order, each directory before its entries.
func (f *files) ListDir(ctx context.Context, req *agentv1.ListDirRequest) (*agentv1.ListDirResponse, error) {
	path, err := cleanPath(f.home, req.GetPath())
	if err != nil {
		return nil, fileFault("list", req.GetPath(), err).rpc()
	}
	if req.GetDepth() > maxListDepth && !defence.FilesDepth.Off() {
		return nil, faultf(connect.CodeInvalidArgument, "depth %d is more than %d", req.GetDepth(), maxListDepth).rpc()
	}
	entries, err := f.work.list(ctx, path, int(max(req.GetDepth(), 1)))
	if err != nil {
		return nil, fileFault("list", path, err).rpc()
	}
	names := loadNames()
	out := &agentv1.ListDirResponse{Entries: make([]*agentv1.EntryInfo, len(entries))}
	for i := range entries {
		out.Entries[i] = entries[i].message(names)
	}
	return out, nil
}

// Remove removes an entry and what is below it.
func (f *files) Remove(ctx context.Context, req *agentv1.RemoveRequest) (*agentv1.RemoveResponse, error) {
	path, err := cleanPath(f.home, req.GetPath())
	if err != nil {
		return nil, fileFault("remove", req.GetPath(), err).rpc()
	}
	if err := f.work.remove(ctx, path, req.GetStrict()); err != nil {
		return nil, fileFault("remove", path, err).rpc()
	}
	return &agentv1.RemoveResponse{}, nil
}
