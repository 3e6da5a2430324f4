package drivertest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Environment variables that name programs that are built already, so that the
// suite needs no compiler where it runs.
const (
	agentEnv   = "BERM_TEST_AGENT"
	payloadEnv = "BERM_TEST_PAYLOAD"
)

// AgentBinary gives the path of a static build of the agent: $BERM_TEST_AGENT,
// or a build that is kept in the user's cache folder and copied for t.
func AgentBinary(t testing.TB) string {
	t.Helper()
	return Binary(t, agentEnv, "berm-agent", "github.com/berm-dev/berm/cmd/berm-agent")
}

// payloadBinary is the same for the suite's own program.
func payloadBinary(t testing.TB) string {
	t.Helper()
	return Binary(t, payloadEnv, "payload", "github.com/berm-dev/berm/drivertest/payload")
}

// Binary gives the path of a static build of a package's program, under a name
// that no other program has: what the environment variable env names, or a build
// as for AgentBinary.
func Binary(t testing.TB, env, name, pkg string) string {
	t.Helper()
	if path := os.Getenv(env); path != "" {
		if !filepath.IsAbs(path) {
			t.Fatalf("%s=%q is not an absolute path", env, path)
		}
		return path
	}
	out := filepath.Join(t.TempDir(), name)
	if err := build(t, name, pkg, out); err != nil {
		t.Fatalf("build %s: %v", name, err)
	}
	return out
}

// build links a program and copies it to out. The linked one stays in the cache
// folder, where the next build finds it up to date; a lock keeps test processes
// that run beside each other apart.
func build(t testing.TB, name, pkg, out string) error {
	kept := out
	if cache, err := os.UserCacheDir(); err == nil {
		dir := filepath.Join(cache, "berm-build", "test")
		if err := os.MkdirAll(dir, 0o755); err == nil {
			kept = filepath.Join(dir, name)
		}
	}
	if kept != out {
		lock, err := os.OpenFile(kept+".lock", os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		defer func() { _ = lock.Close() }() // and with it the lock
		if err := waitForLock(lock); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
	}
	command := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", kept, pkg)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, text)
	}
	if kept == out {
		return nil
	}
	return copyFile(kept, out)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
