package process_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/drivertest"
)

func TestConformance(t *testing.T) { //nolint:paralleltest // the suite looks at the whole process
	drivertest.Run(t, drivertest.Harness{
		Backend: func(*testing.T) driver.Backend { return process.Config{} },
	})
}

// nobody is the uid of a user without any right.
const nobody = 65534

// TestConformanceUnprivileged runs the suite again as another user: without
// cgroups and leases, and with the caller's own uid for sandboxes.
func TestConformanceUnprivileged(t *testing.T) { //nolint:paralleltest // as above
	switch {
	case os.Geteuid() != 0:
		t.Skip("TestConformance runs as an unprivileged user already")
	case testing.Short():
		t.Skip("it is long")
	}
	// The test's own directories can be entered by their owner only.
	dir, err := os.MkdirTemp("", "berm-unprivileged-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	payload := filepath.Join(dir, "payload")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", payload, "github.com/berm-dev/berm/drivertest/payload")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	agent, self := filepath.Join(dir, "berm-agent"), filepath.Join(dir, "process.test")
	copyProgram(t, drivertest.AgentBinary(t), agent)
	copyProgram(t, "/proc/self/exe", self)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestConformance$", "-test.timeout=10m")
	cmd.Dir = home
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "BERM_TEST_AGENT=" + agent, "BERM_TEST_PAYLOAD=" + payload,
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// copyProgram copies an executable so that everybody can run it.
func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, 0o755); err != nil {
		t.Fatal(err)
	}
}
