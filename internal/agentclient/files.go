package agentclient

import (
	"context"
	"io/fs"
	"path"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// Stat describes what a path leads to. Errors: NotFound also for a link that
// leads nowhere.
func (c *Client) Stat(ctx context.Context, p string) (Entry, error) {
	const op = "stat"
	p, err := cleanPath(op, p)
	if err != nil {
		return Entry{}, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := c.stat(ctx, op, p, false)
	if err != nil {
		return Entry{}, err
	}
	own := info.GetLstat()
	switch {
	case own == nil:
		return followedEntry(op, p, info)
	case own.GetMode()&modeType != modeSymlink:
		return ownEntry(op, p, info)
	case info.GetType() != agentv1.FileType_FILE_TYPE_UNSPECIFIED:
		return followedEntry(op, p, info)
	}
	return c.special(ctx, op, p, info)
}

// special describes a link's target that is neither file nor directory, by
// looking at the target's own path.
func (c *Client) special(ctx context.Context, op, p string, info *agentv1.EntryInfo) (Entry, error) {
	target, err := cleanPath(op, info.GetSymlinkTarget())
	if err != nil {
		return Entry{}, errdefs.New(errdefs.NotFound, op, "the link leads nowhere")
	}
	seen, err := c.stat(ctx, op, target, true)
	if err != nil {
		return Entry{}, err
	}
	if seen.GetLstat().GetMode()&modeType == modeSymlink {
		return Entry{}, errdefs.New(errdefs.NotFound, op, "the link leads nowhere")
	}
	return ownEntry(op, p, seen)
}

// Lstat describes the entry at a path itself, a link included.
func (c *Client) Lstat(ctx context.Context, p string) (Entry, error) {
	const op = "lstat"
	p, err := cleanPath(op, p)
	if err != nil {
		return Entry{}, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := c.stat(ctx, op, p, true)
	if err != nil {
		return Entry{}, err
	}
	return ownEntry(op, p, info)
}

func (c *Client) stat(ctx context.Context, op, p string, noFollow bool) (*agentv1.EntryInfo, error) {
	res, err := c.files.Stat(ctx, &agentv1.StatRequest{Path: p, NoFollow: noFollow})
	if err != nil {
		return nil, fault(ctx, op, err)
	}
	if res.GetEntry() == nil {
		return nil, broken(op, "no entry in the answer")
	}
	return res.GetEntry(), nil
}

// ReadDir lists a directory in lexical order, each entry as Lstat sees it.
// Errors: Exhausted for a directory with more than about 100,000 entries.
func (c *Client) ReadDir(ctx context.Context, p string) ([]Entry, error) {
	const op = "read directory"
	p, err := cleanPath(op, p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	res, err := c.files.ListDir(ctx, &agentv1.ListDirRequest{Path: p, Depth: 1})
	if err != nil {
		return nil, fault(ctx, op, err)
	}
	return listedEntries(op, p, res.GetEntries())
}

// Mkdir makes a directory with the permission bits of perm, 0 for 0755,
// regardless of any umask. With parents it also makes what is missing on the way
// and takes a directory that is there for success; without, errors are NotFound
// for a missing parent and Exists.
func (c *Client) Mkdir(ctx context.Context, p string, perm fs.FileMode, parents bool) error {
	const op = "make directory"
	p, err := cleanPath(op, p)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if !parents {
		// The agent always makes parents, which is its wire's rule.
		parent, err := c.Stat(ctx, path.Dir(p))
		if err != nil {
			return err
		}
		if !parent.Mode.IsDir() {
			return errdefs.New(errdefs.Invalid, op, "the parent is not a directory")
		}
	}
	_, err = c.files.MakeDir(ctx, &agentv1.MakeDirRequest{Path: p, Mode: uint32(perm.Perm()), ExistOk: parents})
	return fault(ctx, op, err)
}

// Rename renames an entry, over a file that is there, and makes the new name's
// missing parents. It does not work across file systems.
func (c *Client) Rename(ctx context.Context, from, to string) error {
	const op = "rename"
	from, err := cleanPath(op, from)
	if err != nil {
		return err
	}
	to, err = cleanPath(op, to)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err = c.files.Move(ctx, &agentv1.MoveRequest{Source: from, Destination: to})
	return fault(ctx, op, err)
}

// Remove removes a file, a link or an empty directory. Errors: NotFound; Invalid
// for a directory with entries.
func (c *Client) Remove(ctx context.Context, p string) error {
	return c.remove(ctx, "remove", p, true)
}

// RemoveAll removes an entry and all below it; nothing there is success. Links
// are removed, not followed, and mount points refused.
func (c *Client) RemoveAll(ctx context.Context, p string) error {
	return c.remove(ctx, "remove all", p, false)
}

func (c *Client) remove(ctx context.Context, op, p string, strict bool) error {
	p, err := cleanPath(op, p)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	_, err = c.files.Remove(ctx, &agentv1.RemoveRequest{Path: p, Strict: strict})
	return fault(ctx, op, err)
}
