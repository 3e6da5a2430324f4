package drivertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func archiveGroup() group {
	return group{name: "archive", behaviours: []behaviour{
		{"round-trip", archiveRoundTrip},
		{"clean", archiveClean},
		{"outward-links", archiveOutwardLinks},
		{"limits", archiveLimits},
		{"to-host", archiveToHost},
		{"refused", archiveRefused},
		{"hard-links", archiveHardLinks},
		{"broken-off", archiveBrokenOff},
		{"streamed", archiveStreamed},
		{"faults", archiveFaults},
	}}
}

// archiveTree is a tree with everything that archives are known to lose.
const archiveTree = `mkdir -p tree/sub/deep tree/empty "tree/ünï/日本" "tree/new
line"
printf content > tree/file; printf secret > tree/sub/private; printf '#!/bin/sh\n' > tree/sub/run
printf x > "tree/ünï/日本/ключ"; printf y > "tree/new
line/a
b"; printf z > "tree/ trailing "; printf -- - > tree/-rf; : > tree/nothing
ln -s sub/run tree/link; ln -s ../file tree/sub/up; ln -s nowhere tree/dangling; ln -s sub tree/dirlink
chmod 600 tree/sub/private; chmod 755 tree/sub/run; chmod 500 tree/sub/deep; chmod 1777 tree/empty
touch -h -d '2001-02-03T04:05:06.789Z' tree/file tree/link tree/sub/run tree/empty tree/sub/deep`

// archiveListing describes a tree, one line for each entry.
const archiveListing = `cd "$1" && find . -mindepth 1 -printf '%P|%y|%m|%l|%T@|%s\0' | grep -zv '|d|' | sort -z | tr '\0\n' '\n~'
find . -mindepth 1 -type d -printf '%P|%m\0' | sort -z | tr '\0\n' '\n~'
find . -mindepth 1 -name empty -printf '%T@\n'; find . -name deep -printf '%T@\n'; find . -type f -print0 | sort -z | xargs -0 cat -- | cksum`

// archiveRoundTrip: out of one sandbox and into another, everything is as it was:
// links, those that lead nowhere too, modes, times, empty directories, odd names.
func archiveRoundTrip(t *testing.T, s *suite) {
	from, to := s.sandbox(t), s.sandbox(t)
	sh(t, from, archiveTree)
	var archive bytes.Buffer
	report, err := from.Files().Archive(bounded(t), "tree", &archive, berm.ArchiveOptions{})
	if err != nil || len(report.Skipped) > 0 || report.Entries != 18 || report.Bytes != 27 {
		t.Fatalf("archive: %+v, %v", report, err)
	}
	back, err := to.Files().Extract(bounded(t), "made/here", &archive)
	if err != nil || len(back.Skipped) > 0 || back.Entries != report.Entries || back.Bytes != report.Bytes {
		t.Fatalf("extract: %+v, %v", back, err)
	}
	want, got := sh(t, from, archiveListing, "tree"), sh(t, to, archiveListing, "made/here")
	equal(t, "the tree", []byte(got), []byte(want))
	for _, part := range []string{"dangling|l|777|nowhere|", "sub/run|f|755||981173106.789", "empty|1777", "new~line/a~b|f"} {
		if !strings.Contains(want, part) {
			t.Errorf("the control: the tree has no %q:\n%s", part, want)
		}
	}
}

// entries reads an archive and checks that each of its names is fit for anybody.
func entries(t *testing.T, archive io.Reader) map[string]*tar.Header {
	t.Helper()
	out := map[string]*tar.Header{}
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("after %d entries: %v", len(out), err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if !fs.ValidPath(name) && !strings.ContainsRune(name, 0xFFFD) || out[name] != nil {
			t.Errorf("name %q, or twice", h.Name)
		}
		if h.Mode&^0o1777 != 0 || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeSymlink {
			t.Errorf("%q: type %q, mode %o, owner %d:%d %q", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid, h.Uname)
		}
		out[name] = h
	}
}

