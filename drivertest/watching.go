package drivertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func watchGroup() group {
	return group{name: "watch", behaviours: []behaviour{
		{"events", watchEvents},
		{"recursive", watchRecursive},
		{"nothing-lost", watchNothingLost},
		{"overflow", watchOverflow},
		{"directory-gone", watchDirectoryGone},
		{"ended", watchEnded},
		{"many", watchMany},
		{"faults", watchFaults},
	}}
}

// watch begins to watch a directory, until the test ends.
func watch(t *testing.T, sb *berm.Sandbox, name string, opts berm.WatchOptions) *berm.Watcher {
	t.Helper()
	w, err := sb.Files().Watch(bounded(t), name, opts)
	if err != nil {
		t.Fatalf("watch %s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close the watcher: %v", err)
		}
	})
	return w
}

// until gives the events, as texts, up to one.
func until(t *testing.T, w *berm.Watcher, last string) []string {
	t.Helper()
	var got []string
	for e := range w.Events() {
		got = append(got, e.Op.String()+" "+e.Name)
		if got[len(got)-1] == last {
			return got
		}
	}
	t.Fatalf("ended with %v before %q, after %q", w.Err(), last, got)
	return nil
}

// watchEvents: what commands and the API do is told, in its order, by name, and
// with what is there now for those who want that.
func watchEvents(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "mkdir dir")
	w := watch(t, sb, "dir", berm.WatchOptions{Info: true})
	sh(t, sb, `cd dir; printf data > a; chmod 600 a; mv a 'new
line'; mkdir sub; : > sub/below; rm 'new
line'; ln -s nowhere link`)
	want := []string{"create a", "write a", "chmod a", "rename a", "create new\nline", "create sub", "remove new\nline", "create link"}
	var got []string
	for e := range w.Events() {
		got = append(got, e.Op.String()+" "+e.Name)
		if e.Info != nil && e.Name == "sub" && !e.Info.IsDir() || (e.Op == berm.WatchRemove || e.Op == berm.WatchRename) && e.Info != nil {
			t.Errorf("%v %q with %v", e.Op, e.Name, e.Info)
		}
		if e.Name == "link" {
			if e.Info == nil || e.Info.Mode().IsRegular() {
				t.Errorf("the link is %v", e.Info)
			}
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if err := sb.Files().WriteFile(bounded(t), "dir/from-outside", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	until(t, w, "create from-outside")
	if w.Err() != nil {
		t.Errorf("error %v of a watcher that goes on", w.Err())
	}
}

// watchRecursive: directories that come later are watched too, under the names
// that they have; links lead nowhere.
func watchRecursive(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "mkdir -p dir/old outside away/deep; ln -s ../outside dir/link")
	w := watch(t, sb, "dir", berm.WatchOptions{Recursive: true})
	sh(t, sb, ": > dir/old/f")
	until(t, w, "create old/f")
	sh(t, sb, "mv away dir/here")
	until(t, w, "create here/deep")
	sh(t, sb, ": > outside/secret; mv dir/here dir/there; : > dir/there/deep/f; : > dir/end")
	got := until(t, w, "create end")
	if !slices.Contains(got, "create there/deep/f") || slices.Contains(got, "create here/deep/f") || strings.Contains(strings.Join(got, " "), "secret") {
		t.Errorf("after a directory was renamed: %q", got)
	}
}

// watchNothingLost: files in directories that are made at once are told, each once.
func watchNothingLost(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "mkdir dir")
	w := watch(t, sb, "dir", berm.WatchOptions{Recursive: true})
	const trees = 100
	sh(t, sb, `cd dir; for i in $(seq $1); do mkdir -p $i/a/b; : > $i/a/b/f; : > $i/g; done; : > end`, fmt.Sprint(trees))
	told := map[string]int{}
	for _, e := range until(t, w, "create end") {
		told[e]++
	}
	for i := range trees {
		for _, name := range []string{"", "/a", "/a/b", "/a/b/f", "/g"} {
			if e := fmt.Sprintf("create %d%s", i+1, name); told[e] != 1 {
				t.Errorf("%q was told %d times", e, told[e])
			}
		}
	}
}

