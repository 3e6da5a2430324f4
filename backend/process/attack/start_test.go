//go:build linux

package attack_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
)

// process-tier 1.7 weak 9 "whole environment inherited"; 15: no proxy is named;
// attacks 6 "an environment made for it".
func TestEnvironmentIsMadeForTheCommand(t *testing.T) {
	t.Parallel()
	known := []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR"}
	for line := range strings.Lines(output(t, shared(t), "env")) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); !slices.Contains(known, name) {
			t.Errorf("%s=%s", name, value)
		}
	}
}

// process-tier 1.7 weak 14, section 2 "srt 294; cx 17625": the private temporary
// directory is there and can be written.
func TestTemporaryDirectory(t *testing.T) {
	t.Parallel()
	name := strings.TrimSpace(output(t, shared(t), "mktemp"))
	if !strings.HasPrefix(name, "/tmp/") {
		t.Errorf("mktemp gives %q", name)
	}
	other := fresh(t, defaults())
	if res, err := other.Exec(bounded(t), berm.Command{Args: []string{"cat", name}}); err != nil || res.Success() {
		t.Errorf("another sandbox can read it: %v %v", res, err)
	}
}

// process-tier 1.7 weak 16, section 5 item 13: what would nest fails and says so;
// it does not run with less.
func TestNestingIsRefused(t *testing.T) {
	t.Parallel()
	b := shared(t)
	const marker = "nested-after-all"
	for _, args := range [][]string{
		{"bwrap", "--ro-bind", "/", "/", "--unshare-all", "echo", marker},
		{"bwrap", "--ro-bind", "/", "/", "echo", marker},
		{"bwrap", "--dev-bind", "/", "/", "--proc", "/proc", "--cap-add", "ALL", "echo", marker},
		{"unshare", "--user", "--map-root-user", "echo", marker},
		{"unshare", "--mount", "echo", marker},
		{"nsenter", "--target", "1", "--all", "echo", marker},
		{"chroot", "/", "echo", marker},
	} {
		res, err := b.Exec(bounded(t), berm.Command{Args: args})
		if err != nil || res.Success() || len(res.Stderr) == 0 || strings.Contains(string(res.Stdout), marker) {
			t.Errorf("%q: %v %v, %q %q", args, res, err, res.Stdout, res.Stderr)
		}
	}
}
