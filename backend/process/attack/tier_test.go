//go:build linux

package attack_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/driver"
)

// scaled is a size: an eighth of it with -short.
func scaled(n int) int {
	if testing.Short() {
		return n / 8
	}
	return n
}

// hostDir makes a directory of the host's, without a link on the way to it.
func hostDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// put writes a file of the host's.
func put(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// opened is open with an end of the provider at the test's.
func opened(t *testing.T, change func(*berm.Config)) *berm.Provider {
	t.Helper()
	prepare(t)
	p := open(t, change)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

// place makes a sandbox with the payload in /tmp, so that no mount is touched. It
// ends with the test.
func place(t *testing.T, p *berm.Provider, layout berm.Layout) *box {
	t.Helper()
	prepare(t)
	if p == nil {
		p = stage.provider
	}
	sb, err := p.Create(bounded(t), berm.CreateOptions{Layout: &layout})
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() { destroyed(t, sb) })
	program, err := os.ReadFile(stage.payload)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Sandbox: sb, payload: "/tmp/attack"}
	if err := sb.Files().Create(bounded(t), b.payload, 0o755, bytes.NewReader(program)); err != nil {
		t.Fatalf("install the payload: %v", err)
	}
	return b
}

// destroyed ends a sandbox, whatever goes on in it, in time.
func destroyed(t *testing.T, sb *berm.Sandbox) {
	t.Helper()
	began := time.Now()
	if err := sb.Close(); err != nil {
		t.Errorf("destroy: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("destroy took %v", took)
	}
}

// sh runs a script that has to succeed and gives its output.
func sh(t *testing.T, b *box, script string, args ...string) string {
	t.Helper()
	return output(t, b, append([]string{"sh", "-c", script, "sh"}, args...)...)
}

// hold starts an attack that stays after its report. The function ends it.
func hold(t *testing.T, b *box, name string, args ...string) (verdict, func()) {
	t.Helper()
	cmd := b.CommandContext(bounded(t), b.payload, append([]string{name}, args...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = in.Close()
		t.Fatalf("%s: %v, ended with %v: %s", name, err, cmd.Wait(), cmd.Result.Stderr)
	}
	return read(t, name, strings.NewReader(line)), func() {
		_ = in.Close()
		_ = cmd.Wait() // it may well have been killed
	}
}

// background starts a command whose end does not matter. The function ends it and
// gives its result.
func background(t *testing.T, b *box, args ...string) func() *berm.Result {
	t.Helper()
	cmd := b.CommandContext(bounded(t), args[0], args[1:]...)
	if err := cmd.Start(); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return func() *berm.Result {
		_ = cmd.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		return cmd.Result
	}
}

// soon waits for what has to become true at once.
func soon(t *testing.T, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

// listing describes everything below a directory but access and change times:
// names, kinds, modes, owners, links, sizes, inodes, times and attributes.
func listing(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var s unix.Stat_t
		if err := unix.Lstat(name, &s); err != nil {
			return err
		}
		target := ""
		if s.Mode&unix.S_IFMT == unix.S_IFLNK {
			target, _ = os.Readlink(name)
		}
		out = append(out, fmt.Sprintf("%q mode %o owner %d:%d links %d size %d inode %d time %d.%09d -> %q %s",
			name, s.Mode, s.Uid, s.Gid, s.Nlink, s.Size, s.Ino, s.Mtim.Sec, s.Mtim.Nsec, target, attributes(name)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// attributes lists a file's extended attributes with their values.
func attributes(name string) string {
	names := make([]byte, 4096)
	n, err := unix.Llistxattr(name, names)
	if err != nil || n == 0 {
		return ""
	}
	var out []string
	for _, attr := range strings.Split(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(name, attr, value)
		if err == nil {
			out = append(out, fmt.Sprintf("%s=%q", attr, value[:n]))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// same compares two listings.
func same(t *testing.T, when string, before, after []string) {
	t.Helper()
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("%s, new or changed: %s", when, line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("%s, gone or changed: %s", when, line)
		}
	}
}

// project fills a directory with what a developer's has, and with what is easily
// harmed: repositories in repositories, a worktree, links, odd modes, attributes.
func project(t *testing.T, dir string) {
	t.Helper()
	for name, mode := range map[string]os.FileMode{
		".git/HEAD": 0o644, ".git/config": 0o644, ".git/hooks/pre-commit": 0o755, "nested/.git/config": 0o600, "nested/deeper/.git/hooks/x": 0o755,
		"worktree/.git": 0o644, ".gitignore": 0o644, "src/main.c": 0o640, "private": 0o600, "closed/x": 0o400, "run.sh": 0o751,
	} {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, full, "content of "+name+"\n")
		if err := os.Chmod(full, mode); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.Symlink("src", at("link")), os.Symlink("/nowhere", at("dangling")), os.Link(at("src/main.c"), at("hard")),
		unix.Mkfifo(at("pipe"), 0o622), os.Mkdir(at("empty"), 0o700), os.Chmod(at("closed"), 0o500),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(at("closed"), 0o700) })
	// Not every file system has them.
	_ = unix.Setxattr(at("private"), "user.label", []byte("mine"), 0)
	for _, name := range []string{"src/main.c", "src", "."} {
		old := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
		if err := os.Chtimes(at(name), old, old); err != nil {
			t.Fatal(err)
		}
	}
}

// backend is the backend under attack.
func backend() driver.Backend { return process.Config{} }

// succeeded checks that there are attempts and that each succeeded.
func (v verdict) succeeded(t *testing.T) {
	t.Helper()
	if len(v) == 0 {
		t.Error("nothing was attempted")
	}
	for _, a := range v {
		if a.Errno != "" {
			t.Errorf("%s: %s %s", a.Name, a.Errno, a.Detail)
		}
	}
}
