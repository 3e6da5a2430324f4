//go:build linux

package attack_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/posture"
)

// publicDir makes a directory that a leased uid can reach.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berm-attack-public-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// attacks 3, "A lying agent: host-side facts still fail Create": bubblewrap is
// replaced by what makes no wall, the agent by one that says that all is well. Every
// claim that the host looks at itself fails, by name, and nothing is left running.
func TestLyingAgentDoesNotHideThatThereIsNoWall(t *testing.T) {
	t.Parallel()
	prepare(t)
	dir := publicDir(t)
	program := filepath.Join(dir, "payload")
	data, err := os.ReadFile(stage.payload)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	bwrap := filepath.Join(dir, "bwrap")
	script := fmt.Sprintf("#!/bin/sh\nexec %s bubblewrap \"$@\"\n", program)
	if err := os.WriteFile(bwrap, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := berm.Open(bounded(t), process.Config{BwrapPath: bwrap}, berm.Config{
		Agent: berm.AgentProgram{Path: program}, StateDir: filepath.Join(t.TempDir(), "state"),
	})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}()
	sb, err := p.Create(bounded(t), berm.CreateOptions{})
	if err == nil {
		destroyed(t, sb)
		t.Fatal("a sandbox without a wall was handed over")
	}
	if !errors.Is(err, errdefs.Unproven) {
		t.Fatalf("%v", err)
	}
	var known *errdefs.Error
	if !errors.As(err, &known) {
		t.Fatalf("%T", err)
	}
	said := strings.Join(known.Reasons, "\n")
	for _, rule := range posture.TableFor("process") {
		limit := rule.Dimension == posture.Limits
		named := strings.Contains(said, string(rule.Claim))
		switch {
		case rule.Witness == posture.Host && !limit && !named:
			t.Errorf("%s is not among the failures:\n%s", rule.Claim, said)
		case rule.Witness == posture.Probe && named:
			// The control: the lies were told and understood.
			t.Errorf("%s is among the failures, so the agent did not lie well:\n%s", rule.Claim, said)
		}
	}
	// The host's processes know none of it any more.
	for _, pid := range descendants(os.Getpid()) {
		if exe, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(exe), dir) {
			t.Errorf("process %d is left: %q", pid, exe)
		}
	}
}

// attacks 3, "The connect probe with its positive control off is a failed claim": an
// attempt to connect that could not have succeeded proves nothing.
func TestConnectProbeWithoutItsControl(t *testing.T) {
	t.Parallel()
	prepare(t)
	state := filepath.Join(t.TempDir(), "state")
	p := opened(t, func(c *berm.Config) { c.StateDir = state })
	place(t, p, berm.Layout{}) // with the control a sandbox is made
	locks, err := filepath.Glob(filepath.Join(state, "owners", "*.lock"))
	if err != nil || len(locks) != 1 {
		t.Fatalf("%v %v", locks, err)
	}
	instance := strings.TrimSuffix(filepath.Base(locks[0]), ".lock")
	fd := listening(t, "@berm-probe-"+instance)
	if fd < 0 {
		t.Fatal("the control socket was not found")
	}
	if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	sb, err := p.Create(bounded(t), berm.CreateOptions{})
	if err == nil {
		destroyed(t, sb)
	}
	if !errors.Is(err, errdefs.Unproven) || !strings.Contains(err.Error(), string(posture.NoOutsideSocket)) {
		t.Errorf("%v", err)
	}
}

// listening finds this process's socket of that name, -1 for none.
func listening(t *testing.T, name string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		address, err := unix.Getsockname(fd)
		if err != nil {
			continue // no socket
		}
		accepts, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if local, ok := address.(*unix.SockaddrUnix); ok && accepts == 1 && local.Name == name {
			return fd
		}
	}
	return -1
}
