//go:build linux

package attack_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// attempt is what became of one thing that an attack tried.
type attempt struct {
	Name   string `json:"name"`
	Errno  string `json:"errno"`  // "EPERM", "killed by SIGSYS", or "" when it succeeded
	Detail string `json:"detail"` // what was seen, for people and for checks of content
}

// verdict is an attack's attempts in their order.
type verdict []attempt

// attack runs the payload's attack of that name inside, which has to end well.
func attack(t *testing.T, b *box, name string, args ...string) verdict {
	t.Helper()
	return read(t, name, strings.NewReader(output(t, b, append([]string{b.payload, name}, args...)...)))
}

// onHost runs the same attack outside of any sandbox, as the caller: the control
// of what could fail by accident. Only for attacks that do no harm.
func onHost(t *testing.T, name string, args ...string) verdict {
	t.Helper()
	prepare(t)
	cmd := exec.CommandContext(bounded(t), stage.payload, append([]string{name}, args...)...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s on the host: %v", name, err)
	}
	return read(t, name, bytes.NewReader(out))
}

func read(t *testing.T, name string, from io.Reader) verdict {
	t.Helper()
	var v verdict
	if err := json.NewDecoder(from).Decode(&v); err != nil || len(v) == 0 {
		t.Fatalf("attack %s made no attempt: %v", name, err)
	}
	return v
}

// of picks the attempts whose names begin so.
func (v verdict) of(prefix string) verdict {
	return slices.DeleteFunc(slices.Clone(v), func(a attempt) bool { return !strings.HasPrefix(a.Name, prefix) })
}

// blocked checks that there are attempts, and that each failed in one of these
// ways. Those named "control ..." have to have succeeded instead.
func (v verdict) blocked(t *testing.T, ways ...string) {
	t.Helper()
	n := 0
	for _, a := range v {
		switch control := strings.HasPrefix(a.Name, "control "); {
		case control && a.Errno != "":
			t.Errorf("%s: %s %s, so the rest proves nothing", a.Name, a.Errno, a.Detail)
		case !control && a.Errno == "":
			t.Errorf("%s succeeded: %s", a.Name, a.Detail)
		case !control && !slices.Contains(ways, a.Errno):
			t.Errorf("%s: %s %s, want one of %q", a.Name, a.Errno, a.Detail, ways)
		case !control:
			n++
		}
	}
	if n == 0 && !t.Failed() {
		t.Error("nothing was attempted")
	}
}

// each checks every attempt.
func (v verdict) each(t *testing.T, ok func(attempt) bool, fault string) {
	t.Helper()
	for _, a := range v {
		if !ok(a) {
			t.Errorf("%s: %s %s: %s", a.Name, a.Errno, a.Detail, fault)
		}
	}
}
