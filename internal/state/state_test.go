package state_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
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

// TestDraftsOfTheDeadGo: an owner that was killed while it wrote a record leaves
// a draft, which the next sweep removes; that of a living one stays.
func TestDraftsOfTheDeadGo(t *testing.T) {
	t.Parallel()
	dir := open(t)
	alive, dead := claim(t, dir), claim(t, dir)
	draft := func(owner *state.Owner) string {
		name := filepath.Join(dir.Path(), "sandboxes", owner.Instance()+"."+state.NewID()+".tmp")
		if err := os.WriteFile(name, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	mine, theirs := draft(alive), draft(dead)
	// A sandbox that is begun on keeps the dead owner's lock file from going.
	if err := dead.Intend(state.NewID(), "one"); err != nil {
		t.Fatal(err)
	}
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	orphans, err := dir.Orphans("one")
	if err != nil || len(orphans) != 1 {
		t.Fatalf("orphans are %+v, %v", orphans, err)
	}
	if err := orphans[0].Release(true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("the draft of a living owner: %v", err)
	}
	if _, err := os.Stat(theirs); err == nil {
		t.Errorf("%s is left", theirs)
	}
	if err := os.Remove(mine); err != nil {
		t.Fatal(err)
	}
	if err := alive.Close(); err != nil {
		t.Fatal(err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestNoRecordIsMissed: owners that die while others look leave nothing behind
// that no sweep can find any more.
func TestNoRecordIsMissed(t *testing.T) {
	t.Parallel()
	dir := open(t)
	sweepAll := func() {
		orphans, err := dir.Orphans("one")
		if err != nil {
			t.Error(err)
		}
		for _, o := range orphans {
			if err := o.Release(true); err != nil {
				t.Error(err)
			}
		}
	}
	var dying, sweeping sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		sweeping.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					sweepAll()
				}
			}
		})
		dying.Go(func() {
			for range 100 {
				owner, err := dir.Claim()
				if err == nil {
					err = errors.Join(owner.Intend(state.NewID(), "one"), owner.Close())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	dying.Wait()
	close(stop)
	sweeping.Wait()
	sweepAll()
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("%d files are left, as %q", len(left), left[0])
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
