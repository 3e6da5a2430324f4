//go:build linux

package launch_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/backend/process/launch"
	"github.com/berm-dev/berm/backend/process/seccomp"
	"github.com/berm-dev/berm/errdefs"
)

func TestState(t *testing.T) {
	t.Parallel()
	plan := base(t, "/proc/self/exe")
	plan.Args = []string{modeState}
	kept, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	defer other.Close()
	plan.Keep = []int{1, 2, 5}
	got := run(t, plan, other, kept) // 4 is not kept, 5 is
	var s state
	if err := json.Unmarshal([]byte(got.stdout), &s); err != nil || got.failure != nil {
		t.Fatalf("%v, %+v", err, got)
	}
	const none = "0000000000000000"
	for name, pair := range map[string][2]string{
		"uids":         {s.UID, strings.TrimSpace(strings.Repeat(strconv.Itoa(leasedUID)+" ", 4))},
		"gids":         {s.GID, strings.TrimSpace(strings.Repeat(strconv.Itoa(leasedGID)+" ", 4))},
		"groups":       {s.Groups, ""},
		"inheritable":  {s.CapInh, none},
		"permitted":    {s.CapPrm, none},
		"effective":    {s.CapEff, none},
		"bounding":     {s.CapBnd, none},
		"ambient":      {s.CapAmb, none},
		"no new privs": {s.NoNewPrivs, "1"},
		"directory":    {s.Dir, "/"},
		"stdin":        {s.Files["0"], "/dev/null"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %q, want %q", name, pair[0], pair[1])
		}
	}
	if len(s.Env) != 0 {
		t.Errorf("environment: %q", s.Env)
	}
	if len(s.Files) != 4 || !strings.HasPrefix(s.Files["5"], "pipe:") {
		t.Errorf("descriptors: %v", s.Files)
	}
	if s.Core != (unix.Rlimit{Cur: 1, Max: 1}) {
		t.Errorf("core limit: %+v", s.Core)
	}
	if own, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false); err == nil && own == s.Keyring {
		t.Error("the session keyring is the caller's")
	}
}

// TestNoCapabilityIsInherited: what the caller would hand on to its children, and a
// change of uid leaves, is gone.
func TestNoCapabilityIsInherited(t *testing.T) {
	t.Parallel()
	s := stateOf(t, &syscall.SysProcAttr{AmbientCaps: []uintptr{unix.CAP_NET_RAW}})
	const none = "0000000000000000"
	if s.CapInh != none || s.CapAmb != none || s.CapPrm != none || s.CapEff != none {
		t.Errorf("capabilities are left: %+v", s)
	}
}

func TestNoGroupIsInherited(t *testing.T) {
	t.Parallel()
	s := stateOf(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: 0, Groups: []uint32{4, 2345}}})
	if s.Groups != "" {
		t.Errorf("groups are left: %q", s.Groups)
	}
}

// TestNoKeyringIsInherited: what a thread starts has the thread's session keyring
// unless somebody sees to another.
func TestNoKeyringIsInherited(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if _, _, errno := unix.RawSyscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); errno != 0 {
		t.Skipf("this kernel gives no keyrings: %v", errno)
	}
	own, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if err != nil {
		t.Fatal(err)
	}
	if s := stateOf(t, nil); s.Keyring == own || s.Keyring == 0 {
		t.Errorf("the session keyring is %d, the caller's is %d", s.Keyring, own)
	}
}

// stateOf launches with attributes of the launcher's process and gives what the
// program finds.
func stateOf(t *testing.T, attr *syscall.SysProcAttr) state {
	t.Helper()
	plan := base(t, "/proc/self/exe")
	plan.Args = []string{modeState}
	cmd, status, err := command(plan)
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	var stdout bytes.Buffer
	cmd.Stdout, cmd.SysProcAttr = &stdout, attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	release(cmd)
	failure := launch.ReadStatus(status)
	_ = cmd.Wait()
	var s state
	if err := json.Unmarshal(stdout.Bytes(), &s); err != nil || failure != nil {
		t.Fatalf("%v, %v", err, failure)
	}
	return s
}

