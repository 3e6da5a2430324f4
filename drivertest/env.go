package drivertest

import (
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func envGroup() group {
	return group{name: "env", behaviours: []behaviour{
		{"clean", envClean},
		{"values", envValues},
		{"layers", envLayers},
		{"keys", envKeys},
	}}
}

// environment runs env and splits what it says.
func environment(t *testing.T, sb *berm.Sandbox, extra map[string]string) map[string]string {
	t.Helper()
	res := exited(t, sb, 0, berm.Command{Args: []string{"env", "-0"}, Env: extra})
	out := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(res.Stdout), "\x00"), "\x00") {
		key, value, ok := strings.Cut(entry, "=")
		if _, twice := out[key]; twice || !ok {
			t.Errorf("entry %q is malformed or there twice", entry)
		}
		out[key] = value
	}
	return out
}

// envClean: the environment is the documented one and nothing else.
func envClean(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	got := environment(t, sb, nil)
	for _, key := range []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"} {
		if got[key] == "" {
			t.Errorf("%s is missing or empty", key)
		}
		delete(got, key)
	}
	if got["LANG"] != "C.UTF-8" {
		t.Errorf("LANG=%q", got["LANG"])
	}
	delete(got, "LANG")
	for key := range sb.Env() {
		delete(got, key)
	}
	for key, value := range got {
		t.Errorf("nobody asked for %s=%q", key, value)
	}
	sh(t, sb, `cd "$HOME" && : > "$HOME/here" && : > "$TMPDIR/here" && rm "$HOME/here" "$TMPDIR/here"`)
}

// envValues: values arrive as they were given.
func envValues(t *testing.T, s *suite) {
	want := map[string]string{
		"EMPTY": "", "SPACE": " a  b ", "QUOTES": `'"\`, "LINES": "a\nb\n", "EQUALS": "a=b=c", "DOLLAR": "$HOME `id` $(id)",
		"UNICODE": "ü€\U0001F600", "LONG": strings.Repeat("v", 100<<10), "lower_1": "x", "_": "underscore",
	}
	got := environment(t, s.sandbox(t), want)
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s=%q, want %q", key, clip([]byte(got[key])), clip([]byte(value)))
		}
	}
}

// envLayers: the command's wins over the sandbox's, and that over the
// provider's and the defaults; nothing outlives its command.
func envLayers(t *testing.T, s *suite) {
	p := s.open(t, func(c *berm.Config) {
		c.Env = map[string]string{markName: s.mark, "A": "provider", "B": "provider", "C": "provider", "LANG": "de_DE"}
	})
	sb := create(t, p, berm.CreateOptions{Env: map[string]string{"B": "sandbox", "C": "sandbox"}})
	got := environment(t, sb, map[string]string{"C": "command", "TERM": "dumb"})
	for key, want := range map[string]string{"A": "provider", "B": "sandbox", "C": "command", "LANG": "de_DE", "TERM": "dumb"} {
		if got[key] != want {
			t.Errorf("%s=%q, want %q", key, got[key], want)
		}
	}
	got = environment(t, sb, nil)
	if _, ok := got["TERM"]; ok || got["C"] != "sandbox" {
		t.Errorf("the next command has TERM=%q, C=%q", got["TERM"], got["C"])
	}
}

// envKeys: a key that is not a name is refused before anything runs.
func envKeys(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for _, key := range []string{"A;touch ran", "", "1A", "A=B", "A-B", "A B", "A\x00", "A\n", "ü", "$(touch ran)"} {
		res, err := sb.Exec(bounded(t), berm.Command{Args: []string{"touch", "ran"}, Env: map[string]string{key: "v"}})
		if res != nil {
			t.Errorf("key %q: a result", key)
		}
		wantKind(t, err, errdefs.Invalid)
	}
	if exists(t, sb, "ran") {
		t.Error("a refused command, or its key, ran")
	}
}
