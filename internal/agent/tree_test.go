package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// daemons starts what escapes process groups, parent chains and sessions: a
// background child, a setsid daemon, a double fork, and a forking loop. Each
// writes its pid into pids/.
const daemons = `
mkdir -p pids
(echo $$ > /dev/null; sh -c 'echo $$ > pids/child; exec sleep 1000') &
setsid sh -c 'echo $$ > pids/setsid; exec sleep 1000' &
(setsid sh -c 'sh -c "echo \$\$ > pids/double; exec sleep 1000" &' &) 
(setsid sh -c 'echo $$ > pids/loop; while :; do sleep 0.01 & wait; done' &)
while [ $(ls pids | wc -l) -lt 4 ]; do sleep 0.01; done
`

// forest is one way to find a command's processes.
type forest struct {
	name string
	open func(t *testing.T, dir string) *inside
}

// forests lists every way that works on this machine: in this process and in
// its own, as root and as another user.
func forests(t *testing.T) []forest {
	t.Helper()
	marked := func(dir string) boot.Config {
		config := bootFor(dir)
		config.Mark = true
		return config
	}
	out := []forest{
		{"mark", func(t *testing.T, dir string) *inside { return open(t, marked(dir)) }},
		{"mark, own process", func(t *testing.T, dir string) *inside { return openOwn(t, marked(dir), nil) }},
		{"mark, shared", func(t *testing.T, dir string) *inside {
			config := marked(dir)
			config.Shared = true
			return openOwn(t, config, nil)
		}},
	}
	if os.Getuid() != 0 {
		return out
	}
	return append(out,
		forest{"mark, unprivileged", func(t *testing.T, dir string) *inside {
			return openOwn(t, marked(dir), unprivileged(t, dir))
		}},
		forest{"cgroup", func(t *testing.T, dir string) *inside {
			cgroup, _ := cgroup2(t)
			return open(t, bootFor(dir), cgroup)
		}},
		forest{"cgroup, own process", func(t *testing.T, dir string) *inside {
			cgroup, _ := cgroup2(t)
			return openOwn(t, bootFor(dir), nil, cgroup)
		}},
		forest{"cgroup, unprivileged", func(t *testing.T, dir string) *inside {
			cgroup, path := cgroup2(t)
			give(t, path)
			// The agent lives in the delegated tree, as it has to.
			prefix := append([]string{"sh", "-c", `echo 0 > "$0"/agent/cgroup.procs && exec "$@"`, path}, unprivileged(t, dir)...)
			return openOwn(t, bootFor(dir), prefix, cgroup)
		}},
	)
}

const otherUser = 65534

// unprivileged gives dir to another user and the prefix that becomes it.
func unprivileged(t *testing.T, dir string) []string {
	t.Helper()
	if err := os.Chown(dir, otherUser, otherUser); err != nil {
		t.Fatal(err)
	}
	for parent := dir; parent != "/" && parent != "/tmp"; parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	id := strconv.Itoa(otherUser)
	return []string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--no-new-privs", "--inh-caps=-all"}
}

// cgroup2 makes a cgroup below the machine's v2 tree and removes it.
func cgroup2(t testing.TB) (named, string) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var fs unix.Statfs_t
		if unix.Statfs(root, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		path := filepath.Join(root, "berm-test-"+strings.ToLower(rand.Text()[:10]))
		return makeCgroup(t, path, "")
	}
	t.Skip("no cgroup v2 tree on this machine")
	return named{}, ""
}

