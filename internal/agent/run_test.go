package agent_test

import (
	"syscall"
	"testing"
)

// No signal that a Go program can take ends or stops an agent, and none reaches
// its commands' dispositions. 32 and 34 are the C library's, and Go leaves them
// alone: only an init outlives those.
func TestAgentOutlivesSignals(t *testing.T) {
	t.Parallel()
	in := openOwn(t, bootFor(t.TempDir()), nil)
	for number := syscall.Signal(1); number <= 64; number++ {
		switch number {
		case syscall.SIGKILL, syscall.SIGSTOP, 32, 34:
			continue
		}
		if err := syscall.Kill(in.agent, number); err != nil {
			t.Fatalf("signal %d: %v", number, err)
		}
		// A command that runs after it proves that it was taken.
		if number%8 == 0 {
			in.mustRun(t, shell("true"))
		}
	}
	out := in.mustRun(t, shell(`while read -r name value; do
case $name in SigIgn:|SigBlk:) echo "$value" ;; esac
done </proc/self/status`))
	if got, want := string(out.stdout), "0000000000000000\n0000000000000000\n"; got != want {
		t.Errorf("blocked and ignored in a command: %q, want %q", got, want)
	}
}
