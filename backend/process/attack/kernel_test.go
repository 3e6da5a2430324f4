//go:build linux

package attack_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// process-tier 1.7 "io_uring" and weak 7, section 5 item 6; attacks 9. What the
// host's own users may call proves that the sandbox refuses.
func TestInterfacesOfTheKernel(t *testing.T) {
	t.Parallel()
	b := shared(t)
	attack(t, b, "interfaces-of-the-kernel").blocked(t, "EPERM")
	refusedOnlyInside(t, "interfaces-of-the-kernel")
	// attacks 9 "keyctl/add_key/request_key": keyrings are in no namespace.
	attack(t, b, "keys").blocked(t, "ENOSYS")
	refusedOnlyInside(t, "keys")
	attack(t, b, "absent").blocked(t, "ENOSYS")
	attack(t, b, "personality").blocked(t, "EPERM")
	refusedOnlyInside(t, "personality")
}

// refusedOnlyInside checks that the host allows some of an attack's attempts.
func refusedOnlyInside(t *testing.T, name string) {
	t.Helper()
	allowed := map[string]bool{}
	for _, a := range onHost(t, name) {
		if a.Errno == "" && !strings.HasPrefix(a.Name, "control ") {
			allowed[a.Name] = true
		}
	}
	if len(allowed) == 0 {
		t.Errorf("%s: the host allows none of it either", name)
	}
	t.Logf("%s: the host allows %d of it", name, len(allowed))
}

// process-tier section 5 item 6: module loading, swap, reboot, clocks, accounting,
// quota, names of the machine.
func TestAdministration(t *testing.T) {
	t.Parallel()
	attack(t, shared(t), "administration").blocked(t, "EPERM")
}

// process-tier 1.7 "x32 socket (killed)"; attacks 9 and its test "int80, x32".
func TestForeignArchitectures(t *testing.T) {
	t.Parallel()
	attack(t, shared(t), "foreign").blocked(t, "killed by SIGSYS", "ENOSYS")
	onHost(t, "foreign").each(t, func(a attempt) bool { return a.Errno != "killed by SIGSYS" }, "the host kills it too, so this proves nothing")
}

// process-tier 1.7 weak 1, "core_pattern with a pipe": no dump runs a program of
// the host's or leaves a file.
func TestCoreDumps(t *testing.T) {
	t.Parallel()
	b := fresh(t, defaults())
	v := attack(t, b, "core")
	v.blocked(t, "EPERM", "EINVAL")
	limits := output(t, b, "cat", "/proc/self/limits")
	// One byte, not zero: at zero a pipe in core_pattern is run all the same.
	if !strings.Contains(strings.Join(strings.Fields(limits), " "), "Max core file size 1 1 bytes") {
		t.Errorf("limits: %s", limits)
	}
	if left := output(t, b, "sh", "-c", "find / -xdev -name 'core*' -newer "+b.payload+" -type f 2>/dev/null; ls "+b.WorkDir()); strings.TrimSpace(left) != "attack" {
		t.Errorf("left: %q", left)
	}
	if pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err != nil || strings.HasPrefix(string(pattern), "|") {
		t.Logf("no control: the host's pattern is %q, %v", pattern, err)
		return
	}
	dir := t.TempDir()
	crash := exec.CommandContext(bounded(t), "sh", "-c", `ulimit -c unlimited && exec "$0" crash`, stage.payload)
	crash.Dir = dir
	_ = crash.Run()
	if status, ok := crash.ProcessState.Sys().(interface{ CoreDump() bool }); !ok || !status.CoreDump() {
		left, _ := filepath.Glob(filepath.Join(dir, "*"))
		t.Errorf("control: the host dumps nothing either: %v %v", crash.ProcessState, left)
	}
}
