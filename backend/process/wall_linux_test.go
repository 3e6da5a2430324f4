package process

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/driver"
)

// Each part of the wall is attacked without the measurement that package berm
// makes before it hands a sandbox over: that would refuse most of what is missing
// before anything could be tried.

// wall is a sandbox that subtests look at.
type wall struct {
	d *bubble
	m *machine
}

// inside gives the output of a script, which has to be able to end well.
func (w *wall) inside(t *testing.T, script string) string {
	t.Helper()
	out, end := run(t, w.m, script)
	if end.ExitCode != 0 {
		t.Fatalf("%s: %+v %s", script, end, out)
	}
	return out
}

// empty fails the test when a script that looks for a hole has found one.
func (w *wall) empty(t *testing.T, what, script string) {
	t.Helper()
	if out := w.inside(t, script+"; exit 0"); out != "" {
		t.Errorf("%s: %s", what, out)
	}
}

func TestWallFromInside(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	spec := plainSpec(d)
	// What no cgroup keeps is kept by limits of single processes.
	spec.Limits.BestEffort, spec.Limits.MemoryBytes = true, 256<<20
	w := &wall{d: d, m: created(t, d, spec)}
	for name, look := range map[string]func(*testing.T, *wall){
		"filter": insideFilter, "processes": insideProcesses, "ipc": insideIPC, "name": insideName, "cgroup": insideCgroup,
		"network": insideNetwork, "nested": insideNested, "system": insideSystem, "closed": insideClosed, "devices": insideDevices,
		"sys": insideSys, "proc-settings": insideProcSettings, "proc-files": insideProcFiles, "proc-dirs": insideProcDirs,
		"sizes": insideSizes, "etc": insideEtc, "agent": insideAgent, "cores": insideCores, "descriptors": insideDescriptors,
		"rlimits": insideRlimits, "signals": insideSignals,
	} {
		// Not parallel: they share the sandbox.
		t.Run(name, func(t *testing.T) { look(t, w) })
	}
}

func insideFilter(t *testing.T, w *wall) {
	status := w.inside(t, "grep -E '^(Seccomp|NoNewPrivs|CapEff|CapBnd):' /proc/self/status")
	for _, want := range []string{"Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"} {
		if !strings.Contains(status, want) {
			t.Errorf("no %q in %q", want, status)
		}
	}
}

func insideProcesses(t *testing.T, w *wall) {
	own := strconv.Itoa(os.Getpid())
	w.empty(t, "processes of the host", "cat /proc/"+own+"/comm 2>/dev/null | grep -F .test; kill -0 "+own+" 2>/dev/null && echo signalled")
	if out := w.inside(t, "cat /proc/1/comm"); !strings.Contains(out, "4") && !strings.Contains(out, "berm-agent") {
		t.Errorf("process 1 is %q", out)
	}
}

func insideIPC(t *testing.T, w *wall) {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		t.Skipf("this host gives no shared memory: %v", err)
	}
	defer func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) }()
	seen := func(table string) bool {
		for line := range strings.Lines(table) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[1] == strconv.Itoa(id) {
				return true
			}
		}
		return false
	}
	own, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil || !seen(string(own)) {
		t.Fatalf("the control: the host does not see its own segment: %v", err)
	}
	if seen(w.inside(t, "cat /proc/sysvipc/shm")) {
		t.Error("the host's shared memory is seen inside")
	}
}

func insideName(t *testing.T, w *wall) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if out := strings.TrimSpace(w.inside(t, "cat /proc/sys/kernel/hostname")); out != hostName || out == host {
		t.Errorf("the name inside is %q, the host's is %q", out, host)
	}
}

func insideCgroup(t *testing.T, w *wall) {
	// Groups of version 1 are joined when the namespace is there already: those tell
	// the sandbox's own name.
	for line := range strings.Lines(w.inside(t, "cat /proc/1/cgroup")) {
		if path, unified := strings.CutPrefix(line, "0::"); unified && strings.Contains(path, "berm") {
			t.Errorf("the host's cgroup is named: %s", line)
		}
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/cgroup", w.m.child.first.pid))
	own, ownErr := os.Readlink("/proc/self/ns/cgroup")
	if err == nil && ownErr == nil && theirs == own {
		t.Error("the sandbox is in the host's cgroup namespace")
	}
}

func insideNetwork(t *testing.T, w *wall) {
	listener, err := net.Listen("unix", "@berm-wall-"+w.m.id)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	w.empty(t, "interfaces of the host", "tail -n +3 /proc/net/dev | grep -v '^ *lo:'")
	w.empty(t, "sockets of the host", "grep -F berm-wall- /proc/net/unix")
}

func insideNested(t *testing.T, w *wall) {
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip("there is no unshare on this machine")
	}
	w.empty(t, "a user namespace inside", "unshare -U true 2>/dev/null && echo made")
}

