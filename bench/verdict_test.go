package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verdict verdict
		held    bool
		text    string
	}{
		"at the largest":   {atMost("n", 2.5, 2.5, "x"), true, "target <= 2.5 x  held"},
		"above it":         {atMost("n", 2.51, 2.5, "x"), false, "target <= 2.5 x  MISSED"},
		"at the smallest":  {atLeast("n", 0.7, 0.7, "x"), true, "target >= 0.7 x  held"},
		"below it":         {atLeast("n", 0.69, 0.7, "x"), false, "target >= 0.7 x  MISSED"},
		"without a number": {verdict{Name: "n", Skipped: "why"}, false, "n: not measured: why"},
	} {
		if c.verdict.Held != c.held || !strings.Contains(c.verdict.String(), c.text) {
			t.Errorf("%s: held %v, %q", name, c.verdict.Held, c.verdict)
		}
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	s := &sample{}
	for i := 100; i > 0; i-- {
		s.took = append(s.took, time.Duration(i))
	}
	if got := s.median(); got != 51 {
		t.Errorf("the median of 1 to 100 is %d", got)
	}
	if got := s.quantile(0.95); got != 96 {
		t.Errorf("the 95th percentile of 1 to 100 is %d", got)
	}
	if got := s.quantile(1); got != 100 {
		t.Errorf("the last of 1 to 100 is %d", got)
	}
}

// TestOffspring: a child and its child are found, at their depths.
func TestOffspring(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "sleep 60 & echo; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	all, err := offspring()
	if err != nil {
		t.Fatal(err)
	}
	shell := slices.IndexFunc(all, func(m member) bool { return m.pid == cmd.Process.Pid })
	if shell < 0 || all[shell].depth != 1 || all[shell].parent != os.Getpid() {
		t.Fatalf("the child is not among %v", all)
	}
	sleeper := slices.IndexFunc(all, func(m member) bool { return m.parent == cmd.Process.Pid })
	if sleeper < 0 || all[sleeper].depth != 2 {
		t.Fatalf("the child's child is not among %v", all)
	}
}
