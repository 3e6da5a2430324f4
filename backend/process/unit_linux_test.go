package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func parseInt(text string) (int, error) { return strconv.Atoi(text) }

// index is where a run of arguments begins, -1 if nowhere.
func index(args []string, run ...string) int {
	for i := range args {
		if i+len(run) <= len(args) && slices.Equal(args[i:i+len(run)], run) {
			return i
		}
	}
	return -1
}

func testPlan() *boxPlan {
	mounts := []driver.Mount{
		{Name: "outputs", Dest: driver.OutputsPath, Writable: true},
		{Name: "workdir", Source: "/srv/w", Dest: driver.WorkspacePath, Writable: true},
		{Name: "uploads", Source: "/srv/u", Dest: driver.UploadsPath},
	}
	sizes, err := splitDisk(64<<20, mounts, driver.NetworkNone)
	if err != nil {
		panic(err)
	}
	return &boxPlan{
		system: []systemEntry{{path: "/usr"}, {path: "/bin", link: "usr/bin"}, {path: "/lib"}},
		mask:   procMask{readOnly: []string{"sys"}, files: []string{"kcore"}, dirs: []string{"acpi"}},
		kit:    "/kit", network: driver.NetworkNone, resolv: -1, sizes: sizes, mounts: mounts,
		bindings: []binding{
			{dest: driver.WorkspacePath, writable: true, source: "/proc/self/fd/9", fd: 9},
			{dest: driver.UploadsPath, source: "/stage/mount-2", fd: -1},
		},
		infoFD: 5, filterFD: 6,
	}
}

func TestOptionsBuildTheWall(t *testing.T) {
	t.Parallel()
	p := testPlan()
	args := p.options()
	for _, want := range [][]string{
		{"--unshare-user", "--unshare-all", "--disable-userns"}, {"--cap-drop", "ALL"}, {"--die-with-parent"}, {"--new-session"},
		{"--as-pid-1"}, {"--uid", "1000"}, {"--gid", "1000"}, {"--hostname", "berm"}, {"--ro-bind", "/usr", "/usr"},
		{"--symlink", "usr/bin", "/bin"}, {"--ro-bind", "/lib", "/lib"}, {"--ro-bind", "/kit/etc", "/etc"},
		{"--ro-bind", "/proc/sys", "/proc/sys"}, {"--ro-bind", "/kit/empty", "/proc/kcore"}, {"--ro-bind", "/kit/void", "/proc/acpi"},
		{"--bind-fd", "9", driver.WorkspacePath}, {"--ro-bind", "/stage/mount-2", driver.UploadsPath}, {"--info-fd", "5"}, {"--seccomp", "6"},
	} {
		if index(args, want...) < 0 {
			t.Errorf("%v is missing", want)
		}
	}
	for _, never := range []string{"--setenv", "--share-net", "--dev-bind", "--cap-add", "/sys"} {
		if slices.Contains(args, never) {
			t.Errorf("%s is there", never)
		}
	}
	order := []int{
		index(args, "--proc", "/proc"), index(args, "--ro-bind", "/proc/sys"), index(args, "--dev", "/dev"),
		index(args, "--tmpfs", "/dev/shm"), index(args, "--remount-ro", "/dev"), index(args, "--tmpfs", "/tmp"),
		index(args, "--bind-fd"), index(args, "--remount-ro", "/"),
	}
	if !slices.IsSorted(order) || order[0] < 0 {
		t.Errorf("the order is %v", order)
	}
	for i, arg := range args {
		if arg != "--tmpfs" {
			continue
		}
		size, err := strconv.ParseInt(args[i-1], 10, 64)
		if args[i-2] != "--size" || args[i-4] != "--perms" || err != nil || size <= 0 {
			t.Errorf("%v has no size or mode", args[i-4:i+2])
		}
	}
}

