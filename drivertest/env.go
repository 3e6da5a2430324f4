package drivertest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func envGroup() group {
	return group{name: "env", behaviours: []behaviour{
		{"clean", envClean},
		{"values", envValues},
		{"layers", envLayers},
		{"keys", envKeys},
		{"planted-programs", envPlantedPrograms},
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

// envPlantedPrograms: berm's own doings inside run nothing that a payload can
// put in the way: not by a PATH that leads to it first.
func envPlantedPrograms(t *testing.T, s *suite) {
	s.needsHostDirs(t)
	dir := hostDir(t)
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"sh", "bash", "tar", "cat", "cp", "mv", "ls", "stat", "mkdir", "rm", "ln", "chmod", "find", "df", "ps", "kill", "pkill", "env", "nohup", "setsid", "id", "getent",
		"test", "true", "sleep", "mount", "unshare", "nsenter", "bwrap", "berm-agent", "ip", "socat", "nc", "exec", "serve", "probe",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n: > \"${0%/*}/../ran-${0##*/}\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root := dir
	if s.declared(t).ContainedPaths {
		root = driver.OutputsPath
	}
	sb := create(t, s.provider(t), berm.CreateOptions{
		Layout: &berm.Layout{Outputs: berm.HostVolume(dir)}, Env: map[string]string{"PATH": root + "/bin", "ENV": root + "/bin/sh", "BASH_ENV": root + "/bin/sh"},
	})
	f, ctx := sb.Files(), bounded(t)
	_, listErr := f.ReadDir(ctx, ".")
	_, statErr := f.Stat(ctx, "bin")
	_, readErr := f.ReadFile(ctx, "a/b")
	err := errors.Join(f.WriteFile(ctx, "a/b", []byte("x"), 0o644), f.MkdirAll(ctx, "c/d", 0o755), f.Rename(ctx, "a/b", "c/e"), f.RemoveAll(ctx, "c"), listErr, statErr)
	if err != nil || !errors.Is(readErr, fs.ErrNotExist) {
		t.Errorf("files: %v, %v", err, readErr)
	}
	exited(t, sb, 0, berm.Command{Args: []string{"/bin/true"}})
	if res, err := sb.Exec(ctx, berm.Command{Args: []string{"/bin/sleep", "1000"}, Timeout: 50 * time.Millisecond}); err != nil || res.Reason != berm.TimedOut {
		t.Errorf("sleep: %v, %v", res, err)
	}
	if conn, err := sb.DialContext(ctx, "tcp", "localhost:1"); err == nil {
		_ = conn.Close()
	}
	if ran, err := filepath.Glob(filepath.Join(dir, "ran-*")); err != nil || len(ran) > 0 {
		t.Errorf("planted programs ran: %q, %v", ran, err)
	}
	// They are there to be run: a command that is named without a slash is theirs.
	exited(t, sb, 0, berm.Command{Args: []string{"true"}})
	destroyNow(t, sb)
	if ran, err := filepath.Glob(filepath.Join(dir, "ran-*")); err != nil || len(ran) != 1 {
		t.Errorf("of the planted programs ran: %q, %v, want only the one that was asked for", ran, err)
	}
}
