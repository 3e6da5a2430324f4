package process

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/backend/process/cgroup"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// fakeInfo is a program with a mode.
type fakeInfo struct{ mode fs.FileMode }

func (f fakeInfo) Name() string       { return "bwrap" }
func (f fakeInfo) Size() int64        { return 1 }
func (f fakeInfo) Mode() fs.FileMode  { return f.mode }
func (f fakeInfo) ModTime() time.Time { return time.Time{} }
func (f fakeInfo) IsDir() bool        { return f.mode.IsDir() }
func (f fakeInfo) Sys() any           { return nil }

// fakeHost answers as a host with these files would.
func fakeHost(euid int, mode fs.FileMode, version string, files map[string]string) toolbox {
	return toolbox{
		euid: euid, pid: 4711,
		lookPath: func(string) (string, error) {
			if version == "" {
				return "", errors.New("not found")
			}
			return "/usr/bin/bwrap", nil
		},
		stat: func(name string) (fs.FileInfo, error) {
			if _, ok := files[name]; ok || name == "/usr/bin/bwrap" {
				return fakeInfo{mode}, nil
			}
			return nil, fs.ErrNotExist
		},
		readFile: func(name string) (string, error) {
			if text, ok := files[name]; ok {
				return text, nil
			}
			return "", fs.ErrNotExist
		},
		output: func(_ context.Context, _, arg string) (string, error) {
			if arg == "--version" {
				return "bubblewrap " + version, nil
			}
			return "  " + strings.Join(bwrapNeeds[:], " X\n  ") + " X\n", nil
		},
	}
}

// wants compares problems with the beginnings of their reasons and with parts of
// their fixes, in order; a fix of "-" says that there is none.
func wants(t *testing.T, name string, got []driver.Problem, want [][2]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d problems, want %d: %+v", name, len(got), len(want), got)
		return
	}
	for i, p := range got {
		fix := want[i][1]
		if !p.Fatal || !strings.Contains(p.Reason, want[i][0]) || fix == "-" && p.Fix != "" || fix != "-" && !strings.Contains(p.Fix, fix) {
			t.Errorf("%s: problem %d is %+v, want %q", name, i, p, want[i])
		}
	}
}

func TestFindings(t *testing.T) {
	t.Parallel()
	const identity = "0 0 4294967295"
	uids := func(text string) map[string]string {
		return map[string]string{uidMapFile: text, statusFile: "CapEff:\t000001ffffffffff"}
	}
	for name, c := range map[string]struct {
		host   toolbox
		config Config
		want   [][2]string
	}{
		"fine":       {host: fakeHost(1000, 0o755, "0.8.0", nil)},
		"fine root":  {host: fakeHost(0, 0o755, "0.11.0", uids(identity))},
		"missing":    {host: fakeHost(1000, 0o755, "", nil), want: [][2]string{{"not installed", "apt-get install bubblewrap"}}},
		"old":        {host: fakeHost(1000, 0o755, "0.6.2", nil), want: [][2]string{{"0.6.2 is too old", "apt-get"}}},
		"setuid":     {host: fakeHost(1000, 0o755|fs.ModeSetuid, "0.8.0", nil), want: [][2]string{{"is setuid", "chmod u-s,g-s /usr/bin/bwrap"}}},
		"not a file": {host: fakeHost(1000, fs.ModeDir|0o755, "0.8.0", nil), want: [][2]string{{"is not a program", "-"}}},
		"unmapped": {
			host: fakeHost(0, 0o755, "0.8.0", uids("0 1000 1\n1 100000 65536")),
			want: [][2]string{{"do not exist", "such as 64537 and 1000"}},
		},
		"one uid": {
			host: fakeHost(0, 0o755, "0.8.0", uids("         0       1000          1")),
			want: [][2]string{{"do not exist", "newuidmap"}},
		},
		"seatbelt": {
			host: fakeHost(1000, 0o755, "0.8.0", nil), config: Config{Engine: EngineSeatbelt},
			want: [][2]string{{"needs macOS", "auto"}},
		},
	} {
		found, failures := c.host.engine(t.Context(), c.config.withDefaults())
		wants(t, name, c.host.explain(c.config.withDefaults(), found, failures), c.want)
	}
}