func TestHostNetworkKeepsAllOtherNamespaces(t *testing.T) {
	t.Parallel()
	p := testPlan()
	p.network, p.resolv = driver.NetworkHost, 7
	args := p.options()
	if slices.Contains(args, "--unshare-all") || slices.Contains(args, "--unshare-net") {
		t.Error("the network is not the host's")
	}
	for _, want := range []string{"--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup", "--disable-userns"} {
		if !slices.Contains(args, want) {
			t.Errorf("%s is missing", want)
		}
	}
	if index(args, "--ro-bind-data", "7", "/etc/resolv.conf") < index(args, "--ro-bind", "/kit/etc", "/etc") {
		t.Error("resolv.conf is covered")
	}
}

func TestArgumentsWithNULAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := encodeArgs([]string{"--bind", "/a\x00--bind\x00/", "/b"}); err == nil {
		t.Error("it is accepted")
	}
	if got, err := encodeArgs([]string{"a", "", "b"}); err != nil || string(got) != "a\x00\x00b\x00" {
		t.Errorf("%q %v", got, err)
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"bubblewrap 0.8.0\n": "0.8.0", "bubblewrap 0.11.0": "0.11.0", "bubblewrap 1.0-rc1": "1.0", "bubblewrap 0.9.1+git": "0.9.1",
		"": "", "bwrap 0.8.0": "", "bubblewrap": "", "bubblewrap x.y": "", "bubblewrap 99999999999999999999.1": "",
	} {
		got, ok := parseVersion(text)
		if dotted(got) != want && ok || ok != (want != "") {
			t.Errorf("%q: %v %v", text, got, ok)
		}
	}
}

// FuzzParseVersion: what is taken for a version, written plainly, is the same.
func FuzzParseVersion(f *testing.F) {
	for _, text := range []string{
		"bubblewrap 0.8.0", "bubblewrap 0.11.0\n", "bubblewrap 1.0-rc1", "bubblewrap 0.8", "bubblewrap 8", "bubblewrap", "", "bwrap 0.8.0", "bubblewrap  0.8.0 (x)", "bubblewrap 0..8",
		"bubblewrap .8", "bubblewrap 0.8.", "bubblewrap -1.2", "bubblewrap 0.99999999999999999999", "bubblewrap 0x1.2", "bubblewrap 0.8.0.0.0.0", "bubblewrap 0.8+deb12", "\nbubblewrap 0.8", "bubblewrap\t0.8",
		"bubblewrap 01.002", "bubblewrap ١.٢", "bubblewrap 0.8\x00",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := parseVersion(text)
		if !ok {
			return
		}
		plain := "bubblewrap " + strings.ReplaceAll(strings.Trim(fmt.Sprint(got), "[]"), " ", ".")
		if again, ok := parseVersion(plain); len(got) < 2 || !ok || !slices.Equal(again, got) {
			t.Errorf("%q: %v, and as %q %v", text, got, plain, again)
		}
	})
}

func TestJudgeUIDs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		uidMap, uids, want string
		held               bool
	}{
		"leased":        {"1000 1900000000 1\n", "1900000000\t1900000000\t1900000000\t1900000000", "1900000000", true},
		"root outside":  {"1000 0 1", "0 0 0 0", "0", false},
		"root inside":   {"0 1900000000 1", "1900000000 1900000000 1900000000 1900000000", "1900000000", false},
		"two entries":   {"1000 1900000000 1\n1001 0 1", "1900000000 1900000000 1900000000 1900000000", "1900000000", false},
		"a range":       {"1000 1900000000 2", "1900000000 1900000000 1900000000 1900000000", "1900000000", false},
		"another uid":   {"1000 1900000001 1", "1900000001 1900000001 1900000001 1900000001", "1900000000", false},
		"saved is root": {"1000 1900000000 1", "1900000000 1900000000 0 1900000000", "1900000000", false},
		"nothing":       {"", "", "1900000000", false},
	} {
		if held, detail := judgeUIDs(c.uidMap, c.uids, c.want); held != c.held {
			t.Errorf("%s: %v %s", name, held, detail)
		}
	}
}

