package state_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berm-dev/berm/internal/state"
)

func open(t *testing.T) *state.Dir {
	t.Helper()
	dir, err := state.Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func claim(t *testing.T, dir *state.Dir) *state.Owner {
	t.Helper()
	owner, err := dir.Claim()
	if err != nil {
		t.Fatal(err)
	}
	return owner
}

// files lists what is in the state directory.
func files(t *testing.T, dir *state.Dir) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir.Path(), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOrphansAreOnlyTheDead(t *testing.T) {
	t.Parallel()
	dir := open(t)
	alive, dead := claim(t, dir), claim(t, dir)
	a, b, c := state.NewID(), state.NewID(), state.NewID()
	for id, owner := range map[string]*state.Owner{a: alive, b: dead} {
		if err := owner.Intend(id, "one"); err != nil {
			t.Fatal(err)
		}
	}
	if err := dead.Intend(c, "two"); err != nil {
		t.Fatal(err)
	}
	if orphans, err := dir.Orphans("one"); err != nil || len(orphans) != 0 {
		t.Fatalf("both live, but orphans are %v, %v", orphans, err)
	}
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ backend, id string }{{"one", b}, {"two", c}} {
		orphans, err := dir.Orphans(step.backend)
		if err != nil || len(orphans) != 1 || len(orphans[0].IDs) != 1 || orphans[0].IDs[0] != step.id {
			t.Fatalf("%s: orphans are %+v, %v", step.backend, orphans, err)
		}
		if again, err := dir.Orphans(step.backend); err != nil || len(again) != 0 {
			t.Fatalf("%s: a second sweep got what the first one holds: %v, %v", step.backend, again, err)
		}
		if err := orphans[0].Release(true); err != nil {
			t.Fatal(err)
		}
	}
	if err := alive.Forget(a); err != nil {
		t.Fatal(err)
	}
	if err := alive.Close(); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestUnsweptOrphansStay(t *testing.T) {
	t.Parallel()
	dir := open(t)
	owner, id := claim(t, dir), state.NewID()
	if err := owner.Intend(id, "one"); err != nil {
		t.Fatal(err)
	}
	// An owner that could not remove a sandbox leaves its name for a sweep.
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		orphans, err := dir.Orphans("one")
		if err != nil || len(orphans) != 1 || len(orphans[0].IDs) != 1 {
			t.Fatalf("orphans are %+v, %v", orphans, err)
		}
		if err := orphans[0].Release(false); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenRefusesWhatIsNotPrivate(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	loose, link := filepath.Join(base, "loose"), filepath.Join(base, "link")
	if err := os.Mkdir(loose, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(loose, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{loose: "must be 0700", link: "not a directory", "relative": "not absolute"} {
		if _, err := state.Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%q) = %v, want an error with %q", path, err, want)
		}
	}
}

func TestNewID(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		id := state.NewID()
		if !regexp.MustCompile(`^[a-z0-9]{20}$`).MatchString(id) || seen[id] {
			t.Fatalf("bad or repeated id %q", id)
		}
		seen[id] = true
	}
}
