package process_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/drivertest"
)

// firstEnv makes the test program the first process of a PID namespace, as a
// program is in a container without an init.
const firstEnv = "BERM_TEST_FIRST_PROCESS"

// TestFirstProcessCollectsNoZombies: a host program that is PID 1, so that
// every orphan becomes its child, has no process left over after a hundred
// sandboxes, however they end.
func TestFirstProcessCollectsNoZombies(t *testing.T) { //nolint:paralleltest // its other half looks at all processes
	if os.Getenv(firstEnv) != "" {
		runAsFirst(t)
		return
	}
	if _, err := exec.LookPath("unshare"); err != nil {
		t.Skip("unshare(1) is not installed")
	}
	args := []string{"--fork", "--pid", "--mount-proc", "--kill-child"}
	if os.Geteuid() != 0 {
		args = append(args, "--user", "--map-current-user")
	}
	if out, err := exec.CommandContext(t.Context(), "unshare", append(args, "true")...).CombinedOutput(); err != nil {
		t.Skipf("no PID namespace can be made here: %v: %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append(args, self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m", fmt.Sprintf("-test.short=%t", testing.Short()))...)
	cmd.Env = append(os.Environ(), firstEnv+"=1", "BERM_TEST_AGENT="+drivertest.AgentBinary(t))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
}

func runAsFirst(t *testing.T) {
	if os.Getpid() != 1 {
		t.Fatalf("this is process %d, not the first", os.Getpid())
	}
	runs := 100
	if testing.Short() {
		runs = 20
	}
	p, err := berm.Open(t.Context(), process.Config{}, berm.Config{
		Agent: berm.AgentProgram{Path: drivertest.AgentBinary(t)}, StateDir: filepath.Join(t.TempDir(), "state"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range runs {
		sb, err := p.Create(t.Context(), berm.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		command := berm.Command{Args: []string{"sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & (sleep 1000 >/dev/null 2>&1 &); exit 3"}}
		if res, err := sb.Exec(t.Context(), command); err != nil || res.ExitCode == nil || *res.ExitCode != 3 {
			t.Errorf("run %d: %v, %v", i, res, err)
		}
		// By itself, by the end of what we started, or by that of one below it.
		if i%3 > 0 {
			killOne(t, i%3 == 1)
		}
		if err := sb.Destroy(t.Context()); err != nil {
			t.Errorf("destroy %d: %v", i, err)
		}
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	var left []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if left = others(t); len(left) == 0 {
			return
		}
	}
	t.Errorf("after %d runs %d processes are left, the first of them: %q", runs, len(left), left[0])
}

// killOne kills the bubblewrap that is our child, or the one below it.
func killOne(t *testing.T, ours bool) {
	t.Helper()
	for _, line := range others(t) {
		pid, rest, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(rest, "(bwrap)") || strings.HasSuffix(rest, " 1") != ours {
			continue
		}
		number, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(number, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		return
	}
}

// others lists all processes but this one: pid, name, state and parent.
func others(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // gone since
		}
		name, rest, _ := strings.Cut(string(data), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && !strings.HasPrefix(name, "1 ") {
			out = append(out, name+") "+fields[0]+" "+fields[1])
		}
	}
	return out
}
