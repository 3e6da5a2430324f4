package agentclient

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// archiveOf makes an archive of a script of lines "kind|mode|name|target"; kinds
// "e" and "s" are the agent's records of the end and of what was left out.
func archiveOf(script string) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for line := range strings.SplitSeq(script, "\n") {
		fields := append(strings.Split(line, "|"), "", "", "", "")
		if fields[0] == "" {
			continue
		}
		h := &tar.Header{Typeflag: fields[0][0], Name: fields[2], Linkname: fields[3], Format: tar.FormatPAX}
		for _, digit := range fields[1] {
			h.Mode = (h.Mode<<3 | int64(digit&7)) & 0o7777
		}
		switch fields[0] {
		case "0":
			h.Size = int64(len(fields[3]))
			h.Linkname = ""
		case "e":
			h = &tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"BERM.end": "ok"}}
		case "s":
			h = &tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"BERM.skipped": fields[2], "BERM.reason": fields[3]}}
		}
		if w.WriteHeader(h) != nil {
			w = tar.NewWriter(&out)
			continue
		}
		if fields[0] == "0" {
			_, _ = io.WriteString(w, fields[3])
		}
	}
	_ = w.Close()
	return out.Bytes()
}

// model is what a simple extractor would have made, by path; the root is "".
type model map[string]TreeEntry

// take adds an entry as a simple extractor does: along its name, and through
// whatever is there.
func (m model) take(t *testing.T, e TreeEntry) {
	t.Helper()
	if !fs.ValidPath(strings.ToValidUTF8(e.Name, "?")) || e.Name == "." || strings.ContainsRune(e.Name, 0) {
		t.Fatalf("name %q", e.Name)
	}
	if _, twice := m[e.Name]; twice {
		t.Fatalf("%q comes twice", e.Name)
	}
	if parent := path.Dir(e.Name); parent != "." && !m[parent].Mode.IsDir() {
		t.Fatalf("%q lies in no directory", e.Name)
	}
	kind := e.Mode.Type()
	if kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink || e.Mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 || e.Size < 0 || kind != 0 && e.Size != 0 || (kind == fs.ModeSymlink) != (e.Link != "") {
		t.Fatalf("%q has mode %v, size %d, link %q", e.Name, e.Mode, e.Size, e.Link)
	}
	if y := e.ModTime.Year(); y < 1 || y > 9999 {
		t.Fatalf("%q has time %v", e.Name, e.ModTime)
	}
	m[e.Name] = e
}

// escapes follows a link as the kernel would.
func (m model) escapes(name string) bool {
	at := strings.Split(path.Dir(name), "/")
	if at[0] == "." {
		at = nil
	}
	rest := strings.Split(m[name].Link, "/")
	if strings.HasPrefix(m[name].Link, "/") {
		return true
	}
	for steps := 0; len(rest) > 0 && steps < 5000; steps++ {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return true
			}
			at = at[:len(at)-1]
			continue
		}
		next := append(append([]string(nil), at...), part)
		e, there := m[strings.Join(next, "/")]
		switch {
		case !there, e.Mode.IsRegular():
			return false // it leads nowhere
		case e.Mode.IsDir():
			at = next
		case strings.HasPrefix(e.Link, "/"):
			return true
		default:
			rest = append(strings.Split(e.Link, "/"), rest...)
		}
	}
	return false
}

