package agentclient

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// Entry describes a file. Name and Path may hold any character but NUL; Link is
// the agent's text and only to be shown.
type Entry struct {
	Name string
	Path string
	// Mode has the type and permissions; set-id and sticky bits only where the
	// entry itself, not a link's target, is described.
	Mode    fs.FileMode
	Size    int64 // never negative
	ModTime time.Time
	Owner   string
	Group   string
	// Link is a link's content, empty for anything else.
	Link string
}

// Bits of st_mode.
const (
	modeType     = 0o170000
	modeFIFO     = 0o010000
	modeChar     = 0o020000
	modeDir      = 0o040000
	modeBlock    = 0o060000
	modeRegular  = 0o100000
	modeSymlink  = 0o120000
	modeSocket   = 0o140000
	modeSetuid   = 0o4000
	modeSetgid   = 0o2000
	modeSticky   = 0o1000
	maxNameBytes = 255
)

// ownEntry takes what an answer says of the entry itself. The path is the one
// that was asked for; the agent's is not needed.
func ownEntry(op, p string, info *agentv1.EntryInfo) (Entry, error) {
	lstat := info.GetLstat()
	if lstat == nil {
		return followedEntry(op, p, info)
	}
	mode, ok := fileMode(lstat.GetMode())
	if !ok && !defence.ClientFileMode.Off() {
		return Entry{}, broken(op, "mode %#o", lstat.GetMode())
	}
	return newEntry(op, p, info, mode, lstat.GetSize(), lstat.GetModifiedTime())
}

// followedEntry takes what an answer says of what a path leads to. A link that
// leads nowhere is NotFound.
func followedEntry(op, p string, info *agentv1.EntryInfo) (Entry, error) {
	mode := fs.FileMode(info.GetMode() & 0o777)
	switch info.GetType() {
	case agentv1.FileType_FILE_TYPE_FILE:
	case agentv1.FileType_FILE_TYPE_DIRECTORY:
		mode |= fs.ModeDir
	case agentv1.FileType_FILE_TYPE_SYMLINK:
		mode |= fs.ModeSymlink
	case agentv1.FileType_FILE_TYPE_UNSPECIFIED:
		return Entry{}, errdefs.New(errdefs.NotFound, op, "the link leads nowhere")
	default:
		return Entry{}, broken(op, "file type %d", info.GetType())
	}
	return newEntry(op, p, info, mode, info.GetSize(), info.GetModifiedTime())
}

func newEntry(op, p string, info *agentv1.EntryInfo, mode fs.FileMode, size int64, at *timestamppb.Timestamp) (Entry, error) {
	if info == nil {
		return Entry{}, broken(op, "no entry in the answer")
	}
	if size < 0 && !defence.ClientFileSize.Off() {
		return Entry{}, broken(op, "size %d", size)
	}
	e := Entry{
		Name:  path.Base(p),
		Path:  p,
		Mode:  mode,
		Size:  size,
		Owner: clean(info.GetOwner()),
		Group: clean(info.GetGroup()),
	}
	// A payload can set a time that is none; that is no fault of the agent's.
	if at.IsValid() {
		e.ModTime = at.AsTime()
	}
	if link := info.GetLstat().GetLink(); len(link) <= maxPathBytes && mode&fs.ModeSymlink != 0 {
		e.Link = link
	}
	return e, nil
}

// listedEntries checks a listing of one directory, one level deep, and sorts it.
func listedEntries(op, dir string, infos []*agentv1.EntryInfo) ([]Entry, error) {
	if len(infos) > maxListEntries {
		return nil, broken(op, "%d entries", len(infos))
	}
	out := make([]Entry, 0, len(infos))
	for _, info := range infos {
		name := info.GetName()
		if !isName(name) && !defence.ClientFileName.Off() {
			return nil, broken(op, "name %q", name)
		}
		full := path.Join(dir, name)
		if info.GetPath() != full && !defence.ClientFilePath.Off() {
			return nil, broken(op, "path %q in a listing of %q", info.GetPath(), dir)
		}
		e, err := ownEntry(op, full, info)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	slices.SortStableFunc(out, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// isName is true for what can be a name in a directory. Names that were not
// UTF-8 come with a longer replacement for each such byte.
func isName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 3*maxNameBytes && !strings.ContainsAny(name, "/\x00")
}

// fileMode turns st_mode into Go's form; false for one that no file has.
func fileMode(mode uint32) (fs.FileMode, bool) {
	out := fs.FileMode(mode & 0o777)
	switch mode & modeType {
	case modeRegular:
	case modeDir:
		out |= fs.ModeDir
	case modeSymlink:
		out |= fs.ModeSymlink
	case modeFIFO:
		out |= fs.ModeNamedPipe
	case modeSocket:
		out |= fs.ModeSocket
	case modeBlock:
		out |= fs.ModeDevice
	case modeChar:
		out |= fs.ModeDevice | fs.ModeCharDevice
	default:
		return 0, false
	}
	if mode&modeSetuid != 0 {
		out |= fs.ModeSetuid
	}
	if mode&modeSetgid != 0 {
		out |= fs.ModeSetgid
	}
	if mode&modeSticky != 0 {
		out |= fs.ModeSticky
	}
	return out, mode>>16 == 0
}
