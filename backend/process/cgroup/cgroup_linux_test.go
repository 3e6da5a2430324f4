package cgroup_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berm-dev/berm/backend/process/cgroup"
)

// real opens this host's cgroups, or skips.
func real(t *testing.T) *cgroup.Manager {
	t.Helper()
	// A caller with a delegated cgroup has package process's helper for this.
	m := cgroup.Open(cgroup.Host{Detach: os.Open})
	if s := m.Support(); !s.Memory || !s.Processes || !s.Kill {
		t.Skipf("this host offers no cgroups to this user: %v", s.Reasons)
	}
	return m
}

// leftovers lists every directory of a sandbox below /sys/fs/cgroup.
func leftovers(t *testing.T, id string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		// Other tests' cgroups come and go.
		if err == nil && e.IsDir() && e.Name() == "berm-"+id {
			out = append(out, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestGroupHoldsLimitsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	m := real(t)
	const id = "cgrouptest0000000001"
	g, err := m.New(id, os.Geteuid(), os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Limit(cgroup.Limits{MemoryBytes: 32 << 20, Processes: 4, CPUs: 0.5}); err != nil {
		t.Fatal(err)
	}
	// The shell joins as the agent's thread does, then runs into both limits.
	script := "for t in $TASKS; do echo 0 > $t; done; " +
		"head -c 64m /dev/zero | tail -c 64m > /dev/null; " +
		"i=0; while [ $i -lt 20 ]; do sleep 1000 & i=$((i+1)); done; exit 0"
	cmd := exec.Command("sh", "-c", script)
	var tasks []string
	for _, file := range g.Tasks() {
		tasks = append(tasks, file.Name())
	}
	place := g.Start()
	if len(tasks) == 0 {
		// The unified hierarchy keeps the limits: commands are born below them.
		place = g.Payload()
	}
	cmd.Env = append(os.Environ(), "TASKS="+strings.Join(tasks, " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(place.Fd())}
	_ = cmd.Run() // its status is not the point
	kills, refusals, err := g.Counters()
	if err != nil || kills == 0 || refusals == 0 {
		t.Errorf("counters: %d kills, %d refusals, %v", kills, refusals, err)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 2 {
		if err := g.Remove(ctx); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if left := leftovers(t, id); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRemoveStopsWithItsContext(t *testing.T) {
	t.Parallel()
	m := real(t)
	const id = "cgrouptest0000000002"
	g, err := m.New(id, os.Geteuid(), os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.Start().Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.Remove(ctx); err == nil {
		t.Error("a busy cgroup was removed")
	}
	// Another Manager sweeps, as after the death of this process.
	if err := cgroup.Open(cgroup.Host{Detach: os.Open}).Sweep(t.Context(), id); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("sweep left the process alive")
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Errorf("remove after sweep: %v", err)
	}
	if left := leftovers(t, id); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The agent gets the payloads' directory. Whoever takes over an agent must not
// come out of the sandbox by it.
func TestPayloadDirectoryIsNoWayUp(t *testing.T) {
	t.Parallel()
	m := real(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can make a detached mount; for others it is tested in package process")
	}
	const id = "cgrouptest0000000005"
	g, err := m.New(id, os.Geteuid(), os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	if err := g.Limit(cgroup.Limits{}); err != nil {
		t.Fatal(err)
	}
	var here, up syscall.Stat_t
	if err := syscall.Fstat(int(g.Payload().Fd()), &here); err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Openat(int(g.Payload().Fd()), "../../../../../../../..", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Fstat(fd, &up); err != nil {
		t.Fatal(err)
	}
	if up.Dev != here.Dev || up.Ino != here.Ino {
		t.Errorf("inode %d of device %#x is reached from the payloads' directory (%d, %#x)", up.Ino, up.Dev, here.Ino, here.Dev)
	}
}

func TestOddNamesAreRefused(t *testing.T) {
	t.Parallel()
	m := cgroup.Open(cgroup.Host{MountInfo: os.DevNull})
	for _, id := range []string{"", "..", "../../../../etc/abcdef", "ABCDEFGHIJKLMNOPQRST", strings.Repeat("a", 21)} {
		if _, err := m.New(id, 0, 0); err == nil {
			t.Errorf("New(%q) is accepted", id)
		}
		if err := m.Sweep(t.Context(), id); err == nil {
			t.Errorf("Sweep(%q) is accepted", id)
		}
	}
}

func TestNothingMountedIsSaid(t *testing.T) {
	t.Parallel()
	m := cgroup.Open(cgroup.Host{MountInfo: os.DevNull})
	if s := m.Support(); s.Memory || s.Processes || s.CPUs || s.Kill || len(s.Reasons) == 0 {
		t.Errorf("support: %+v", s)
	}
	g, err := m.New("aaaaaaaaaaaaaaaaaaaa", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if g.Start() != nil || g.Payload() != nil || len(g.Tasks()) != 0 || g.NeedsAdoption() {
		t.Error("an empty group has descriptors")
	}
	if p := g.ProveMemory(os.Getpid()); p.Held {
		t.Error("an empty group proves a limit")
	}
	if err := g.Limit(cgroup.Limits{MemoryBytes: 1}); err != nil {
		t.Error(err)
	}
	if err := g.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLimitsAreWritten(t *testing.T) {
	t.Parallel()
	m := real(t)
	const id = "cgrouptest0000000003"
	g, err := m.New(id, os.Geteuid(), os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if err := g.Limit(cgroup.Limits{MemoryBytes: 32 << 20, Processes: 4, CPUs: 0.5}); err != nil {
		t.Fatal(err)
	}
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(text))
	}
	payload := g.Payload().Name()
	if depth, below := read(filepath.Join(payload, "cgroup.max.depth")), read(filepath.Join(payload, "cgroup.max.descendants")); depth == "max" || below == "max" {
		t.Errorf("below the payloads' cgroup there may be %s levels and %s cgroups", depth, below)
	}
	quota, want := filepath.Join(payload, "cpu.max"), "50000 100000"
	if tasks := g.Tasks()["cpu"]; tasks != nil {
		quota, want = filepath.Join(filepath.Dir(tasks.Name()), "cpu.cfs_quota_us"), "50000"
	}
	if m.Support().CPUs {
		if got := read(quota); got != want {
			t.Errorf("the quota is %q, want %q", got, want)
		}
	}
}

// TestSweepEndsAndRemoves: what a killed host program left ends and goes.
func TestSweepEndsAndRemoves(t *testing.T) {
	t.Parallel()
	m := real(t)
	const id = "cgrouptest0000000004"
	g, err := m.New(id, os.Geteuid(), os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.Start().Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = g.Remove(context.Background())
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if err := cgroup.Open(cgroup.Host{Detach: os.Open}).Sweep(ctx, id); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if left := leftovers(t, id); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
