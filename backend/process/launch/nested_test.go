//go:build linux

package launch_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
)

// inMounts runs a test in a mount namespace of its own. The goroutine keeps its
// thread, which ends with it.
func inMounts(t *testing.T, test func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			done <- err
			return
		}
		test()
	}()
	if err := <-done; err != nil {
		t.Skipf("no mount namespace: %v", err)
	}
}

// TestOverlay: an overlay takes no idmapped mounts.
func TestOverlay(t *testing.T) {
	t.Parallel()
	_ = base(t, "/bin/true")
	dir := source(t, 1234, 2345)
	work := t.TempDir()
	inMounts(t, func() {
		at := func(name string) string { return filepath.Join(work, name) }
		for _, name := range []string{"lower", "upper", "work"} {
			if err := os.Mkdir(at(name), 0o755); err != nil {
				t.Error(err)
			}
		}
		err := unix.Mount("overlay", dir, "overlay", 0,
			"lowerdir="+at("lower")+",upperdir="+at("upper")+",workdir="+at("work"))
		if err == nil {
			err = os.Chown(dir, 1234, 2345)
		}
		if err != nil {
			t.Logf("no overlay here: %v", err)
			return
		}
		if got := run(t, shell(t, dir, "echo started", false)); got.failure != nil || got.stdout != "started\n" {
			t.Errorf("read-only: %+v", got)
		}
		got := run(t, shell(t, dir, "echo started", true))
		if got.stdout != "" || !errors.Is(got.failure, errdefs.Unsupported) {
			t.Errorf("writable: %+v", got)
		}
	})
}

// TestNested: a mount inside a source is there with the same map, flags and mode;
// one that cannot be mapped refuses the whole.
func TestNested(t *testing.T) {
	t.Parallel()
	_ = base(t, "/bin/true")
	dir := source(t, 1234, 2345)
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	inMounts(t, func() {
		if err := unix.Mount("tmpfs", inner, "tmpfs", 0, "size=64k,uid=1234,gid=2345,mode=755"); err != nil {
			t.Error(err)
			return
		}
		got := run(t, shell(t, dir, `echo x > inner/file; stat -c '%u %g' inner/file
			grep -E "$PWD/inner " /proc/self/mountinfo`, true))
		line, mount, _ := strings.Cut(got.stdout, "\n")
		if got.failure != nil || !slices.Equal(fields(line), []int{leasedUID, leasedGID}) {
			t.Errorf("%+v", got)
		}
		for _, want := range []string{"nosuid", "nodev", "idmapped"} {
			if !strings.Contains(mount, want) {
				t.Errorf("no %s: %s", want, mount)
			}
		}
		owns(t, filepath.Join(inner, "file"), 1234, 2345)
		got = run(t, shell(t, dir, `echo x > inner/other; echo $?`, false))
		if got.failure != nil || !strings.Contains(got.stderr, "Read-only file system") {
			t.Errorf("read-only: %+v", got)
		}
		if err := unix.Mount("proc", inner, "proc", 0, ""); err != nil {
			t.Error(err)
			return
		}
		if got := run(t, shell(t, dir, `echo started`, true)); !errors.Is(got.failure, errdefs.Unsupported) {
			t.Errorf("with /proc inside: %+v", got)
		}
	})
}

// TestSharedMountsSeeNothing: where mounts spread, as on most machines, none of the
// launcher's gets out.
func TestSharedMountsSeeNothing(t *testing.T) {
	t.Parallel()
	_ = base(t, "/bin/true")
	dir := source(t, 1234, 2345)
	inMounts(t, func() {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
			t.Error(err)
			return
		}
		table := func() string {
			text, err := os.ReadFile("/proc/thread-self/mountinfo")
			if err != nil {
				t.Error(err)
			}
			return string(text)
		}
		before := table()
		if !strings.Contains(before, "shared:") {
			t.Errorf("nothing is shared, so the test proves nothing:\n%s", before)
		}
		if got := run(t, shell(t, dir, "echo started", true)); got.failure != nil || got.stdout != "started\n" {
			t.Errorf("%+v", got)
		}
		if after := table(); after != before {
			t.Errorf("the mounts were\n%s\nand are\n%s", before, after)
		}
	})
}
