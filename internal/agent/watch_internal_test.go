package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"
)

// watching gives watches that are closed after the test, and a directory.
func watching(tb testing.TB) (*watches, string) {
	tb.Helper()
	dir, err := filepath.EvalSymlinks(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	ws := newWatches()
	tb.Cleanup(ws.close)
	return ws, dir
}

func mustWatch(tb testing.TB, ws *watches, dir string, recursive bool) *watcher {
	tb.Helper()
	w, err := ws.open(context.Background(), watchRequest{path: dir, recursive: recursive})
	if err != nil {
		tb.Fatal(err)
	}
	return w
}

// untilEvent takes events up to one that reads like last, and gives all as texts.
func untilEvent(tb testing.TB, ws *watches, w *watcher, last string) []string {
	tb.Helper()
	var got []string
	deadline := time.After(20 * time.Second)
	for {
		events, fault := ws.take(w, 1, 1<<20)
		for _, e := range events {
			got = append(got, strings.ToLower(strings.TrimPrefix(e.kind.String(), "EVENT_TYPE_"))+" "+e.name)
		}
		switch {
		case len(got) > 0 && got[len(got)-1] == last:
			return got
		case len(events) > 0:
			continue
		case fault != nil:
			tb.Fatalf("ended with %v after %q, before %q", fault, got, last)
		}
		select {
		case <-w.wake:
		case <-deadline:
			tb.Fatalf("no %q after %q", last, got)
		}
	}
}

// ending takes everything and gives the fault, and what came before.
func ending(tb testing.TB, ws *watches, w *watcher) (*fault, []watchEvent) {
	tb.Helper()
	var got []watchEvent
	deadline := time.After(20 * time.Second)
	for {
		events, fault := ws.take(w, 1000, 1<<20)
		got = append(got, events...)
		if len(events) == 0 && fault != nil {
			return fault, got
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-w.wake:
		case <-deadline:
			tb.Fatalf("no end after %d events", len(got))
		}
	}
}

func do(tb testing.TB, errs ...error) {
	tb.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
}

func TestWatchTellsWhatHappens(t *testing.T) {
	t.Parallel()
	ws, dir := watching(t)
	w := mustWatch(t, ws, dir, false)
	do(t, os.WriteFile(dir+"/a", []byte("x"), 0o644), os.Chmod(dir+"/a", 0o600), os.Rename(dir+"/a", dir+"/new\nline"),
		os.Mkdir(dir+"/d", 0o755), os.WriteFile(dir+"/d/below", nil, 0o644), os.Remove(dir+"/new\nline"), os.WriteFile(dir+"/end", nil, 0o644))
	want := []string{"create a", "write a", "chmod a", "rename a", "create new\nline", "create d", "remove new\nline", "create end"}
	if got := untilEvent(t, ws, w, "create end"); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestWatchIsRecursive(t *testing.T) {
	t.Parallel()
	ws, dir := watching(t)
	do(t, os.MkdirAll(dir+"/old/deep", 0o755), os.MkdirAll(dir+"/moved/x", 0o755), os.Symlink("old", dir+"/link"))
	w := mustWatch(t, ws, dir, true)
	do(t, os.WriteFile(dir+"/old/deep/f", nil, 0o644))
	untilEvent(t, ws, w, "create old/deep/f")
	// A directory that is moved is known by its new name.
	do(t, os.Rename(dir+"/moved", dir+"/old/here"))
	untilEvent(t, ws, w, "create old/here/x")
	do(t, os.WriteFile(dir+"/old/here/x/f", nil, 0o644))
	if got := untilEvent(t, ws, w, "create old/here/x/f"); slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "moved") }) {
		t.Errorf("by its old name: %q", got)
	}
	// One that goes and comes again is watched again.
	do(t, os.RemoveAll(dir+"/old"))
	untilEvent(t, ws, w, "remove old")
	do(t, os.Mkdir(dir+"/old", 0o755), os.WriteFile(dir+"/old/again", nil, 0o644))
	untilEvent(t, ws, w, "create old/again")
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(w.dirs) != 2 || ws.dirs != 2 || len(ws.notes.dirs) != 2 {
		t.Errorf("%d directories of the watcher, %d of all, %d of the kernel; two are there", len(w.dirs), ws.dirs, len(ws.notes.dirs))
	}
}

