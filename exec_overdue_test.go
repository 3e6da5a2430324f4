package berm_test

import (
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/fake"
)

// slowWriter takes its first bytes only after a while.
type slowWriter struct {
	wait time.Duration
	size int
}

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.wait)
	w.wait = 0
	w.size += len(p)
	return len(p), nil
}

// A command that has ended in time has ended in time, however long the caller's
// own writer takes for its output.
func TestSlowWriterIsNotTheAgentsFault(t *testing.T) {
	t.Parallel()
	p, err := berm.Open(t.Context(), fake.Config{}, berm.Config{Agent: berm.AgentProgram{Image: anyProgram(t)}, StateDir: t.TempDir() + "/s"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	box, err := p.Create(t.Context(), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := &slowWriter{wait: 7 * time.Second}
	result, err := box.Exec(t.Context(), berm.Command{
		Args: []string{"sh", "-c", "head -c 100000 /dev/zero; exit 3"}, Stdout: out, Timeout: time.Second,
	})
	if err != nil || result.ExitCode == nil || *result.ExitCode != 3 || out.size != 100_000 {
		t.Errorf("%d bytes, %+v, %v; want 100000 bytes and 3", out.size, result, err)
	}
}