// archiveClean: what is no file, directory or link is left out, and told.
func archiveClean(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, `mkdir -p tree/dir; mkfifo tree/fifo tree/dir/fifo; echo x > tree/file; ln tree/file tree/same
echo locked > tree/locked; chmod 0 tree/locked; chmod u+s tree/file 2>/dev/null; true`)
	var archive bytes.Buffer
	report, err := sb.Files().Archive(bounded(t), "tree", &archive, berm.ArchiveOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := entries(t, &archive)
	for _, name := range []string{"dir", "file", "same"} {
		if got[name] == nil {
			t.Errorf("%s is not there", name)
		}
	}
	skipped := map[string]string{}
	for _, skip := range report.Skipped {
		skipped[skip.Name] = skip.Reason
	}
	if !strings.Contains(skipped["fifo"], "FIFO") || !strings.Contains(skipped["dir/fifo"], "FIFO") || got["fifo"] != nil || got["dir/fifo"] != nil {
		t.Errorf("skipped %q", skipped)
	}
	if got["locked"] == nil && skipped["locked"] == "" {
		t.Error("what cannot be read is left out in silence")
	}
	sh(t, sb, "echo one > one")
	archive.Reset()
	if report, err := sb.Files().Archive(bounded(t), "one", &archive, berm.ArchiveOptions{}); err != nil || report.Entries != 1 || entries(t, &archive)["one"] == nil {
		t.Errorf("one file: %+v, %v", report, err)
	}
}

// archiveOutwardLinks: links that do not surely stay in the tree are left out,
// kept or refused.
func archiveOutwardLinks(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, `mkdir -p tree/a/b; ln -s /etc/passwd tree/absolute; ln -s ../../outside tree/a/up; ln -s ../../a tree/a/b/fine; ln -s a/b/fine/../../.. tree/tricky; ln -s .. tree/a/b/in; ln -s a/nothing tree/in`)
	for links, want := range map[berm.OutwardLinks]int64{berm.LeaveOutwardLinks: 5, berm.KeepOutwardLinks: 8} {
		var archive bytes.Buffer
		report, err := sb.Files().Archive(bounded(t), "tree", &archive, berm.ArchiveOptions{Links: links})
		if err != nil || report.Entries != want || len(report.Skipped) != int(8-want) {
			t.Errorf("links %d: %+v, %v", links, report, err)
			continue
		}
		got := entries(t, &archive)
		for _, name := range []string{"absolute", "a/up", "tricky"} {
			if (got[name] != nil) != (links == berm.KeepOutwardLinks) {
				t.Errorf("links %d: %s is there: %t", links, name, got[name] != nil)
			}
		}
		if got["a/b/fine"] == nil || got["a/b/in"] == nil || got["in"] == nil {
			t.Errorf("links %d: those that stay inside are not there", links)
		}
	}
	_, err := sb.Files().Archive(bounded(t), "tree", io.Discard, berm.ArchiveOptions{Links: berm.RefuseOutwardLinks})
	wantKind(t, err, errdefs.Denied)
}

// archiveLimits: a tree whose size costs its maker nothing does not cost the host
// its disk, nor its time.
func archiveLimits(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, `mkdir many huge; truncate -s 1T huge/endless; cd many; seq 200 | xargs touch`)
	within(t, liveness, "an archive of a file of 1 TiB", func() {
		_, err := sb.Files().Archive(bounded(t), "huge", io.Discard, berm.ArchiveOptions{})
		wantKind(t, err, errdefs.Exhausted)
	})
	_, err := sb.Files().Archive(bounded(t), "many", io.Discard, berm.ArchiveOptions{MaxEntries: 199})
	wantKind(t, err, errdefs.Exhausted)
	if report, err := sb.Files().Archive(bounded(t), "many", io.Discard, berm.ArchiveOptions{MaxEntries: 200}); err != nil || report.Entries != 200 {
		t.Errorf("%+v, %v", report, err)
	}
	_, err = sb.Files().Archive(bounded(t), "many", io.Discard, berm.ArchiveOptions{MaxBytes: -1})
	wantKind(t, err, errdefs.Invalid)
}

