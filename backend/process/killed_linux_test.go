package process

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/driver"
)

// hostMarker makes the test program play a host that is going to be killed.
const hostMarker = "BERM_TEST_HOST_STATE"

// TestHostThatWillBeKilled is not a test: it is the other process of
// TestKilledHostTakesItsSandboxWithIt.
func TestHostThatWillBeKilled(t *testing.T) {
	state := os.Getenv(hostMarker)
	if state == "" {
		t.Skip("it is started by another test")
	}
	d, err := Config{}.Open(t.Context(), driver.Host{Agent: driver.Agent{Image: agentImage(t)}, StateDir: state, Instance: "dies"})
	if err != nil {
		t.Fatal(err)
	}
	b, ok := d.(*bubble)
	if !ok {
		t.Fatalf("driver is %T", d)
	}
	spec := plainSpec(b)
	if shared := os.Getenv(hostMarker + "_MOUNT"); shared != "" {
		spec = plainSpec(b, driver.Mount{Name: "workdir", Source: shared, Dest: driver.WorkspacePath, Writable: true})
	}
	if os.Getenv(hostMarker+"_GATE") != "" {
		spec.Network = driver.NetworkGated
	}
	m := created(t, b, spec)
	run(t, m, "sleep 1000 & setsid sleep 1000 & exit 0")
	fmt.Println("ready", m.id, m.child.proc.Pid, m.child.first.pid, b.kit.dir)
	// Until the end, which comes from outside.
	_, _ = os.Stdin.Read(make([]byte, 1))
	t.Fatal("nobody killed it")
}

func TestKilledHostTakesItsSandboxWithIt(t *testing.T) {
	t.Parallel()
	for name, shared := range map[string]string{"plain": "", "with a mount": t.TempDir(), "with a gate": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gate := ""
			if name == "with a gate" {
				gate = "1"
			}
			testKilledHost(t, shared, gate)
		})
	}
}

func testKilledHost(t *testing.T, shared, gate string) {
	d, state := opened(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestHostThatWillBeKilled$", "-test.v")
	cmd.Env = append(os.Environ(), hostMarker+"="+state, hostMarker+"_MOUNT="+shared, hostMarker+"_GATE="+gate)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var id, kitDir string
	var outer, inner int
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "ready %s %d %d %s", &id, &outer, &inner, &kitDir); n == 4 {
			break
		}
	}
	if id == "" {
		_ = cmd.Process.Kill()
		t.Fatalf("the other host did not start: %v", cmd.Wait())
	}
	var watched []int
	for _, pid := range []int{outer, inner} {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		defer func() { _ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) }()
		watched = append(watched, fd)
	}
	freeze(t, id)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for i, fd := range watched {
		if !endsWithin(fd, 10*time.Second) {
			t.Errorf("process %d of the sandbox outlives its host", i)
		}
	}
	if err := d.Sweep(t.Context(), []string{id}); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/berm/berm-" + id); len(left) > 0 {
		t.Errorf("cgroups are left: %v", left)
	}
	// The next Open removes the rest.
	openedIn(t, state)
	if _, err := os.Stat(kitDir); err == nil {
		t.Errorf("%s is left", kitDir)
	}
}

// freeze freezes a sandbox where it has a version 2 cgroup.
func freeze(t *testing.T, id string) {
	t.Helper()
	found, _ := filepath.Glob("/sys/fs/cgroup/*/berm/berm-" + id + "/cgroup.freeze")
	for _, file := range found {
		if err := os.WriteFile(file, []byte("1"), 0); err != nil {
			t.Error(err)
		}
	}
}

// endsWithin waits for a process's end.
func endsWithin(pidfd int, limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(max(left, 0)/time.Millisecond))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 1
	}
}