// What a host says and has, and what it needs. The texts are bubblewrap's own.
func TestCauses(t *testing.T) {
	t.Parallel()
	const (
		noSpace    = "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces."
		exhausted  = "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)"
		noProc     = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted"
		noLoopback = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted"
		noMap      = "bwrap: setting up uid map: Permission denied"
		noSlave    = "bwrap: Failed to make / slave: Permission denied"
		root       = "22 1 0:1 / / rw - ext4 /dev/vda rw\n23 22 0:2 / /proc rw - proc proc rw\n"
		masked     = root + "24 23 0:2 /sys /proc/sys ro - proc proc rw\n"
		binfmt     = root + "24 23 0:9 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw\n"
		filtered   = "CapEff:\t00000000a80425fb\nSeccomp:\t2\n"
		plain      = "CapEff:\t0000000000000000\nSeccomp:\t0\n"
		weakRoot   = "CapEff:\t0000000000000000\nSeccomp:\t0\n"
	)
	docker := map[string]string{"/.dockerenv": "", statusFile: filtered, mountInfoFile: masked}
	for name, c := range map[string]struct {
		euid  int
		files map[string]string
		said  string
		want  [][2]string
	}{
		"unprivileged namespaces off": {
			1000, map[string]string{"/proc/sys/kernel/unprivileged_userns_clone": "0"}, noSpace,
			[][2]string{{"unprivileged_userns_clone is 0", "sysctl -w kernel.unprivileged_userns_clone=1"}},
		},
		"unprivileged namespaces off, for root": {
			0, map[string]string{"/proc/sys/kernel/unprivileged_userns_clone": "0"}, noSpace,
			[][2]string{{"unprivileged_userns_clone is 0", "sysctl -w kernel.unprivileged_userns_clone=1"}},
		},
		"namespaces off": {
			1000, map[string]string{"/proc/sys/user/max_user_namespaces": "0"}, exhausted,
			[][2]string{{"user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces="}},
		},
		"network namespaces off": {
			1000, map[string]string{"/proc/sys/user/max_net_namespaces": "0"}, exhausted,
			[][2]string{{"user.max_net_namespaces is 0", "sysctl -w user.max_net_namespaces="}},
		},
		"AppArmor, loopback": {
			1000, map[string]string{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1", mountInfoFile: binfmt}, noLoopback,
			[][2]string{{"AppArmor gives programs without a profile", "profile bwrap /usr/bin/bwrap flags=(unconfined) { userns, }"}},
		},
		"AppArmor, uid map": {
			1000, map[string]string{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, noMap,
			[][2]string{{"AppArmor gives programs without a profile", "apparmor_parser -r /etc/apparmor.d/bwrap"}},
		},
		"a profile of a service": {
			1000, map[string]string{"/proc/self/attr/current": "my-service (enforce)"}, noSlave,
			[][2]string{{"AppArmor profile confines berm", "in the profile my-service"}},
		},
		"SELinux is no AppArmor": {
			1000, map[string]string{"/proc/self/attr/current": "system_u:system_r:init_t:s0"}, noSlave, nil,
		},
		"chroot on a directory": {
			1000, map[string]string{mountInfoFile: "23 22 0:2 / /proc rw - proc proc rw\n", statusFile: plain}, noSpace,
			[][2]string{{"runs in a chroot", "pivot_root"}},
		},
		"Docker by default": {
			0, docker, noSpace,
			[][2]string{{"system call filter on berm itself", "--security-opt seccomp=unconfined"}, {"parts of /proc are covered", "--security-opt systempaths=unconfined"}},
		},
		"Docker without a filter": {
			1000, map[string]string{"/.dockerenv": "", statusFile: plain, mountInfoFile: masked}, noProc,
			[][2]string{{"parts of /proc are covered", "--security-opt systempaths=unconfined"}},
		},
		"Docker's filter with CAP_SYS_ADMIN": {
			0, map[string]string{"/.dockerenv": "", statusFile: filtered, mountInfoFile: root}, "bwrap: pivot_root: Operation not permitted",
			[][2]string{{"system call filter on berm itself", "--security-opt seccomp=unconfined"}},
		},
		"Docker's AppArmor": {
			1000, map[string]string{"/.dockerenv": "", "/proc/self/attr/apparmor/current": "docker-default (enforce)"}, noSlave,
			[][2]string{{"AppArmor profile confines berm", "--security-opt apparmor=unconfined"}},
		},
		"a service's filter": {
			1000, map[string]string{statusFile: filtered, mountInfoFile: root}, noSpace,
			[][2]string{{"system call filter on berm itself", "RestrictNamespaces=no"}},
		},
		"root without CAP_SYS_ADMIN": {
			0, map[string]string{statusFile: weakRoot}, "launch: unshare: operation not permitted",
			[][2]string{{"root without CAP_SYS_ADMIN", "--cap-add SYS_ADMIN"}},
		},
		"ambient capabilities": {
			1000, nil, "bwrap: Unexpected capabilities but not setuid, old file caps config?",
			[][2]string{{"started with capabilities", "--ambient-caps=-all"}},
		},
		"memory not executable": {
			1000, map[string]string{"/proc/sys/vm/memfd_noexec": "2"}, "make executable memory (sysctl vm.memfd_noexec must not be 2): permission denied",
			[][2]string{{"vm.memfd_noexec is 2", "sysctl -w vm.memfd_noexec=1"}},
		},
		"memory not executable by a module": {
			1000, nil, "bwrap: execvp /proc/self/fd/4: Permission denied",
			[][2]string{{"may not be executed", "SELinux"}},
		},
		"initramfs":     {0, nil, "bwrap: pivot_root: Invalid argument", [][2]string{{"initramfs", "switch_root"}}},
		"no processes":  {1000, nil, "bwrap: fork for pid 1: Resource temporarily unavailable", [][2]string{{"limit on processes", "ulimit -u"}}},
		"no namespaces": {1000, nil, "bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.", [][2]string{{"built without user namespaces", "CONFIG_USER_NS"}}},
		// A container's walls are no reason for these, whatever was being done.
		"descriptors":       {1000, docker, "bwrap: Can't bind mount /oldroot/usr on /newroot/usr: Too many open files", nil},
		"descriptors, berm": {0, docker, "make a pipe: too many open files", nil},
		"no room":           {1000, docker, "bwrap: Failed to mount tmpfs: No space left on device", nil},
		"no room, berm":     {0, docker, "prepare /etc: write /dev/shm/berm-kit-0-1/etc/passwd: no space left on device", nil},
		"quota":             {1000, docker, "prepare /etc: mkdir: disk quota exceeded", nil},
		"file size":         {0, docker, "write berm-args: file too large", nil},
		"read-only":         {1000, docker, "bwrap: Can't mount proc on /newroot/proc: Read-only file system", nil},
		"memory":            {1000, docker, "bwrap: Creating new namespace failed: Cannot allocate memory", nil},
		"time":              {0, docker, "the agent does not answer: it did not end within 20s", nil},
		// What nothing explains stands alone, and a container is no reason by itself.
		"unknown":                {1000, nil, "bwrap: a dog ate it", nil},
		"unknown in a container": {1000, docker, "bwrap: a dog ate it", nil},
		"unknown namespaces":     {1000, map[string]string{mountInfoFile: binfmt, statusFile: plain}, noSpace, nil},
	} {
		host := fakeHost(c.euid, 0o755, "0.8.0", c.files)
		failure := "the trial sandbox failed: bubblewrap said \"" + c.said + "\""
		got := host.explain(Config{}.withDefaults(), bwrap{path: "/usr/bin/bwrap"}, []string{failure})
		wants(t, name, got, append([][2]string{{c.said, "-"}}, c.want...))
	}
}

// Root in a container has some capabilities, and is told which it lacks.
func TestRootWithoutCapabilities(t *testing.T) {
	t.Parallel()
	for set, want := range map[string][2]string{
		"00000000a80425fb": {"CAP_SYS_PTRACE", "--cap-add SYS_PTRACE, or"},
		"0000000000000000": {"CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE", "--cap-add KILL --cap-add SETGID --cap-add SETUID --cap-add SYS_PTRACE, or"},
		"000001ffffffffff": {},
	} {
		files := map[string]string{statusFile: "CapEff:\t" + set}
		if missing := fakeHost(1000, 0o755, "0.8.0", files).missing(); missing != nil {
			t.Errorf("a user without privileges lacks %v", missing)
		}
		root := fakeHost(0, 0o755, "0.8.0", files)
		if got := strings.Join(root.missing(), ", "); got != want[0] {
			t.Errorf("%s: missing %s", set, got)
		}
		if want[0] == "" {
			continue
		}
		problems := root.explain(Config{}, bwrap{}, []string{lacking(root.missing())})
		wants(t, set, problems, [][2]string{want})
	}
}

func TestAnotherProcIsSaid(t *testing.T) {
	t.Parallel()
	host := fakeHost(1000, 0o755, "0.8.0", nil)
	host.otherProc = func() bool { return true }
	found, failures := host.engine(t.Context(), Config{}.withDefaults())
	wants(t, "another /proc", host.explain(Config{}, found, failures), [][2]string{{"another PID namespace", "--mount-proc"}})
}

func TestAnotherRootIsAChroot(t *testing.T) {
	t.Parallel()
	host := fakeHost(0, 0o755, "0.8.0", nil)
	if host.chrooted() {
		t.Error("a host of which nothing is known is a chroot")
	}
	host.otherRoot = func() bool { return true }
	if !host.chrooted() {
		t.Error("another root is no chroot")
	}
}

func TestWeaknesses(t *testing.T) {
	t.Parallel()
	all := cgroup.Support{Memory: true, Processes: true, CPUs: true, Kill: true}
	strong := map[string]string{statusFile: "CapEff:\t000001ffffffffff\n"}
	container := map[string]string{statusFile: "CapEff:\t00000000a80425fb\n", "/.dockerenv": ""}
	first := fakeHost(0, 0o755, "0.8.0", strong)
	first.pid = 1
	for name, c := range map[string]struct {
		host    toolbox
		support cgroup.Support
		want    [][2]string
	}{
		"none":           {host: fakeHost(0, 0o755, "0.8.0", strong), support: all},
		"no cgroups":     {fakeHost(1000, 0o755, "0.8.0", nil), cgroup.Support{Reasons: []string{"read-only"}}, [][2]string{{"memory, processes, processor time, killing a command as a whole (read-only)", "Delegate=yes"}}},
		"in a container": {fakeHost(0, 0o755, "0.8.0", container), cgroup.Support{Processes: true, CPUs: true, Kill: true}, [][2]string{{"no cgroup for memory", "writable cgroup tree"}, {"without CAP_SYS_ADMIN: host directories", "--cap-add SYS_ADMIN"}}},
		"process 1":      {first, all, [][2]string{{"process 1", "--init"}}},
	} {
		got := c.host.weaknesses(c.host.euid == 0, c.support)
		for i := range got {
			if got[i].Fatal {
				t.Errorf("%s: %+v is fatal", name, got[i])
			}
			got[i].Fatal = true
		}
		wants(t, name, got, c.want)
	}
}

// A bubblewrap of which each real failure text comes is found out by Open, in
// the time of one trial.
func TestOpenNamesWhatBubblewrapSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	makePublic(t, dir)
	program := filepath.Join(dir, "bwrap")
	script := "#!/bin/sh\ncase $1 in --version) echo bubblewrap 0.8.0;; --help) cat <<'E'\n  " +
		strings.Join(bwrapNeeds[:], " X\n  ") + "\nE\n;; *) echo 'bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.' >&2; exit 1;; esac\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	_, err := Config{BwrapPath: program}.Open(t.Context(), driver.Host{Agent: driver.Agent{Image: []byte("#!")}, StateDir: t.TempDir()})
	var unready *driver.UnreadyError
	if !errors.Is(err, errdefs.Unavailable) || !errors.As(err, &unready) {
		t.Fatalf("open: %v", err)
	}
	wants(t, "open", unready.Problems, [][2]string{{"the kernel does not support user namespaces", "-"}, {"built without user namespaces", "CONFIG_USER_NS"}})
	if n := strings.Count(err.Error(), "the trial sandbox failed"); n != 1 {
		t.Errorf("the failure is told %d times: %v", n, err)
	}
	if len(unready.Facts) != 1 || !strings.Contains(unready.Facts[0], program) {
		t.Errorf("facts: %q", unready.Facts)
	}
}

// makePublic lets another uid go through a test's directory.
func makePublic(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			return
		}
	}
}