// archiveToHost: into a directory of the host, and nowhere else.
func archiveToHost(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, archiveTree)
	dir := t.TempDir()
	report, err := sb.Files().ArchiveTo(bounded(t), "tree", dir, berm.ArchiveOptions{})
	if err != nil || report.Entries != 18 {
		t.Fatalf("%+v, %v", report, err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "ünï/日本/ключ")); err != nil || string(data) != "x" {
		t.Errorf("read %q, %v", data, err)
	}
	for name, want := range map[string]string{"dangling": "nowhere", "sub/up": "../file"} {
		if got, err := os.Readlink(filepath.Join(dir, name)); err != nil || got != want {
			t.Errorf("%s -> %q, %v", name, got, err)
		}
	}
	at := time.Date(2001, 2, 3, 4, 5, 6, 789e6, time.UTC)
	for name, mode := range map[string]fs.FileMode{"sub/run": 0o755, "sub/deep": fs.ModeDir | 0o700, "empty": fs.ModeDir | 0o777, "file": 0o644} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || info.Mode() != mode || !info.ModTime().Equal(at) {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	// What is there is not replaced.
	_, err = sb.Files().ArchiveTo(bounded(t), "tree", dir, berm.ArchiveOptions{})
	wantErr(t, err, errdefs.Exists, fs.ErrExist)
}

