package drivertest

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
)

func orphanGroup() group {
	return group{name: "host-killed", alone: true, behaviours: []behaviour{
		{"everything-ends", orphanEverythingEnds},
	}}
}

// Environment of the child process that is killed.
const (
	orphanStateEnv = "BERM_CONFORMANCE_ORPHAN_STATE"
	orphanMarkEnv  = "BERM_CONFORMANCE_ORPHAN_MARK"
	orphanReady    = "sandbox is up: "
)

func isOrphanMaker() bool { return os.Getenv(orphanStateEnv) != "" }

// makeOrphan is what the child process does: it makes a sandbox, starts a
// command in it, says so, and waits for its end.
func makeOrphan(t *testing.T, h Harness) {
	s := &suite{harness: h, agent: os.Getenv(agentEnv), stateDir: os.Getenv(orphanStateEnv), mark: os.Getenv(orphanMarkEnv)}
	p, err := berm.Open(t.Context(), h.Backend(t), s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	sb, err := p.Create(t.Context(), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(p.Capabilities().Networks, driver.NetworkGated) {
		gated, err := p.Create(t.Context(), berm.CreateOptions{Egress: &berm.Egress{}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := gated.Start(t.Context(), shell(`sleep 1000 & setsid sleep 1000`)); err != nil {
			t.Fatal(err)
		}
	}
	command := shell(`sleep 1000 & setsid sleep 1000 & echo up; wait`)
	command.Stdout = writerFunc(func([]byte) {
		_, _ = os.Stdout.WriteString(orphanReady + sb.ID() + "\n")
	})
	_, err = sb.Exec(context.Background(), command)
	t.Fatalf("the command ended: %v", err)
}

// orphanEverythingEnds: the end of the host process, however violent, is the end
// of the sandbox, and the next Open clears what is left on disk.
func orphanEverythingEnds(t *testing.T, s *suite) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root, _, _ := strings.Cut(t.Name(), "/")
	before := s.look(t)
	child := exec.CommandContext(bounded(t), self, "-test.run", "^"+root+"$", "-test.timeout", "60s")
	child.Env = append(os.Environ(), agentEnv+"="+s.agent, orphanStateEnv+"="+s.stateDir, orphanMarkEnv+"="+s.mark)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	id := ""
	var said []string
	for id == "" && lines.Scan() {
		said = append(said, lines.Text())
		if _, after, ok := strings.Cut(lines.Text(), orphanReady); ok {
			id = after
		}
	}
	if id == "" {
		_ = child.Wait()
		t.Fatalf("the child process made no sandbox:\n%s", strings.Join(said, "\n"))
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	eventually(t, liveness, "no process of the sandbox is left", func() bool {
		for _, p := range s.processes() {
			if !before.things["process "+p] {
				return false
			}
		}
		return true
	})
	if _, err := os.Stat(filepath.Join(s.stateDir, "sandboxes", id+".json")); err != nil {
		t.Errorf("the intent of sandbox %s was not recorded: %v", id, err)
	}
	p, err := berm.Open(bounded(t), s.backend(t), s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(p.Notes(), "; "); strings.Contains(notes, "sweep") {
		t.Errorf("the sweep complains: %s", notes)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	s.checkLeftovers(t, before)
}
