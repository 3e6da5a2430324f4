package process

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berm-dev/berm/backend/process/cgroup"
	"github.com/berm-dev/berm/driver"
)

// Fixes, as a person types them.
const (
	fixInstall = "apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora), apk add bubblewrap (Alpine)"
	fixClone   = "sysctl -w kernel.unprivileged_userns_clone=1"
	fixCount   = "sysctl -w user.max_user_namespaces=15000"
	fixMemory  = "sysctl -w vm.memfd_noexec=1"
	// A profile for the one program is narrower than switching the rule off.
	fixAppArmor = `printf '%%s\n' 'abi <abi/4.0>,' 'include <tunables/global>' 'profile bwrap %s flags=(unconfined) { userns, }'` +
		` | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap`
	fixSeccomp  = "start the container with --security-opt seccomp=unconfined"
	fixService  = "let it make namespaces and mounts: for a service of systemd, RestrictNamespaces=no and SystemCallFilter= without @mount"
	fixPaths    = "start the container with --security-opt systempaths=unconfined (Kubernetes: procMount: Unmasked)"
	fixConfined = "start the container with --security-opt apparmor=unconfined"
	fixChroot   = "start berm outside the chroot, or enter the directory by pivot_root (systemd-nspawn, a container) instead of chroot"
	fixAdmin    = "start the container with --cap-add SYS_ADMIN, or berm as a user without privileges"
	fixDelegate = "start berm with `systemd-run --user --scope -p Delegate=yes berm ...`, or as root"
	fixWritable = "give the container a writable cgroup tree (Docker: -v /sys/fs/cgroup:/sys/fs/cgroup:rw --cgroupns=host for root); " +
		"--memory and --pids-limit bound the container as a whole meanwhile"
	fixInit = "start the container with --init"
	fixProc = "mount a /proc of this namespace: `unshare --pid --fork --mount-proc berm ...`, or mount -t proc proc /proc"
)

// foreignProc is the failure that a /proc from outside is.
const foreignProc = "/proc is that of another PID namespace: neither bubblewrap nor berm finds its own processes in it"

// Files that facts are read from.
const (
	uidMapFile    = "/proc/self/uid_map"
	statusFile    = "/proc/self/status"
	mountInfoFile = "/proc/self/mountinfo"
)

// capSysAdmin is a bit of a capability set.
const capSysAdmin = 21

// rootNeeds are the capabilities without which root can do nothing for sandboxes
// of other uids: become them, end them, and read which namespaces they are in.
func rootNeeds() []capability {
	return []capability{{"CAP_KILL", 5}, {"CAP_SETGID", 6}, {"CAP_SETUID", 7}, {"CAP_SYS_PTRACE", 19}}
}

// lacking is the failure that missing capabilities are.
func lacking(missing []string) string {
	return "berm is root without " + strings.Join(missing, ", ") + ", and cannot start, watch and end sandboxes that run under other uids"
}

type capability struct {
	name string
	bit  uint
}

// missing lists what berm as root lacks of rootNeeds.
func (t toolbox) missing() []string {
	var out []string
	for _, c := range rootNeeds() {
		if t.euid == 0 && !t.capable(c.bit) {
			out = append(out, c.name)
		}
	}
	return out
}

// cause is a fact of the host that stops sandboxes.
type cause struct {
	// said: bubblewrap, or the kernel, says one of these when the fact is the
	// reason.
	said []string
	// holds says whether the fact is there.
	holds  func(t toolbox) bool
	reason string
	fix    func(t toolbox, found bwrap) string
}

// What bubblewrap and the kernel say, by what they were about. The wording is
// that of bubblewrap 0.8 to 0.11.
func saidOfNamespaces() []string {
	return []string{"ermissions to creat", "Creating new namespace failed", "unshare user ns"}
}

func saidOfMounts() []string {
	return []string{"Failed to make / slave", "Failed to mount tmpfs", "Can't bind mount", "Can't mount", "pivot_root", "setting up newroot bind"}
}

func saidOfProc() []string {
	return []string{"mount proc on"}
}

func saidByAppArmor() []string {
	return slices.Concat(saidOfNamespaces(), saidOfMounts(),
		[]string{"loopback: ", "setting up uid map", "setting up gid map", "writing to setgroups", "user namespaces"})
}

// explains reports whether the fact is there and one of the failures is of its
// making.
func (c cause) explains(t toolbox, failures []string) bool {
	said := slices.ContainsFunc(failures, func(failure string) bool {
		return !lacksRoom(failure) && slices.ContainsFunc(c.said, func(text string) bool { return strings.Contains(failure, text) })
	})
	return said && c.holds(t)
}

