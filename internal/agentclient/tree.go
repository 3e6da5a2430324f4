package agentclient

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

// maxTreeDepth is how many directories an entry may lie in.
const maxTreeDepth = 256

// entryOverhead is how many bytes an archive may have for each entry beside its
// content, and then some: a header, its records, and what was left out.
const entryOverhead = 16 << 10

// TreeLimits bound what a tree may have. All are positive.
type TreeLimits struct {
	Entries int64
	Bytes   int64 // of content
	Links   OutwardLinks
}

// OutwardLinks says what becomes of a symbolic link that leads out of the tree.
type OutwardLinks int

// The ways to treat them.
const (
	OutwardLeftOut OutwardLinks = iota
	OutwardKept
	OutwardRefused
)

// TreeEntry is an entry of a tree.
type TreeEntry struct {
	// Name is relative, clean, and has no "..". No name comes twice, and all
	// directories that it lies in came before, in one piece.
	Name string
	// Mode is a directory's, a symbolic link's or a regular file's, without
	// set-id bits.
	Mode    fs.FileMode
	Size    int64
	ModTime time.Time
	// Link is a link's content.
	Link string
}

// Tree reads the archive that a hostile agent sends. It is the way of a tar.Reader:
// Next goes to the next entry, Read gives its content. It keeps the names of the
// open directories and of their last entries, and nothing else: the archive has to
// be ordered.
type Tree struct {
	body   *download
	raw    *io.LimitedReader
	tar    *tar.Reader
	limits TreeLimits

	// open are the directories that the last entry lies in; last has for each, and
	// before them for the tree itself, the name that came last.
	open, last []string
	headers    int64
	entries    int64
	bytes      int64
	skips      Skips
	ended      bool
	err        error
}

func newTree(body *download, limits TreeLimits) *Tree {
	most := limits.Bytes + entryOverhead*(limits.Entries+1)
	if most < limits.Bytes {
		most = 1<<63 - 1
	}
	raw := &io.LimitedReader{R: body, N: most}
	return &Tree{body: body, raw: raw, tar: tar.NewReader(raw), limits: limits, last: []string{""}}
}

// Skips are the entries that are left out, so far.
func (t *Tree) Skips() Skips { return t.skips }

// Close gives the rest up.
func (t *Tree) Close() error { return t.body.Close() }

// Read gives the content of the entry.
func (t *Tree) Read(p []byte) (int, error) {
	n, err := t.tar.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = t.fault(err)
	}
	return n, err
}

// Next goes to the next entry. After the last it gives io.EOF, and only when the
// agent said that the tree is whole. Errors, which stay: Protocol; Exhausted for a
// tree above its limits; Denied for a link that was to be refused; TransportLost;
// the context's; what the agent gave up with.
func (t *Tree) Next() (TreeEntry, error) {
	for t.err == nil {
		h, err := t.tar.Next()
		if err != nil {
			t.err = t.finish(err)
			break
		}
		entry, seen, err := t.header(h)
		if err != nil {
			t.err = err
			break
		}
		if seen {
			return entry, nil
		}
	}
	return TreeEntry{}, t.err
}

// finish is for the end of the archive, or what went wrong on the way.
func (t *Tree) finish(err error) error {
	if !errors.Is(err, io.EOF) {
		return t.fault(err)
	}
	if !t.ended && !defence.ClientArchiveEnd.Off() {
		return t.fault(errNotWhole)
	}
	// Its connection can be used again when its end is read too.
	_, _ = io.CopyN(io.Discard, t.raw, 1)
	return io.EOF
}

// fault explains a failure to read.
func (t *Tree) fault(err error) error {
	const op = "archive"
	var known *errdefs.Error
	switch {
	case errors.As(err, &known):
		return err
	case t.raw.N <= 0:
		return errdefs.New(errdefs.Exhausted, op, "the archive is longer than its limits allow")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return t.body.call.fault(op, err)
	case errors.Is(err, errNotWhole), errors.Is(err, io.ErrUnexpectedEOF):
		return errdefs.New(errdefs.TransportLost, op, errNotWhole.Error())
	}
	return broken(op, "%v", err)
}

// header checks one header; it is false for one that is no entry.
func (t *Tree) header(h *tar.Header) (TreeEntry, bool, error) {
	const op = "archive"
	if t.headers++; t.headers > 2*t.limits.Entries+maxArchiveSkips && !defence.ClientArchiveSize.Off() {
		return TreeEntry{}, false, t.tooMuch()
	}
	if t.ended && !defence.ClientArchiveEnd.Off() {
		return TreeEntry{}, false, broken(op, "an entry after the end")
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return TreeEntry{}, false, t.record(h.PAXRecords)
	}
	entry, err := treeEntry(h)
	if err == nil {
		err = t.order(entry.Name, entry.Mode.IsDir())
	}
	if err != nil {
		return TreeEntry{}, false, err
	}
	if entry.Mode&fs.ModeSymlink != 0 && leadsOut(entry.Name, entry.Link) && t.limits.Links != OutwardKept && !defence.ClientArchiveLinks.Off() {
		if t.limits.Links == OutwardRefused {
			return TreeEntry{}, false, errdefs.New(errdefs.Denied, op, "the link "+clean(entry.Name)+" leads out of the tree, to "+clean(entry.Link))
		}
		t.skips.add(entry.Name, "is a link that leads out of the tree, to "+entry.Link)
		return TreeEntry{}, false, nil
	}
	t.entries++
	t.bytes += entry.Size
	if (t.entries > t.limits.Entries || t.bytes > t.limits.Bytes) && !defence.ClientArchiveSize.Off() {
		return TreeEntry{}, false, t.tooMuch()
	}
	return entry, true, nil
}

