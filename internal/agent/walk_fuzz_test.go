package agent

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// thicket is a small real tree with three links, and a directory outside of it.
type thicket struct{ base, outside string }

// What an input of FuzzWalk does beside resolving.
const (
	walkFollow = 1 << iota
	walkMake
	walkRemove
)

// build makes the tree anew, without its links.
func (th thicket) build(tb testing.TB) {
	tb.Helper()
	for _, dir := range []string{th.base, th.outside} {
		if err := os.RemoveAll(dir); err != nil {
			tb.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "dir/sub"), 0o755); err != nil {
			tb.Fatal(err)
		}
		for _, name := range []string{"file", "dir/file"} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
				tb.Fatal(err)
			}
		}
	}
}

// link gives the three links their contents; one that no link can have leaves
// its link out. In contents and paths "@" is the tree and "%" the outside.
func (th thicket) link(contents [3]string) {
	for i, name := range []string{"a", "dir/b", "dir/sub/c"} {
		_ = os.Remove(filepath.Join(th.base, name))
		_ = os.Symlink(contents[i], filepath.Join(th.base, name))
	}
}

// expand puts the real directories into a text of an input.
func (th thicket) expand(text string) string {
	return strings.NewReplacer("@", th.base, "%", th.outside).Replace(text)
}

