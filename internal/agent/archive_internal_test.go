package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"
)

// planted gives a destination and a directory outside, as FuzzExtract has them.
func planted(t *testing.T) grove {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	do(t, err)
	g := grove{dest: root + "/dest", outside: root + "/outside"}
	g.build(t)
	return g
}

func codeIs(t *testing.T, what string, err error, want connect.Code) {
	t.Helper()
	if err == nil || fileFault("extract", "", err).code != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// TestExtractStaysInside: no entry leaves its directory, by its name or through a
// link, whoever made that.
func TestExtractStaysInside(t *testing.T) {
	t.Parallel()
	for _, script := range []string{
		"0||../outside/x", "0||a/../../outside/x", "0||%/x", "2||l|%\n0||l/x", "2||l|../outside\n0||l/x", "2||l|.\n2||l|../outside\n0||l/x",
		"0||up/x", "5||up/\n0||up/x", "0||dir/away/sub/x", "0||dir/away/x", "2||a|up\n0||a/x",
		"1||h|../outside/keep\n0||h", "1||h|up/keep", "1||h|dir/keep", "1||h|%/keep", "1||h|dir", "1||h|", "0|644|", "2|||x",
	} {
		g := planted(t)
		before := g.state(t)
		err := newUnpacker(t.Context()).unpack(g.dest, bytes.NewReader(scripted(script, g.outside)))
		code := connect.CodeInvalidArgument
		if strings.HasPrefix(script, "1||h|up/keep") {
			code = connect.CodeNotFound // as any path through what is no directory
		}
		codeIs(t, fmt.Sprintf("%q", script), err, code)
		if after := g.state(t); !slices.Equal(before, after) {
			t.Errorf("%q: outside there was\n%q, and is\n%q", script, before, after)
		}
		g.checkInside(t)
	}
}

// TestExtractLeavesOut: devices, FIFOs and set-id bits do not come in, and that is
// told.
func TestExtractLeavesOut(t *testing.T) {
	t.Parallel()
	g := planted(t)
	u := newUnpacker(t.Context())
	do(t, u.unpack(g.dest, bytes.NewReader(scripted("6|644|fifo\n3|644|null\n4|644|sda\n0|6755|suid\n5|7777|sgid/\n0|644|plain", g.outside))))
	if len(u.report.Skipped) != 5 || u.report.Entries != 3 {
		t.Errorf("report %+v", u.report)
	}
	for name, want := range map[string]uint32{"suid": unix.S_IFREG | 0o755, "sgid": unix.S_IFDIR | 0o1777, "plain": unix.S_IFREG | 0o644} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(g.dest, name), &st); err != nil || st.Mode != want {
			t.Errorf("%s: mode %o, %v", name, st.Mode, err)
		}
	}
	g.checkInside(t)
}

func TestExtractIsBounded(t *testing.T) {
	t.Parallel()
	g := planted(t)
	u := newUnpacker(t.Context())
	u.most.entries = 2
	codeIs(t, "three entries", u.unpack(g.dest, bytes.NewReader(scripted("0||a\n0||b\n0||c", ""))), connect.CodeResourceExhausted)
	u = newUnpacker(t.Context())
	u.most.bytes = 9
	codeIs(t, "ten bytes", u.unpack(g.dest, bytes.NewReader(scripted("0||12345\n0||67890", ""))), connect.CodeResourceExhausted)
	deep := strings.Repeat("d/", maxArchiveDepth) + "f"
	codeIs(t, "levels", newUnpacker(t.Context()).unpack(g.dest, bytes.NewReader(scripted("0||"+deep, ""))), connect.CodeInvalidArgument)
	var report extracted
	for range maxArchiveSkips + 5 {
		report.skip("x", "y")
	}
	if len(report.Skipped) != maxArchiveSkips || report.More != 5 {
		t.Errorf("%d named, %d more", len(report.Skipped), report.More)
	}
}

