package agent

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

func TestTunnelsAreCounted(t *testing.T) {
	t.Parallel()
	var ts tunnels
	for i := range maxTunnels {
		if _, status := ts.begin(func() {}); status != 0 {
			t.Fatalf("tunnel %d: %d", i, status)
		}
	}
	if _, status := ts.begin(func() {}); status != http.StatusServiceUnavailable {
		t.Errorf("one more: %d", status)
	}
}

func TestProbeListsAreBounded(t *testing.T) {
	t.Parallel()
	c := newControl(Config{}, &countedSelf{}, newSession(Config{}))
	defer c.close()
	_, err := c.Probe(t.Context(), &agentv1.ProbeRequest{WritePaths: make([]string, maxProbeItems+1)})
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("error %v", err)
	}
}

func TestListingsAreBounded(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]*listing{
		"bytes": {bytes: maxListBytes}, "entries": {entries: make([]entry, maxListEntries)},
	} {
		if err := l.take(entry{name: "one more"}); err == nil {
			t.Errorf("%s: one more is taken", name)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "one more"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	full := &listing{entries: make([]entry, maxListEntries)}
	if _, err := full.names(t.Context(), file); err == nil {
		t.Error("a full listing reads on")
	}
}

// TestChainsOfLinksEnd: a walk follows as many links as the kernel, and none that
// make the rest of the path longer and longer.
func TestChainsOfLinksEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		links   int
		padding string
		want    error
	}{
		"few links":  {maxLinks, "", nil},
		"many links": {maxLinks + 1, "", unix.ELOOP},
		"long links": {20, strings.Repeat("/.", 2000), unix.ENAMETOOLONG},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "0"), 0o755); err != nil {
			t.Fatal(err)
		}
		for i := 1; i <= c.links; i++ {
			if err := os.Symlink(strconv.Itoa(i-1)+c.padding, filepath.Join(dir, strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
		at, err := find(filepath.Join(dir, strconv.Itoa(c.links)), true, false)
		if err == nil {
			at.close()
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestRemovalDoesNotFollowAMovedTree: a directory that is moved away while it is
// emptied leads the removal nowhere.
func TestRemovalDoesNotFollowAMovedTree(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	// The removal is in tree/child; in other there is a namesake.
	if err := errors.Join(os.MkdirAll(at("tree/child/x"), 0o755), os.MkdirAll(at("other/namesake"), 0o755)); err != nil {
		t.Fatal(err)
	}
	tree, err := os.Open(at("tree"))
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	child, up, err := enter(tree, "child")
	if err != nil {
		t.Fatal(err)
	}
	defer child.Close()
	up.name = "namesake"
	if err := os.Rename(at("tree/child"), at("other/child")); err != nil {
		t.Fatal(err)
	}
	if next, err := leave(child, up); err == nil {
		_ = next.Close()
		t.Error("the removal went on")
	}
	if _, err := os.Stat(at("other/namesake")); err != nil {
		t.Errorf("it removed what it was not asked for: %v", err)
	}
}

// TestHalfABodyIsNoFile: an upload that ends before its length leaves nothing,
// whatever server is in front.
func TestHalfABodyIsNoFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	body := &lengthChecked{body: strings.NewReader("short"), left: 100}
	if _, err := (localFiles{}).write(context.Background(), path, writeOptions{}, body); err == nil {
		t.Error("it was taken")
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("it is there")
	}
}