// packed makes an archive of headers; a regular file's content is its name.
func packed(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		h.Mode |= 0o755
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		err := w.WriteHeader(&h)
		if err == nil && h.Typeflag == tar.TypeReg {
			_, err = io.WriteString(w, h.Name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// archiveRefused: no entry leaves the directory, by its name or through a link,
// whoever made that; devices, FIFOs and set-id bits do not get inside.
func archiveRefused(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, `mkdir -p outside dest; ln -s ../outside dest/planted`)
	outside := sb.WorkDir() + "/outside"
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	for name, headers := range map[string][]tar.Header{
		"up":                  {file("../outside/f")},
		"up later":            {file("a/../../outside/f")},
		"absolute":            {file(outside + "/f")},
		"own link":            {link("l", outside), file("l/f")},
		"own link, twice":     {link("l", "."), link("l", "../outside"), file("l/f")},
		"link to a link":      {link("a", "../outside"), link("b", "a"), file("b/f")},
		"planted link":        {file("planted/f")},
		"directory at link":   {{Typeflag: tar.TypeDir, Name: "planted/"}, file("planted/f")},
		"hard link up":        {{Typeflag: tar.TypeLink, Name: "h", Linkname: "../outside/keep"}, file("h")},
		"hard link of a link": {link("l", outside+"/keep"), {Typeflag: tar.TypeLink, Name: "h", Linkname: "l"}, file("h")},
		"hard link through":   {{Typeflag: tar.TypeLink, Name: "h", Linkname: "planted/keep"}},
	} {
		sh(t, sb, "rm -rf outside; mkdir outside; echo keep > outside/keep")
		_, err := sb.Files().Extract(bounded(t), "dest", packed(t, headers...))
		if !errors.Is(err, errdefs.Invalid) && !errors.Is(err, errdefs.NotFound) {
			t.Errorf("%s: error %v", name, err)
		}
		if got := sh(t, sb, "ls -A outside; cat outside/keep; ls -A dest | grep berm; true"); got != "keep\nkeep\n" {
			t.Errorf("%s: outside there is %q", name, got)
		}
	}
	// A link itself is replaced and not followed.
	if _, err := sb.Files().Extract(bounded(t), "dest", packed(t, link("l", outside+"/keep"), file("l"))); err != nil || sh(t, sb, "cat outside/keep dest/l") != "keep\nl" {
		t.Errorf("a file over a link: %v", err)
	}
	report, err := sb.Files().Extract(bounded(t), "special", packed(t,
		tar.Header{Typeflag: tar.TypeFifo, Name: "fifo"}, tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3},
		tar.Header{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}, tar.Header{Typeflag: tar.TypeReg, Name: "suid", Mode: 0o6755},
		tar.Header{Typeflag: tar.TypeDir, Name: "sgid/", Mode: 0o2755},
	))
	if err != nil || len(report.Skipped) != 5 || report.Entries != 2 {
		t.Errorf("special files: %+v, %v", report, err)
	}
	if got := sh(t, sb, "find special -mindepth 1 -printf '%P %y %m\n' | sort"); got != "sgid d 755\nsuid f 755\n" {
		t.Errorf("there is %q", got)
	}
}

// archiveHardLinks: two names of one file stay that, also when extracted again.
func archiveHardLinks(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for range 2 {
		_, err := sb.Files().Extract(bounded(t), "dest", packed(t, tar.Header{Typeflag: tar.TypeReg, Name: "a/one"},
			tar.Header{Typeflag: tar.TypeLink, Name: "two", Linkname: "./a/one"}, tar.Header{Typeflag: tar.TypeLink, Name: "two", Linkname: "a/one"}))
		if err != nil {
			t.Fatal(err)
		}
		if got := sh(t, sb, "cd dest; find . -type f -printf '%P %n\n' | sort; cat two"); got != "a/one 2\ntwo 2\na/one" {
			t.Errorf("there is %q", got)
		}
	}
}

// archiveBrokenOff: half an archive is no archive, in either direction, and half a
// file is not seen.
func archiveBrokenOff(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	whole := packed(t, tar.Header{Typeflag: tar.TypeReg, Name: "one"}, tar.Header{Typeflag: tar.TypeReg, Name: strings.Repeat("n", 100)}).Bytes()
	for _, size := range []int{0, 512, 1024, 1536, 1600, 2048, 100} {
		_, err := sb.Files().Extract(bounded(t), fmt.Sprint("cut", size), bytes.NewReader(whole[:size]))
		wantKind(t, err, errdefs.Invalid)
	}
	if got := sh(t, sb, "ls -d cut* | tr '\\n' ' '; find cut1600 -type f"); got != "cut1024 cut1536 cut1600 cut2048 cut1600/one\n" {
		t.Errorf("left: %q", got)
	}
	_, err := sb.Files().Extract(bounded(t), "broken", io.MultiReader(bytes.NewReader(whole[:1100]), brokenReader{}))
	if !errors.Is(err, errBroken) {
		t.Errorf("error %v, want the reader's", err)
	}
	eventually(t, liveness, "no half file is left", func() bool {
		return sh(t, sb, "find broken -type f 2>/dev/null; true") != "" && !strings.Contains(sh(t, sb, "find broken -type f"), ".berm-")
	})
	_, err = sb.Files().Archive(bounded(t), ".", brokenWriter{errBroken}, berm.ArchiveOptions{})
	if !errors.Is(err, errBroken) {
		t.Errorf("error %v, want the writer's", err)
	}
}

// archiveStreamed: a large tree goes from one sandbox to another as it is read.
func archiveStreamed(t *testing.T, s *suite) {
	from, to := s.sandbox(t), s.sandbox(t)
	size := min(scaled(256<<20), s.room(t, from)/2, s.room(t, to)/2)
	sh(t, from, `mkdir tree; cd tree; head -c $(($1/2)) /dev/zero > big; i=0; while [ $i -lt 300 ]; do mkdir -p d$i; head -c $(($1/1000)) /dev/urandom > d$i/f; i=$((i+1)); done`, fmt.Sprint(size))
	pipe := newPipe()
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	sent := make(chan error, 1)
	go func() {
		_, err := from.Files().Archive(ctx, "tree", pipe.writer, berm.ArchiveOptions{})
		sent <- errors.Join(err, pipe.writer.CloseWithError(err))
	}()
	report, err := to.Files().Extract(bounded(t), "tree", pipe.reader)
	if err != nil || report.Entries != 601 || report.Bytes < size/2 {
		cancel()
		t.Fatalf("extract: %+v, %v", report, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	const sums = `cd tree; find . -type f | sort | xargs cat | cksum`
	equal(t, "the tree", []byte(sh(t, to, sums)), []byte(sh(t, from, sums)))
}

func archiveFaults(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "echo x > file; mkfifo fifo")
	for name, kind := range map[string]errdefs.Kind{"missing": errdefs.NotFound, "file/below": errdefs.NotFound, "fifo": errdefs.Invalid, "../x": errdefs.Invalid, "/proc/self": errdefs.Denied, "/proc": errdefs.Denied} {
		within(t, liveness, "an archive of "+name, func() {
			_, err := sb.Files().Archive(bounded(t), name, io.Discard, berm.ArchiveOptions{})
			wantKind(t, err, kind)
		})
	}
	_, err := sb.Files().Extract(bounded(t), "file", packed(t))
	wantKind(t, err, errdefs.Invalid)
	_, err = sb.Files().Extract(bounded(t), "dest", strings.NewReader(strings.Repeat("not a tar archive", 1000)))
	wantKind(t, err, errdefs.Invalid)
	_, err = sb.Files().ArchiveTo(bounded(t), "file", filepath.Join(t.TempDir(), "missing"), berm.ArchiveOptions{})
	wantKind(t, err, errdefs.NotFound)
}
