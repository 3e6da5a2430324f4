//go:build linux

package attack_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
)

// process-tier 1.7 weak 2, "full capability set", section 4 "CapEff 0, NoNewPrivs
// 1"; attacks 8.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	b := shared(t)
	status := output(t, b, "cat", "/proc/self/status")
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if value := field(status, set); value == "" || strings.Trim(value, "0") != "" {
			t.Errorf("%s is %q", set, value)
		}
	}
	for name, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2"} {
		if got := field(status, name); got != want {
			t.Errorf("%s is %q, want %s", name, got, want)
		}
	}
	if ids := strings.Fields(field(status, "Uid") + " " + field(status, "Gid")); len(ids) != 8 || strings.Join(ids, "") != strings.Repeat("1000", 8) {
		t.Errorf("ids are %q", ids)
	}
	// EINVAL is said of ids that are not mapped, and of capabilities that this
	// kernel does not have.
	attack(t, b, "rights").blocked(t, "EPERM", "EINVAL", "EACCES")
	attack(t, b, "file-rights", b.WorkDir()).blocked(t, "EPERM", "EINVAL", "EOPNOTSUPP")
	attack(t, b, "file-rights", "/tmp").blocked(t, "EPERM", "EINVAL", "EOPNOTSUPP")
}

// process-tier section 4 "root caller must drop to a real unprivileged host uid":
// seen from the host, no process of a sandbox is root's or has a right, and none
// has a group of the caller's.
func TestIdentityOnTheHost(t *testing.T) {
	t.Parallel()
	for name, options := range starts(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			identity(t, processesOf(t, fresh(t, options)))
		})
	}
}

// starts are the two ways in which a root caller's sandbox is started: by the
// fork alone, and by the launcher, where host directories are mounted.
func starts(t *testing.T) map[string]berm.CreateOptions {
	t.Helper()
	return map[string]berm.CreateOptions{
		"plain": defaults(), "mounts": {Layout: &berm.Layout{Uploads: berm.HostVolume(hostDir(t))}},
	}
}

// identity looks at a sandbox's processes from outside.
func identity(t *testing.T, pids []int) {
	t.Helper()
	if len(pids) < 2 {
		t.Fatalf("found %v only", pids)
	}
	// The last one is bubblewrap itself, outside of the sandbox it has made: what
	// it holds is in namespaces of its own.
	for i, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		status := string(data)
		for _, id := range strings.Fields(field(status, "Uid") + " " + field(status, "Gid") + " " + field(status, "Groups")) {
			if id == "0" || os.Getuid() == 0 && len(id) < 10 {
				t.Errorf("process %d has id %s: uid %q, gid %q, groups %q", pid, id, field(status, "Uid"), field(status, "Gid"), field(status, "Groups"))
			}
		}
		if caps := field(status, "CapEff"); i < len(pids)-1 && strings.Trim(caps, "0") != "" {
			t.Errorf("process %d has capabilities %s", pid, caps)
		}
	}
}

// attacks 7 and 10: every mount ignores set-id bits, and what is not the task's
// cannot be written.
func TestMountOptions(t *testing.T) {
	t.Parallel()
	b := shared(t)
	writable := 0
	for line := range strings.Lines(output(t, b, "cat", "/proc/self/mountinfo")) {
		fields := strings.Fields(line)
		options := "," + fields[5] + ","
		if !strings.Contains(options, ",nosuid,") {
			t.Errorf("set-id files work below %s", fields[4])
		}
		if strings.Contains(options, ",rw,") {
			writable++
			switch at := fields[4]; at {
			case "/tmp", "/dev/shm", "/home/user", "/proc", "/dev/pts", b.WorkDir(),
				"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console":
			default:
				t.Errorf("%s is writable", at)
			}
		}
	}
	if writable == 0 {
		t.Error("nothing is writable, so the table was not understood")
	}
}