// watchOverflow: events that nobody takes do not pile up without bound, and are
// not left out in silence.
func watchOverflow(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "mkdir dir")
	w := watch(t, sb, "dir", berm.WatchOptions{})
	// Also what is on the way between, in buffers, has to be filled.
	sh(t, sb, `cd dir; name=$(printf '%0200d' 0); touch $name-a $name-b; list=$(for i in $(seq 1000); do echo $name-a $name-b; done); for i in $(seq 20); do chmod 600 $list; done`)
	count := 0
	for range w.Events() {
		count++
	}
	wantKind(t, w.Err(), errdefs.Exhausted)
	if count < 1000 {
		t.Errorf("%d events came first", count)
	}
}

// watchDirectoryGone: a watcher says that there is nothing to watch any more.
func watchDirectoryGone(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for _, how := range []string{"rm -r dir", "mv dir else"} {
		sh(t, sb, "rm -rf else; mkdir dir")
		w := watch(t, sb, "dir", berm.WatchOptions{Recursive: true})
		sh(t, sb, how)
		var last berm.WatchEvent
		within(t, liveness, "a watcher's end with its directory", func() {
			for last = range w.Events() {
				continue
			}
		})
		wantKind(t, w.Err(), errdefs.NotFound)
		if last.Name != "." || last.Op != berm.WatchRemove && last.Op != berm.WatchRename {
			t.Errorf("%s: the last event is %v", how, last)
		}
	}
}

// watchEnded: Close, the context and Destroy end a watcher that waits.
func watchEnded(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	ended(t, sb, "close", "")
	ended(t, sb, "context", errdefs.Cancelled)
	ended(t, sb, "destroy", errdefs.Closed)
}

// ended ends a watcher by name.
func ended(t *testing.T, sb *berm.Sandbox, how string, kind errdefs.Kind) {
	t.Helper()
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	w, err := sb.Files().Watch(ctx, ".", berm.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	over := make(chan struct{})
	go func() {
		defer close(over)
		for range w.Events() {
			continue
		}
	}()
	switch how {
	case "close":
		err = w.Close()
	case "context":
		cancel()
	default:
		err = sb.Destroy(bounded(t))
	}
	if err != nil {
		t.Errorf("%s: %v", how, err)
	}
	within(t, liveness, "the end by "+how, func() { <-over })
	if kind != "" {
		wantKind(t, w.Err(), kind)
	} else if w.Err() != nil {
		t.Errorf("%s: error %v", how, w.Err())
	}
}

// watchMany: a hundred watchers are there at once, and cost nothing when they are
// gone.
func watchMany(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "mkdir -p dir/a/b")
	for round := range 3 {
		var all []*berm.Watcher
		for i := range 100 {
			w, err := sb.Files().Watch(bounded(t), "dir", berm.WatchOptions{Recursive: i%2 == 0})
			if err != nil {
				t.Fatalf("watcher %d of round %d: %v", i, round, err)
			}
			all = append(all, w)
		}
		name := fmt.Sprint("f", round)
		sh(t, sb, `: > "dir/$1"`, name)
		for _, w := range all {
			until(t, w, "create "+name)
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	// More than are possible at once, one after another.
	for range 300 {
		w, err := sb.Files().Watch(bounded(t), "dir", berm.WatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

func watchFaults(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "echo x > file; mkfifo fifo; ln -s file link")
	for name, kind := range map[string]errdefs.Kind{
		"missing": errdefs.NotFound, "file": errdefs.Invalid, "fifo": errdefs.Invalid, "link": errdefs.Invalid,
		"../x": errdefs.Invalid, "/proc": errdefs.Denied, "/proc/self/root": errdefs.Denied,
	} {
		within(t, liveness, "watching "+name, func() {
			w, err := sb.Files().Watch(bounded(t), name, berm.WatchOptions{Recursive: true})
			if err == nil {
				_ = w.Close()
			}
			wantKind(t, err, kind)
		})
	}
}
