package agent

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// scripted makes an archive of a script: entries are lines of "kind mode name
// target", divided by "|". Each file has its name for content. In names and
// targets "%" is the directory outside.
func scripted(script, outside string) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for line := range strings.SplitSeq(script, "\n") {
		fields := append(strings.Split(strings.ReplaceAll(line, "%", outside), "|"), "", "", "", "")
		kind, name := fields[0], fields[2]
		if kind == "" {
			continue
		}
		mode, err := strconv.ParseInt(fields[1], 8, 32)
		if err != nil || mode < 0 {
			mode = 0o755
		}
		h := &tar.Header{Typeflag: kind[0], Mode: mode, Name: name, Linkname: fields[3], Format: tar.FormatPAX}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(name))
		}
		if w.WriteHeader(h) != nil {
			w = tar.NewWriter(&out) // what cannot be written is left out
			continue
		}
		_, _ = io.WriteString(w, name)
	}
	_ = w.Close()
	return out.Bytes()
}

// patch changes one byte, and makes the sum right of the block that it is in.
func patch(archive []byte, at uint32, value byte) {
	if len(archive) < 1024 {
		return
	}
	i := int(at) % len(archive)
	archive[i] = value
	block := archive[i/512*512:][:512]
	copy(block[148:156], "        ")
	sum := 0
	for _, b := range block {
		sum += int(b)
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// grove is a destination with planted links, and a directory outside of it.
type grove struct{ dest, outside string }

func (g grove) build(tb testing.TB) {
	tb.Helper()
	for _, dir := range []string{g.dest, g.outside} {
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, _ error) error {
			if d != nil && d.IsDir() {
				_ = os.Chmod(p, 0o700)
			}
			return nil
		})
		if err := os.RemoveAll(dir); err != nil {
			tb.Fatal(err)
		}
	}
	err := errors.Join(os.MkdirAll(g.dest+"/dir", 0o755), os.MkdirAll(g.outside+"/sub", 0o755),
		os.WriteFile(g.outside+"/keep", []byte("keep"), 0o600), os.WriteFile(g.dest+"/file", []byte("old"), 0o644),
		os.Symlink("../outside", g.dest+"/up"), os.Symlink(g.outside, g.dest+"/dir/away"), os.Symlink(g.outside+"/keep", g.dest+"/dir/keep"))
	if err != nil {
		tb.Fatal(err)
	}
}

// state describes the directory outside, whose files have one name each.
func (g grove) state(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(g.outside, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		content := ""
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			content = string(data)
		}
		out = append(out, fmt.Sprintf("%s %o %d %q %v", p, st.Mode, st.Nlink, content, st.Mtim))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// FuzzExtract extracts archives into a real tree. Whatever they say, nothing
// changes outside of it, nothing comes to be in it but files, directories and links
// without set-id bits, and no draft is left.
func FuzzExtract(f *testing.F) {
	for _, script := range []string{
		"", "0|644|a", "5|755|d/\n0|600|d/f", "2|777|l|nowhere", "0|644|../x", "0|644|%/x", "0|644|a/../../outside/x", "2||l|%\n0||l/x",
		"2||l|../outside\n0||l/x", "2||a|.\n2||a|../outside\n0||a/x", "0||up/x", "0||dir/away/sub/x", "5||up/\n0||up/x", "2||up|dir\n0||up/x",
		"1||h|../outside/keep\n0||h", "1||h|up/keep\n0||h", "1||h|dir/keep\n0||h", "0||a\n1||h|a\n1||h|a\n0||h", "1||file|file", "1||h|.", "1||h|dir",
		"0|6777|suid", "5|7777|sgid/", "6||fifo", "3||null", "4||sda", "7||cont", "S||sparse", "g||global", "x||extended", "L||long", "5||./", "0||.", "2||.|x", "0||",
		"5||dir/away/", "5||dir/keep/x/", "2||dir|%\n0||dir/x", "0||dir", "5||file/", "5|0|locked/\n0||locked/f\n5|0|locked/", "0||a\n0||a/b",
		"0||" + strings.Repeat("d/", 300) + "f", "0||" + strings.Repeat("n", 256), "2||l|" + strings.Repeat("t", 5000), "0||a//b/./c/", "0||ü/\xff/\n", "0||dir/away",
		"2||x|dir\n2||y|x/away\n0||y/f\n1||y/keep|file", "0||up/../x", "5||new/\n2||new/l|../..\n0||new/l/outside/x",
	} {
		f.Add(script, uint32(0), byte(0))
	}
	f.Add("5||d/\n0||d/f", uint32(156), byte('2'))
	f.Add("0||a\n0||b", uint32(124), byte('7'))
	root, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	g := grove{dest: filepath.Join(root, "dest"), outside: filepath.Join(root, "outside")}
	g.build(f)
	f.Fuzz(func(t *testing.T, script string, at uint32, value byte) {
		archive := scripted(script, g.outside)
		if at > 0 {
			patch(archive, at, value)
		}
		g.build(t)
		before := g.state(t)
		u := newUnpacker(t.Context())
		u.buf, u.most.bytes = u.buf[:4096], 64<<10
		err := u.unpack(g.dest, bytes.NewReader(archive))
		if len(u.open) > 0 {
			t.Fatalf("%d directories are left open", len(u.open))
		}
		if after := g.state(t); !slices.Equal(before, after) {
			t.Fatalf("%v: outside there was\n%q, and is\n%q", err, before, after)
		}
		g.checkInside(t)
	})
}

// checkInside looks for what must not be in the destination.
func (g grove) checkInside(t *testing.T) {
	t.Helper()
	// Directories may have come without permission to look into them.
	_ = filepath.WalkDir(g.dest, func(p string, d fs.DirEntry, _ error) error {
		var st unix.Stat_t
		if d == nil || unix.Lstat(p, &st) != nil {
			return nil //nolint:nilerr // not to be looked at
		}
		kind := st.Mode & unix.S_IFMT
		if kind != unix.S_IFREG && kind != unix.S_IFDIR && kind != unix.S_IFLNK || kind != unix.S_IFLNK && st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
			t.Fatalf("%q came with mode %o", p, st.Mode)
		}
		if strings.HasPrefix(d.Name(), ".berm-") {
			t.Fatalf("%q is left", p)
		}
		if kind == unix.S_IFDIR {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
}
