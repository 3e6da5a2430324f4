package driver_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm/driver"
)

// FuzzResolve gives layouts of any paths, among them links to everything that
// must not be mounted. What is accepted is a directory that is reached without a
// link, shares nothing with the private one, is not the kernel's, and no file
// that one mount may write is another's that may not be.
func FuzzResolve(f *testing.F) {
	for _, seed := range [][4]string{
		{"@/a", "@/b", "/x", "id"}, {"@/a/in", "@/a", "/x", "id"}, {"@/a", "@/a", "/x", "id"}, {"@/link", "@/b", "/x", "id"}, {"@/link/in", "@/b", "/x", "id"},
		{"@/file", "@/b", "/x", "id"}, {"@/missing", "@/b", "/x", "id"}, {"@/dangling", "@/b", "/x", "id"}, {"@/private", "@/b", "/x", "id"}, {"@/private/in", "@/b", "/x", "id"},
		{"@/toprivate", "@/b", "/x", "id"}, {"@", "@/b", "/x", "id"}, {"/", "@/b", "/x", "id"}, {"@/a/", "@/b", "/x", "id"}, {"@/a/../private", "@/b", "/x", "id"}, {"@/a//in", "@/b", "/x", "id"},
		{"a", "@/b", "/x", "id"}, {"", "", "", ""}, {"@/a\x00", "@/b", "/x", "id"}, {"/proc", "/sys", "/x", "id"}, {"/proc/self/root@/a", "@/b", "/x", "id"}, {"@/toproc", "@/b", "/x", "id"},
		{"/dev/shm", "/dev", "/x", "id"}, {"/dev/shm/berm-kit-x", "@/b", "/x", "id"}, {"@/a", "@/b", "/", "id"}, {"@/a", "@/b", "/proc/x", "id"}, {"@/a", "@/b", "/dev", "id"},
		{"@/a", "@/b", "/x/../proc", "id"}, {"@/a", "@/b", "x", "id"}, {"@/a", "@/b", "/mnt/skills/id/in", "id"}, {"@/a", "@/b", "/mnt/skills", "id"}, {"@/a", "@/b", "/mnt/user-data/outputs", "id"},
		{"@/a", "@/b", "/run/berm/x", "id"}, {"@/a", "@/b", "/run/bermx", ".."}, {"@/a", "@/b", "/x", "."}, {"@/a", "@/b", "/x", "a/b"}, {"@/a", "@/b", "/x", "..a"}, {"@/a", "@/b", "/x", "a b"},
		{"@/a", "@/b", `\x`, "id"}, {`C:\a`, "@/b", "/x", "id"}, {"~", "@/b", "/x", "id"}, {"@/odd\nü", "@/odd\nü/in", "/x\n", "id"}, {"@/a", "@/b/up/a", "/x", "id"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	base, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	for _, dir := range []string{"a/in", "b", "private/in", "odd\nü/in"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(base, "file"), nil, 0o644); err != nil {
		f.Fatal(err)
	}
	for name, target := range map[string]string{"link": "a", "dangling": "none", "toprivate": "private/in", "toproc": "/proc/self", "b/up": "..", "statelink": "private"} {
		if err := os.Symlink(target, filepath.Join(base, name)); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, first, second, dest, id string) {
		expand := func(p string) string { return strings.ReplaceAll(p, "@", base) }
		source := driver.Source{HostDir: &driver.HostDir{HostPath: expand(second)}}
		layout := driver.Layout{
			Outputs:  driver.HostVolume(expand(first)),
			Uploads:  &driver.Volume{Source: source, Path: expand(dest)},
			Skills:   []driver.Skill{{ID: id, Source: source}},
			ReadOnly: []string{expand(second)},
		}
		// The private directory is named by a link: what counts is where it leads.
		mounts, faults, refusals := layout.Resolve(hostDirs, filepath.Join(base, "statelink"))
		if (mounts == nil) != (len(faults)+len(refusals) > 0) {
			t.Fatalf("mounts %v with faults %q, %q", mounts, faults, refusals)
		}
		for i, m := range mounts {
			checkMount(t, m, filepath.Join(base, "private"))
			for _, other := range mounts[:i] {
				if related(m.Dest, other.Dest) {
					t.Fatalf("%+v and %+v are nested inside", m, other)
				}
				if m.Writable != other.Writable && (isBelow(t, m.Source, other.Source) || isBelow(t, other.Source, m.Source)) {
					t.Fatalf("%+v and %+v share files, and one may write", m, other)
				}
			}
		}
		if len(mounts) > 0 && !regexp.MustCompile(`^[\w.-]+$`).MatchString(id) {
			t.Fatalf("a skill %q was accepted", id)
		}
	})
}

// checkMount holds one accepted mount against what the kernel says.
func checkMount(t *testing.T, m driver.Mount, private string) {
	t.Helper()
	if real, err := filepath.EvalSymlinks(m.Source); err != nil || real != m.Source {
		t.Fatalf("%+v is reached by a link: %s, %v", m, real, err)
	}
	if info, err := os.Lstat(m.Source); err != nil || !info.IsDir() {
		t.Fatalf("%+v is no directory: %v, %v", m, info, err)
	}
	if isBelow(t, m.Source, private) || isBelow(t, private, m.Source) {
		t.Fatalf("%+v shares files with the private directory", m)
	}
	for _, kernel := range []string{"/proc", "/sys"} {
		if isBelow(t, m.Source, kernel) || related(m.Dest, kernel) {
			t.Fatalf("%+v is the kernel's", m)
		}
	}
	if !path.IsAbs(m.Dest) || path.Clean(m.Dest) != m.Dest || m.Dest == "/" || strings.Contains(m.Dest, "\x00") {
		t.Fatalf("%+v is at no proper place", m)
	}
}

// isBelow tells by inodes, not by names, whether p is dir or below it.
func isBelow(t *testing.T, p, dir string) bool {
	t.Helper()
	top, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	for {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if os.SameFile(info, top) {
			return true
		}
		if p == "/" {
			return false
		}
		p = filepath.Dir(p)
	}
}

// related tells whether one path is the other or above it, component by
// component.
func related(a, b string) bool {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	n := min(len(x), len(y))
	return slices.Equal(x[:n], y[:n])
}