// TestWatchLosesNothingOfNewDirectories: whoever makes a directory and files in it
// is faster than whoever begins to watch it. Each file is told, and once.
func TestWatchLosesNothingOfNewDirectories(t *testing.T) {
	t.Parallel()
	ws, dir := watching(t)
	w := mustWatch(t, ws, dir, true)
	const trees = 200
	made := make(chan error, 1)
	go func() {
		for i := range trees {
			at := fmt.Sprintf("%s/t%d/a/b", dir, i)
			err := os.MkdirAll(at, 0o755)
			for _, name := range []string{at + "/f", at + "/../g", at + "/../../h"} {
				err = errors.Join(err, os.WriteFile(name, nil, 0o644))
			}
			if err != nil {
				made <- err
				return
			}
		}
		made <- os.WriteFile(dir+"/end", nil, 0o644)
	}()
	told := map[string]int{}
	for _, e := range untilEvent(t, ws, w, "create end") {
		told[e]++
	}
	do(t, <-made)
	for i := range trees {
		for _, name := range []string{"", "/a", "/a/b", "/a/b/f", "/a/g", "/h"} {
			if e := fmt.Sprintf("create t%d%s", i, name); told[e] != 1 {
				t.Errorf("%q was told %d times", e, told[e])
			}
		}
	}
}

// TestWatchEndsWithItsDirectory: with what happened first, and then the reason.
func TestWatchEndsWithItsDirectory(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(string) error{
		"remove": os.Remove, "rename": func(dir string) error { return os.Rename(dir, dir+"-else") },
	} {
		ws, parent := watching(t)
		dir := parent + "/dir"
		do(t, os.Mkdir(dir, 0o755))
		w := mustWatch(t, ws, dir, true)
		do(t, end(dir))
		fault, got := ending(t, ws, w)
		if fault.code != connect.CodeNotFound || len(got) == 0 || got[len(got)-1].name != "." {
			t.Errorf("%s: %v after %v", name, fault, got)
		}
	}
}

// TestWatchFollowsNoLinks: a directory that is swapped for a link leads nowhere.
func TestWatchFollowsNoLinks(t *testing.T) {
	t.Parallel()
	ws, parent := watching(t)
	dir, outside := parent+"/dir", parent+"/outside"
	do(t, os.MkdirAll(dir+"/sub", 0o755), os.MkdirAll(outside+"/deep", 0o755), os.Symlink("../outside", dir+"/link"))
	w := mustWatch(t, ws, dir, true)
	do(t, os.Symlink("../outside", dir+"/later"), os.Rename(dir+"/sub", parent+"/away"), os.Symlink("../outside", dir+"/sub"))
	do(t, os.WriteFile(outside+"/secret", nil, 0o644), os.WriteFile(outside+"/deep/secret", nil, 0o644), os.WriteFile(parent+"/away/secret", nil, 0o644))
	do(t, os.WriteFile(dir+"/end", nil, 0o644))
	for _, e := range untilEvent(t, ws, w, "create end") {
		if strings.Contains(e, "secret") {
			t.Errorf("told %q", e)
		}
	}
	for _, name := range []string{"later", "sub", "link", "link/deep"} {
		if opened, err := ws.openBelow(w, name); err == nil {
			do(t, opened.Close())
			t.Errorf("%q was opened", name)
		}
	}
}

func TestWatchFaults(t *testing.T) {
	t.Parallel()
	ws, dir := watching(t)
	do(t, os.WriteFile(dir+"/file", nil, 0o644), os.Symlink("self", dir+"/self"), unix.Mkfifo(dir+"/fifo", 0o644))
	for p, want := range map[string]connect.Code{
		dir + "/none": connect.CodeNotFound, dir + "/file": connect.CodeInvalidArgument, dir + "/fifo": connect.CodeInvalidArgument,
		dir + "/file/x": connect.CodeNotFound, dir + "/self": connect.CodeFailedPrecondition,
		"/proc": connect.CodePermissionDenied, "/proc/self": connect.CodePermissionDenied, "/proc/self/root" + dir: connect.CodePermissionDenied,
	} {
		_, err := ws.open(t.Context(), watchRequest{path: p, recursive: true})
		if err == nil || fileFault("watch", p, err).code != want {
			t.Errorf("%s: %v, want %v", p, err, want)
		}
	}
	if ws.notes != nil || len(ws.all) > 0 {
		t.Error("something is left of them")
	}
}

