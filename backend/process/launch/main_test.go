//go:build linux

package launch_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/backend/process/launch"
	"github.com/berm-dev/berm/backend/process/seccomp"
)

// What the test binary does instead of testing, by its argv[0]: the launched
// program has an empty environment.
const (
	modeLaunch   = "berm-test-launch"   // the launcher
	modeState    = "berm-test-state"    // print a state as JSON
	modeFiltered = "berm-test-filtered" // put on the filter, then execute the arguments
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case modeLaunch:
		if err := launch.Main(os.NewFile(launch.PlanFD, "plan")); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	case modeState:
		printState()
	case modeFiltered:
		filtered(os.Args[1:])
	default:
		os.Exit(m.Run())
	}
}

// state is what a launched program finds.
type state struct {
	UID, GID, Groups, CapInh, CapPrm, CapEff, CapBnd, CapAmb, NoNewPrivs string
	Env                                                                  []string
	Files                                                                map[string]string
	Dir                                                                  string
	Core                                                                 unix.Rlimit
	Keyring                                                              int
}

func printState() {
	var s state
	s.Env = os.Environ()
	s.Files = map[string]string{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !ofRuntime(to) {
			s.Files[e.Name()] = to
		}
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		for key, field := range map[string]*string{
			"Uid": &s.UID, "Gid": &s.GID, "Groups": &s.Groups, "CapInh": &s.CapInh, "CapPrm": &s.CapPrm,
			"CapEff": &s.CapEff, "CapBnd": &s.CapBnd, "CapAmb": &s.CapAmb, "NoNewPrivs": &s.NoNewPrivs,
		} {
			if key == name {
				*field = strings.Join(strings.Fields(value), " ")
			}
		}
	}
	s.Dir, _ = os.Getwd()
	_ = unix.Getrlimit(unix.RLIMIT_CORE, &s.Core)
	s.Keyring, _ = unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	_ = json.NewEncoder(os.Stdout).Encode(s)
	os.Exit(0)
}

// ofRuntime tells what Go's runtime opens in the program itself.
func ofRuntime(target string) bool {
	return strings.HasPrefix(target, "anon_inode:") || strings.HasPrefix(target, "/sys/fs/cgroup/") ||
		strings.HasPrefix(target, "/proc/")
}

func filtered(args []string) {
	runtime.LockOSThread()
	prog, err := seccomp.Program()
	if err == nil {
		err = seccomp.Load(prog)
	}
	if err == nil {
		err = syscall.Exec(args[0], args, nil)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

const (
	leasedUID = 1_900_000_077
	leasedGID = 1_900_000_078
)

// command prepares a launcher with its plan in a pipe and its status in another.
func command(plan launch.Plan, extra ...*os.File) (*exec.Cmd, *os.File, error) {
	data, err := plan.Encode()
	if err != nil {
		return nil, nil, err
	}
	plans, feed, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer feed.Close()
	if _, err := feed.Write(data); err != nil {
		return nil, nil, err
	}
	status, fail, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{modeLaunch}
	cmd.Stdin = plans
	cmd.ExtraFiles = append([]*os.File{fail}, extra...)
	return cmd, status, nil
}

// release closes the test's ends of what the launcher got.
func release(cmd *exec.Cmd) {
	if plans, ok := cmd.Stdin.(*os.File); ok {
		plans.Close()
	}
	cmd.ExtraFiles[0].Close()
}

// outcome is what became of a launch.
type outcome struct {
	stdout, stderr string
	failure        error // of the launcher
	code           int   // of whatever ended
}

// base gives a plan that runs a program with stdout and stderr.
func base(t testing.TB, args ...string) launch.Plan {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the launcher serves root callers only")
	}
	staging := filepath.Join(t.TempDir(), "staging")
	if err := os.Mkdir(staging, 0o700); err != nil {
		t.Fatal(err)
	}
	return launch.Plan{
		Parent: os.Getpid(), UID: leasedUID, GID: leasedGID, Staging: staging, Status: 3,
		Program: args[0], Args: args, Keep: []int{1, 2},
	}
}

// shell gives a plan that runs a script in the mount "work" of a source.
func shell(t testing.TB, source, script string, writable bool) launch.Plan {
	t.Helper()
	plan := base(t, "/bin/sh", "-c", "")
	plan.Mounts = []launch.Mount{{Name: "work", Source: source, Writable: writable}}
	plan.Args[2] = "cd " + plan.Path("work") + " || exit 99\n" + script
	return plan
}

func run(t testing.TB, plan launch.Plan, extra ...*os.File) outcome {
	t.Helper()
	cmd, status, err := command(plan, extra...)
	if err != nil {
		t.Fatal(err)
	}
	defer status.Close()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	release(cmd)
	failure := launch.ReadStatus(status)
	_ = cmd.Wait()
	return outcome{stdout.String(), stderr.String(), failure, cmd.ProcessState.ExitCode()}
}

// source makes a directory with an owner below a parent that only root may search.
func source(t testing.TB, uid, gid int) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the launcher serves root callers only")
	}
	private := filepath.Join(t.TempDir(), "private")
	dir := filepath.Join(private, "source")
	for _, err := range []error{os.Mkdir(private, 0o700), os.Mkdir(dir, 0o755), os.Chown(dir, uid, gid)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func owns(t *testing.T, path string, uid, gid uint32) {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Uid != uid || stat.Gid != gid {
		t.Errorf("%s belongs to %d:%d on the host, want %d:%d", path, stat.Uid, stat.Gid, uid, gid)
	}
}

func fields(text string) []int {
	var out []int
	for _, f := range strings.Fields(text) {
		n, _ := strconv.Atoi(f)
		out = append(out, n)
	}
	return out
}
