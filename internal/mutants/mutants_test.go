package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berm-dev/berm/internal/defence"
)

func TestOnlyAFailedTestKills(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		output string
		status int
		hangs  bool
		want   string
	}{
		"failed":          {"--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/sub (0.00s)\n    --- PASS: TestA/other (0.00s)\nFAIL\n", 1, false, "TestA/sub"},
		"passed":          {"--- PASS: TestA (0.00s)\nPASS\n", 0, false, ""},
		"skipped":         {"--- SKIP: TestA (0.00s)\nPASS\n", 0, false, ""},
		"nothing ran":     {"testing: warning: no tests to run\nPASS\n", 0, false, ""},
		"panicked":        {"--- FAIL: TestA (0.00s)\npanic: boom [recovered]\n", 2, false, ""},
		"hung":            {"panic: test timed out after 1m0s\n--- FAIL: TestA (0.00s)\n", 2, false, ""},
		"hung as told":    {"panic: test timed out after 1m0s\n", 2, true, "a run that does not end"},
		"passed, but not": {"--- PASS: TestA (0.00s)\nPASS\ngoleak: found\n", 1, false, ""},
		"did not start":   {"", -1, false, ""},
		"a panic inside":  {"panic: of a child\n--- FAIL: TestA (0.00s)\nFAIL\n", 1, false, "TestA"},
	} {
		if got := judge(c.output, c.status).kills(c.hangs); got != c.want {
			t.Errorf("%s: killed by %q, want %q", name, got, c.want)
		}
	}
}

func TestPatternsMatchWholeNames(t *testing.T) {
	t.Parallel()
	for run, want := range map[string]string{
		"TestA": "^TestA$", "TestA|TestB/x": "^TestA$|^TestB$/^x$", "TestA/mark/y": "^TestA$/^mark$/^y$",
	} {
		if got := anchored(run); got != want {
			t.Errorf("%s: %s, want %s", run, got, want)
		}
	}
}

func TestStampFillsEveryBlank(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &shop{dir: dir, linked: map[string]string{"one": filepath.Join(dir, "one"), "none": filepath.Join(dir, "none")}}
	program := bytes.Join([][]byte{[]byte("a"), blank(), []byte("b"), blank(), []byte("c")}, nil)
	if err := errors.Join(os.WriteFile(s.linked["one"], program, 0o644), os.WriteFile(s.linked["none"], []byte("abc"), 0o644)); err != nil {
		t.Fatal(err)
	}
	c, err := s.stamp([]defence.Defence{"x:one", "x:two"}, []string{"one", "none"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(c.stamped["one"])
	if err != nil || len(got) != len(program) || bytes.Count(got, []byte("x:one,x:two~")) != 2 || bytes.Contains(got, blank()) {
		t.Errorf("%q, %v", got, err)
	}
	if info, err := os.Stat(c.stamped["one"]); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := s.stamp(nil, []string{"none"}); err == nil {
		t.Error("a program without a switch is a mutant")
	}
	if _, err := s.stamp([]defence.Defence{defence.Defence(strings.Repeat("x", blankSize+1))}, []string{"one"}); err == nil {
		t.Error("a name that does not fit is a mutant")
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	seen := map[defence.Defence]int{}
	for seed := range stride {
		part, err := choose(options{short: true, seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range part {
			seen[e.Name]++
		}
	}
	for _, e := range defence.Table() {
		if seen[e.Name] != 1 {
			t.Errorf("%s is in %d of %d short runs", e.Name, seen[e.Name], stride)
		}
	}
	if _, err := choose(options{only: "no:such"}); err == nil {
		t.Error("a defence that does not exist is chosen")
	}
	if some, err := choose(options{only: "lease:,filter:sockets"}); err != nil || len(some) < 3 {
		t.Errorf("%d, %v", len(some), err)
	}
}
