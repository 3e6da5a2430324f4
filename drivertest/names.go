package drivertest

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func namesGroup() group {
	return group{name: "names", behaviours: []behaviour{
		{"odd", namesOdd},
		{"refused", namesRefused},
		{"not-unicode", namesNotUnicode},
		{"sandbox-id", namesSandboxID},
	}}
}

// oddNames are legal, and nothing but names.
func oddNames() []string {
	return []string{
		" ", "a b", " lead", "trail ", "-rf", "--", "*", "?", "[a]", "a\nb", "a\tb", "\\", `a\b`, `..\up`, "'", `"`, "$HOME", "`id`", "%2e%2e", "%00",
		"a?b=c", "a#b", "a&b;c", "...", "..a", ".hidden", "ünïcode", "\U0001F600", "e\u0301", "\x01\x1b[31m", strings.Repeat("n", 255),
	}
}

// namesOdd: every legal name works for every operation.
func namesOdd(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	f := sb.Files()
	for _, name := range oddNames() {
		if err := f.WriteFile(bounded(t), "dir/"+name, []byte(name), 0o644); err != nil {
			t.Errorf("write %q: %v", name, err)
			continue
		}
		if got, err := f.ReadFile(bounded(t), "dir/"+name); err != nil || string(got) != name {
			t.Errorf("read %q: %q, %v", name, got, err)
		}
		if info, err := f.Stat(bounded(t), "dir/"+name); err != nil || info.Name() != name {
			t.Errorf("stat %q: %v, %v", name, info, err)
		}
	}
	entries, err := f.ReadDir(bounded(t), "dir")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	want := oddNames()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	for _, name := range want {
		if err := errors.Join(f.Rename(bounded(t), "dir/"+name, "moved"), f.Remove(bounded(t), "moved")); err != nil {
			t.Errorf("rename and remove %q: %v", name, err)
		}
	}
	if got := sh(t, sb, "ls -A dir; ls -A"); got != "dir\n" {
		t.Errorf("left over: %q", got)
	}
}

// namesRefused: what is no name, or leaves its directory, is refused by every
// operation before anything happens.
func namesRefused(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	f := sb.Files()
	sh(t, sb, "mkdir sub; echo keep > keep")
	for _, name := range []string{"", "a\x00b", "\x00", "..", "../x", "sub/../keep", "sub/..", "/../etc/passwd", "/tmp/..", sb.WorkDir() + "/sub/../keep"} {
		calls := map[string]func(context.Context) error{
			"open":      func(ctx context.Context) error { _, err := f.Open(ctx, name); return err },
			"read":      func(ctx context.Context) error { _, err := f.ReadFile(ctx, name); return err },
			"write":     func(ctx context.Context) error { return f.WriteFile(ctx, name, []byte("x"), 0o644) },
			"stat":      func(ctx context.Context) error { _, err := f.Stat(ctx, name); return err },
			"lstat":     func(ctx context.Context) error { _, err := f.Lstat(ctx, name); return err },
			"readdir":   func(ctx context.Context) error { _, err := f.ReadDir(ctx, name); return err },
			"readlink":  func(ctx context.Context) error { _, err := f.ReadLink(ctx, name); return err },
			"mkdir":     func(ctx context.Context) error { return f.Mkdir(ctx, name, 0o755) },
			"mkdirall":  func(ctx context.Context) error { return f.MkdirAll(ctx, name, 0o755) },
			"rename":    func(ctx context.Context) error { return f.Rename(ctx, name, "other") },
			"rename to": func(ctx context.Context) error { return f.Rename(ctx, "keep", name) },
			"remove":    func(ctx context.Context) error { return f.Remove(ctx, name) },
			"removeall": func(ctx context.Context) error { return f.RemoveAll(ctx, name) },
		}
		for op, call := range calls {
			if err := call(bounded(t)); !errors.Is(err, errdefs.Invalid) {
				t.Errorf("%s %q: %v, want invalid", op, name, err)
			}
		}
	}
	if got := sh(t, sb, "ls -A; cat keep"); got != "keep\nsub\nkeep\n" {
		t.Errorf("something happened: %q", got)
	}
}

// namesNotUnicode: a name that is not UTF-8 works or is refused; it is never
// changed in silence into another file's name.
func namesNotUnicode(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, `: > "$(printf 'bad\377name')"`)
	_, err := sb.Files().ReadDir(bounded(t), ".")
	if err != nil {
		t.Errorf("a directory with such a name cannot be listed: %v", err)
	}
	if err := sb.Files().WriteFile(bounded(t), "other\xff", []byte("x"), 0o644); err != nil {
		wantKind(t, err, errdefs.Invalid)
	}
	if got := sh(t, sb, `ls -A | tr -d 'a-z\n\377'`); got != "" {
		t.Errorf("a name was changed: %q", got)
	}
}

func namesSandboxID(t *testing.T, s *suite) {
	a, b := s.sandbox(t), s.sandbox(t)
	form := regexp.MustCompile(`^[a-z0-9]{20}$`)
	for _, sb := range []*berm.Sandbox{a, b} {
		if !form.MatchString(sb.ID()) || s.machine(t, sb).ID() != sb.ID() {
			t.Errorf("id %q, the machine's %q", sb.ID(), s.machine(t, sb).ID())
		}
	}
	if a.ID() == b.ID() {
		t.Error("two sandboxes have one id")
	}
}