// TestWatchOnNetworkMounts: refused, but for those who say that they know.
func TestWatchOnNetworkMounts(t *testing.T) {
	t.Parallel()
	ws, dir := watching(t)
	ws.kindOf = func(int) (int64, error) { return unix.NFS_SUPER_MAGIC, nil }
	if _, err := ws.open(t.Context(), watchRequest{path: dir}); err == nil || fileFault("", "", err).code != connect.CodeInvalidArgument {
		t.Errorf("error %v", err)
	}
	w, err := ws.open(t.Context(), watchRequest{path: dir, network: true})
	do(t, err, os.WriteFile(dir+"/f", nil, 0o644))
	untilEvent(t, ws, w, "create f")
	if !isNetwork(0xFF534D42) || !isNetwork(-1<<32|0x65735546) || isNetwork(unix.EXT4_SUPER_MAGIC) || isNetwork(unix.TMPFS_MAGIC) || isNetwork(unix.OVERLAYFS_SUPER_MAGIC) {
		t.Error("the table of kinds is wrong")
	}
}

// TestWatchBounds: what is above a bound is refused, and told.
func TestWatchBounds(t *testing.T) {
	t.Parallel()
	exhausted := func(what string, err error) {
		t.Helper()
		if err == nil || fileFault("", "", err).code != connect.CodeResourceExhausted {
			t.Errorf("%s: %v", what, err)
		}
	}
	t.Run("watchers", func(t *testing.T) {
		ws, dir := watching(t)
		ws.limits.watchers = 3
		for range 3 {
			mustWatch(t, ws, dir, false)
		}
		_, err := ws.open(t.Context(), watchRequest{path: dir})
		exhausted("a fourth watcher", err)
	})
	t.Run("directories", func(t *testing.T) {
		ws, dir := watching(t)
		ws.limits.directories, ws.limits.allDirs = 10, 15
		for i := range 9 {
			do(t, os.Mkdir(fmt.Sprint(dir, "/", i), 0o755))
		}
		w := mustWatch(t, ws, dir, true)
		_, err := ws.open(t.Context(), watchRequest{path: dir, recursive: true})
		exhausted("ten more directories", err)
		do(t, os.Mkdir(dir+"/more", 0o755))
		fault, _ := ending(t, ws, w)
		exhausted("an eleventh directory", fault)
		if ws.dirs != 0 {
			t.Errorf("%d directories are still counted", ws.dirs)
		}
	})
	t.Run("queue", func(t *testing.T) {
		ws, dir := watching(t)
		ws.limits.events = 100
		w, other := mustWatch(t, ws, dir, false), mustWatch(t, ws, dir, false)
		for i := range 200 {
			do(t, os.WriteFile(fmt.Sprintf("%s/%d", dir, i), nil, 0o644))
			// This one is read, and so none of its events are lost.
			untilEvent(t, ws, other, fmt.Sprint("create ", i))
		}
		fault, got := ending(t, ws, w)
		exhausted("more events than can wait", fault)
		if len(got) != 100 || got[99].name != "99" {
			t.Errorf("%d events came first", len(got))
		}
	})
	t.Run("bytes", func(t *testing.T) {
		ws, dir := watching(t)
		ws.limits.allBytes = 10 * (eventCost + 200)
		w := mustWatch(t, ws, dir, false)
		for i := range 20 {
			do(t, os.WriteFile(dir+"/"+strings.Repeat("n", 198)+fmt.Sprint(10+i), nil, 0o644))
		}
		// What is taken makes room.
		for ended := false; !ended; {
			select {
			case <-w.wake:
			case <-time.After(20 * time.Second):
				t.Fatal("no end")
			}
			ws.mu.Lock()
			ended = w.fault != nil
			ws.mu.Unlock()
		}
		fault, got := ending(t, ws, w)
		exhausted("more bytes than can wait", fault)
		if len(got) != 10 || ws.bytes != 0 {
			t.Errorf("%d events came first, %d bytes are still counted", len(got), ws.bytes)
		}
	})
}

