//go:build linux

package attack_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
)

// atOnce is how many sandboxes stand on one directory.
const atOnce = 8

// process-tier 1.7 weak 12, section 2 "srt 139; cc 31078, 43825, 81602", "cc 46584",
// "cc 25603", "cx 37318": nothing is made in the user's tree, not even for as long
// as sandboxes run, eight at once.
func TestTreeIsTheSameWhileSandboxesRun(t *testing.T) {
	t.Parallel()
	prepare(t)
	dir, uploads := hostDir(t), hostDir(t)
	project(t, dir)
	project(t, uploads)
	before := append(listing(t, dir), listing(t, uploads)...)
	look := func() []string { return append(listing(t, dir), listing(t, uploads)...) }
	var making, watching sync.WaitGroup
	made := make(chan struct{})
	watching.Go(func() {
		for {
			same(t, "while sandboxes are made", before, look())
			select {
			case <-made:
				return
			default:
			}
		}
	})
	boxes := make([]*berm.Sandbox, atOnce)
	for i := range boxes {
		making.Go(func() {
			sb, err := stage.provider.Create(bounded(t), berm.CreateOptions{Layout: &berm.Layout{Workdir: dir, Uploads: berm.HostVolume(uploads)}})
			if err != nil {
				t.Errorf("create: %v", err)
				return
			}
			boxes[i] = sb
			t.Cleanup(func() { destroyed(t, sb) })
			// It reads everything, and works everywhere else.
			res, err := sb.Exec(bounded(t), berm.Command{Args: []string{"sh", "-c",
				`find . /mnt -type f -exec cat {} + | wc -c; mktemp; echo x > ~/x; test -e .gitmodules && echo stub; test -e .git/info && echo stub; true`}})
			if err != nil || !res.Success() || strings.Contains(string(res.Stdout), "stub") {
				t.Errorf("%v %v: %q", res, err, res.Stdout)
			}
		})
	}
	making.Wait()
	close(made)
	watching.Wait()
	same(t, "while they run", before, look())
	noMounts(t, dir, uploads)
	for _, sb := range boxes {
		if sb != nil {
			destroyed(t, sb)
		}
	}
	same(t, "afterwards", before, look())
}

// noMounts checks that the host's mount table knows nothing of directories.
func noMounts(t *testing.T, dirs ...string) {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if strings.Contains(string(table), dir) {
			t.Errorf("the host has a mount of %s", dir)
		}
	}
}

// hostPlan is what another process of the tests has to do, in an environment
// variable.
type hostPlan struct {
	Role    string // "keeper" or "host"
	State   string
	Workdir string
	Count   int
	// End is how the host program ends: "close", or by SIGKILL: "steady", "stopped"
	// (its sandboxes are stopped before) or "creating".
	End string
	// Wait is for "creating": from the opening to the kill.
	Wait time.Duration
}

const hostPlanEnv = "BERM_ATTACK_HOST_PLAN"

// TestHostProgram is no test: it is the other processes of
// TestNothingIsLeftBehind. The keeper adopts what loses its parent.
func TestHostProgram(t *testing.T) {
	text := os.Getenv(hostPlanEnv)
	if text == "" {
		t.Skip("it is started by another test")
	}
	var plan hostPlan
	if err := json.Unmarshal([]byte(text), &plan); err != nil {
		t.Fatal(err)
	}
	if plan.Role == "keeper" {
		keepHost(t, plan)
		return
	}
	agent := os.Getenv("BERM_TEST_AGENT")
	p, err := berm.Open(t.Context(), process.Config{}, berm.Config{Agent: berm.AgentProgram{Path: agent}, StateDir: plan.State})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println("kit", ownKit())
	var work sync.WaitGroup
	for range plan.Count {
		work.Go(func() {
			for {
				sb, err := p.Create(t.Context(), berm.CreateOptions{Layout: &berm.Layout{Workdir: plan.Workdir}})
				if err != nil {
					t.Errorf("create: %v", err)
					return
				}
				res, err := sb.Exec(t.Context(), berm.Command{Args: []string{"sh", "-c", `cat private >/dev/null; sleep 1000 & setsid sleep 1000 & exit 0`}})
				if err != nil || !res.Success() {
					t.Errorf("exec: %v %v", res, err)
				}
				if plan.End != "creating" {
					return
				}
				if err := sb.Close(); err != nil {
					t.Errorf("destroy: %v", err)
				}
			}
		})
	}
	work.Wait()
	fmt.Println("ready")
	if plan.End == "close" {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		return
	}
	_, _ = os.Stdin.Read(make([]byte, 1)) // until it is killed
	t.Error("nobody killed it")
}

// ownKit finds the driver's directory in shared memory by the lock that it holds.
func ownKit() string {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		target, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if i := strings.Index(target, "/berm-kit-"); i >= 0 {
			name, _, _ := strings.Cut(target[i+1:], "/")
			return target[:i+1] + name
		}
	}
	return "unknown"
}