func (t *Tree) tooMuch() error {
	return errdefs.New(errdefs.Exhausted, "archive", "the tree has more entries or bytes than its limits allow")
}

// record takes what the agent says of the archive itself.
func (t *Tree) record(records map[string]string) error {
	const op = "archive"
	name, skipped := records["BERM.skipped"]
	reason, failed := records["BERM.error"]
	_, ended := records["BERM.end"]
	switch {
	case failed:
		return errdefs.New(errdefs.Internal, op, "the agent gave up: "+clean(reason))
	case skipped:
		t.skips.add(name, records["BERM.reason"])
	case ended:
		t.ended = true
	default:
		return broken(op, "a record of no known kind")
	}
	return nil
}

// treeEntry takes a header of the agent's, which writes three kinds of entries and
// four records.
func treeEntry(h *tar.Header) (TreeEntry, error) {
	const op = "archive"
	mode := fs.FileMode(h.Mode & 0o777) //nolint:gosec // masked
	if defence.ClientArchiveModes.Off() {
		mode = h.FileInfo().Mode() &^ fs.ModeType
	}
	name := h.Name
	switch h.Typeflag {
	case tar.TypeReg:
	case tar.TypeDir:
		mode |= fs.ModeDir | h.FileInfo().Mode()&fs.ModeSticky
		name = strings.TrimSuffix(name, "/")
	case tar.TypeSymlink:
		mode = fs.ModeSymlink | 0o777
	default:
		if !defence.ClientArchiveKinds.Off() {
			return TreeEntry{}, broken(op, "an entry of type %q", h.Typeflag)
		}
		mode |= h.FileInfo().Mode().Type()
	}
	for key := range h.PAXRecords {
		if key != "path" && key != "linkpath" && key != "size" && key != "mtime" && !defence.ClientArchiveKinds.Off() {
			return TreeEntry{}, broken(op, "an entry with the record %q", key)
		}
	}
	if !isTreeName(name) && !defence.ClientArchiveNames.Off() {
		return TreeEntry{}, broken(op, "an entry named %q", h.Name)
	}
	out := TreeEntry{Name: name, Mode: mode, ModTime: h.ModTime}
	if y := h.ModTime.Year(); y < 1 || y > 9999 {
		out.ModTime = time.Unix(0, 0)
	}
	switch {
	case h.Typeflag == tar.TypeSymlink && (h.Linkname == "" || len(h.Linkname) > maxPathBytes):
		return TreeEntry{}, broken(op, "a link of %d bytes", len(h.Linkname))
	case h.Typeflag == tar.TypeSymlink:
		out.Link = h.Linkname
	case h.Size < 0:
		return TreeEntry{}, broken(op, "size %d", h.Size)
	case h.Typeflag == tar.TypeReg:
		out.Size = h.Size
	}
	return out, nil
}

// isTreeName is true for a clean relative name.
func isTreeName(name string) bool {
	if name == "" || len(name) > maxPathBytes || strings.Count(name, "/") > maxTreeDepth {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if !isName(part) || len(part) > maxNameBytes {
			return false
		}
	}
	return true
}

// order checks that an entry lies in directories that are open, after the entry of
// its directory that came before. So no name comes twice, and none lies in
// something else than a directory of the archive: whoever extracts it, by names
// and however simply, passes through no link of it.
func (t *Tree) order(name string, directory bool) error {
	parts := strings.Split(name, "/")
	parents, own := parts[:len(parts)-1], parts[len(parts)-1]
	if defence.ClientArchiveOrder.Off() {
		return nil
	}
	if len(parents) > len(t.open) || !slices.Equal(parents, t.open[:len(parents)]) {
		return broken("archive", "the entry %q lies in no open directory", name)
	}
	if t.last[len(parents)] >= own {
		return broken("archive", "the entry %q comes after %q", name, t.last[len(parents)])
	}
	t.open, t.last = t.open[:len(parents)], t.last[:len(parents)+1]
	t.last[len(parents)] = own
	if directory {
		t.open, t.last = append(t.open, own), append(t.last, "")
	}
	return nil
}

// leadsOut is false for a link whose target lies in the tree, whether there or
// not. Going up is believed only at the beginning of a target, where the
// directories that are left are the tree's own: after a name, which can be a link,
// it can lead anywhere.
func leadsOut(name, target string) bool {
	if strings.HasPrefix(target, "/") {
		return true
	}
	up, down := strings.Count(name, "/"), false
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			if up--; up < 0 || down {
				return true
			}
		default:
			down = true
		}
	}
	return false
}