// flags gives the options of the mounts inside, by mount point.
func (w *wall) flags(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for line := range strings.Lines(w.inside(t, "cat /proc/self/mountinfo")) {
		if fields := strings.Fields(line); len(fields) > 5 {
			out[fields[4]] = strings.Split(fields[5], ",")
		}
	}
	return out
}

func insideSystem(t *testing.T, w *wall) {
	flags := w.flags(t)
	paths := []string{"/etc"}
	for _, e := range w.d.system {
		if e.link == "" {
			paths = append(paths, e.path)
		}
	}
	for _, path := range paths {
		if !slices.Contains(flags[path], "ro") {
			t.Errorf("%s is mounted with %v", path, flags[path])
		}
	}
}

func insideClosed(t *testing.T, w *wall) {
	w.empty(t, "what could be made", "for d in / /dev /run /etc /usr /proc /mnt /home; do touch $d/x 2>/dev/null && echo $d; done")
}

func insideDevices(t *testing.T, w *wall) {
	known := []string{
		"console", "core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero",
	}
	for name := range strings.FieldsSeq(w.inside(t, "ls -A /dev")) {
		if !slices.Contains(known, name) {
			t.Errorf("/dev/%s is there", name)
		}
	}
}

func insideSys(t *testing.T, w *wall) { w.empty(t, "/sys", "ls -A /sys 2>/dev/null") }

func insideProcSettings(t *testing.T, w *wall) {
	flags := w.flags(t)
	for _, name := range w.d.mask.readOnly {
		if !slices.Contains(flags["/proc/"+name], "ro") {
			t.Errorf("/proc/%s is mounted with %v", name, flags["/proc/"+name])
		}
	}
	if len(w.d.mask.readOnly) == 0 {
		t.Error("there is nothing to look at")
	}
}

func insideProcFiles(t *testing.T, w *wall) {
	for _, name := range w.d.mask.files {
		w.empty(t, "/proc/"+name, "head -c 64 /proc/"+name+" 2>&1")
	}
	if len(w.d.mask.files) == 0 {
		t.Error("there is nothing to look at")
	}
}

func insideProcDirs(t *testing.T, w *wall) {
	flags := w.flags(t)
	for _, name := range w.d.mask.dirs {
		w.empty(t, "/proc/"+name, "ls -A /proc/"+name+" 2>&1")
		if flags["/proc/"+name] == nil {
			t.Errorf("/proc/%s is not covered", name)
		}
	}
	if len(w.d.mask.dirs) == 0 {
		t.Skip("this kernel has no such directory")
	}
}

func insideSizes(t *testing.T, w *wall) {
	for _, path := range []string{"/tmp", "/dev/shm", "/home/user", "/run", driver.OutputsPath} {
		blocks, err := parseInt(strings.TrimSpace(w.inside(t, "stat -f -c %b "+path)))
		if err != nil || blocks <= 0 || int64(blocks)*4096 > w.m.disk[path] {
			t.Errorf("%s has %d blocks for %d bytes, %v", path, blocks, w.m.disk[path], err)
		}
	}
}

func insideEtc(t *testing.T, w *wall) {
	if out := w.inside(t, "cut -d: -f1 /etc/passwd | tr '\\n' ' '"); out != "root user nobody " {
		t.Errorf("the users are %q", out)
	}
	w.empty(t, "the host's configuration", "ls -d /etc/shadow /etc/machine-id /etc/ssh /etc/fstab /etc/crontab /etc/cron.d /etc/init.d 2>/dev/null")
}

func insideAgent(t *testing.T, w *wall) {
	w.empty(t, "of the agent", "cat /proc/1/environ /proc/1/maps /proc/1/task/1/environ 2>/dev/null; ls /proc/1/fd 2>/dev/null; readlink /proc/1/exe /proc/1/cwd")
}

func insideCores(t *testing.T, w *wall) {
	out := strings.Join(strings.Fields(w.inside(t, "grep '^Max core' /proc/self/limits")), " ")
	if out != "Max core file size 1 1 bytes" {
		t.Errorf("%q", out)
	}
}

func insideDescriptors(t *testing.T, w *wall) {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	got, err := strconv.ParseUint(strings.TrimSpace(w.inside(t, "ulimit -Hn")), 10, 64)
	if err != nil || got == 0 || got > own.Max/2 {
		t.Errorf("a payload may have %d descriptors of the host's %d, %v", got, own.Max, err)
	}
}

func insideSignals(t *testing.T, w *wall) {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_SIGPENDING, &own); err != nil {
		t.Fatal(err)
	}
	got, err := strconv.ParseUint(strings.TrimSpace(w.inside(t, "bash -c 'ulimit -Hi'")), 10, 64)
	if err != nil || got > own.Max/8 {
		t.Errorf("a payload may queue %d signals of the host's %d, %v", got, own.Max, err)
	}
}