// lacksRoom recognises failures that no wall around berm is the cause of, whatever
// they were about: advice to take the wall down would do harm and no good.
func lacksRoom(failure string) bool {
	failure = strings.ToLower(failure)
	return slices.ContainsFunc([]string{
		"too many open files", "no space left on device", "disk quota exceeded", "file too large", "read-only file system", "cannot allocate memory",
	}, func(text string) bool { return strings.Contains(failure, text) })
}

func always(toolbox) bool { return true }

func text(fix string) func(toolbox, bwrap) string {
	return func(toolbox, bwrap) string { return fix }
}

// causes is the table of all that is known to stop a sandbox.
func causes() []cause {
	return slices.Concat(kernelCauses(), confinementCauses(), privilegeCauses())
}

// kernelCauses are settings of the kernel.
func kernelCauses() []cause {
	setting := func(name, value string) func(toolbox) bool {
		return func(t toolbox) bool { return t.is("/proc/sys/"+name, value) }
	}
	out := []cause{
		// Root's sandboxes do not run as root either.
		{said: saidOfNamespaces(), holds: setting("kernel/unprivileged_userns_clone", "0"),
			reason: "kernel.unprivileged_userns_clone is 0: only root may make user namespaces", fix: text(fixClone)},
		{said: saidOfNamespaces(), holds: setting("user/max_user_namespaces", "0"),
			reason: "user.max_user_namespaces is 0: user namespaces are switched off", fix: text(fixCount)},
		{said: []string{"does not support user namespaces"}, holds: always,
			reason: "this kernel was built without user namespaces", fix: text("use a kernel with CONFIG_USER_NS=y")},
		{said: []string{"memfd_noexec"}, holds: setting("vm/memfd_noexec", "2"),
			reason: "vm.memfd_noexec is 2: the agent's program cannot be kept in memory", fix: text(fixMemory)},
		{said: []string{"execvp /proc/self/fd/"}, holds: func(t toolbox) bool { return !t.is("/proc/sys/vm/memfd_noexec", "2") },
			reason: "the agent's program, which is kept in memory, may not be executed: a security module forbids it",
			fix:    text("let bubblewrap execute anonymous memory files (SELinux, AppArmor or fapolicyd say which rule refused it in the audit log)")},
		{said: []string{"pivot_root: Invalid argument"}, holds: always,
			reason: "the root file system is the initramfs, which cannot be exchanged",
			fix:    text("switch_root to another file system (a tmpfs will do) before berm starts")},
		{said: []string{"Resource temporarily unavailable"}, holds: always,
			reason: "berm's own limit on processes leaves no room for a sandbox",
			fix:    text("raise it: ulimit -u, TasksMax= of the service, or --pids-limit of the container")},
	}
	for _, kind := range []string{"pid", "net", "mnt", "ipc", "uts", "cgroup"} {
		name := "user/max_" + kind + "_namespaces"
		dotted := strings.ReplaceAll(name, "/", ".")
		out = append(out, cause{said: saidOfNamespaces(), holds: setting(name, "0"),
			reason: dotted + " is 0: namespaces of that kind are switched off", fix: text("sysctl -w " + dotted + "=15000")})
	}
	return out
}

