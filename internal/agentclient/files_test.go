package agentclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
)

func read(tb testing.TB, c *agentclient.Client, path string, offset int64) (string, int64) {
	tb.Helper()
	body, size, err := c.Open(tb.Context(), path, offset)
	if err != nil {
		tb.Fatal(err)
	}
	data, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil {
		tb.Fatal(err)
	}
	return string(data), size
}

func TestFilesRoundTrip(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	for _, size := range []int{0, 1, 18 << 10, 64 << 10, 3<<20 + 17} {
		content := make([]byte, size)
		random := rand.NewChaCha8([32]byte{byte(size)})
		_, _ = random.Read(content)
		path := filepath.Join(home, "new", "dir", fmt.Sprint("f", size))
		if err := c.Create(t.Context(), path, 0o640, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
		got, total := read(t, c, path, 0)
		if got != string(content) || total != int64(size) {
			t.Errorf("size %d: got %d bytes, size %d", size, len(got), total)
		}
		e, err := c.Stat(t.Context(), path)
		if err != nil || e.Size != int64(size) || e.Mode != 0o640 || e.Name != filepath.Base(path) {
			t.Errorf("stat: %+v, %v", e, err)
		}
		if left := leftovers(t, filepath.Dir(path)); left != nil {
			t.Errorf("left: %v", left)
		}
	}
	path := filepath.Join(home, "new", "dir", "f1")
	for offset, want := range map[int64]int{0: 1, 1: 0, 5: 0} {
		if got, size := read(t, c, path, offset); len(got) != want || size != 1 {
			t.Errorf("offset %d: %d bytes of %d", offset, len(got), size)
		}
	}
	write(t, path, "0123456789")
	if got, size := read(t, c, path, 4); got != "456789" || size != 10 {
		t.Errorf("offset 4: %q of %d", got, size)
	}
}

func TestCreateKeepsWhatIsThere(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	target, link := filepath.Join(home, "target"), filepath.Join(home, "link")
	write(t, target, "old")
	if err := errors.Join(os.Chmod(target, 0o751), os.Symlink("target", link)); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), link, 0o600, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(link); err != nil || to != "target" {
		t.Errorf("the link is gone: %q, %v", to, err)
	}
	info, err := os.Stat(target)
	if err != nil || info.Mode().Perm() != 0o751 {
		t.Errorf("mode: %v, %v", info, err)
	}
	if got, _ := read(t, c, link, 0); got != "new" {
		t.Errorf("content %q", got)
	}
	// Through a link that leads to nothing yet.
	if err := os.Symlink(filepath.Join(home, "later"), filepath.Join(home, "dangling")); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), filepath.Join(home, "dangling"), 0, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(filepath.Join(home, "later")); err != nil || info.Mode() != 0o644 {
		t.Errorf("later: %v, %v", info, err)
	}
}

func TestCreateThatBreaksLeavesNothing(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	broken := errors.New("source broke")
	path := filepath.Join(home, "a", "b", "f")
	err := c.Create(t.Context(), path, 0, io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) {
		t.Fatalf("error %v", err)
	}
	gone := func() bool {
		_, err := os.Lstat(filepath.Join(home, "a"))
		return errors.Is(err, fs.ErrNotExist)
	}
	// The agent notices the end of the stream by itself.
	waitFor(t, gone)

	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	failed := make(chan error, 1)
	go func() { failed <- c.Create(ctx, path, 0, reader) }()
	if _, err := writer.Write(make([]byte, 300<<10)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return !gone() })
	cancel()
	wantKind(t, <-failed, errdefs.Cancelled)
	_ = writer.Close()
	waitFor(t, gone)
}

// waitFor waits for an event that has no other sign than the file system's.
func waitFor(tb testing.TB, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatal("it did not happen")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestOnlyRegularFiles(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	fifo, dir := filepath.Join(home, "fifo"), filepath.Join(home, "dir")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o644), os.Mkdir(dir, 0o755), os.Symlink("fifo", filepath.Join(home, "l"))); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, dir, "/dev/null", "/dev/tty", filepath.Join(home, "l")} {
		_, _, err := c.Open(t.Context(), path, 0)
		wantKind(t, err, errdefs.Invalid)
		wantKind(t, c.Create(t.Context(), path, 0, strings.NewReader("x")), errdefs.Invalid)
	}
	e, err := c.Stat(t.Context(), filepath.Join(home, "l"))
	if err != nil || e.Mode.Type() != fs.ModeNamedPipe || e.Name != "l" {
		t.Errorf("link to a FIFO: %+v, %v", e, err)
	}
	if left := leftovers(t, home); left != nil {
		t.Errorf("left: %v", left)
	}
}

