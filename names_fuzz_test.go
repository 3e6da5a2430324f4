package berm

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// components are the names in a path that say something.
func components(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(s string) bool { return s == "" || s == "." })
}

// FuzzNames checks names inside. One is refused, or leads where its components
// say: a relative one into the working directory, one of an FS into the FS's
// directory, and none loses, gains or changes a component.
func FuzzNames(f *testing.F) {
	for _, name := range []string{
		"", ".", "/", "a", "a/b", "/a/b", "./a", "a/.", "a//b", "a/", "..", "../a", "a/../b", "/..", "a/..", "...", "..a", "a\x00", "\x00", `a\b`, `..\..\a`, `C:\a`,
		`\\host\share`, "C:/a", "~", "~/a", "-rf", "*", " ", "\n", "ü/€", "\xff/\xfe", "%2e%2e/a", "%2f", "a?b#c", "/mnt/user-data/outputs", "//mnt", "/./.", "．．/a", "a/…/b",
	} {
		f.Add(name, "sub")
		f.Add("a/b", name)
	}
	f.Fuzz(func(t *testing.T, name, dir string) {
		const workDir = "/mnt/user-data/outputs"
		sandbox := &Sandbox{settled: settled{dir: workDir}, provider: &Provider{}}
		full, err := sandbox.Files().path("op", name)
		legal := name != "" && !strings.Contains(name, "\x00") && !slices.Contains(components(name), "..")
		if (err == nil) != legal || err != nil && !errors.Is(err, errdefs.Invalid) {
			t.Fatalf("%q: %v, legal=%t", name, err, legal)
		}
		if legal {
			want := components(name)
			if !strings.HasPrefix(name, "/") {
				want = append(components(workDir), want...)
			}
			again, err := sandbox.Files().path("op", full)
			if !slices.Equal(components(full), want) || !path.IsAbs(full) || path.Clean(full) != full || again != full || err != nil {
				t.Fatalf("%q leads to %q, want %q; and that to %q, %v", name, full, want, again, err)
			}
		}
		if (len(Command{Args: []string{"x"}, Dir: name}.faults()) == 0) != (legal || name == "") {
			t.Fatalf("%q as a directory of a command is judged otherwise than as a name", name)
		}
		checkFS(t, sandbox, name, dir)
	})
}

// checkFS checks a name of an FS of some directory.
func checkFS(t *testing.T, sandbox *Sandbox, name, dir string) {
	t.Helper()
	root := sandbox.WorkDir()
	if dir != "" {
		var err error
		if root, err = sandbox.Files().path("op", dir); err != nil {
			root = ""
		}
	}
	fsys, ok := sandbox.FS(context.Background(), dir).(*sandboxFS)
	if !ok {
		t.Fatal("FS has another type")
	}
	full, err := fsys.name("op", name)
	if (err == nil) != (root != "" && fs.ValidPath(name)) {
		t.Fatalf("%q in %q: %v", name, dir, err)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrInvalid) && !errors.Is(err, errdefs.Invalid) {
			t.Fatalf("%q in %q: %v is not invalid", name, dir, err)
		}
		return
	}
	if want := append(components(root), components(name)...); !slices.Equal(components(full), want) {
		t.Fatalf("%q in %q leads to %q", name, dir, full)
	}
}

// TestNamesInsideAreSlashed: what is a separator or a drive on some host is a
// character of a name inside.
func TestNamesInsideAreSlashed(t *testing.T) {
	t.Parallel()
	sandbox := &Sandbox{settled: settled{dir: "/job"}, provider: &Provider{}}
	for name, want := range map[string]string{
		"a/b": "/job/a/b", `a\b`: `/job/a\b`, `a\..\b`: `/job/a\..\b`, `\a`: `/job/\a`, `C:\a\b`: `/job/C:\a\b`, "C:/a": "/job/C:/a",
		`\\host\share`: `/job/\\host\share`, "//host/share": "/host/share", "/a//b/./c/": "/a/b/c", ".": "/job", "nul": "/job/nul", "a:b": "/job/a:b",
	} {
		if got, err := sandbox.Files().path("op", name); got != want || err != nil {
			t.Errorf("%q leads to %q, want %q, %v", name, got, want, err)
		}
		if faults := (Command{Args: []string{"x"}, Dir: name}).faults(); len(faults) > 0 {
			t.Errorf("%q as a working directory: %q", name, faults)
		}
	}
	for want, layout := range map[string]driver.Layout{
		driver.OutputsPath: {}, driver.WorkspacePath: {Workdir: `C:\repo`}, "/at": {Outputs: &driver.Volume{Path: "/at"}},
	} {
		if got := layout.WorkRoot(); got != want {
			t.Errorf("%+v works in %q, want %q", layout, got, want)
		}
	}
}