// makeCgroup opens a new cgroup, or a file in it, for the boot message.
func makeCgroup(t testing.TB, path, file string) (named, string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Skipf("cgroups cannot be made here: %v", err)
	}
	t.Cleanup(func() {
		deadline := time.Now().Add(5 * time.Second)
		for {
			_ = os.Remove(filepath.Join(path, "agent"))
			err := os.Remove(path)
			if err == nil || errors.Is(err, os.ErrNotExist) {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("the cgroup stays: %v", err)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	name, flags := boot.CgroupDir, os.O_RDONLY
	if file != "" {
		name, flags = boot.TasksPrefix+path, os.O_WRONLY
	}
	opened, err := os.OpenFile(filepath.Join(path, file), flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	return named{name, opened}, path
}

// give delegates a cgroup to the other user.
func give(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(path, "agent"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "agent", "agent/cgroup.procs"} {
		if err := os.Chown(filepath.Join(path, name), otherUser, otherUser); err != nil {
			t.Fatal(err)
		}
	}
}

// pidsOf reads what the daemons wrote: pids of this namespace.
func pidsOf(t *testing.T, dir string) map[string]int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "pids"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, "pids", entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
			out[entry.Name()] = pid
		}
	}
	return out
}

func allGone(t *testing.T, dir string) {
	t.Helper()
	pids := pidsOf(t, dir)
	if len(pids) != 4 {
		t.Fatalf("the daemons did not start: %v", pids)
	}
	for name, pid := range pids {
		deadline := time.Now().Add(10 * time.Second)
		for alive(pid) {
			if time.Now().After(deadline) {
				t.Errorf("%s (pid %d) lives on", name, pid)
				_ = unix.Kill(pid, unix.SIGKILL)
				break
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}

func TestTreesEndWhole(t *testing.T) {
	t.Parallel()
	for _, f := range forests(t) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			t.Run("timeout", func(t *testing.T) { t.Parallel(); testTimeout(t, f) })
			t.Run("cancel", func(t *testing.T) { t.Parallel(); testCancel(t, f) })
			t.Run("kill after the leader", func(t *testing.T) { t.Parallel(); testKillAfterLeader(t, f) })
			t.Run("deadline of envd's way", func(t *testing.T) { t.Parallel(); testDeadline(t, f) })
			t.Run("agent's end", func(t *testing.T) { t.Parallel(); testAgentEnd(t, f) })
		})
	}
}

func testTimeout(t *testing.T, f forest) {
	in := f.open(t, t.TempDir())
	req := shell(daemons + "echo partial; sleep 1000")
	req.TimeoutMs = 2500
	began := time.Now()
	out := in.mustRun(t, req)
	if out.end.GetReason() != agentv1.EndReason_END_REASON_TIMED_OUT || out.end.GetExited() || out.end.GetExitCode() != -1 {
		t.Errorf("end %v", out.end)
	}
	if string(out.stdout) != "partial\n" || time.Since(began) > 15*time.Second {
		t.Errorf("stdout %q after %v", out.stdout, time.Since(began))
	}
	allGone(t, in.dir)
}

func testCancel(t *testing.T, f forest) {
	in := f.open(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := in.process.Start(ctx, shell(daemons+"echo up; sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	for up := false; !up; {
		res, err := stream.Receive()
		if err != nil {
			t.Fatal(err)
		}
		up = len(res.GetEvent().GetData().GetStdout()) > 0
	}
	cancel()
	allGone(t, in.dir)
}

func testKillAfterLeader(t *testing.T, f forest) {
	in := f.open(t, t.TempDir())
	out := in.mustRun(t, shell(daemons+"exit 7"))
	if out.end.GetExitCode() != 7 || len(out.end.GetLingering()) < 4 {
		t.Errorf("end %v", out.end)
	}
	for name, pid := range pidsOf(t, in.dir) {
		if !alive(pid) {
			t.Errorf("%s did not live on", name)
		}
	}
	kill := &agentv1.SendSignalRequest{Process: byPid(out.pid), Signal: agentv1.Signal_SIGNAL_SIGKILL}
	if _, err := in.process.SendSignal(t.Context(), kill); err != nil {
		t.Fatal(err)
	}
	allGone(t, in.dir)
}

func testDeadline(t *testing.T, f forest) {
	in := f.open(t, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
	defer cancel()
	req := shell(daemons + "sleep 1000")
	req.KillOnClose = false
	_, err := in.run(ctx, req)
	if connect.CodeOf(err) != connect.CodeDeadlineExceeded && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	allGone(t, in.dir)
}

func testAgentEnd(t *testing.T, f forest) {
	dir := t.TempDir()
	t.Run("run", func(t *testing.T) {
		in := f.open(t, dir)
		in.mustRun(t, shell(daemons))
	})
	allGone(t, dir)
}

// A disconnect alone ends nothing in envd's way.
func TestDisconnectEndsNothing(t *testing.T) {
	t.Parallel()
	in := open(t, bootFor(t.TempDir()))
	ctx, cancel := context.WithCancel(t.Context())
	req := shell("echo up; sleep 0.3; head -c 1000000 /dev/zero; echo on > on")
	req.KillOnClose = false
	stream, err := in.process.Start(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Receive(); err != nil {
		t.Fatal(err)
	}
	cancel()
	eventually(t, func() bool { _, err := os.Stat(filepath.Join(in.dir, "on")); return err == nil })
}

func TestMarkCannotBeShed(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/usr/bin/prlimit"); err != nil {
		t.Skip("no prlimit on this machine")
	}
	config := bootFor(t.TempDir())
	config.Mark, config.Processes = true, 4000
	in := openOwn(t, config, nil)
	out := in.mustRun(t, shell(`for v in 1 unlimited 77:88; do prlimit --locks=$v true && echo shed; done
prlimit --pid $$ --locks=5 && echo shed
prlimit --nofile=100 --core=0 true || echo other limits fail
prlimit --pid $$ --locks --noheadings -o SOFT,HARD`))
	fields := strings.Fields(string(out.stdout))
	if len(fields) != 2 || fields[0] != fields[1] || len(fields[0]) < 18 {
		t.Errorf("stdout %q, stderr %q", out.stdout, out.stderr)
	}
}

// limitedAgents are agents whose payloads may have about 30 processes.
func limitedAgents() map[string]func(t *testing.T, dir string) *inside {
	return map[string]func(t *testing.T, dir string) *inside{
		"pids cgroup v1": func(t *testing.T, dir string) *inside {
			tasks, path := makeCgroup(t, "/sys/fs/cgroup/pids/berm-test-"+strings.ToLower(rand.Text()[:10]), "tasks")
			write(t, filepath.Join(path, "pids.max"), "30", 0o644)
			cgroup, _ := cgroup2(t)
			return openOwn(t, bootFor(dir), nil, tasks, cgroup)
		},
		"rlimit": func(t *testing.T, dir string) *inside {
			config := bootFor(dir)
			config.Mark, config.Processes = true, 30
			// The uid is this test's own: the kernel counts all of its processes.
			if err := os.Chown(dir, 1_234_567, 1_234_567); err != nil {
				t.Fatal(err)
			}
			for parent := dir; parent != "/tmp"; parent = filepath.Dir(parent) {
				if err := os.Chmod(parent, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			return openOwn(t, config, []string{"setpriv", "--reuid", "1234567", "--regid", "1234567", "--clear-groups", "--no-new-privs", "--inh-caps=-all"})
		},
	}
}

func TestProcessLimitIsTyped(t *testing.T) {
	t.Parallel()
	// bash tries again when it cannot fork; dash ends and makes room.
	if _, err := os.Stat("/bin/bash"); err != nil {
		t.Skip("no bash on this machine")
	}
	const bomb = `exec bash -c 'while :; do sleep 1000 & done'`
	for name, start := range limitedAgents() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if os.Getuid() != 0 {
				t.Skip("another uid and cgroups need root")
			}
			in := start(t, t.TempDir())
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := in.process.Start(ctx, shell(bomb))
			if err != nil {
				t.Fatal(err)
			}
			first, err := stream.Receive()
			if err != nil {
				t.Fatal(err)
			}
			for full := false; !full; {
				res, err := stream.Receive()
				if err != nil {
					t.Fatal(err)
				}
				full = bytes.Contains(res.GetEvent().GetData().GetStderr(), []byte("fork"))
			}
			if out := in.mustRun(t, shell("exit 0")); out.end.GetReason() != agentv1.EndReason_END_REASON_PROCESS_LIMIT {
				t.Errorf("a start at the limit: %v", out.end)
			}
			// The agent lives, and with the bomb gone so does everything else.
			kill := &agentv1.SendSignalRequest{Process: byPid(first.GetEvent().GetStart().GetPid()), Signal: agentv1.Signal_SIGNAL_SIGKILL}
			if _, err := in.process.SendSignal(t.Context(), kill); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool {
				out := in.mustRun(t, shell("/bin/true; exit 6"))
				return out.end.GetExitCode() == 6
			})
		})
	}
}

func TestCgroupsAreRemoved(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("cgroups need root")
	}
	cgroup, path := cgroup2(t)
	t.Run("run", func(t *testing.T) {
		in := open(t, bootFor(t.TempDir()), cgroup)
		for range 40 {
			in.mustRun(t, shell("true"))
		}
		// Idle ones are used again.
		if entries, _ := filepath.Glob(filepath.Join(path, "cmd-*")); len(entries) > 2 {
			t.Errorf("%d cgroups for one command at a time", len(entries))
		}
	})
	if entries, _ := filepath.Glob(filepath.Join(path, "cmd-*")); len(entries) > 0 {
		t.Errorf("left: %v", entries)
	}
}

// An own-process agent is out of its payloads' reach as far as a same-user
// process can be without a filter, and hands nothing on.
func TestAgentKeepsItself(t *testing.T) {
	t.Parallel()
	in := openOwn(t, bootFor(t.TempDir()), nil)
	out := in.mustRun(t, shell(fmt.Sprintf(`for s in HUP INT QUIT USR1 USR2 PIPE ALRM TERM TSTP TTIN TTOU XCPU XFSZ VTALRM PROF IO PWR; do kill -$s %d; done
grep -E '^(SigIgn|SigBlk)' /proc/self/status; ulimit -c; umask; tr '\0' '\n' < /proc/self/environ | grep -c MARKER`, in.agent)))
	got := strings.Join(strings.Fields(string(out.stdout)), " ")
	if !strings.HasPrefix(got, "SigBlk: 0000000000000000 SigIgn: 0000000000000000 ") || !strings.HasSuffix(got, " 0022 0") {
		t.Errorf("stdout %q, stderr %q", got, out.stderr)
	}
	if again := in.mustRun(t, shell("exit 2")); again.end.GetExitCode() != 2 {
		t.Errorf("after the signals: %v", again.end)
	}
}

// Orphans come to an own-process agent, which collects them and takes no
// command's status.
func TestOrphansAreCollected(t *testing.T) {
	t.Parallel()
	in := openOwn(t, bootFor(t.TempDir()), nil)
	for i := range 30 {
		code := i % 5
		out := in.mustRun(t, shell(fmt.Sprintf("(sleep 0 &) ; (sh -c 'sleep 0 & sleep 0.01' &); exit %d", code)))
		if int(out.end.GetExitCode()) != code || out.end.GetReason() != agentv1.EndReason_END_REASON_EXITED {
			t.Fatalf("command %d: %v", i, out.end)
		}
	}
	eventually(t, func() bool { return len(childrenOf(t, in.agent)) == 0 })
}

func childrenOf(t *testing.T, pid int) []string {
	t.Helper()
	var out []string
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, _ := os.ReadFile(file)
		out = append(out, strings.Fields(string(data))...)
	}
	return out
}