// confinementCauses are walls around berm itself.
func confinementCauses() []cause {
	return []cause{
		{said: saidOfNamespaces(), holds: toolbox.chrooted,
			reason: "berm runs in a chroot, where the kernel makes no user namespaces", fix: text(fixChroot)},
		{said: slices.Concat(saidOfNamespaces(), []string{"Failed to make / slave: Operation not permitted", "pivot_root: Operation not permitted"}), holds: toolbox.filtered,
			reason: "a system call filter on berm itself, such as a container's default profile, forbids new user namespaces, or mounts in them",
			fix: func(t toolbox, _ bwrap) string {
				if t.inContainer() {
					return fixSeccomp
				}
				return fixService
			}},
		{said: slices.Concat(saidOfProc(), saidOfNamespaces()), holds: func(t toolbox) bool { return t.maskedProc() != "" },
			reason: "parts of /proc are covered, as containers do it: the kernel then allows no new /proc in a user namespace",
			fix:    text(fixPaths)},
		{said: saidByAppArmor(), holds: func(t toolbox) bool { return t.is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") },
			reason: "AppArmor gives programs without a profile no use of user namespaces (Ubuntu 23.10 and later)",
			fix: func(_ toolbox, found bwrap) string {
				if found.path == "" {
					found.path = "/usr/bin/bwrap"
				}
				return fmt.Sprintf(fixAppArmor, found.path)
			}},
		{said: saidByAppArmor(), holds: func(t toolbox) bool { return t.profile() != "" },
			reason: "an AppArmor profile confines berm itself, and can forbid mounts and user namespaces",
			fix: func(t toolbox, _ bwrap) string {
				if t.inContainer() {
					return fixConfined
				}
				return "allow userns, mount, umount and pivot_root in the profile " + t.profile()
			}},
	}
}

// privilegeCauses are capabilities that berm has too few or too many of.
func privilegeCauses() []cause {
	return []cause{
		{said: []string{"launch: "}, holds: func(t toolbox) bool { return t.euid == 0 && !t.capable(capSysAdmin) },
			reason: "berm is root without CAP_SYS_ADMIN, and cannot prepare mounts for the unprivileged uid that its sandboxes run under",
			fix:    text(fixAdmin)},
		{said: []string{"Unexpected capabilities but not setuid"}, holds: always,
			reason: "berm was started with capabilities by a user that is not root, which bubblewrap refuses",
			fix:    text("setpriv --ambient-caps=-all --inh-caps=-all berm ... (Docker: no --cap-add together with --user)")},
	}
}

// is compares a file's content.
func (t toolbox) is(name, value string) bool {
	got, err := t.readFile(name)
	return err == nil && got == value
}

// statusField is one field of berm's own status.
func (t toolbox) statusField(name string) string {
	status, _ := t.readFile(statusFile)
	for line := range strings.Lines(status) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// filtered: berm itself is under a system call filter.
func (t toolbox) filtered() bool { return t.statusField("Seccomp") == "2" }

// capable reports a capability in effect.
func (t toolbox) capable(bit uint) bool {
	set, err := strconv.ParseUint(t.statusField("CapEff"), 16, 64)
	return err == nil && set>>bit&1 == 1
}

// profile is the AppArmor profile of berm itself, empty for none.
func (t toolbox) profile() string {
	for _, name := range []string{"/proc/self/attr/apparmor/current", "/proc/self/attr/current"} {
		if label, err := t.readFile(name); err == nil {
			name, _, _ := strings.Cut(strings.Trim(label, "\x00"), " (")
			// Labels of SELinux have colons.
			if name == "unconfined" || strings.Contains(name, ":") {
				return ""
			}
			return name
		}
	}
	return ""
}

// mountPoints lists where something is mounted.
func (t toolbox) mountPoints() []string {
	table, _ := t.readFile(mountInfoFile)
	var out []string
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) > 4 {
			out = append(out, fields[4])
		}
	}
	return out
}

// chrooted reports a root that is not the mount namespace's: it is no mount
// point, or the first process has another.
func (t toolbox) chrooted() bool {
	points := t.mountPoints()
	return len(points) > 0 && !slices.Contains(points, "/") || t.otherRoot != nil && t.otherRoot()
}

// maskedProc is a place in /proc that something covers, empty for none. What
// lies on a directory that is always empty hides nothing.
func (t toolbox) maskedProc() string {
	for _, point := range t.mountPoints() {
		if strings.HasPrefix(point, "/proc/") && path.Base(point) != "binfmt_misc" && path.Base(point) != "nfsd" {
			return point
		}
	}
	return ""
}

// inContainer looks for the marks that Docker, Podman, systemd and Kubernetes
// leave.
func (t toolbox) inContainer() bool {
	for _, mark := range []string{
		"/.dockerenv", "/run/.containerenv", "/run/systemd/container", "/var/run/secrets/kubernetes.io",
	} {
		if _, err := t.stat(mark); err == nil {
			return true
		}
	}
	return false
}

// weaknesses are the problems of a host on which sandboxes work.
func (t toolbox) weaknesses(root bool, support cgroup.Support) []driver.Problem {
	var out []driver.Problem
	if missing := uncounted(support); missing != "" {
		fix := fixDelegate
		if t.inContainer() {
			fix = fixWritable + "; where this is no container, " + fixDelegate
		}
		out = append(out, driver.Problem{Reason: missing, Fix: fix})
	}
	if root && !t.capable(capSysAdmin) {
		out = append(out, driver.Problem{
			Reason: "berm is root without CAP_SYS_ADMIN: host directories cannot be mounted in its sandboxes", Fix: fixAdmin,
		})
	}
	if t.pid == 1 {
		out = append(out, driver.Problem{
			Reason: "berm is process 1 here, and nobody waits for processes that other programs leave behind", Fix: fixInit,
		})
	}
	return out
}

// uncounted says what there is no cgroup for, "" when there is one for all.
func uncounted(support cgroup.Support) string {
	var names []string
	for _, s := range []struct {
		name string
		have bool
	}{
		{"memory", support.Memory}, {"processes", support.Processes},
		{"processor time", support.CPUs}, {"killing a command as a whole", support.Kill},
	} {
		if !s.have {
			names = append(names, s.name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	reason := "there is no cgroup for " + strings.Join(names, ", ")
	if len(support.Reasons) > 0 {
		reason += " (" + strings.Join(support.Reasons, "; ") + ")"
	}
	return reason
}
