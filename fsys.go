package berm

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"time"

	"github.com/berm-dev/berm/internal/agentclient"
)

// FS gives a directory inside as an io/fs file system, with ReadDir, Stat,
// Lstat, ReadFile and ReadLink. ctx bounds everything that is done with it. dir
// is as in Files. Links are followed inside, as commands do: they may leave dir,
// but not the sandbox.
func (s *Sandbox) FS(ctx context.Context, dir string) fs.FS {
	return &sandboxFS{ctx: ctx, files: s.Files(), root: dir}
}

type sandboxFS struct {
	ctx   context.Context //nolint:containedctx // io/fs has no room for one
	files Files
	root  string
}

var (
	_ fs.ReadDirFS  = (*sandboxFS)(nil)
	_ fs.StatFS     = (*sandboxFS)(nil)
	_ fs.ReadFileFS = (*sandboxFS)(nil)
	_ fs.ReadLinkFS = (*sandboxFS)(nil)
)

// name checks an io/fs name and makes a Files name of it.
func (f *sandboxFS) name(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	root := f.files.sandbox.WorkDir()
	if f.root != "" {
		var err error
		if root, err = f.files.path(op, f.root); err != nil {
			return "", pathError(op, name, err)
		}
	}
	return path.Join(root, name), nil
}

// pathError is what io/fs wants: an error of berm's with the name that was
// asked for.
func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	var known *fs.PathError
	if errors.As(err, &known) && known.Path == name {
		return err
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Open opens a file or directory. A file's content is fetched from the first
// Read on.
func (f *sandboxFS) Open(name string) (fs.File, error) {
	info, err := f.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return &openDir{fsys: f, name: name, info: info}, nil
	}
	full, err := f.name("open", name)
	if err != nil {
		return nil, err
	}
	body, err := f.files.Open(f.ctx, full)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &openFile{ReadCloser: body, info: info}, nil
}

func (f *sandboxFS) Stat(name string) (fs.FileInfo, error) {
	return f.info("stat", name, f.files.Stat)
}

func (f *sandboxFS) Lstat(name string) (fs.FileInfo, error) {
	return f.info("lstat", name, f.files.Lstat)
}

func (f *sandboxFS) info(op, name string, call func(context.Context, string) (fs.FileInfo, error)) (fs.FileInfo, error) {
	full, err := f.name(op, name)
	if err != nil {
		return nil, err
	}
	info, err := call(f.ctx, full)
	if err != nil {
		return nil, pathError(op, name, err)
	}
	return namedInfo{FileInfo: info, name: path.Base(name)}, nil
}

func (f *sandboxFS) ReadDir(name string) ([]fs.DirEntry, error) {
	full, err := f.name("readdir", name)
	if err != nil {
		return nil, err
	}
	entries, err := f.files.ReadDir(f.ctx, full)
	return entries, pathError("readdir", name, err)
}

func (f *sandboxFS) ReadFile(name string) ([]byte, error) {
	full, err := f.name("read", name)
	if err != nil {
		return nil, err
	}
	data, err := f.files.ReadFile(f.ctx, full)
	return data, pathError("read", name, err)
}

func (f *sandboxFS) ReadLink(name string) (string, error) {
	full, err := f.name("readlink", name)
	if err != nil {
		return "", err
	}
	target, err := f.files.ReadLink(f.ctx, full)
	return target, pathError("readlink", name, err)
}

// openFile is a regular file.
type openFile struct {
	io.ReadCloser

	info fs.FileInfo
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.info, nil }

// openDir is a directory; its entries are fetched by the first ReadDir.
type openDir struct {
	fsys    *sandboxFS
	name    string
	info    fs.FileInfo
	fetched bool
	closed  bool
	left    []fs.DirEntry
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }

func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: errors.New("is a directory")}
}

func (d *openDir) Close() error {
	d.closed = true
	return nil
}

// ReadDir gives the next n entries, or all that are left when n <= 0.
func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: fs.ErrClosed}
	}
	if !d.fetched {
		entries, err := d.fsys.ReadDir(d.name)
		if err != nil {
			return nil, err
		}
		d.left, d.fetched = entries, true
	}
	if n > 0 && len(d.left) == 0 {
		return nil, io.EOF
	}
	if n <= 0 || n > len(d.left) {
		n = len(d.left)
	}
	out := d.left[:n:n]
	d.left = d.left[n:]
	return out, nil
}

// fileInfo is an entry as the agent told it, checked by the client.
type fileInfo struct{ entry agentclient.Entry }

func (i fileInfo) Name() string       { return i.entry.Name }
func (i fileInfo) Size() int64        { return i.entry.Size }
func (i fileInfo) Mode() fs.FileMode  { return i.entry.Mode }
func (i fileInfo) ModTime() time.Time { return i.entry.ModTime }
func (i fileInfo) IsDir() bool        { return i.entry.Mode.IsDir() }

// Sys is nil: what the agent knows of the inode means nothing on the host.
func (i fileInfo) Sys() any { return nil }

// namedInfo has the name under which a file was asked for.
type namedInfo struct {
	fs.FileInfo

	name string
}

func (i namedInfo) Name() string { return i.name }
