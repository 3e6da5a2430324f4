package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// verdict is what a run of tests came to.
type verdict struct {
	// failed and passed name tests, the deepest ones first among those that
	// failed.
	failed, passed []string
	// hung says that the run did not end, broken why it proves nothing: it ended in
	// a panic, or before any test.
	hung   bool
	broken string
}

var resultLine = regexp.MustCompile(`(?m)^\s*--- (FAIL|PASS|SKIP): (\S+)`)

// timedOut is what the testing package panics with at its own timeout.
const timedOut = "panic: test timed out after"

// testsFailed is the exit status of a test program that came to its end; a panic
// has another.
const testsFailed = 1

// judge reads the output of a test program (-test.v), and its exit status, -1 for
// none.
func judge(output string, status int) verdict {
	var v verdict
	for _, m := range resultLine.FindAllStringSubmatch(output, -1) {
		switch m[1] {
		case "FAIL":
			v.failed = append(v.failed, m[2])
		case "PASS":
			v.passed = append(v.passed, m[2])
		}
	}
	slices.SortStableFunc(v.failed, func(a, b string) int { return strings.Count(b, "/") - strings.Count(a, "/") })
	switch {
	case status != 0 && status != testsFailed && strings.Contains(output, timedOut):
		v.hung = true
	case status != 0 && (status != testsFailed || len(v.failed) == 0):
		v.broken = fmt.Sprintf("the test program ended with status %d, %d tests had failed", status, len(v.failed))
	case len(v.failed)+len(v.passed) == 0:
		v.broken = "no test ran"
	}
	return v
}

// kills says by what the run kills a mutant, "" when it does not.
func (v verdict) kills(hangs bool) string {
	switch {
	case v.hung && hangs:
		return "a run that does not end"
	case v.hung, v.broken != "", len(v.failed) == 0:
		return ""
	}
	return v.failed[0]
}

// why says in a few words why a run does not kill.
func (v verdict) why() string {
	switch {
	case v.hung:
		return "the run did not end"
	case v.broken != "":
		return v.broken
	}
	return "all passed"
}
