package drivertest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func filesGroup() group {
	return group{name: "files", behaviours: []behaviour{
		{"sizes", filesSizes},
		{"huge", filesHuge},
		{"streamed", filesStreamed},
		{"both-ways", filesBothWays},
		{"attributes", filesAttributes},
		{"directories", filesDirectories},
		{"rename", filesRename},
		{"remove", filesRemove},
		{"links", filesLinks},
		{"special", filesSpecial},
		{"kinds", filesKinds},
		{"endless", filesEndless},
	}}
}

// filesSizes: every size arrives, whole.
func filesSizes(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for _, size := range []int{0, 1, 18 << 10, 64 << 10, 1<<20 + 1, 10 << 20} {
		name, data := fmt.Sprintf("size-%d", size), random(size)
		if err := sb.Files().WriteFile(bounded(t), name, data, 0o644); err != nil {
			t.Fatalf("write %d bytes: %v", size, err)
		}
		sum := sha256.Sum256(data)
		if got := sh(t, sb, `sha256sum < "$1"`, name); !strings.HasPrefix(got, fmt.Sprintf("%x ", sum)) {
			t.Errorf("%d bytes arrived changed: %s", size, got)
		}
		info, err := sb.Files().Stat(bounded(t), name)
		if err != nil || info.Size() != int64(size) || !info.Mode().IsRegular() || info.Name() != name {
			t.Errorf("stat %s: %v, %v", name, info, err)
		}
		back, err := sb.Files().ReadFile(bounded(t), name)
		if err != nil {
			t.Fatalf("read %d bytes: %v", size, err)
		}
		equal(t, name, back, data)
	}
}

// filesHuge: a file of 2 GiB that takes hardly any room has its size and its
// content, and is streamed both ways without being held in memory.
func filesHuge(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	size := scaled(2 << 30)
	sh(t, sb, `truncate -s "$1" huge; for at in 0 $(($1/2)) $(($1-4)); do printf MARK | dd of=huge bs=1 seek=$at conv=notrunc 2>/dev/null; done`, fmt.Sprint(size))
	info, err := sb.Files().Stat(bounded(t), "huge")
	if err != nil || info.Size() != size {
		t.Fatalf("stat: %v, %v", info, err)
	}
	body, err := sb.Files().Open(bounded(t), "huge")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = body.Close() }()
	down := sha256.New()
	if n, err := io.Copy(down, body); err != nil || n != size {
		t.Errorf("read %d of %d bytes, %v", n, size, err)
	}
	if got := sh(t, sb, `sha256sum < huge`); !strings.HasPrefix(got, fmt.Sprintf("%x ", down.Sum(nil))) {
		t.Errorf("what came out is not what is inside: %s", got)
	}
	up := min(scaled(128<<20), s.room(t, sb)/2)
	content := &counter{}
	if err := sb.Files().Create(bounded(t), "up", 0o644, io.TeeReader(io.LimitReader(zeroReader{}, up), content)); err != nil {
		t.Fatalf("write %d bytes: %v", up, err)
	}
	if got := strings.TrimSpace(sh(t, sb, `tr -d '\0' < up | wc -c; wc -c < up`)); got != fmt.Sprintf("0\n%d", up) || content.count != up {
		t.Errorf("written %d bytes; bytes that are wrong, and all: %q", content.count, got)
	}
}

