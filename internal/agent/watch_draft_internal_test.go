package agent

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestWatchTellsUploadsAsWrites: what a client uploads is told as a file that was
// made and written, under its own name only.
func TestWatchTellsUploadsAsWrites(t *testing.T) {
	t.Parallel()
	ws, dir := watching(t)
	if err := os.Mkdir(dir+"/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	w := mustWatch(t, ws, dir, true)
	for _, name := range []string{"new", "new", "sub/below"} {
		if _, err := (localFiles{}).write(t.Context(), dir+"/"+name, writeOptions{}, strings.NewReader("content")); err != nil {
			t.Fatal(err)
		}
	}
	got := untilEvent(t, ws, w, "write sub/below")
	want := []string{"create new", "write new", "create new", "write new", "create sub/below", "write sub/below"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestDraftNames: only names that tempName gives are drafts.
func TestDraftNames(t *testing.T) {
	t.Parallel()
	name, err := tempName()
	if err != nil {
		t.Fatal(err)
	}
	if !isDraft(name) {
		t.Errorf("%q is no draft", name)
	}
	for _, other := range []string{"", "file", ".berm-.tmp", name + "x", "x" + name, ".berm-" + strings.Repeat("x", 24) + ".tmp", ".berm-0123.tmp"} {
		if isDraft(other) {
			t.Errorf("%q is a draft", other)
		}
	}
}
