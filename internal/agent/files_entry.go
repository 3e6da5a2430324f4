package agent

import (
	"bytes"
	"io/fs"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// entry is what is known about one name.
type entry struct {
	name, path string
	self       unix.Stat_t // of the entry itself, a link included
	link       string      // a link's content as it stands
	// target is a link's target, nil for anything else, for a link that leads
	// nowhere and where it was not asked for.
	target     *unix.Stat_t
	targetPath string
	noFollow   bool
	// metadata is what uploads noted beside a file's content, nil for none.
	metadata map[string]string
}

// seen is what the entry leads to.
func (e *entry) seen() *unix.Stat_t {
	if e.target != nil {
		return e.target
	}
	return &e.self
}

// describe looks at a name of an open directory whose path without links is at.
// shown is the path that the caller knows it by.
func describe(dir int, at, name, shown string, noFollow bool) (entry, error) {
	e := entry{name: name, path: shown, noFollow: noFollow}
	if err := unix.Fstatat(dir, name, &e.self, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return entry{}, err
	}
	switch e.self.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
	case unix.S_IFREG, unix.S_IFDIR:
		// Others have no attributes of that kind.
		e.metadata = readMetadata(dir, name)
		return e, nil
	default:
		return e, nil
	}
	link, err := readlink(dir, name)
	if err != nil {
		return entry{}, err
	}
	e.link = link
	if !noFollow {
		e.lookThrough(dir, at)
	}
	return e, nil
}

// lookThrough fills in a link's target. A link that cannot be resolved, for
// whatever reason, counts as broken.
func (e *entry) lookThrough(dir int, at string) {
	w, err := newWalkAt(dir, at, e.name)
	if err != nil {
		return
	}
	p, err := w.resolve(true, false)
	if err != nil {
		return
	}
	defer p.close()
	var st unix.Stat_t
	if unix.Fstatat(p.dir, p.name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return
	}
	e.target, e.targetPath = &st, p.path
	e.metadata = readMetadata(p.dir, p.name)
}

// size estimates the bytes of the entry's message.
func (e *entry) size() int {
	n := 128 + len(e.name) + len(e.path) + len(e.link) + len(e.targetPath)
	for key, value := range e.metadata {
		n += 16 + len(key) + len(value)
	}
	return n
}

// message gives the entry as envd's clients know it. What describes a link
// describes its target, except permissions, which begin with L.
func (e *entry) message(names *ownerNames) *agentv1.EntryInfo {
	seen := e.seen()
	out := &agentv1.EntryInfo{
		Name:         text(e.name),
		Path:         text(e.path),
		Type:         fileType(seen.Mode),
		Size:         seen.Size,
		Mode:         seen.Mode & 0o777,
		Permissions:  fileMode(e.self.Mode).String(),
		Owner:        names.users.name(seen.Uid),
		Group:        names.groups.name(seen.Gid),
		ModifiedTime: timestamp(seen),
		Metadata:     e.metadata,
		Lstat: &agentv1.Lstat{
			Mode:         e.self.Mode,
			Size:         e.self.Size,
			ModifiedTime: timestamp(&e.self),
			Link:         text(e.link),
		},
	}
	if e.self.Mode&unix.S_IFMT == unix.S_IFLNK {
		target := e.targetPath
		if e.target == nil {
			target = e.link
			if !e.noFollow {
				out.Type = agentv1.FileType_FILE_TYPE_UNSPECIFIED
			}
		}
		target = text(target)
		out.SymlinkTarget = &target
	}
	return out
}

// timestamp gives a file's time; one that the message cannot express, which a
// payload can set, becomes the epoch.
func timestamp(st *unix.Stat_t) *timestamppb.Timestamp {
	out := &timestamppb.Timestamp{Seconds: st.Mtim.Sec, Nanos: int32(st.Mtim.Nsec)} //nolint:gosec // below a second
	if !out.IsValid() {
		return &timestamppb.Timestamp{}
	}
	return out
}

// text makes a name fit for a message: other bytes than UTF-8's, which file names
// may have, would make the whole answer fail.
func text(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

func fileType(mode uint32) agentv1.FileType {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return agentv1.FileType_FILE_TYPE_FILE
	case unix.S_IFDIR:
		return agentv1.FileType_FILE_TYPE_DIRECTORY
	case unix.S_IFLNK:
		return agentv1.FileType_FILE_TYPE_SYMLINK
	default:
		return agentv1.FileType_FILE_TYPE_UNSPECIFIED
	}
}

// fileMode turns st_mode into Go's form.
func fileMode(mode uint32) fs.FileMode {
	out := fs.FileMode(mode & 0o777)
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		out |= fs.ModeDir
	case unix.S_IFLNK:
		out |= fs.ModeSymlink
	case unix.S_IFIFO:
		out |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		out |= fs.ModeSocket
	case unix.S_IFBLK:
		out |= fs.ModeDevice
	case unix.S_IFCHR:
		out |= fs.ModeDevice | fs.ModeCharDevice
	}
	if mode&unix.S_ISUID != 0 {
		out |= fs.ModeSetuid
	}
	if mode&unix.S_ISGID != 0 {
		out |= fs.ModeSetgid
	}
	if mode&unix.S_ISVTX != 0 {
		out |= fs.ModeSticky
	}
	return out
}

// maxNamesBytes bounds what is read of /etc/passwd and /etc/group, which are the
// payload's where it is root of its own tree.
const maxNamesBytes = 256 << 10

// ownerNames are the names of users and groups by number, as one request finds
// them. It is not for concurrent use.
type ownerNames struct{ users, groups nameTable }

func loadNames() *ownerNames {
	return &ownerNames{users: readNames("/etc/passwd"), groups: readNames("/etc/group")}
}

// nameTable is a file of "name:password:number:" lines, with the answers that it
// has given.
type nameTable struct {
	data  []byte
	known map[uint32]string
}

// readNames reads a table. One that cannot be read has no names, and numbers are
// shown.
func readNames(path string) nameTable {
	file, _, err := openRegular(path)
	if err != nil {
		return nameTable{}
	}
	defer func() { _ = file.Close() }()
	return nameTable{data: readAtMost(file, maxNamesBytes)}
}

// name gives the first name that has the number, or the number.
func (t *nameTable) name(id uint32) string {
	if name, ok := t.known[id]; ok {
		return name
	}
	number := strconv.FormatUint(uint64(id), 10)
	name := number
	for line := range bytes.Lines(t.data) {
		first, rest, _ := bytes.Cut(line, []byte(":"))
		_, rest, _ = bytes.Cut(rest, []byte(":"))
		third, _, ok := bytes.Cut(rest, []byte(":"))
		if ok && string(third) == number && len(first) > 0 && len(first) <= math.MaxUint8 {
			name = text(string(first))
			break
		}
	}
	if t.known == nil {
		t.known = make(map[uint32]string)
	}
	t.known[id] = name
	return name
}