// room is how many bytes a sandbox can still write where it works: what its disk
// limit leaves there.
func (s *suite) room(t *testing.T, sb *berm.Sandbox) int64 {
	t.Helper()
	fields := strings.Fields(sh(t, sb, `df -Pk . | tail -n 1`))
	if len(fields) < 4 {
		t.Fatalf("df says %q", fields)
	}
	blocks, err := strconv.ParseInt(fields[3], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return blocks << 10
}

// filesStreamed: an upload is inside while its source has not ended, and nobody
// sees it under its name before it has.
func filesStreamed(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	size := min(scaled(64<<20), s.room(t, sb)/2)
	source := newPipe()
	ended := make(chan error, 1)
	go func() { ended <- sb.Files().Create(bounded(t), "dir/file", 0o644, source.reader) }()
	if _, err := io.CopyN(source.writer, zeroReader{}, size); err != nil {
		t.Fatal(err)
	}
	// Buffers on the way may hold some of it, but not most.
	eventually(t, 10*time.Second, "the content is inside before its end", func() bool {
		var there int64
		entries, err := sb.Files().ReadDir(bounded(t), "dir")
		for _, e := range entries {
			info, infoErr := e.Info()
			if infoErr != nil || e.Name() == "file" {
				t.Fatalf("seen before its end: %v, %v", e, infoErr)
			}
			there += info.Size()
		}
		return err == nil && there >= size-4<<20
	})
	source.write(t, "end")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if info, err := sb.Files().Stat(bounded(t), "dir/file"); err != nil || info.Size() != size+3 {
		t.Errorf("stat: %v, %v, want %d bytes", info, err, size+3)
	}
	if got := sh(t, sb, "ls -A dir"); got != "file\n" {
		t.Errorf("beside it there is %q", got)
	}
}

type zeroReader struct{}

// Read fills p.
func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// filesBothWays: what commands write the API reads, and the other way round.
func filesBothWays(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, `printf 'from\0inside' > one`)
	got, err := sb.Files().ReadFile(bounded(t), path.Join(sb.WorkDir(), "one"))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "one", got, []byte("from\x00inside"))
	if err := sb.Files().WriteFile(bounded(t), "deep/down/two", []byte("from outside"), 0o644); err != nil {
		t.Fatalf("write below missing directories: %v", err)
	}
	if got := sh(t, sb, "cat deep/down/two; rm deep/down/two; rmdir deep/down deep"); got != "from outside" {
		t.Errorf("inside: %q", got)
	}
}

