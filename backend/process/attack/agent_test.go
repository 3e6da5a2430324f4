//go:build linux

package attack_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm"
)

func defaults() berm.CreateOptions { return berm.CreateOptions{} }

// process-tier 1.7 "ptrace of parent/PID 1"; attacks 2(a) and its test "ptraces
// the agent".
func TestAgentsMemory(t *testing.T) {
	t.Parallel()
	b := shared(t)
	// process_mrelease of a process that is not dying, and a call that this kernel
	// was built without, are answered in their own way.
	v := attack(t, b, "agent-memory")
	v.blocked(t, "EPERM", "EACCES", "EINVAL", "ENOSYS", "ESRCH")
	for _, hard := range []string{"ptrace", "process_vm", "kcmp", "process_madvise"} {
		v.of(hard).blocked(t, "EPERM", "EACCES")
	}
	v.of("pidfd_getfd").blocked(t, "EPERM")
	if v := attack(t, b, "handles"); slices.ContainsFunc(v, func(a attempt) bool { return a.Errno != "" }) {
		t.Errorf("the same on a process of one's own: %+v", v)
	}
	alive(t, b)
}

// attacks 2 "a same-uid payload can prlimit a non-dumpable PID 1 to death".
func TestAgentsLimits(t *testing.T) {
	t.Parallel()
	b := fresh(t, defaults())
	attack(t, b, "agent-limits").blocked(t, "EPERM")
	alive(t, b)
}

// attacks 2 "renice of PID 1", its test "renices the agent": what can be done to
// threads other than the first is bounded by the host's deadlines.
func TestAgentsPace(t *testing.T) {
	t.Parallel()
	b := fresh(t, defaults())
	attack(t, b, "agent-pace").blocked(t, "EPERM", "EACCES", "ESRCH")
	alive(t, b)
	slow := b.CommandContext(t.Context(), b.payload, "agent-threads")
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		alive(t, b)
	}
	if err := slow.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	_ = slow.Wait()
}

// attacks 1 and 2: "/proc/1/environ inside is the host's environment"; process-tier
// 1.7 "/proc/1/root".
func TestAgentsFiles(t *testing.T) {
	t.Parallel()
	b := shared(t)
	attack(t, b, "agent-files").blocked(t, "EACCES", "EPERM")
	line := output(t, b, "cat", "/proc/1/cmdline")
	if words := strings.Split(strings.TrimSuffix(line, "\x00"), "\x00"); len(words) != 2 || !strings.HasPrefix(words[0], "/proc/self/fd/") || words[1] != "serve" {
		t.Errorf("the agent's command line is %q", line)
	}
}

// process-tier 1.7 "kill of host pids (not visible)".
func TestHostProcessesAreInvisible(t *testing.T) {
	t.Parallel()
	b := shared(t)
	for _, text := range strings.Fields(output(t, b, "sh", "-c", "cd /proc && echo [0-9]*")) {
		command, err := b.Exec(bounded(t), berm.Command{Args: []string{"cat", "/proc/" + text + "/comm"}})
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(strings.TrimSpace(string(command.Stdout)), ".test") {
			t.Errorf("the host program is process %s inside", text)
		}
	}
	status := output(t, b, "cat", "/proc/self/status")
	if nspid := field(status, "NSpid"); len(strings.Fields(nspid)) != 1 {
		t.Errorf("process numbers of the host are visible: %q", nspid)
	}
}

// field gives a line of /proc/PID/status.
func field(status, name string) string {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// attacks 6 and its tests "every inherited fd is a socket or a pipe"; 17: the
// cgroups' directories come over the link.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	prepare(t)
	// Descriptors that the host program itself would hand on to what it starts.
	for _, name := range []string{"/", stage.payload} {
		fd, err := unix.Open(name, unix.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
	}
	for name, options := range starts(t) {
		t.Run(name, func(t *testing.T) { descriptors(t, fresh(t, options)) })
	}
}

// descriptors looks at what a sandbox's processes hold.
func descriptors(t *testing.T, b *box) {
	t.Helper()
	// ls looks at its parent, which has opened nothing itself.
	if got := strings.Fields(output(t, b, "sh", "-c", "ls /proc/$$/fd; :")); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("a command has descriptors %q", got)
	}
	looked := 0
	for _, pid := range processesOf(t, b) {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil || len(links) == 0 && !isClosed(pid, "fd") {
			t.Fatalf("process %d has no descriptors that can be seen: %v", pid, err)
		}
		for _, link := range links {
			target, err := os.Readlink(link)
			if err != nil {
				continue
			}
			looked++
			if !harmless(target) && !isOwnMount(pid, filepath.Base(link)) {
				t.Errorf("%s -> %s", link, target)
			}
		}
	}
	if looked < 3 {
		t.Errorf("%d descriptors were seen", looked)
	}
}

// isClosed reports that a file of a process is not for this caller: without
// privileges one cannot look into a program that nobody may read, as the agent is.
// Then the same test as root has to do.
func isClosed(pid int, file string) bool {
	_, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, file))
	return os.Getuid() != 0 && errors.Is(err, fs.ErrPermission)
}

// harmless says what a sandbox's own processes, the agent and bubblewrap, may
// hold.
func harmless(target string) bool {
	for _, prefix := range []string{
		"socket:", "pipe:", "anon_inode:", "/memfd:berm-agent",
		// The launcher's input: whoever opens it again has the same null device.
		"/dev/null",
		// These came over the link, to be written by the agent alone.
		"/sys/fs/cgroup/",
	} {
		if strings.HasPrefix(target, prefix) {
			return true
		}
	}
	return false
}

// isOwnMount reports that a descriptor is of a mount that only the sandbox has:
// the agent opens some of its own directories to see how full they are, and holds
// its commands' cgroups by a mount that is detached.
func isOwnMount(pid int, descriptor string) bool {
	about, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, descriptor))
	if err != nil {
		return false
	}
	id := field(string(about), "mnt_id")
	has := func(table string) bool {
		data, err := os.ReadFile(table)
		return err == nil && strings.Contains("\n"+string(data), "\n"+id+" ")
	}
	var fs unix.Statfs_t
	detached := unix.Statfs(fmt.Sprintf("/proc/%d/fd/%s", pid, descriptor), &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
	return id != "" && (detached || has(fmt.Sprintf("/proc/%d/mountinfo", pid))) && !has("/proc/self/mountinfo")
}

// processesOf finds the processes of a sandbox on the host: all that are in the
// process namespace of a command, which is told by a word in its arguments, and
// bubblewrap above them.
func processesOf(t *testing.T, b *box) []int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	mark := "attack-mark-" + b.ID()
	command := b.CommandContext(ctx, b.payload, "wait", mark)
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = stdin.Close(), command.Wait() })
	var found []int
	for deadline := time.Now().Add(patience); len(found) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the command cannot be seen from the host")
		}
		found = ancestry(mark)
	}
	return found
}

// ancestry gives the process with the mark and its ancestors below this one.
func ancestry(mark string) []int {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		line, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(line), mark) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		var out []int
		for pid > 1 && pid != os.Getpid() {
			out = append(out, pid)
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				return nil
			}
			pid, _ = strconv.Atoi(field(string(status), "PPid"))
		}
		return out
	}
	return nil
}
