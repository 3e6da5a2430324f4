package berm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
)

// Files are the files inside a sandbox, as its commands see them. Names are
// slash-separated on every host; a relative one starts at WorkDir. A name that
// is empty, holds ".." or a NUL byte is Invalid. Everything is streamed, and
// every context bounds the whole call.
//
// Errors match fs.ErrNotExist, fs.ErrExist and fs.ErrPermission, are Exhausted
// when the file system is full, Unsupported for what is neither file, directory
// nor link, and Closed or TransportLost when the sandbox is gone.
type Files struct {
	sandbox *Sandbox
}

// Files gives access to the files inside.
func (s *Sandbox) Files() Files { return Files{sandbox: s} }

// resolve makes a checked name absolute.
func (s *Sandbox) resolve(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(s.WorkDir(), name)
}

// pathFault checks a name inside.
func pathFault(name string) string {
	switch {
	case name == "":
		return "is empty"
	case strings.ContainsRune(name, 0):
		return "has a NUL byte"
	case slices.Contains(strings.Split(name, "/"), ".."):
		return `holds ".."`
	}
	return ""
}

// path checks names and makes them absolute.
func (f Files) path(op, name string) (string, error) {
	if reason := pathFault(name); reason != "" {
		return "", &errdefs.Error{
			Kind: errdefs.Invalid, Op: op, Backend: f.sandbox.provider.caps.Backend, Reasons: []string{fmt.Sprintf("path %q %s", name, reason)},
		}
	}
	return f.sandbox.resolve(name), nil
}

// do runs one operation on one path.
func (f Files) do(ctx context.Context, op, name string, call func(path string) error) error {
	full, err := f.path(op, name)
	if err != nil {
		return err
	}
	if f.sandbox.isGone() {
		return f.sandbox.failed(ctx, op, nil)
	}
	if err := call(full); err != nil {
		return f.sandbox.failed(ctx, op, err)
	}
	return nil
}

// Open opens a regular file for reading, as a stream. The caller closes it; ctx
// bounds the reading too.
func (f Files) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	var body io.ReadCloser
	err := f.do(ctx, "open file", name, func(path string) (err error) {
		body, _, err = f.sandbox.client.Open(ctx, path, 0)
		return err
	})
	return body, err
}

// Create writes a file from a stream: all of it or, on an error, nothing. An
// existing file is replaced and keeps its permission bits; a link's target is
// replaced, not the link. Missing parents are made. perm counts for a new file,
// below the umask 022.
func (f Files) Create(ctx context.Context, name string, perm fs.FileMode, content io.Reader) error {
	return f.do(ctx, "write file", name, func(path string) error {
		return f.sandbox.client.Create(ctx, path, perm.Perm(), content)
	})
}

// maxReadFile is the largest file, in bytes, that ReadFile takes into memory.
const maxReadFile = 256 << 20

// ReadFile reads a whole file into memory. One of more than 256 MiB is refused
// with Exhausted, because a file without content can have any size at no cost to
// who made it: Open reads those.
func (f Files) ReadFile(ctx context.Context, name string) ([]byte, error) {
	var data []byte
	err := f.do(ctx, "read file", name, func(path string) error {
		body, size, err := f.sandbox.client.Open(ctx, path, 0)
		if err != nil {
			return err
		}
		if size > maxReadFile {
			err = errdefs.New(errdefs.Exhausted, "", fmt.Sprintf("%q has %d bytes, more than %d; open it to read it in parts", name, size, maxReadFile))
		} else {
			data, err = io.ReadAll(io.LimitReader(body, maxReadFile))
		}
		return errors.Join(err, body.Close())
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

// WriteFile is Create from memory.
func (f Files) WriteFile(ctx context.Context, name string, data []byte, perm fs.FileMode) error {
	return f.Create(ctx, name, perm, strings.NewReader(string(data)))
}

// Stat describes what a name leads to, links resolved.
func (f Files) Stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.info(ctx, "stat", name, f.sandbox.client.Stat)
}

// Lstat describes the name itself.
func (f Files) Lstat(ctx context.Context, name string) (fs.FileInfo, error) {
	return f.info(ctx, "lstat", name, f.sandbox.client.Lstat)
}

func (f Files) info(ctx context.Context, op, name string, call func(context.Context, string) (agentclient.Entry, error)) (fs.FileInfo, error) {
	var info fs.FileInfo
	err := f.do(ctx, op, name, func(path string) error {
		entry, err := call(ctx, path)
		info = fileInfo{entry}
		return err
	})
	if err != nil {
		return nil, err
	}
	return info, nil
}

// ReadLink gives a link's content as it stands.
func (f Files) ReadLink(ctx context.Context, name string) (string, error) {
	info, err := f.Lstat(ctx, name)
	if err != nil {
		return "", err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		return "", errdefs.New(errdefs.Invalid, "read link", fmt.Sprintf("%q is not a symbolic link", name))
	}
	return info.(fileInfo).entry.Link, nil
}

// ReadDir lists a directory, sorted by name. Links are not resolved.
func (f Files) ReadDir(ctx context.Context, name string) ([]fs.DirEntry, error) {
	var entries []fs.DirEntry
	err := f.do(ctx, "read directory", name, func(path string) error {
		list, err := f.sandbox.client.ReadDir(ctx, path)
		for _, entry := range list {
			entries = append(entries, fs.FileInfoToDirEntry(fileInfo{entry}))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// Mkdir makes one directory; its parent must exist, and it must not.
func (f Files) Mkdir(ctx context.Context, name string, perm fs.FileMode) error {
	return f.do(ctx, "make directory", name, func(path string) error {
		return f.sandbox.client.Mkdir(ctx, path, perm.Perm(), false)
	})
}

// MkdirAll makes a directory and its parents, and succeeds when it is there.
func (f Files) MkdirAll(ctx context.Context, name string, perm fs.FileMode) error {
	return f.do(ctx, "make directory", name, func(path string) error {
		return f.sandbox.client.Mkdir(ctx, path, perm.Perm(), true)
	})
}

// Rename moves a file or directory within one file system, replacing a file
// that is at the destination.
func (f Files) Rename(ctx context.Context, from, to string) error {
	target, err := f.path("rename", to)
	if err != nil {
		return err
	}
	return f.do(ctx, "rename", from, func(path string) error {
		return f.sandbox.client.Rename(ctx, path, target)
	})
}

// Remove removes a file, a link or an empty directory.
func (f Files) Remove(ctx context.Context, name string) error {
	return f.do(ctx, "remove", name, func(path string) error { return f.sandbox.client.Remove(ctx, path) })
}

// RemoveAll removes a tree without following links; a missing name is no error.
func (f Files) RemoveAll(ctx context.Context, name string) error {
	return f.do(ctx, "remove", name, func(path string) error { return f.sandbox.client.RemoveAll(ctx, path) })
}
