package berm

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
)

// OutwardLinks says what becomes of a symbolic link, in a tree that is taken out
// of a sandbox, that does not surely stay in the tree: one with an absolute
// target, or one that goes up further than the tree or after a name. Other links
// are kept, those that lead nowhere included.
type OutwardLinks int

const (
	// LeaveOutwardLinks leaves them out and says so in the report.
	LeaveOutwardLinks OutwardLinks = iota
	// KeepOutwardLinks keeps them. No entry passes through a link, so that they do
	// no harm to whoever extracts the tree; they may to whoever reads it then.
	KeepOutwardLinks
	// RefuseOutwardLinks makes the first one an error, Denied.
	RefuseOutwardLinks
)

// Limits of a tree where ArchiveOptions does not say.
const (
	DefaultArchiveEntries = 1_000_000
	DefaultArchiveBytes   = 64 << 30
)

// ArchiveOptions say what may be taken out of a sandbox. The zero value is careful.
type ArchiveOptions struct {
	Links OutwardLinks
	// MaxEntries and MaxBytes, of the files' content, end an archive with
	// Exhausted. A file without content can have any size at no cost to who made
	// it, and has it in an archive. 0 is the default above.
	MaxEntries int64
	MaxBytes   int64
}

// limits checks the options.
func (o ArchiveOptions) limits() (agentclient.TreeLimits, []string) {
	out := agentclient.TreeLimits{Entries: o.MaxEntries, Bytes: o.MaxBytes, Links: agentclient.OutwardLinks(o.Links)}
	var reasons []string
	if o.Links < LeaveOutwardLinks || o.Links > RefuseOutwardLinks {
		reasons = append(reasons, fmt.Sprintf("there is no way %d to treat links", o.Links))
	}
	if o.MaxEntries < 0 || o.MaxBytes < 0 || o.MaxEntries > math.MaxInt32 {
		reasons = append(reasons, "a limit is negative or too large")
	}
	if out.Entries == 0 {
		out.Entries = DefaultArchiveEntries
	}
	if out.Bytes == 0 {
		out.Bytes = DefaultArchiveBytes
	}
	return out, reasons
}

// ArchiveReport is what a tree came to.
type ArchiveReport struct {
	Entries int64
	Bytes   int64 // of the files' content
	// Skipped has what was left out, or is not as it was: sockets, FIFOs, devices,
	// what cannot be read, files that changed while they were read, outward links.
	// It has a thousand at most, with control characters escaped.
	Skipped []ArchiveSkip
	// MoreSkipped counts those that Skipped has no room for.
	MoreSkipped int64
}

// ArchiveSkip is one entry that was left out, and why.
type ArchiveSkip struct{ Name, Reason string }

func (r *ArchiveReport) take(skips agentclient.Skips) {
	r.MoreSkipped = skips.More
	for _, s := range skips.Skipped {
		r.Skipped = append(r.Skipped, ArchiveSkip(s))
	}
}

// Archive writes a directory's tree, or one file, to w as a tar stream (pax), which
// has its end only when the tree is whole. It is fit to be extracted by anybody:
// names are relative, clean and unique, nothing lies in something else than a
// directory, and there are directories, regular files and symbolic links only, with
// permission bits and without owners. Hard links become files. The report, which
// is there with an error too, says what was left out. Memory stays small whatever
// the tree's size. Errors are those of Files; Exhausted above a limit, Protocol for
// an archive that the sandbox made otherwise, and an error of w.
func (f Files) Archive(ctx context.Context, name string, w io.Writer, opts ArchiveOptions) (*ArchiveReport, error) {
	out := tarSink{w: tar.NewWriter(w), buf: make([]byte, archiveBuffer)}
	return f.tree(ctx, "archive", name, opts, out)
}

// ArchiveTo is Archive into a directory of the host, which has to exist and may
// have none of the tree's top names. Nothing is written outside of it, whoever
// changes it meanwhile, and nothing in it is replaced. What was written before an
// error stays. Directories can always be entered by their owner.
func (f Files) ArchiveTo(ctx context.Context, name, dir string, opts ArchiveOptions) (*ArchiveReport, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, &errdefs.Error{Kind: kindOf(ctx, err, errdefs.Invalid), Op: "archive", Backend: f.sandbox.provider.caps.Backend, Err: err}
	}
	defer func() { _ = root.Close() }()
	return f.tree(ctx, "archive", name, opts, &rootSink{root: root, buf: make([]byte, archiveBuffer)})
}

// archiveBuffer is the size of one write of content, in bytes.
const archiveBuffer = 256 << 10

// treeSink takes the entries of a tree.
type treeSink interface {
	entry(e agentclient.TreeEntry, content io.Reader) error
	// end is called when the tree is whole.
	end() error
}