// The agent opens files with its own identity, so nothing of a process is within
// reach, by whatever way.
func TestProcfsIsOutOfReach(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	links := map[string]string{"self": "/proc/self", "fd": "/proc/self/fd/0", "up": "../../../../../../../proc/self/environ", "env": "/proc/thread-self/environ"}
	paths := []string{
		"/proc/self/environ", "/proc/1/environ", fmt.Sprintf("/proc/%d/environ", os.Getpid()), "/proc/thread-self/mem",
		"/proc/self/fd/0", "/dev/fd/0", "/dev/stdin", "/proc/self/root/etc/passwd", "/proc/self/cwd/x", "/proc/mounts",
		"/proc/net/route", filepath.Join(home, "self", "environ"), "/proc/meminfo",
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(home, name)); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, filepath.Join(home, name))
	}
	for _, path := range paths {
		_, _, err := c.Open(t.Context(), path, 0)
		wantKind(t, err, errdefs.Denied)
		wantKind(t, c.Create(t.Context(), path, 0, strings.NewReader("x")), errdefs.Denied)
	}
	for _, path := range []string{"/proc/self/fd/x", "/proc/1/x", "/dev/fd/x"} {
		wantKind(t, c.Mkdir(t.Context(), path, 0, true), errdefs.Denied)
		wantKind(t, c.Remove(t.Context(), path), errdefs.Denied)
		wantKind(t, c.Rename(t.Context(), filepath.Join(home, "fd"), path), errdefs.Denied)
		_, err := c.ReadDir(t.Context(), filepath.Dir(path))
		wantKind(t, err, errdefs.Denied)
	}
	// Looking at procfs from outside is fine.
	if _, err := c.ReadDir(t.Context(), "/proc"); err != nil {
		t.Error(err)
	}
	entries, err := c.ReadDir(t.Context(), home)
	if err != nil || len(entries) != len(links) {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestLinksAreSeenBothWays(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	write(t, filepath.Join(home, "file"), "12345")
	for name, to := range map[string]string{"abs": home + "/file", "rel": "./sub/../file", "broken": "nowhere", "loop": "loop", "dir": home} {
		if err := os.Symlink(to, filepath.Join(home, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(home, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"abs", "rel", "dir/abs", "dir/dir/rel"} {
		e, err := c.Stat(t.Context(), filepath.Join(home, name))
		if err != nil || e.Size != 5 || !e.Mode.IsRegular() {
			t.Errorf("stat %s: %+v, %v", name, e, err)
		}
		e, err = c.Lstat(t.Context(), filepath.Join(home, name))
		if err != nil || e.Mode.Type() != fs.ModeSymlink || e.Link == "" {
			t.Errorf("lstat %s: %+v, %v", name, e, err)
		}
	}
	for _, name := range []string{"broken", "loop"} {
		_, err := c.Stat(t.Context(), filepath.Join(home, name))
		wantKind(t, err, errdefs.NotFound)
		if e, err := c.Lstat(t.Context(), filepath.Join(home, name)); err != nil || e.Mode.Type() != fs.ModeSymlink {
			t.Errorf("lstat %s: %+v, %v", name, e, err)
		}
	}
	entries, err := c.ReadDir(t.Context(), home)
	if err != nil || len(entries) != 7 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	for i, e := range entries {
		if i > 0 && entries[i-1].Name >= e.Name {
			t.Errorf("order: %q after %q", e.Name, entries[i-1].Name)
		}
	}
}

func TestOddNamesSurvive(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	names := []string{"new\nline", "ünï", `back\slash`, " ", "-rf", "\u202egnp.exe", "a\xffb", "a\xfeb"}
	for _, name := range names {
		write(t, filepath.Join(home, name), "x")
	}
	past := time.Unix(1<<40, 0)
	if err := os.Chtimes(filepath.Join(home, " "), past, past); err != nil {
		t.Fatal(err)
	}
	entries, err := c.ReadDir(t.Context(), home)
	if err != nil || len(entries) != len(names) {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, name := range names[:6] {
		if got, _ := read(t, c, filepath.Join(home, name), 0); got != "x" {
			t.Errorf("%q: %q", name, got)
		}
	}
	_, err = c.Stat(t.Context(), filepath.Join(home, "\x1b[31m\u202e\nnone"))
	wantKind(t, err, errdefs.NotFound)
}

func TestRemove(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	outside := filepath.Join(home, "outside")
	if err := os.MkdirAll(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(outside, "kept"), "x")
	tree := filepath.Join(home, "tree")
	deep := filepath.Join(tree, strings.Repeat("d/", 200))
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 1200 {
		write(t, filepath.Join(tree, fmt.Sprint("f", i)), "")
		if err := os.MkdirAll(filepath.Join(tree, fmt.Sprint("s", i%40), "x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(deep, "link")); err != nil {
		t.Fatal(err)
	}
	wantKind(t, c.Remove(t.Context(), tree), errdefs.Invalid)
	wantKind(t, c.Remove(t.Context(), filepath.Join(home, "none")), errdefs.NotFound)
	if err := c.RemoveAll(t.Context(), filepath.Join(home, "none", "deeper")); err != nil {
		t.Error(err)
	}
	if err := c.RemoveAll(t.Context(), tree); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(tree); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree is there: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/", "/proc/..", "/proc", "/dev"} {
		if err := c.RemoveAll(t.Context(), path); err == nil {
			t.Errorf("%s was removed", path)
		}
	}
	if err := c.Remove(t.Context(), filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
	if err := c.Remove(t.Context(), outside); err != nil {
		t.Error(err)
	}
}

func TestDirectories(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	path := filepath.Join(home, "a", "b")
	wantKind(t, c.Mkdir(t.Context(), path, 0o700, false), errdefs.NotFound)
	if err := c.Mkdir(t.Context(), path, 0o777, true); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("%v, %v", info, err)
	}
	if err := c.Mkdir(t.Context(), path, 0, true); err != nil {
		t.Error(err)
	}
	wantKind(t, c.Mkdir(t.Context(), path, 0, false), errdefs.Exists)
	write(t, filepath.Join(path, "f"), "x")
	wantKind(t, c.Mkdir(t.Context(), filepath.Join(path, "f"), 0, true), errdefs.Invalid)
	_, err := c.ReadDir(t.Context(), filepath.Join(path, "f"))
	wantKind(t, err, errdefs.Invalid)
	if err := c.Rename(t.Context(), filepath.Join(path, "f"), filepath.Join(home, "x", "y", "z")); err != nil {
		t.Fatal(err)
	}
	if got, _ := read(t, c, filepath.Join(home, "x", "y", "z"), 0); got != "x" {
		t.Errorf("%q", got)
	}
	wantKind(t, c.Rename(t.Context(), filepath.Join(path, "f"), filepath.Join(home, "q", "r")), errdefs.NotFound)
	if _, err := os.Lstat(filepath.Join(home, "q")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a failed rename left its parents")
	}
}

func TestPathsAreChecked(t *testing.T) {
	t.Parallel()
	c, _ := started(t)
	for _, path := range []string{"", "relative", "~", "/a\x00b", "/\xff", "/" + strings.Repeat("x", 5000)} {
		_, err := c.Stat(t.Context(), path)
		wantKind(t, err, errdefs.Invalid)
		wantKind(t, c.Create(t.Context(), path, 0, strings.NewReader("")), errdefs.Invalid)
	}
	_, err := c.Stat(t.Context(), "/"+strings.Repeat("x", 300))
	wantKind(t, err, errdefs.Invalid)
	_, err = c.Stat(t.Context(), "/etc/passwd/x")
	wantKind(t, err, errdefs.NotFound)
	if e, err := c.Stat(t.Context(), "/"); err != nil || !e.Mode.IsDir() {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestFullFileSystem(t *testing.T) {
	t.Parallel()
	c, home := started(t)
	mount := filepath.Join(home, "small")
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a small file system needs the right to mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(mount, syscall.MNT_DETACH) })
	path := filepath.Join(mount, "f")
	write(t, path, "old")
	wantKind(t, c.Create(t.Context(), path, 0, bytes.NewReader(make([]byte, 1<<20))), errdefs.Exhausted)
	if got, _ := read(t, c, path, 0); got != "old" {
		t.Errorf("content %q", got)
	}
	if left := leftovers(t, mount); left != nil {
		t.Errorf("left: %v", left)
	}
	wantKind(t, c.RemoveAll(t.Context(), mount), errdefs.Invalid)
	wantKind(t, c.RemoveAll(t.Context(), home), errdefs.Invalid)
	if got, _ := read(t, c, path, 0); got != "old" {
		t.Errorf("content %q after a refused removal", got)
	}
}
