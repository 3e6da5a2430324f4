package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// A program that is open for writing is waited for, briefly: a start beside holds
// what was written a moment ago.
func TestBusyProgram(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]bool{"direct": false, "marked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := bootFor(t.TempDir())
			config.Mark = mark
			in := open(t, config)
			name := filepath.Join(in.dir, "busy")
			write(t, name, "#!/bin/sh\necho ran\n", 0o755)
			held, err := os.OpenFile(name, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			req := &agentv1.StartRequest{Process: &agentv1.ProcessConfig{Cmd: "./busy"}, TypedFailures: true}
			out, err := in.run(t.Context(), req)
			if err != nil || out.end.GetReason() != agentv1.EndReason_END_REASON_NOT_EXECUTABLE || !strings.Contains(out.end.GetError(), "text file busy") {
				t.Errorf("held: %v %v", out, err)
			}
			time.AfterFunc(10*time.Millisecond, func() { _ = held.Close() })
			if out := in.mustRun(t, req); string(out.stdout) != "ran\n" {
				t.Errorf("let go: %q", out.stdout)
			}
		})
	}
}