// inside tells that a text leads nowhere but to the two directories, so that it
// may be written through.
func (th thicket) inside(text string) bool {
	if slices.Contains(strings.Split(text, "/"), "..") {
		return false
	}
	return !strings.HasPrefix(text, "/") || within(text, th.base) || within(text, th.outside)
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// list names all there is in both directories.
func (th thicket) list(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, dir := range []string{th.base, th.outside} {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err == nil {
				out = append(out, p+" "+d.Type().String())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// FuzzWalk resolves paths through links in a real tree. A path leads where the
// kernel's openat2 says that it leads, or nowhere; parents that were made can be
// unmade; and a removal removes what is at the path and nothing else.
func FuzzWalk(f *testing.F) {
	for _, seed := range [][4]string{
		{"@/file"}, {"@"}, {"/"}, {"@/missing/deep/er"}, {"file"}, {"~"}, {"~/dir/file"}, {"~root/x"}, {""}, {"a\x00"}, {"@/file/x"}, {"@/dir/../file"},
		{"@/a", "dir/b", "sub/c", "../../file"}, {"@/a/x", "@/dir"}, {"@/a", "a"}, {"@/a", "dir/b", "../a"}, {"@/a/b/c", "dir", "sub", "%"},
		{"@/a/dir/file", "%"}, {"@/a", "/etc/passwd"}, {"@/a", "/proc/self/environ"}, {"@/a/root/etc", "/proc/1"}, {"@/a/self/fd/0", "/proc"}, {"/proc/mounts"},
		{"/proc/thread-self/root"}, {"/proc/1/status"}, {"/proc/1"}, {"@/a/status", "/proc/1"}, {"/proc/sys/kernel/ostype"}, {"@/a", "file/"}, {"@/a", "file/."}, {"@/a", "dir/"}, {"@/a", "missing/"}, {"@/a", "."}, {"@/a", "./././"},
		{"@/a", "../../../../../../../../.."}, {"@/a/etc", "/"}, {"@/a", "//dir//file"}, {"@/dir/b/new/parents/x", "", "%/dir/sub"},
		{"@/a", strings.Repeat("x", 256)}, {"@/" + strings.Repeat("dir/../", 500) + "file"}, {"@/a", strings.Repeat("dir/../", 500) + "a"}, {"/dev/fd/0"}, {"@/ü/\xff"},
		{strings.Repeat("d", maxPathBytes)},
	} {
		for _, what := range []uint8{0, walkFollow | walkMake, walkRemove} {
			f.Add(seed[0], seed[1], seed[2], seed[3], what)
		}
	}
	root, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	th := thicket{base: filepath.Join(root, "base"), outside: filepath.Join(root, "outside")}
	th.build(f)
	f.Fuzz(func(t *testing.T, name, a, b, c string, what uint8) {
		contents := [3]string{th.expand(a), th.expand(b), th.expand(c)}
		th.link(contents)
		name = th.expand(name)
		p, err := cleanPath(th.base, name)
		if err != nil {
			if name != "" && len(th.base)+1+len(name) <= maxPathBytes && !strings.Contains(name, "\x00") && name[0] != '~' {
				t.Fatalf("%q was refused: %v", name, err)
			}
			return
		}
		if again, err := cleanPath("/elsewhere", p); p[0] != '/' || path.Clean(p) != p || again != p || err != nil {
			t.Fatalf("%q became %q, and that %q, %v", name, p, again, err)
		}
		if len(p) >= maxPathBytes {
			return // the kernel counts the NUL byte
		}
		th.compare(t, p, contents, what&walkFollow != 0)
		if !th.inside(p) || slices.ContainsFunc(contents[:], func(s string) bool { return !th.inside(s) }) {
			return
		}
		if what&walkMake != 0 {
			th.makeParents(t, p)
		}
		if what&walkRemove != 0 {
			th.remove(t, p)
		}
	})
}

// compare holds the walk against the kernel's own.
func (th thicket) compare(t *testing.T, p string, contents [3]string, follow bool) {
	t.Helper()
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if !follow {
		how.Flags |= unix.O_NOFOLLOW
	}
	var want, got unix.Stat_t
	fd, kernelErr := unix.Openat2(unix.AT_FDCWD, p, &how)
	if errors.Is(kernelErr, unix.ENOSYS) || errors.Is(kernelErr, unix.EPERM) {
		t.Skip("openat2 is not there to compare with")
	}
	if kernelErr == nil {
		kernelErr = errors.Join(unix.Fstat(fd, &want), unix.Close(fd))
	}
	at, err := find(p, follow, false)
	if err == nil {
		defer at.close()
		err = unix.Fstatat(at.dir, at.name, &got, unix.AT_SYMLINK_NOFOLLOW)
	}
	all := p + strings.Join(contents[:], "\n")
	switch {
	case err == nil:
		if kernelErr != nil || got.Dev != want.Dev || got.Ino != want.Ino {
			t.Fatalf("%q leads to %d:%d, and by the kernel to %d:%d, %v", p, got.Dev, got.Ino, want.Dev, want.Ino, kernelErr)
		}
		if at.procfs && slices.ContainsFunc(strings.Split(at.path, "/"), isNumber) {
			t.Fatalf("%q leads to a process: %s", p, at.path)
		}
		var plain unix.Stat_t
		if err := unix.Lstat(at.path, &plain); err != nil || plain.Dev != want.Dev || plain.Ino != want.Ino {
			t.Fatalf("%q is told to be %s, which is something else, %v", p, at.path, err)
		}
	case errors.Is(err, unix.EACCES) && strings.Contains(all, "proc"): // stricter than the kernel
	case errors.Is(err, unix.EACCES) && (strings.Contains(all, "/dev") || strings.Contains(all, "/etc")): // with links into procfs
	case errors.Is(err, unix.ENAMETOOLONG) && len(all) > maxRestBytes/maxLinks: // as above
	case !errors.Is(err, kernelErr):
		t.Fatalf("%q: %v, and by the kernel %v", p, err, kernelErr)
	}
}

// makeParents makes what is missing on the way, and unmakes it.
func (th thicket) makeParents(t *testing.T, p string) {
	t.Helper()
	before := th.list(t)
	at, err := find(p, true, true)
	if err == nil {
		defer at.close()
		var dir, named unix.Stat_t
		parent := path.Dir(at.path)
		if at.name == "." {
			parent = at.path
		}
		if err := errors.Join(unix.Fstat(at.dir, &dir), unix.Lstat(parent, &named)); err != nil || dir.Dev != named.Dev || dir.Ino != named.Ino {
			t.Fatalf("%q: the parent is not %s, %v", p, parent, err)
		}
		if !within(at.path, th.base) && !within(at.path, th.outside) {
			t.Fatalf("%q leads to %s", p, at.path)
		}
		if added := len(th.list(t)) - len(before); added != len(at.made) {
			t.Fatalf("%q: %d directories were made, %d are noted", p, added, len(at.made))
		}
		at.unmake()
	}
	if after := th.list(t); !slices.Equal(before, after) {
		t.Fatalf("%q, %v: left\n%q, there was\n%q", p, err, after, before)
	}
}

// remove removes what is at the path.
func (th thicket) remove(t *testing.T, p string) {
	t.Helper()
	defer th.build(t)
	before := th.list(t)
	real, err := filepath.EvalSymlinks(path.Dir(p))
	if err != nil {
		real = "/none"
	}
	real = path.Join(real, path.Base(p))
	err = localFiles{}.remove(t.Context(), p, false)
	var want []string
	for _, line := range before {
		name, _, _ := strings.Cut(line, " ")
		if err != nil || !within(name, real) {
			want = append(want, line)
		}
	}
	if real == th.base || real == th.outside {
		return // nothing is left to list
	}
	if after := th.list(t); !slices.Equal(after, want) {
		t.Fatalf("remove %q, %v: left\n%q, want\n%q", p, err, after, want)
	}
}
