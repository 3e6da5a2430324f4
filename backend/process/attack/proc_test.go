//go:build linux

package attack_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// process-tier 1.7 weak 1: "Root caller: host sysctls are writable"; section 5
// item 6 "/proc/sys read-only".
func TestSysctls(t *testing.T) {
	t.Parallel()
	b := shared(t)
	v := attack(t, b, "sysctls")
	v.blocked(t, "EROFS", "EACCES", "EPERM")
	for _, name := range []string{"kernel/core_pattern", "vm/swappiness", "kernel/hostname", "net/ipv4/ip_forward", "user/max_user_namespaces"} {
		if len(v.of("open /proc/sys/"+name)) == 0 {
			t.Errorf("%s was not tried", name)
		}
	}
	// Not only the files' owner refuses, who could be the caller: the mount does.
	mounts := output(t, b, "cat", "/proc/self/mountinfo")
	for _, name := range []string{"sys", "sysrq-trigger", "irq", "bus", "fs", "pressure"} {
		if _, err := os.Stat("/proc/" + name); err == nil && !strings.Contains(mounts, " /"+name+" /proc/"+name+" ro,") {
			t.Errorf("/proc/%s is not mounted read-only", name)
		}
	}
	if os.Getuid() == 0 {
		fd, err := unix.Open("/proc/sys/vm/swappiness", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Logf("control: the caller cannot open it either: %v", err)
			return
		}
		_ = unix.Close(fd)
	}
	attack(t, b, "write-proc").blocked(t, "EROFS", "EACCES", "EPERM", "EIO", "ENOENT")
}

// attacks 10: "/proc masked as Docker does, with empty files; no /sys"; process-tier
// 1.7 "as root, reads /etc/shadow".
func TestMasks(t *testing.T) {
	t.Parallel()
	b := shared(t)
	attack(t, b, "masks").blocked(t, "EOF", "ENOENT", "EACCES", "EPERM")
	// Some hosts have nothing there today: the cover itself is looked for too.
	mounts := output(t, b, "cat", "/proc/self/mountinfo")
	for _, name := range []string{"acpi", "asound", "cmdline", "interrupts", "kcore", "keys", "latency_stats", "sched_debug", "scsi", "timer_list", "timer_stats"} {
		if _, err := os.Stat("/proc/" + name); err == nil && !strings.Contains(mounts, " /proc/"+name+" ro,") {
			t.Errorf("/proc/%s is not covered", name)
		}
	}
	read := 0
	for _, a := range onHost(t, "masks") {
		if a.Errno == "" && !strings.HasPrefix(a.Name, "control ") {
			read++
		}
	}
	if read < 3 {
		t.Errorf("control: the host shows %d of it only", read)
	}
	if output(t, b, "sh", "-c", "ls -d /sys /boot /root /var/lib /srv /etc/shadow /etc/gshadow /etc/ssh /etc/ssl/private 2>/dev/null; :") != "" {
		t.Error("there is too much of the host's system")
	}
}

// process-tier 1.7 "via /proc/self/root, /proc/1/root", "symlink in cwd".
func TestWaysRoundTheRoot(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(hostDir(t), "secret")
	put(t, secret, "secret")
	if v := onHost(t, "escape", secret); v[0].Errno != "" {
		t.Errorf("control: %+v", v[0])
	}
	attack(t, shared(t), "escape", secret).blocked(t, "ENOENT", "EACCES", "ENOTDIR", "ELOOP")
}

// process-tier 1.7 weak 6 and 7 (vsock, kvm and others by their devices).
func TestDevices(t *testing.T) {
	t.Parallel()
	attack(t, shared(t), "devices").blocked(t, "EPERM", "EROFS", "EACCES")
}
