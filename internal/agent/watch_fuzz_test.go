package agent

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// FuzzWatch watches a path through links in a real tree while names in it are
// made, moved, linked and removed. A watch begins where the kernel's openat2 says
// that a directory is, or not at all; the names of its events lead into it, and
// none is of what lies outside of it, behind a link.
func FuzzWatch(f *testing.F) {
	for _, seed := range [][3]string{
		{"@", "", "m new;c new/f"}, {"@/a", "dir", "c dir/x"}, {"@/a", "%", "c dir/x;C x"}, {"@/dir/b", "%/dir", "C dir/x"}, {"@/file", "", ""}, {"@/none", "", ""}, {"/proc", "", ""},
		{"/proc/self", "", ""}, {"@/a", "/proc/self/root", ""}, {"@/a/self", "/proc", ""}, {"@/a", "a", ""}, {"@/a", "..", "c x"}, {"", "", ""}, {"~", "", "c f"}, {"@/dir/..", "", "m d;m d/e;m d/e/f;c d/e/f/g"},
		{"@", "dir", "r dir;m dir;c dir/f"}, {"@/dir", "", "r dir"}, {"@/dir", "", "v dir moved;c moved/f"}, {"@", "", "v dir moved;l dir %;C x;c moved/f"}, {"@", "", "m d;l d/l %;C x;c d/f;v d e"},
		{"@", "", "v dir/sub sub;c sub/f;v sub dir/sub"}, {"@", "%", "l new a;C y"}, {"@/dir/sub", "", "r dir;m dir;m dir/sub;c dir/sub/f"}, {"@/a", "dir/", "c dir/x"}, {"@/dir", "\n", "c dir/\n;c dir/\xff"},
	} {
		f.Add(seed[0], seed[1], seed[2], true)
		f.Add(seed[0], seed[1], seed[2], false)
	}
	root, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	th := thicket{base: filepath.Join(root, "base"), outside: filepath.Join(root, "outside")}
	f.Fuzz(func(t *testing.T, name, link, script string, recursive bool) {
		th.build(t)
		th.link([3]string{th.expand(link), th.expand(link), th.expand(link)})
		p, err := cleanPath(th.base, th.expand(name))
		if err != nil || len(p) >= maxPathBytes || !th.inside(p) && !strings.HasPrefix(p, "/proc") || link != "" && !th.inside(th.expand(link)) && !strings.HasPrefix(link, "/proc") {
			return // the rest of the machine is not to be watched
		}
		ws := newWatches()
		defer ws.close()
		w, err := ws.open(t.Context(), watchRequest{path: p, recursive: recursive})
		th.compareWatch(t, p, w, err)
		if err != nil {
			if ws.notes != nil || ws.dirs != 0 {
				t.Fatalf("%q, %v: something is left", p, err)
			}
			return
		}
		th.play(script)
		th.checkEvents(t, ws, w)
	})
}

// compareWatch holds what was opened against the kernel's own walk.
func (th thicket) compareWatch(t *testing.T, p string, w *watcher, err error) {
	t.Helper()
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	fd, kernelErr := unix.Openat2(unix.AT_FDCWD, p, &how)
	if errors.Is(kernelErr, unix.ENOSYS) || errors.Is(kernelErr, unix.EPERM) {
		t.Skip("openat2 is not there to compare with")
	}
	var st unix.Stat_t
	procfs := false
	if kernelErr == nil {
		procfs, _ = isProcfs(fd)
		kernelErr = errors.Join(unix.Fstat(fd, &st), unix.Close(fd))
	}
	switch {
	case err == nil && (kernelErr != nil || procfs || st.Dev != w.dev || st.Ino != w.ino):
		t.Fatalf("%q is watched at %s, and is by the kernel %v, procfs %t", p, w.root, kernelErr, procfs)
	case err != nil && kernelErr == nil && !procfs:
		t.Fatalf("%q: %v", p, err)
	}
}

// play does what a script says, below base alone but for "C".
func (th thicket) play(script string) {
	for i, line := range strings.Split(script, ";") {
		words := append(strings.SplitN(line, " ", 3), "", "")
		at := func(word string) string { return filepath.Join(th.base, filepath.Clean("/"+word)) }
		if i > 20 || !th.inside(words[1]) || strings.ContainsRune(line, 0) || at(words[1]) == th.base {
			continue
		}
		switch words[0] {
		case "c":
			// Not through links, so that what is outside stays as it is.
			if real, err := filepath.EvalSymlinks(path.Dir(at(words[1]))); err == nil && within(real, th.base) {
				if _, err := os.Lstat(at(words[1])); err != nil {
					_ = os.WriteFile(at(words[1]), []byte("x"), 0o644)
				}
			}
		case "C":
			_ = os.WriteFile(filepath.Join(th.outside, "outside-"+path.Base(words[1])), nil, 0o644)
		case "m":
			_ = os.Mkdir(at(words[1]), 0o755)
		case "v":
			_ = os.Rename(at(words[1]), at(words[2]))
		case "l":
			_ = os.Symlink(th.expand(words[2]), at(words[1]))
		case "r":
			_ = os.RemoveAll(at(words[1]))
		}
	}
}

// checkEvents takes all events up to one that is made for this.
func (th thicket) checkEvents(t *testing.T, ws *watches, w *watcher) {
	t.Helper()
	last := "outside-and-end"
	_ = os.WriteFile(filepath.Join(w.root, last), nil, 0o644)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		events, fault := ws.take(w, 100, 1<<20)
		for _, e := range events {
			clean := path.Clean(e.name)
			if e.kind < 1 || e.kind > 5 || e.name == "" || clean != e.name || path.IsAbs(e.name) || clean == ".." || strings.HasPrefix(clean, "../") || !w.recursive && strings.Contains(e.name, "/") {
				t.Fatalf("event %v %q", e.kind, e.name)
			}
			if e.name == last {
				return
			}
			if strings.Contains(e.name, "outside-") && !within(w.root, th.outside) {
				t.Fatalf("%s, watched at %s: event %q is of what lies outside", w.path, w.root, e.name)
			}
		}
		if len(events) > 0 {
			continue
		}
		if fault != nil {
			return
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			// The directory that was watched has another name now, or none.
			var st unix.Stat_t
			if unix.Stat(w.root, &st) == nil && st.Dev == w.dev && st.Ino == w.ino {
				t.Fatalf("%s: no end of its events", w.path)
			}
			return
		}
	}
}