// insideRlimits: where there are cgroups the limits are theirs.
func insideRlimits(t *testing.T, w *wall) {
	support := w.d.cgroups.Support()
	if support.Memory && support.Processes {
		t.Skip("cgroups keep the limits of this caller")
	}
	limits := w.inside(t, "cat /proc/self/limits")
	value := func(name string) int {
		for line := range strings.Lines(limits) {
			if rest, ok := strings.CutPrefix(line, name); ok {
				n, _ := parseInt(strings.Fields(rest)[1])
				return n
			}
		}
		return 0
	}
	if n := value("Max processes"); !support.Processes && (n < 64 || n > 128) {
		t.Errorf("the hard limit on processes is %d", n)
	}
	if n := value("Max data size"); !support.Memory && n != 256<<20 {
		t.Errorf("the hard limit on data is %d", n)
	}
}

func TestWallFromOutside(t *testing.T) {
	t.Parallel()
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		d, _ := opened(t)
		m := created(t, d, plainSpec(d))
		if sessionOf(t, m.child.proc.Pid) == sessionOf(t, os.Getpid()) {
			t.Error("bubblewrap is in the caller's session")
		}
	})
	t.Run("inner-session", func(t *testing.T) {
		t.Parallel()
		d, _ := opened(t)
		m := created(t, d, plainSpec(d))
		if sessionOf(t, m.child.first.pid) == sessionOf(t, os.Getpid()) {
			t.Error("the agent is in the caller's session")
		}
	})
	t.Run("arguments", func(t *testing.T) {
		t.Parallel()
		d, _ := opened(t)
		dir := t.TempDir()
		m := created(t, d, plainSpec(d, driver.Mount{Name: "workdir", Source: dir, Dest: driver.WorkspacePath, Writable: true}))
		for _, pid := range []int{m.child.proc.Pid, m.child.first.pid} {
			words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err != nil || len(words) == 0 {
				t.Fatal(err)
			}
			for _, secret := range []string{dir, driver.WorkspacePath, d.kit.dir} {
				if bytes.Contains(words, []byte(secret)) {
					t.Errorf("%q names %s", words, secret)
				}
			}
		}
	})
}

// TestHostEnvironmentStaysOutside is not parallel: it sets a variable.
func TestHostEnvironmentStaysOutside(t *testing.T) {
	const secret = "of-the-host-alone"
	t.Setenv("BERM_WALL_SECRET", secret)
	d, _ := opened(t)
	m := created(t, d, plainSpec(d))
	read := 0
	for _, pid := range []int{m.child.proc.Pid, m.child.first.pid} {
		environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue // the agent is closed to its own user
		}
		read++
		if bytes.Contains(environment, []byte(secret)) {
			t.Errorf("process %d has the host's environment", pid)
		}
	}
	if read == 0 {
		t.Error("no environment could be looked at")
	}
}

// sessionOf reads a process's session.
func sessionOf(t *testing.T, pid int) int {
	t.Helper()
	id, err := unix.Getsid(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestTheAgentsProgramIsSealed: what runs in the sandbox cannot be changed, not
// even by whoever has its uid.
func TestTheAgentsProgramIsSealed(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	if err := d.agent.Chmod(0o755); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(d.agent.Fd())), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt([]byte("#!"), 0); err == nil {
		t.Error("it can be written")
	}
	if err := file.Truncate(1); err == nil {
		t.Error("it can be cut")
	}
}

// keyringMarker makes the test program say which session keyring it has.
const keyringMarker = "BERM_TEST_KEYRING"

func TestForkedProcessesHaveAKeyringOfTheirOwn(t *testing.T) {
	t.Parallel()
	if os.Getenv(keyringMarker) == "" {
		// A host program whose every thread has a session keyring, as after a login.
		runtime.LockOSThread() // and never unlocked: the thread ends with the test
		if _, _, errno := unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); errno != 0 {
			t.Skipf("this kernel gives no keyrings: %v", errno)
		}
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), keyringMarker+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	own, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if err != nil {
		t.Fatal(err)
	}
	f := newForker()
	defer f.close()
	if f.keyring != nil {
		t.Fatal(f.keyring)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	proc, err := f.start("/proc/self/exe", []string{keyringMarker}, &os.ProcAttr{Files: []*os.File{nil, write, write}})
	_ = write.Close()
	if err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 64)
	n, _ := read.Read(answer)
	if _, err := proc.Wait(); err != nil {
		t.Error(err)
	}
	if theirs, err := parseInt(string(answer[:n])); err != nil || theirs == own {
		t.Errorf("the session keyring is %q, the caller's is %d, %v", answer[:n], own, err)
	}
}