// TestWatchTellsTheKernelsLosses: the kernel's queue is bounded too.
func TestWatchTellsTheKernelsLosses(t *testing.T) {
	t.Parallel()
	ws, dir := watching(t)
	w := mustWatch(t, ws, dir, false)
	ws.handle(ws.notes, kernelEvent{wd: -1, mask: unix.IN_Q_OVERFLOW})
	if fault, _ := ending(t, ws, w); fault.code != connect.CodeResourceExhausted {
		t.Errorf("ended with %v", fault)
	}
}

// TestIdleWatchersAreForgotten: but not those that are asked.
func TestIdleWatchersAreForgotten(t *testing.T) {
	t.Parallel()
	ws, dir := watching(t)
	ws.limits.idle = 300 * time.Millisecond
	idle, asked := mustWatch(t, ws, dir, false), mustWatch(t, ws, dir, false)
	idleID, err := ws.keep(idle)
	askedID, err2 := ws.keep(asked)
	do(t, err, err2)
	began := time.Now()
	there := func(id string) bool {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		return ws.polled[id] != nil
	}
	for there(idleID) {
		if time.Since(began) > 20*time.Second {
			t.Fatal("it is still there")
		}
		if ws.find(askedID) == nil {
			t.Fatal("the one that is asked is gone")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if time.Since(began) < ws.limits.idle {
		t.Errorf("gone after %v", time.Since(began))
	}
	ws.release(asked)
	if ws.notes != nil || len(ws.polled) > 0 {
		t.Error("something is left")
	}
}

// TestWatchersLeaveNothing: a hundred that come and go, with a tree that changes
// under them, leave descriptors, goroutines and counts as they were.
func TestWatchersLeaveNothing(t *testing.T) {
	ws, dir := watching(t)
	do(t, os.MkdirAll(dir+"/a/b/c", 0o755))
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		do(t, err)
		return len(entries)
	}
	round := func() {
		var all []*watcher
		for i := range 100 {
			w := mustWatch(t, ws, dir, i%2 == 0)
			if i%4 == 0 {
				_, err := ws.keep(w)
				do(t, err)
			}
			all = append(all, w)
		}
		do(t, os.MkdirAll(dir+"/new/x", 0o755), os.WriteFile(dir+"/new/x/f", nil, 0o644))
		for i, w := range all {
			if i%2 == 0 {
				untilEvent(t, ws, w, "create new/x/f")
			}
			ws.release(w)
		}
		do(t, os.RemoveAll(dir+"/new"))
	}
	round()
	ws.readers.Wait()
	fds, routines := descriptors(), runtime.NumGoroutine()
	for range 3 {
		round()
	}
	ws.readers.Wait()
	if got := descriptors(); got > fds {
		t.Errorf("%d descriptors, there were %d", got, fds)
	}
	// Others than the watchers' own may be about to end.
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > routines && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	if got := runtime.NumGoroutine(); got > routines {
		t.Errorf("%d goroutines, there were %d", got, routines)
	}
	if ws.dirs != 0 || ws.bytes != 0 || len(ws.all)+len(ws.polled) > 0 || ws.notes != nil {
		t.Errorf("left: %d directories, %d bytes, %d watchers", ws.dirs, ws.bytes, len(ws.all))
	}
}

func TestWatchesThatAreClosed(t *testing.T) {
	t.Parallel()
	ws, dir := watching(t)
	w, polled := mustWatch(t, ws, dir, true), mustWatch(t, ws, dir, true)
	id, err := ws.keep(polled)
	do(t, err)
	ws.close()
	if fault, _ := ending(t, ws, w); fault.code != connect.CodeUnavailable {
		t.Errorf("ended with %v", fault)
	}
	if ws.find(id) != nil {
		t.Error("it can still be polled")
	}
	if _, err := ws.open(t.Context(), watchRequest{path: dir}); err == nil {
		t.Error("a watcher after the end")
	}
	ws.release(w)
	ws.close()
	if _, err := ws.keep(w); err == nil {
		t.Error("a name after the end")
	}
}