// FuzzTree reads hostile archives. What is accepted, a simple extractor can make
// without leaving its directory, no link in it leads out, and written again it
// reads the same.
func FuzzTree(f *testing.F) {
	for _, script := range []string{
		"e", "", "0|644|a|x\ne", "5|755|d/\n0|600|d/f|content\n2||l|d/f\ne", "0||a\n0||a\ne", "0||b\n0||a\ne", "0||../a\ne", "0||/a\ne", "0||a/../b\ne", "0||./a\ne", "5||d/\n0||d//f\ne", "5||d/\n2||d/l|../..\ne",
		"2||l|/etc\n0||l/passwd\ne", "2||l|/etc\ne", "2||a|..\ne", "2||a|b/..\ne", "2||a|b/../..\n2||b|c\n5||c/\ne", "5||a/\n5||a/b/\n2||a/b/in|../..\n2||z|a/b/in/..\ne", "5||d/\n2||d|x\ne", "5||d/\n0||d/a\n0||e\n0||d/b\ne",
		"0|7777|suid\ne", "5|7777|sgid/\ne", "1||h|a\ne", "3||null\ne", "6||fifo\ne", "S||sparse\ne", "g||x\ne", "s||skipped|reason\ne", "s||\x1b|\x00\ne", "e\n0||a", "0||" + strings.Repeat("n", 256) + "\ne", "0||" + strings.Repeat("d/", 300) + "\ne",
		"2||l|" + strings.Repeat("t", 5000) + "\ne", "0||ü\xff\ne", "5||a/\n2||a/l|./.././a/../..\ne", "2||l|.\n2||m|l/l/l\ne", "5||.\ne", "5||\ne", "0||a\\..\\b\ne",
	} {
		f.Add(archiveOf(script))
		f.Add([]byte(script))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 0 && len(data) < 2048 && data[0] >= '0' && data[0] <= 's' {
			data = archiveOf(string(data)) // half of the inputs are scripts
		}
		limits := TreeLimits{Entries: 200, Bytes: 1 << 16}
		tree := newTree(&download{op: "archive", body: io.NopCloser(bytes.NewReader(data)), call: newCall(t.Context())}, limits)
		defer func() { _ = tree.Close() }()
		made := model{}
		var total int64
		for {
			e, err := tree.Next()
			var content []byte
			if err == nil {
				made.take(t, e)
				content, err = io.ReadAll(tree)
				total += e.Size
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					checkClean(t, err.Error())
				}
				break
			}
			if int64(len(content)) != e.Size || total > limits.Bytes || int64(len(made)) > limits.Entries {
				t.Fatalf("%q has %d bytes of %d; %d in all, %d entries", e.Name, len(content), e.Size, total, len(made))
			}
			again(t, e, content)
		}
		for name, e := range made {
			if e.Mode&fs.ModeSymlink != 0 && made.escapes(name) {
				t.Fatalf("the link %q, to %q, leads out", name, e.Link)
			}
		}
		for _, s := range tree.Skips().Skipped {
			checkClean(t, s.Name+s.Reason)
		}
	})
}

// again writes an entry and reads it.
func again(t *testing.T, e TreeEntry, content []byte) {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: e.Name, Mode: int64(e.Mode.Perm()), Size: e.Size, ModTime: e.ModTime, Linkname: e.Link, Format: tar.FormatPAX}
	switch {
	case e.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, e.Name+"/"
	case e.Link != "":
		h.Typeflag = tar.TypeSymlink
	}
	err := w.WriteHeader(h)
	if err == nil {
		_, err = w.Write(content)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatalf("%+v cannot be written: %v", e, err)
	}
	r := tar.NewReader(&out)
	got, err := r.Next()
	if err != nil || got.Name != h.Name || got.Typeflag != h.Typeflag || got.Linkname != e.Link || got.Size != e.Size || got.Mode != h.Mode || !got.ModTime.Equal(e.ModTime) {
		t.Fatalf("%+v reads %+v, %v", e, got, err)
	}
}

// FuzzWatchEvents feeds messages to a watch of /d: the names of what is accepted
// lead into /d.
func FuzzWatchEvents(f *testing.F) {
	for _, name := range []string{"a", ".", "", "..", "a/b", "/", "a/", "a//b", "../a", "a/..", "\n", "ü", "a\x00", "-rf", strings.Repeat("n", 800), strings.Repeat("a/", 100) + "b"} {
		for kind := range agentv1.EventType(7) {
			data, _ := proto.Marshal(&agentv1.WatchDirResponse{Event: &agentv1.WatchDirResponse_Filesystem{Filesystem: &agentv1.FilesystemEvent{
				Name: name, Type: kind, Entry: &agentv1.EntryInfo{Path: path.Join("/d", name), Lstat: &agentv1.Lstat{Mode: 0o100644, Link: "x"}},
			}}})
			f.Add(data, kind%2 == 0)
		}
	}
	start, _ := proto.Marshal(&agentv1.WatchDirResponse{Event: &agentv1.WatchDirResponse_Start{Start: &agentv1.WatchDirResponse_StartEvent{}}})
	f.Add(start, true)
	f.Fuzz(func(t *testing.T, data []byte, recursive bool) {
		var message agentv1.WatchDirResponse
		if (&codec{}).UnmarshalRead(t.Context(), bytes.NewBuffer(data), &message) != nil {
			return
		}
		s := &WatchStream{dir: "/d", recursive: recursive}
		e, seen, err := s.next(&message)
		if err != nil {
			checkClean(t, err.Error())
			return
		}
		if !seen {
			return
		}
		full := path.Join("/d", e.Name)
		if e.Op < WatchCreate || e.Op > WatchChmod || path.Clean(e.Name) != e.Name || !strings.HasPrefix(full+"/", "/d/") || strings.ContainsRune(e.Name, 0) || !recursive && strings.Contains(e.Name, "/") || len(e.Name) > maxWatchName {
			t.Fatalf("accepted %+v", e)
		}
		if e.Entry != nil && (e.Entry.Path != full || e.Entry.Size < 0 || e.Op == WatchRemove || e.Op == WatchRename) {
			t.Fatalf("accepted %+v with %+v", e, e.Entry)
		}
	})
}