// TestOwner: what the sandbox writes belongs to the directory's owner on the host,
// also where that is root, and where the directory's parent is closed to others.
func TestOwner(t *testing.T) {
	t.Parallel()
	for _, owner := range [][2]int{{1234, 2345}, {0, 0}, {leasedUID, leasedGID}, {leasedUID, 4}} {
		t.Run(fmt.Sprint(owner), func(t *testing.T) {
			t.Parallel()
			dir := source(t, owner[0], owner[1])
			got := run(t, shell(t, dir, `set -e
				echo hello > file; mkdir sub; mkfifo fifo; ln -s /x link; mv file sub/file
				stat -c '%u %g' . sub/file`, true))
			if got.failure != nil || got.code != 0 {
				t.Fatalf("%+v", got)
			}
			if inside := fields(got.stdout); !slices.Equal(inside, []int{leasedUID, leasedGID, leasedUID, leasedGID}) {
				t.Errorf("owners inside: %v", inside)
			}
			for _, name := range []string{"sub", "sub/file", "fifo", "link"} {
				owns(t, filepath.Join(dir, name), uint32(owner[0]), uint32(owner[1]))
			}
		})
	}
}

// TestStrangers: files of other owners in a shared directory are nobody's.
func TestStrangers(t *testing.T) {
	t.Parallel()
	dir := source(t, 1234, 2345)
	for name, uid := range map[string]int{"root": 0, "other": 777} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte("keep"), 0o600), os.Chmod(path, 0o666), os.Chown(path, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	got := run(t, shell(t, dir, `stat -c '%u %g' root other
		for f in root other; do
			(echo x > $f) 2>/dev/null && echo "wrote $f"
			chmod 777 $f 2>/dev/null && echo "changed $f"
			rm -f $f 2>/dev/null && echo "removed $f"
			mv $f moved 2>/dev/null && echo "moved $f"
		done; true`, true))
	if got.failure != nil || strings.TrimSpace(got.stdout) != "65534 65534\n65534 65534" {
		t.Fatalf("%+v", got)
	}
	for _, name := range []string{"root", "other"} {
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != "keep" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	dir := source(t, 1234, 2345)
	secret := filepath.Join(dir, "secret")
	if err := errors.Join(os.WriteFile(secret, []byte("the owner may read"), 0o400), os.Chown(secret, 1234, 2345)); err != nil {
		t.Fatal(err)
	}
	got := run(t, shell(t, dir, `cat secret; echo x > new`, false))
	if got.stdout != "the owner may read" || !strings.Contains(got.stderr, "Read-only file system") {
		t.Fatalf("%+v", got)
	}
}

// TestSetID: a set-id file can be made without the filter, which is why the mounts
// are nosuid and why there is a filter.
func TestSetID(t *testing.T) {
	t.Parallel()
	dir := source(t, 0, 0)
	script := `cp /bin/true tool && chmod 4755 tool; grep -E "$PWD " /proc/self/mountinfo`
	got := run(t, shell(t, dir, script, true))
	if got.failure != nil {
		t.Fatalf("%+v", got)
	}
	if !strings.Contains(got.stdout, "nosuid") || !strings.Contains(got.stdout, "nodev") ||
		!strings.Contains(got.stdout, "idmapped") {
		t.Errorf("the mount: %s", got.stdout)
	}
	tool := filepath.Join(dir, "tool")
	if info, err := os.Stat(tool); err != nil || info.Mode()&os.ModeSetuid == 0 {
		t.Fatalf("without the filter: %v, %v (the test proves nothing)", info, err)
	}
	if err := os.Remove(tool); err != nil {
		t.Fatal(err)
	}
	plan := shell(t, dir, `cp /bin/true tool; chmod 4755 tool; mknod w c 0 0; mkdir -m 2755 d; install -m 6755 tool t2; true`, true)
	plan.Args = append([]string{modeFiltered}, plan.Args...)
	plan.Program = "/proc/self/exe"
	got = run(t, plan)
	if got.failure != nil || strings.Count(got.stderr, "Operation not permitted") < 3 {
		t.Errorf("%+v", got)
	}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeDevice) != 0 {
			t.Errorf("%s is %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSources: every bad source is named in one error, and nothing is started.
func TestSources(t *testing.T) {
	t.Parallel()
	dir := source(t, 1234, 2345)
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(
		os.Mkdir(at("real"), 0o755), os.Mkdir(at("real/sub"), 0o755), os.Symlink("real", at("link")),
		os.WriteFile(at("file"), nil, 0o644), unix.Mkfifo(at("fifo"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	before, err := launch.Identify(at("real"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := launch.Identify(at("link")); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("a link: %v", err)
	}
	if _, err := launch.Identify(at("none")); !errors.Is(err, errdefs.NotFound) {
		t.Errorf("nothing: %v", err)
	}
	if err := errors.Join(os.Rename(at("real"), at("old")), os.Mkdir(at("real"), 0o755)); err != nil {
		t.Fatal(err)
	}
	plan := base(t, "/bin/echo", "started")
	plan.Mounts = []launch.Mount{
		{Name: "good", Source: dir, Writable: true},
		{Name: "link", Source: at("link"), Writable: true},
		{Name: "behind", Source: at("link/sub")},
		{Name: "file", Source: at("file")},
		{Name: "fifo", Source: at("fifo")},
		{Name: "none", Source: at("none")},
		{Name: "swapped", Source: at("real"), Identity: &before},
	}
	got := run(t, plan)
	if got.stdout != "" || !errors.Is(got.failure, errdefs.Invalid) {
		t.Fatalf("%+v", got)
	}
	var failure *errdefs.Error
	errors.As(got.failure, &failure)
	if len(failure.Reasons) != 6 {
		t.Errorf("%d reasons: %q", len(failure.Reasons), failure.Reasons)
	}
	for _, want := range []string{"mount link:", "mount behind:", "mount file:", "mount fifo:", "mount none:", "mount swapped:"} {
		if !strings.Contains(got.failure.Error(), want) {
			t.Errorf("no %q in %v", want, got.failure)
		}
	}
}

// TestNoMap: /proc takes no idmapped mounts.
func TestNoMap(t *testing.T) {
	t.Parallel()
	got := run(t, shell(t, "/proc/sys/kernel", "cat ostype; echo x > ostype", false))
	if got.failure != nil || got.stdout != "Linux\n" || got.code == 0 {
		t.Errorf("read-only: %+v", got)
	}
	got = run(t, shell(t, "/proc/sys/kernel", "echo started", true))
	if got.stdout != "" || !errors.Is(got.failure, errdefs.Unsupported) || !strings.Contains(got.failure.Error(), "mount work") {
		t.Errorf("writable: %+v", got)
	}
}

// TestNothingOnTheHost: while the program runs the host sees no mount of it.
func TestNothingOnTheHost(t *testing.T) {
	t.Parallel()
	dir := source(t, 1234, 2345)
	wait, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer wait.Close()
	plan := shell(t, dir, "echo ready; read x <&4", true)
	plan.Keep = []int{1, 2, 4}
	cmd, status, err := command(plan, wait)
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	release(cmd)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Errorf("%q, %v", line, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), filepath.Dir(plan.Staging)) {
		t.Errorf("the host's mounts, %v:\n%s", err, mounts)
	}
	if entries, err := os.ReadDir(plan.Staging); err != nil || len(entries) != 0 {
		t.Errorf("the staging directory on the host: %v, %v", entries, err)
	}
	_ = end.Close()
	_, _ = io.Copy(io.Discard, stdout)
	_ = cmd.Wait()
}

func TestWrongParent(t *testing.T) {
	t.Parallel()
	plan := base(t, "/bin/echo", "started")
	plan.Parent = 1
	if got := run(t, plan); got.stdout != "" || !errors.Is(got.failure, errdefs.Internal) {
		t.Errorf("%+v", got)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	plan := base(t, "/no/such/program")
	if got := run(t, plan); !errors.Is(got.failure, errdefs.Unavailable) || !strings.Contains(got.failure.Error(), "/no/such/program") {
		t.Errorf("program: %+v", got)
	}
	plan = base(t, "/bin/true")
	plan.Keep = append(plan.Keep, 900)
	if got := run(t, plan); got.failure == nil || !strings.Contains(got.failure.Error(), "descriptor 900") {
		t.Errorf("descriptor: %+v", got)
	}
	plan = base(t, "/bin/true")
	link := plan.Staging + "-link"
	err := errors.Join(os.Symlink(plan.Staging, link), os.Chmod(filepath.Dir(link), 0o755),
		os.Chmod(filepath.Dir(filepath.Dir(link)), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, plan); got.failure != nil {
		t.Errorf("staging directory that others may reach: %+v", got)
	}
	plan.Staging = link
	if got := run(t, plan); got.failure == nil || !strings.Contains(got.failure.Error(), "symbolic link") {
		t.Errorf("staging link: %+v", got)
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	bad := launch.Plan{
		Staging: "relative", Program: "../bwrap", Args: nil, Status: 5, Keep: []int{5},
		Mounts: []launch.Mount{{Name: "../x", Source: "/a/../b"}, {Name: "y", Source: "/b"}, {Name: "y", Source: "/c"}},
	}
	_, err := bad.Encode()
	var failure *errdefs.Error
	if !errors.As(err, &failure) || failure.Kind != errdefs.Invalid || len(failure.Reasons) != 10 {
		t.Errorf("%v", err)
	}
	if err := launch.Main(strings.NewReader(`{"uid": "x"}`)); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("%v", err)
	}
	for _, status := range []string{"{}", "nonsense", `{"name":""}`} {
		if err := launch.ReadStatus(strings.NewReader(status)); !errors.Is(err, errdefs.Internal) {
			t.Errorf("%s: %v", status, err)
		}
	}
}

// TestBubblewrap goes the whole way: bubblewrap as the leased uid, with a filter,
// binds a staged mount.
func TestBubblewrap(t *testing.T) {
	t.Parallel()
	bwrap, err := exec.LookPath("bwrap")
	if err != nil {
		t.Skip("bubblewrap is not installed")
	}
	dir := source(t, 0, 0)
	plan := base(t, bwrap)
	prog, err := seccomp.Program()
	if err != nil {
		t.Fatal(err)
	}
	filter, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer filter.Close()
	if _, err := feed.Write(seccomp.Encode(prog)); err != nil {
		t.Fatal(err)
	}
	feed.Close()
	plan.Mounts = []launch.Mount{{Name: "out", Source: dir, Writable: true}}
	plan.Keep = []int{1, 2, 4}
	plan.Args = strings.Fields(bwrap + " --unshare-user --unshare-all --disable-userns --uid 1000 --gid 1000" +
		" --die-with-parent --new-session --as-pid-1 --seccomp 4 --ro-bind /usr /usr --symlink usr/bin /bin" +
		" --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --bind " + plan.Path("out") + " /out /bin/sh -c")
	plan.Args = append(plan.Args, `cd /out && echo x > file && stat -c '%u %g' file; chmod 4755 file; id -u
		grep -E '^(CapEff|Seccomp|NoNewPrivs)' /proc/self/status | tr -s '\t\n' ' '`)
	got := run(t, plan, filter)
	if got.failure != nil || !strings.HasPrefix(got.stdout, "1000 1000\n1000\n") ||
		!strings.Contains(got.stdout, "CapEff: 0000000000000000 NoNewPrivs: 1 Seccomp: 2") ||
		!strings.Contains(got.stderr, "not permitted") {
		t.Fatalf("%+v", got)
	}
	owns(t, filepath.Join(dir, "file"), 0, 0)
}

// BenchmarkLaunch is the time from the start of the launcher to the end of
// /bin/true that it becomes, beside /bin/true alone.
func BenchmarkLaunch(b *testing.B) {
	for _, c := range []struct {
		name   string
		mounts []int
	}{{"none", nil}, {"unmapped", []int{leasedUID}}, {"one", []int{1234}}, {"three owners", []int{1, 2, 3}}} {
		b.Run(c.name, func(b *testing.B) {
			plan := base(b, "/bin/true")
			for i, uid := range c.mounts {
				gid := leasedGID
				dir := source(b, uid, gid)
				plan.Mounts = append(plan.Mounts, launch.Mount{Name: strconv.Itoa(i), Source: dir, Writable: true})
			}
			for b.Loop() {
				if got := run(b, plan); got.failure != nil || got.code != 0 {
					b.Fatalf("%+v", got)
				}
			}
		})
	}
	b.Run("true alone", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
