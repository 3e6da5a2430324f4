package process

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/backend/process/cgroup"
	"github.com/berm-dev/berm/driver"
)

const (
	// delegatedMarker makes the test program play a caller with a delegated cgroup.
	delegatedMarker = "BERM_TEST_DELEGATED"
	// delegatedUID is that caller.
	delegatedUID = 61234
)

// TestDelegatedCgroupIsNoWayUp: also a caller that may make no detached mount gives
// its agents no descriptor from which ".." leads to the host's directories.
func TestDelegatedCgroupIsNoWayUp(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can delegate a cgroup; the caller that it delegates to has no privileges")
	}
	leaf := delegate(t)
	dir, err := os.MkdirTemp("", "berm-delegated-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	own := filepath.Join(dir, "own")
	program := filepath.Join(dir, "test")
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.Mkdir(own, 0o700), os.Chown(own, delegatedUID, delegatedUID),
		os.WriteFile(filepath.Join(dir, "agent"), agentImage(t), 0o755),
		// By another process: what this one has open for writing, a fork of a test
		// beside it may still have when it is executed.
		exec.Command("cp", os.Args[0], program).Run(), os.Chmod(program, 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "-test.run=^TestCallerWithADelegatedCgroup$")
	cmd.Env = append(os.Environ(), delegatedMarker+"=1", "BERM_TEST_AGENT="+filepath.Join(dir, "agent"),
		"HOME="+own, "TMPDIR="+own, "XDG_RUNTIME_DIR="+own)
	cmd.Dir = own
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: delegatedUID, Gid: delegatedUID}, UseCgroupFD: true, CgroupFD: int(leaf.Fd()),
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// delegate gives a version 2 cgroup to the caller without privileges, and opens the
// one below it that the caller is to start in.
func delegate(t *testing.T) *os.File {
	t.Helper()
	mounts, _ := filepath.Glob("/sys/fs/cgroup/unified")
	dir, err := os.MkdirTemp(append(mounts, "/sys/fs/cgroup")[0], "berm-test-")
	if err != nil {
		t.Skipf("no cgroup can be made here: %v", err)
	}
	leaf := filepath.Join(dir, "leaf")
	t.Cleanup(func() {
		for _, name := range []string{"leaf/berm", "berm", "leaf", "."} {
			if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Errorf("left: %v", err)
			}
		}
	})
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil {
		t.Skipf("there is no version 2 tree with cgroup.kill: %v", err)
	}
	if err := os.Mkdir(leaf, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir, leaf} {
		for _, name := range []string{".", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(at, name), delegatedUID, delegatedUID); err != nil {
				t.Fatal(err)
			}
		}
	}
	file, err := os.Open(leaf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// TestCallerWithADelegatedCgroup is not a test: it is the caller of
// TestDelegatedCgroupIsNoWayUp.
func TestCallerWithADelegatedCgroup(t *testing.T) {
	if os.Getenv(delegatedMarker) == "" {
		t.Skip("it is started by another test")
	}
	d, _ := opened(t)
	if d.caps.TreeKill != driver.KillCgroup {
		t.Fatalf("commands are ended by %s: %q", d.caps.TreeKill, d.caps.Notes)
	}
	m := created(t, d, plainSpec(d))
	if out, _ := run(t, m, "cat /proc/self/cgroup"); !strings.Contains(out, "/cmd-") {
		t.Errorf("a command is in %q", out)
	}
	agents := m.group.Payload()
	var here, up unix.Stat_t
	fd, err := unix.Openat(int(agents.Fd()), strings.Repeat("../", 12), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Fstat(int(agents.Fd()), &here), unix.Fstat(fd, &up)); err != nil {
		t.Fatal(err)
	}
	if here.Dev != up.Dev || here.Ino != up.Ino {
		t.Errorf("the agent's cgroup leads up to inode %d of device %#x", up.Ino, up.Dev)
	}
	for _, way := range waysApart()[:len(waysApart())-1] {
		file, err := d.detachBy(way, agents.Name())
		if err != nil {
			t.Errorf("%+v: %v", way, err)
			continue
		}
		_ = file.Close()
	}
	// Who cannot detach it does not hand it over.
	without := cgroup.Open(cgroup.Host{})
	if s := without.Support(); s.Kill || !strings.Contains(strings.Join(s.Reasons, " "), "without a way up") {
		t.Errorf("without a helper: %+v", s)
	}
}