// TestHalfAnArchiveIsNone: what was whole in it stays, a draft does not.
func TestHalfAnArchiveIsNone(t *testing.T) {
	t.Parallel()
	whole := scripted("0||one\n0||two", "")
	for _, size := range []int{0, 100, 512, 1024, 2048, 2050, 3000, len(whole) - 1024, len(whole) - 512, len(whole) - 1} {
		g := planted(t)
		codeIs(t, fmt.Sprint(size, " of ", len(whole), " bytes"), newUnpacker(t.Context()).unpack(g.dest, bytes.NewReader(whole[:size])), connect.CodeInvalidArgument)
		g.checkInside(t)
		// A destination that was made for nothing is unmade.
		made := g.dest + "/new/deep"
		err := newUnpacker(t.Context()).unpack(made, bytes.NewReader(whole[:size]))
		if _, statErr := os.Stat(made); err == nil || (statErr == nil) != (size >= 1024) {
			t.Errorf("%d bytes: %v, and it is there: %v", size, err, statErr)
		}
	}
	g := planted(t)
	do(t, newUnpacker(t.Context()).unpack(g.dest, io.MultiReader(bytes.NewReader(whole), strings.NewReader(strings.Repeat("\x00", 8192)))))
}

// TestExtractEndsWithItsRequest: it does not go on for nobody.
func TestExtractEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	g := planted(t)
	u := newUnpacker(cancelledContext())
	codeIs(t, "a request that is over", u.unpack(g.dest, bytes.NewReader(scripted("0||a", ""))), connect.CodeCanceled)
}

// TestArchivesHaveNoProcfs: neither as a whole nor below.
func TestArchivesHaveNoProcfs(t *testing.T) {
	t.Parallel()
	for _, p := range []string{"/proc", "/proc/self", "/proc/mounts", "/proc/sys/kernel/ostype"} {
		if s, err := openSource(p); err == nil {
			_ = s.file.Close()
			t.Errorf("%s can be archived", p)
		}
		u := newUnpacker(t.Context())
		if err := u.unpack(p, bytes.NewReader(scripted("0||a", ""))); err == nil {
			t.Errorf("%s can be extracted to", p)
		}
	}
	if testing.Short() {
		return
	}
	// From the root, all of it but what is in procfs.
	s, err := openSource("/")
	do(t, err)
	names := &procNames{}
	pk := &packer{ctx: t.Context(), tar: tar.NewWriter(names), buf: make([]byte, copyBytes)}
	var st unix.Stat_t
	do(t, unix.Fstatat(int(s.file.Fd()), "proc", &st, unix.AT_SYMLINK_NOFOLLOW), pk.entry(s.file, s.stat.Dev, "proc", "proc", 0), s.file.Close())
	if names.size > 16<<10 || !names.told {
		t.Errorf("%d bytes of /proc, told: %t", names.size, names.told)
	}
}

// procNames counts what is written, and looks for the reason.
type procNames struct {
	size int
	told bool
}

func (p *procNames) Write(data []byte) (int, error) {
	p.size += len(data)
	p.told = p.told || bytes.Contains(data, []byte("proc file system"))
	return len(data), nil
}

// TestArchiveNamesAreBounded: a directory whose names are too much for the memory
// is refused and not taken in part.
func TestArchiveNamesAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	do(t, os.WriteFile(dir+"/f", nil, 0o644))
	s, err := openSource(dir)
	do(t, err)
	pk := &packer{ctx: t.Context(), tar: tar.NewWriter(io.Discard), buf: make([]byte, 10), names: maxArchiveNames - 10}
	if err := pk.pack(s); err == nil || fileFault("", "", err).code != connect.CodeResourceExhausted {
		t.Errorf("error %v", err)
	}
	if pk.names != maxArchiveNames-10 {
		t.Errorf("%d bytes of names are counted after it", pk.names)
	}
}

// TestFilesThatShrinkArePadded: an archive says a file's size before its content.
func TestFilesThatShrinkArePadded(t *testing.T) {
	t.Parallel()
	p := t.TempDir() + "/f"
	do(t, os.WriteFile(p, []byte("data"), 0o644))
	file, err := os.Open(p)
	do(t, err)
	defer func() { _ = file.Close() }()
	var st unix.Stat_t
	do(t, unix.Fstat(int(file.Fd()), &st))
	st.Size = 1000
	var out bytes.Buffer
	pk := &packer{ctx: t.Context(), tar: tar.NewWriter(&out), buf: make([]byte, 100)}
	do(t, pk.content(file, &st, "f"), pk.tar.Close())
	r := tar.NewReader(&out)
	h, err := r.Next()
	do(t, err)
	content, err := io.ReadAll(r)
	if err != nil || h.Size != 1000 || string(content) != "data"+strings.Repeat("\x00", 996) {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	if h, err = r.Next(); err != nil || h.PAXRecords[recordSkipped] != "f" || !strings.Contains(h.PAXRecords[recordReason], "padded") {
		t.Errorf("it is not told: %+v, %v", h, err)
	}
	if _, err = r.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func cancelledContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