// filesAttributes: modes, and the time, are told; a replaced file keeps its
// mode; commands may write what the API wrote.
func filesAttributes(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for _, perm := range []fs.FileMode{0o600, 0o644, 0o755, 0o400} {
		name := fmt.Sprintf("mode-%o", perm)
		if err := sb.Files().WriteFile(bounded(t), name, []byte("x"), perm); err != nil {
			t.Fatal(err)
		}
		info, err := sb.Files().Stat(bounded(t), name)
		if err != nil || info.Mode() != perm {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	sh(t, sb, `chmod 751 mode-600; touch -d '2001-02-03T04:05:06Z' mode-644; echo more >> mode-755`)
	if err := sb.Files().WriteFile(bounded(t), "mode-600", []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	if info, err := sb.Files().Stat(bounded(t), "mode-600"); err != nil || info.Mode() != 0o751 {
		t.Errorf("a replaced file: %v, %v, want mode 0751", info, err)
	}
	if info, err := sb.Files().Stat(bounded(t), "mode-644"); err != nil || info.ModTime().UTC().Format("2006-01-02 15:04:05") != "2001-02-03 04:05:06" {
		t.Errorf("modification time: %v, %v", info, err)
	}
}

func filesDirectories(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	f := sb.Files()
	if err := f.Mkdir(bounded(t), "dir", 0o755); err != nil {
		t.Fatal(err)
	}
	wantErr(t, f.Mkdir(bounded(t), "dir", 0o755), errdefs.Exists, fs.ErrExist)
	wantErr(t, f.Mkdir(bounded(t), "no/parent", 0o755), errdefs.NotFound, fs.ErrNotExist)
	for range 2 {
		if err := f.MkdirAll(bounded(t), "dir/a/b", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for i := range 500 {
		want = append(want, fmt.Sprintf("file-%03d", i))
	}
	sh(t, sb, `cd dir; i=0; while [ $i -lt 500 ]; do : > "$(printf 'file-%03d' $i)"; i=$((i+1)); done; ln -s a link; mkfifo fifo`)
	entries, err := f.ReadDir(bounded(t), "dir")
	if err != nil {
		t.Fatal(err)
	}
	want = append(append([]string{"a", "fifo"}, want...), "link")
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("%d entries, want %d sorted ones: %.300q", len(got), len(want), got)
	}
	if entries[0].Type() != fs.ModeDir || entries[1].Type() != fs.ModeNamedPipe || entries[len(entries)-1].Type() != fs.ModeSymlink {
		t.Errorf("types %v, %v, %v", entries[0].Type(), entries[1].Type(), entries[len(entries)-1].Type())
	}
	_, err = f.ReadDir(bounded(t), "dir/file-000")
	if err == nil {
		t.Error("a file was listed as a directory")
	}
}

func filesRename(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	f := sb.Files()
	sh(t, sb, "echo one > one; echo two > two; mkdir dir; echo in > dir/in")
	if err := errors.Join(f.Rename(bounded(t), "one", "two"), f.Rename(bounded(t), "dir", "moved")); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, sb, "cat two moved/in; ls"); got != "one\nin\nmoved\ntwo\n" {
		t.Errorf("after renames: %q", got)
	}
	wantErr(t, f.Rename(bounded(t), "missing", "other"), errdefs.NotFound, fs.ErrNotExist)
}

func filesRemove(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	f := sb.Files()
	sh(t, sb, "mkdir -p full/sub outside; echo x > full/sub/file; echo keep > outside/keep; ln -s ../outside full/link; ln -s outside toplink; mkdir empty; : > file")
	if err := f.Remove(bounded(t), "full"); err == nil {
		t.Error("a directory that is not empty was removed")
	}
	for _, name := range []string{"file", "empty", "toplink"} {
		if err := f.Remove(bounded(t), name); err != nil {
			t.Errorf("remove %s: %v", name, err)
		}
	}
	wantErr(t, f.Remove(bounded(t), "file"), errdefs.NotFound, fs.ErrNotExist)
	for range 2 {
		if err := f.RemoveAll(bounded(t), "full"); err != nil {
			t.Errorf("remove all: %v", err)
		}
	}
	if got := sh(t, sb, "ls; cat outside/keep"); got != "outside\nkeep\n" {
		t.Errorf("what is left: %q", got)
	}
}

// filesLinks: links inside mean what they mean to commands.
func filesLinks(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	f := sb.Files()
	sh(t, sb, `echo text > target; ln -s target rel; ln -s "$PWD/target" abs; ln -s nowhere dangling; ln -s loop loop; mkdir dir; ln -s dir dirlink`)
	for _, name := range []string{"rel", "abs"} {
		if got, err := f.ReadFile(bounded(t), name); err != nil || string(got) != "text\n" {
			t.Errorf("read %s: %q, %v", name, got, err)
		}
		if info, err := f.Stat(bounded(t), name); err != nil || !info.Mode().IsRegular() {
			t.Errorf("stat %s: %v, %v", name, info, err)
		}
		if info, err := f.Lstat(bounded(t), name); err != nil || info.Mode().Type() != fs.ModeSymlink {
			t.Errorf("lstat %s: %v, %v", name, info, err)
		}
	}
	if target, err := f.ReadLink(bounded(t), "dangling"); err != nil || target != "nowhere" {
		t.Errorf("read link: %q, %v", target, err)
	}
	_, err := f.ReadFile(bounded(t), "dangling")
	wantErr(t, err, errdefs.NotFound, fs.ErrNotExist)
	if _, err := f.ReadFile(bounded(t), "loop"); err == nil {
		t.Error("a loop of links was read")
	}
	if err := f.WriteFile(bounded(t), "rel", []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, sb, "cat target; readlink rel"); got != "newtarget\n" {
		t.Errorf("after writing through a link: %q", got)
	}
	if err := f.WriteFile(bounded(t), "dirlink/file", []byte("x"), 0o644); err != nil || !exists(t, sb, "dir/file") {
		t.Errorf("write below a link to a directory: %v", err)
	}
}

// filesSpecial: what is no file, directory or link never blocks anybody.
func filesSpecial(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "mkfifo fifo")
	for _, name := range []string{"fifo", "/dev/zero", sb.WorkDir()} {
		within(t, liveness, "reading "+name, func() {
			if data, err := sb.Files().ReadFile(bounded(t), name); err == nil {
				t.Errorf("%d bytes were read from %s", len(data), name)
			}
		})
	}
	within(t, liveness, "writing to a directory", func() {
		if err := sb.Files().WriteFile(bounded(t), sb.WorkDir(), []byte("x"), 0o644); err == nil {
			t.Error("a directory was written as a file")
		}
	})
}

// filesEndless: a file whose size costs its maker nothing does not cost the host
// its memory.
func filesEndless(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "truncate -s 1T endless")
	within(t, liveness, "reading a file of 1 TiB into memory", func() {
		_, err := sb.Files().ReadFile(bounded(t), "endless")
		wantKind(t, err, errdefs.Exhausted)
	})
}

// filesKinds: errors say what the kernel says, in berm's words.
func filesKinds(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	f := sb.Files()
	_, err := f.ReadFile(bounded(t), "missing")
	wantErr(t, err, errdefs.NotFound, fs.ErrNotExist)
	_, err = f.Stat(bounded(t), "missing/too")
	wantErr(t, err, errdefs.NotFound, fs.ErrNotExist)
	_, err = f.ReadDir(bounded(t), "missing")
	wantErr(t, err, errdefs.NotFound, fs.ErrNotExist)
	if !s.declared(t).ContainedPaths {
		return // what may be written is the caller's own identity there
	}
	for _, name := range []string{"/usr/berm", "/etc/passwd", "/proc/self/oom_score_adj"} {
		if err := f.WriteFile(bounded(t), name, []byte("x"), 0o644); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	sh(t, sb, "echo secret > locked; chmod 0 locked")
	_, err = f.ReadFile(bounded(t), "locked")
	wantErr(t, err, errdefs.Denied, fs.ErrPermission)
}

// wantErr checks an error's kind and the standard error that it matches.
func wantErr(t *testing.T, err error, kind errdefs.Kind, standard error) {
	t.Helper()
	wantKind(t, err, kind)
	if err != nil && !errors.Is(err, standard) {
		t.Errorf("%v does not match %v", err, standard)
	}
}

func atomicGroup() group {
	return group{name: "atomic", behaviours: []behaviour{
		{"never-half", atomicNeverHalf},
		{"broken-off", atomicBrokenOff},
	}}
}

// atomicNeverHalf: a reader sees the old content or the new, whole.
func atomicNeverHalf(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	const size = 256 << 10
	contents := [][]byte{bytes.Repeat([]byte("A"), size), bytes.Repeat([]byte("B"), size)}
	if err := sb.Files().WriteFile(bounded(t), "file", contents[0], 0o644); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	written := make(chan error, 1)
	go func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				written <- nil
				return
			default:
			}
			if err := sb.Files().WriteFile(bounded(t), "file", contents[i%2], 0o644); err != nil {
				written <- err
				return
			}
		}
	}()
	for range 30 {
		got, err := sb.Files().ReadFile(bounded(t), "file")
		if err != nil || !bytes.Equal(got, contents[0]) && !bytes.Equal(got, contents[1]) {
			t.Errorf("a reader beside a writer got %d bytes, %d of them A, %v", len(got), bytes.Count(got, []byte("A")), err)
			break
		}
	}
	close(stop)
	if err := <-written; err != nil {
		t.Errorf("write: %v", err)
	}
	if got := sh(t, sb, "ls -A"); got != "file\n" {
		t.Errorf("beside the file there is %q", got)
	}
}

// atomicBrokenOff: a write that breaks off changes nothing and leaves nothing.
func atomicBrokenOff(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, "echo old > file")
	for _, name := range []string{"file", "new"} {
		content := io.MultiReader(bytes.NewReader(random(1<<20)), brokenReader{})
		if err := sb.Files().Create(bounded(t), name, 0o644, content); !errors.Is(err, errBroken) {
			t.Errorf("write %s: error %v, want the reader's", name, err)
		}
	}
	eventually(t, liveness, "only the old file is there", func() bool {
		return string(exited(t, sb, 0, berm.Command{Args: []string{"ls", "-A"}}).Stdout) == "file\n"
	})
	if got := sh(t, sb, "cat file"); got != "old\n" {
		t.Errorf("the old file is %q", clip([]byte(got)))
	}
}