func TestLeasesAreExclusiveAcrossDrivers(t *testing.T) {
	t.Parallel()
	// A range that no other test and no default uses.
	const base, count = 1_899_000_000, 2
	dir := t.TempDir()
	first, err := newLeases(dir, base, count)
	if err != nil {
		t.Fatal(err)
	}
	second, err := newLeases(dir, base, count)
	if err != nil {
		t.Fatal(err)
	}
	a, err := first.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := second.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a.uid != base || b.uid != base+1 {
		t.Errorf("leased %d and %d", a.uid, b.uid)
	}
	if _, err := first.take(t.Context()); !errors.Is(err, errdefs.Exhausted) {
		t.Errorf("a third: %v", err)
	}
	a.release()
	if again, err := first.take(t.Context()); err != nil || again.uid != base {
		t.Errorf("a driver does not use its own lease again: %v %v", again, err)
	} else {
		again.release()
	}
	if _, err := second.take(t.Context()); !errors.Is(err, errdefs.Exhausted) {
		t.Errorf("an idle lease is given to another driver: %v", err)
	}
	first.close()
	again, err := second.take(t.Context())
	for deadline := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(deadline); {
		// A child that is being started elsewhere may still hold a copy of the lock.
		again, err = second.take(t.Context())
	}
	if err != nil || again.uid != base {
		t.Fatalf("the lowest is not free again: %v %v", again, err)
	}
	again.release()
	b.release()
	second.close()
	for _, l := range []*leases{first, second} {
		if left, _ := os.ReadDir(l.dir); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

func TestLocksOfTheDeadAreRemovedAndOthersKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plant(t, dir, "1899100000.lock", "", 0o600)
	l, err := newLeases(dir, 1_899_100_001, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.take(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := newLeases(dir, 1_899_100_001, 1); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "1899100001.lock" {
		t.Errorf("%v %v", left, err)
	}
}

func TestUnmountable(t *testing.T) {
	t.Parallel()
	d := &bubble{system: []systemEntry{{path: "/usr"}, {path: "/bin", link: "usr/bin"}}}
	for dest, want := range map[string]bool{
		"/etc/x": true, "/usr/no-such-directory": true, "/bin/x": true, "/usr/bin": false, "/usr": false, "/etc": true,
		"/usrx": false, "/workspace": false, "/home/user/x": false,
	} {
		if got := d.unmountable(dest) != ""; got != want {
			t.Errorf("%s: %v", dest, got)
		}
	}
}

func TestUIDsInUseAreSeen(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	plant(t, proc, "7/status", "Name:\tx\nUid:\t5\t5\t1900000003\t5\n", 0o644)
	plant(t, proc, "self/status", "Uid:\t9\t9\t9\t9\n", 0o644)
	if err := os.Mkdir(filepath.Join(proc, "8"), 0o755); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[uint32]bool{1900000003: true, 5: true, 190000000: false, 9: false} {
		if used, err := uidRuns(proc, uid); err != nil || used != want {
			t.Errorf("%d: %v %v", uid, used, err)
		}
	}
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{Engine: "docker"}, {BwrapPath: "bwrap"}, {UIDBase: 10}, {UIDBase: 1<<32 - 2, UIDCount: 5}} {
		if len(c.faults()) != 1 {
			t.Errorf("%+v: %v", c, c.faults())
		}
		if _, err := c.Open(t.Context(), driver.Host{}); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if faults := (Config{}).faults(); len(faults) > 0 {
		t.Error(faults)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	t.Parallel()
	var noise tail
	for i := range 3000 {
		fmt.Fprintf(&noise, "line %d\x1b[2J\n", i)
	}
	reason := noise.reason()
	if len(noise.data) > maxNoise || !strings.Contains(reason, "line 2999") || strings.ContainsRune(reason, 0x1b) {
		t.Errorf("%d bytes: %q", len(noise.data), reason)
	}
}
