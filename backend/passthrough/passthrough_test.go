package passthrough_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/passthrough"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/drivertest"
	"github.com/berm-dev/berm/errdefs"
)

func TestConformance(t *testing.T) { //nolint:paralleltest // the suite looks at the whole process
	drivertest.Run(t, drivertest.Harness{
		Backend: func(*testing.T) driver.Backend { return passthrough.Config{Allow: true} },
	})
}

func TestRefusesUnlessAllowed(t *testing.T) {
	t.Parallel()
	_, err := passthrough.Config{}.Open(t.Context(), driver.Host{StateDir: t.TempDir()})
	if !errors.Is(err, errdefs.Unsupported) {
		t.Errorf("open: %v", err)
	}
	var unready *driver.UnreadyError
	if !errors.As(err, &unready) || len(unready.Problems) != 1 || unready.Problems[0].Fix != "allow: true" {
		t.Errorf("problems: %+v", unready)
	}
}

// TestDestroyAfterAgentWasKilled: a command can kill the agent, since nothing is
// between them. Destroy still ends everything.
func TestDestroyAfterAgentWasKilled(t *testing.T) {
	t.Parallel()
	p, err := berm.Open(t.Context(), passthrough.Config{Allow: true}, berm.Config{
		Agent: berm.AgentProgram{Path: drivertest.AgentBinary(t)}, StateDir: filepath.Join(t.TempDir(), "state"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	sb, err := p.Create(t.Context(), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	script := `setsid sleep 1000 >/dev/null 2>&1 & echo $!; setsid sleep 1000 & sleep 0.2; kill -KILL $PPID; sleep 1000`
	res, err := sb.Exec(t.Context(), berm.Command{Args: []string{"sh", "-c", script}})
	if !errors.Is(err, errdefs.TransportLost) || res.ExitCode != nil {
		t.Errorf("the command that killed the agent: %v, %v", res, err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := strings.TrimSpace(string(res.Stdout))
	if _, err := os.Stat("/proc/" + pid + "/exe"); pid == "" || err == nil {
		t.Errorf("process %q goes on after Destroy", pid)
	}
}