// tree hands a tree over, entry by entry.
func (f Files) tree(ctx context.Context, op, name string, opts ArchiveOptions, sink treeSink) (*ArchiveReport, error) {
	limits, reasons := opts.limits()
	if len(reasons) > 0 {
		return nil, &errdefs.Error{Kind: errdefs.Invalid, Op: op, Backend: f.sandbox.provider.caps.Backend, Reasons: reasons}
	}
	report := &ArchiveReport{}
	var local error // of the sink, and no fault of the sandbox's
	err := f.do(ctx, op, name, func(path string) error {
		tree, err := f.sandbox.client.Archive(ctx, path, limits)
		if err != nil {
			return err
		}
		defer func() {
			report.take(tree.Skips())
			_ = tree.Close()
		}()
		for {
			e, err := tree.Next()
			if errors.Is(err, io.EOF) {
				local = sink.end()
				return nil
			}
			if err != nil {
				return err
			}
			err = sink.entry(e, tree)
			var told *errdefs.Error
			if errors.As(err, &told) {
				return err
			}
			if local = err; local != nil {
				return nil
			}
			report.Entries++
			report.Bytes += e.Size
		}
	})
	if err == nil && local != nil {
		err = &errdefs.Error{Kind: kindOf(ctx, local, errdefs.Internal), Op: op, Backend: f.sandbox.provider.caps.Backend, Err: local}
	}
	return report, err
}

// tarSink writes a tar stream.
type tarSink struct {
	w   *tar.Writer
	buf []byte
}

func (s tarSink) entry(e agentclient.TreeEntry, content io.Reader) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: e.Name, Mode: int64(e.Mode.Perm()), Size: e.Size, ModTime: e.ModTime, Linkname: e.Link, Format: tar.FormatPAX}
	switch {
	case e.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, e.Name+"/"
		if e.Mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
	case e.Mode&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
	}
	if err := s.w.WriteHeader(h); err != nil {
		return err
	}
	return copyContent(s.w, content, e.Size, s.buf)
}

// copyContent copies a whole file.
func copyContent(w io.Writer, content io.Reader, size int64, buf []byte) error {
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(content, size), buf)
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (s tarSink) end() error { return s.w.Close() }

// rootSink writes into a directory.
type rootSink struct {
	root *os.Root
	buf  []byte
	// open are the directories that the last entry lies in. They get their modes
	// and times when they are left.
	open []agentclient.TreeEntry
}

func (s *rootSink) entry(e agentclient.TreeEntry, content io.Reader) error {
	for len(s.open) > 0 && !strings.HasPrefix(e.Name, s.open[len(s.open)-1].Name+"/") {
		if err := s.leave(); err != nil {
			return err
		}
	}
	switch {
	case e.Mode.IsDir():
		s.open = append(s.open, e)
		return s.root.Mkdir(e.Name, 0o700)
	case e.Mode&fs.ModeSymlink != 0:
		return s.root.Symlink(e.Link, e.Name)
	}
	file, err := s.root.OpenFile(e.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = copyContent(file, content, e.Size, s.buf)
	if err == nil {
		err = file.Chmod(e.Mode.Perm())
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return s.root.Chtimes(e.Name, e.ModTime, e.ModTime)
}

// leave gives the last open directory its mode and time.
func (s *rootSink) leave() error {
	e := s.open[len(s.open)-1]
	s.open = s.open[:len(s.open)-1]
	return errors.Join(s.root.Chmod(e.Name, e.Mode.Perm()|0o700), s.root.Chtimes(e.Name, e.ModTime, e.ModTime))
}

func (s *rootSink) end() error {
	var faults []error
	for len(s.open) > 0 {
		faults = append(faults, s.leave())
	}
	return errors.Join(faults...)
}

// Extract extracts a tar stream, plain and whole, into a directory inside, which
// is made with its parents. Modes, times, symbolic and hard links are kept, whatever
// a symbolic link leads to; owners are the sandbox's. A name that leaves the
// directory, or passes through a link in it, is Invalid, and so is an archive that
// breaks off. Devices, FIFOs and set-id bits are left out and in the report. Files
// and links that are there are replaced, each in one step. What was extracted
// before an error stays. r is read as by Create.
func (f Files) Extract(ctx context.Context, name string, r io.Reader) (*ArchiveReport, error) {
	report := &ArchiveReport{}
	err := f.do(ctx, "extract", name, func(path string) error {
		told, err := f.sandbox.client.Extract(ctx, path, r)
		if err != nil {
			return err
		}
		report.Entries, report.Bytes = told.Entries, told.Bytes
		report.take(told.Skips)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return report, nil
}