// keepHost starts the host program, ends it as planned, and waits until all that
// came of it has ended.
func keepHost(t *testing.T, plan hostPlan) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	plan.Role = "host"
	cmd := planned(t, plan)
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	waitLine := func(word string) {
		for lines.Scan() {
			fmt.Println(lines.Text())
			if strings.HasPrefix(lines.Text(), word) {
				return
			}
		}
		t.Errorf("the host program did not say %s", word)
	}
	waitLine("kit ")
	if plan.End == "creating" {
		time.Sleep(plan.Wait) // the moment is what is tried
	} else {
		waitLine("ready")
	}
	if plan.End == "stopped" {
		for _, pid := range descendants(cmd.Process.Pid) {
			_ = unix.Kill(pid, unix.SIGSTOP) // some may have ended
		}
	}
	if plan.End == "close" {
		for lines.Scan() {
			fmt.Println(lines.Text())
		}
	} else if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.ECHILD) {
			return
		}
		if time.Now().After(deadline) {
			for _, pid := range descendants(os.Getpid()) {
				command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				where, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
				stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				t.Errorf("process %d outlives its host: %q in %s: %.60s", pid, command, where, stat)
				_ = unix.Kill(pid, unix.SIGKILL)
			}
			return
		}
	}
}

// planned makes the command of another process of the tests.
func planned(t *testing.T, plan hostPlan) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHostProgram$", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), hostPlanEnv+"="+string(text))
	return cmd
}

// descendants lists the processes below one.
func descendants(of int) []int {
	parents := map[int]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			parents[pid] = parent
		}
	}
	var out []int
	for pid := range parents {
		for up := parents[pid]; up > 0; up = parents[up] {
			if up == of {
				out = append(out, pid)
				break
			}
		}
	}
	return out
}

// process-tier 1.7 weak 11, 12 and section 2 "leak on SIGKILL"; attacks 23 "Host
// killed while the sandbox is frozen": whatever way a host program ends, and
// whatever it does at that moment, its sandboxes end, the user's tree is as it was,
// and the next start clears what is berm's own.
func TestNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	prepare(t)
	plans := map[string]hostPlan{
		"closed": {End: "close", Count: atOnce}, "killed": {End: "steady", Count: atOnce}, "killed while stopped": {End: "stopped", Count: 2},
	}
	for i := range max(scaled(24), 3) {
		plans[fmt.Sprint("killed while creating ", i)] = hostPlan{End: "creating", Count: 4, Wait: time.Duration(7+23*i) * time.Millisecond}
	}
	for name, plan := range plans {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testNothingIsLeft(t, plan)
		})
	}
}

func testNothingIsLeft(t *testing.T, plan hostPlan) {
	dir, own := hostDir(t), hostDir(t)
	project(t, dir)
	before := listing(t, dir)
	plan.Role, plan.State, plan.Workdir = "keeper", filepath.Join(own, "state"), dir
	temp := filepath.Join(own, "tmp")
	if err := os.Mkdir(temp, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := planned(t, plan)
	cmd.Env = append(cmd.Env, "TMPDIR="+temp, "BERM_TEST_AGENT="+stage.agent)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	_, kit, found := strings.Cut(string(out), "kit ")
	if kit, _, _ = strings.Cut(kit, "\n"); !found || !strings.HasPrefix(kit, "/") {
		t.Fatalf("the host program has no kit:\n%s", out)
	}
	same(t, "after the end", before, listing(t, dir))
	noMounts(t, dir, own)
	var ids []string
	records, _ := filepath.Glob(filepath.Join(plan.State, "sandboxes", "*"))
	for _, r := range records {
		id, _, _ := strings.Cut(filepath.Base(r), ".")
		ids = append(ids, id)
	}
	if recorded := len(ids) > 0; plan.End != "creating" && recorded == (plan.End == "close") {
		t.Errorf("recorded: %q", ids)
	}
	// The next start in the same place, by whoever comes.
	p, err := berm.Open(bounded(t), process.Config{}, berm.Config{Agent: berm.AgentProgram{Path: stage.agent}, StateDir: plan.State})
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(p.Notes(), "; "); strings.Contains(notes, "sweep") {
		t.Errorf("the sweep complains: %s", notes)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(kit); err == nil {
		t.Errorf("%s is left", kit)
	}
	noTrace(t, plan.State, temp, ids)
}

// noTrace looks for files, cgroups and sockets.
func noTrace(t *testing.T, state, temp string, ids []string) {
	t.Helper()
	for _, line := range listing(t, state) {
		if !strings.Contains(line, "mode 40700") {
			t.Errorf("left in the state directory: %s", line)
		}
	}
	left, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		// The killed test program's own.
		if !strings.HasPrefix(e.Name(), "berm-attack-") && !strings.HasPrefix(e.Name(), "Test") {
			t.Errorf("left in the folder for temporary files: %s", e.Name())
		}
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		for _, pattern := range []string{"/sys/fs/cgroup/berm/berm-", "/sys/fs/cgroup/*/berm/berm-", "/sys/fs/cgroup/*/berm-", "/sys/fs/cgroup/*/*/berm-"} {
			if found, _ := filepath.Glob(pattern + id); len(found) > 0 {
				t.Errorf("cgroups are left: %v", found)
			}
		}
	}
	if slices.Contains(strings.Fields(string(sockets)), state) || strings.Contains(string(sockets), temp) {
		t.Error("a socket is left")
	}
}
