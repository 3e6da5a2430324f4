package agentclient_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
)

func limits() agentclient.TreeLimits { return agentclient.TreeLimits{Entries: 1000, Bytes: 1 << 20} }

// archived makes an archive as the agent does, with content of x.
func archived(tb testing.TB, headers ...tar.Header) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		if h.Format == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Format = tar.FormatPAX
		}
		err := w.WriteHeader(&h)
		if err == nil && h.Typeflag == tar.TypeReg {
			_, err = w.Write(bytes.Repeat([]byte("x"), int(h.Size)))
		}
		if err != nil {
			tb.Fatalf("%+v: %v", h, err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func told(key, value string) tar.Header {
	return tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{key: value, "BERM.reason": "because"}}
}

// sending answers with an archive.
func sending(data []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-tar")
		_, _ = w.Write(data)
	})
}

// readTree reads a whole tree.
func readTree(tb testing.TB, c *agentclient.Client, l agentclient.TreeLimits) ([]agentclient.TreeEntry, agentclient.Skips, error) {
	tb.Helper()
	tree, err := c.Archive(tb.Context(), "/d", l)
	if err != nil {
		return nil, agentclient.Skips{}, err
	}
	defer func() { _ = tree.Close() }()
	var out []agentclient.TreeEntry
	for {
		e, err := tree.Next()
		if err == nil {
			var n int64
			if n, err = io.Copy(io.Discard, tree); err == nil && n != e.Size {
				tb.Errorf("%s has %d bytes, not %d", e.Name, n, e.Size)
			}
		}
		if errors.Is(err, io.EOF) {
			return out, tree.Skips(), nil
		}
		if err != nil {
			if _, again := tree.Next(); again == nil {
				tb.Errorf("an entry after %v", err)
			}
			return out, tree.Skips(), err
		}
		out = append(out, e)
	}
}

func TestHostileArchives(t *testing.T) {
	t.Parallel()
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 3} }
	dir := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name + "/"} }
	link := func(name, to string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	end := told("BERM.end", "ok")
	for name, test := range map[string]struct {
		kind    errdefs.Kind
		headers []tar.Header
	}{
		"the control":        {"", []tar.Header{dir("a"), file("a/b"), link("c", "a/b"), told("BERM.skipped", "d"), end}},
		"no end":             {errdefs.TransportLost, []tar.Header{file("a")}},
		"after the end":      {errdefs.Protocol, []tar.Header{end, file("a")}},
		"given up":           {errdefs.Internal, []tar.Header{file("a"), told("BERM.error", "\x1b[31mdisk"), end}},
		"unknown record":     {errdefs.Protocol, []tar.Header{told("BERM.else", "x"), end}},
		"absolute":           {errdefs.Protocol, []tar.Header{file("/etc/passwd"), end}},
		"up":                 {errdefs.Protocol, []tar.Header{file("../a"), end}},
		"up later":           {errdefs.Protocol, []tar.Header{dir("a"), file("a/../b"), end}},
		"dot":                {errdefs.Protocol, []tar.Header{file("./a"), end}},
		"empty part":         {errdefs.Protocol, []tar.Header{dir("a"), file("a//b"), end}},
		"long name":          {errdefs.Protocol, []tar.Header{file(strings.Repeat("n", 256)), end}},
		"deep":               {errdefs.Protocol, []tar.Header{file(strings.Repeat("d/", 300) + "f"), end}},
		"through a link":     {errdefs.Protocol, []tar.Header{link("a", "b"), file("a/b"), end}},
		"through a file":     {errdefs.Protocol, []tar.Header{file("a"), file("a/b"), end}},
		"through nothing":    {errdefs.Protocol, []tar.Header{file("a/b"), end}},
		"link over a dir":    {errdefs.Protocol, []tar.Header{dir("a"), link("a", "/etc"), file("a/b"), end}},
		"dir over a link":    {errdefs.Protocol, []tar.Header{link("a", "/etc"), dir("a"), file("a/b"), end}},
		"twice":              {errdefs.Protocol, []tar.Header{file("a"), file("a"), end}},
		"again later":        {errdefs.Protocol, []tar.Header{dir("a"), file("a/b"), file("b"), file("a/c"), end}},
		"out of order":       {errdefs.Protocol, []tar.Header{file("b"), file("a"), end}},
		"hard link":          {errdefs.Protocol, []tar.Header{file("a"), {Typeflag: tar.TypeLink, Name: "b", Linkname: "a"}, end}},
		"device":             {errdefs.Protocol, []tar.Header{{Typeflag: tar.TypeChar, Name: "a", Devmajor: 1}, end}},
		"fifo":               {errdefs.Protocol, []tar.Header{{Typeflag: tar.TypeFifo, Name: "a"}, end}},
		"extended attribute": {errdefs.Protocol, []tar.Header{{Typeflag: tar.TypeReg, Name: "a", PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}, end}},
		"too many bytes":     {errdefs.Exhausted, []tar.Header{{Typeflag: tar.TypeReg, Name: "a", Size: 1<<20 + 1}, end}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := readTree(t, hostile(t, sending(archived(t, test.headers...))), limits())
			if test.kind != "" {
				wantKind(t, err, test.kind)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// sparse gives an archive whose one file is said to be huge and has no content.
func sparse(tb testing.TB) []byte {
	tb.Helper()
	records := map[string]string{
		"path": "a", "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a", "GNU.sparse.realsize": "1099511627776",
	}
	// The writer makes no such records: they are put in by hand.
	var pax bytes.Buffer
	for key, value := range records {
		record := key + "=" + value + "\n"
		size := len(record) + 3
		pax.WriteString(fmt.Sprintf("%d %s", size, record))
	}
	data := archived(tb, tar.Header{Typeflag: tar.TypeReg, Name: "PaxHeaders.0/a", Size: int64(pax.Len()), Format: tar.FormatUSTAR})
	data = data[:len(data)-1024]
	copy(data[512:], pax.Bytes())
	data[156] = 'x'
	checksum(data[:512])
	rest := archived(tb, tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 512, Format: tar.FormatUSTAR}, told("BERM.end", "ok"))
	copy(rest[512:], "0\n") // the map has no pieces
	return append(data, rest...)
}

// checksum makes a changed header's sum right.
func checksum(block []byte) {
	copy(block[148:156], "        ")
	sum := 0
	for _, b := range block {
		sum += int(b)
	}
	copy(block[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

func TestArchivesAreBounded(t *testing.T) {
	t.Parallel()
	if _, _, err := readTree(t, hostile(t, sending(sparse(t))), limits()); errdefs.KindOf(err) != errdefs.Protocol {
		t.Errorf("a sparse file: %v", err)
	}
	endless := func(part []byte) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/x-tar")
			for i := 0; r.Context().Err() == nil; i++ {
				data := part
				if data == nil {
					one := archived(t, tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("%09d", i)})
					data = one[:len(one)-1024]
				}
				if _, err := w.Write(data); err != nil {
					return
				}
			}
		})
	}
	record := archived(t, told("BERM.skipped", strings.Repeat("s", 100_000)))
	for name, handler := range map[string]http.Handler{
		"entries": endless(nil),
		"records": endless(record[:len(record)-1024]),
	} {
		entries, skips, err := readTree(t, hostile(t, handler), limits())
		wantKind(t, err, errdefs.Exhausted)
		if len(entries) > 1000 || len(skips.Skipped) > 1000 {
			t.Errorf("%s: %d entries, %d skips", name, len(entries), len(skips.Skipped))
		}
		for _, s := range skips.Skipped {
			if len(s.Name) > 5000 {
				t.Fatalf("%s: a name of %d bytes", name, len(s.Name))
			}
		}
	}
	for name, handler := range map[string]http.HandlerFunc{
		"another type": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") },
		"compressed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-tar")
			w.Header().Set("Content-Encoding", "gzip")
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusFound) },
	} {
		_, _, err := readTree(t, hostile(t, handler), limits())
		if errdefs.KindOf(err) != errdefs.Protocol {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestArchiveModesAndLinks: no set-id bits come out, and links that leave the tree
// are left out, kept or refused.
func TestArchiveModesAndLinks(t *testing.T) {
	t.Parallel()
	data := archived(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o7777}, tar.Header{Typeflag: tar.TypeSymlink, Name: "d/up", Linkname: "../x"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "d/upper", Linkname: "../../x"}, tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o7777},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "d/up/../.."}, tar.Header{Typeflag: tar.TypeSymlink, Name: "m", Linkname: "/etc/\x1bpasswd"},
		told("BERM.end", "ok"))
	c := hostile(t, sending(data))
	for links, want := range map[agentclient.OutwardLinks]string{agentclient.OutwardLeftOut: "d d/up f", agentclient.OutwardKept: "d d/up d/upper f l m"} {
		l := limits()
		l.Links = links
		entries, skips, err := readTree(t, c, l)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name)
			if e.Mode&(fs.ModeSetuid|fs.ModeSetgid) != 0 || e.Mode&fs.ModeSticky != 0 && !e.Mode.IsDir() {
				t.Errorf("%s has mode %v", e.Name, e.Mode)
			}
		}
		if strings.Join(names, " ") != want || len(skips.Skipped) != 6-len(names) {
			t.Errorf("links %d: %q, skipped %q", links, names, skips.Skipped)
		}
		for _, s := range skips.Skipped {
			if strings.Contains(s.Reason, "\x1b") {
				t.Errorf("a control character: %q", s)
			}
		}
	}
	l := limits()
	l.Links = agentclient.OutwardRefused
	_, _, err := readTree(t, c, l)
	wantKind(t, err, errdefs.Denied)
}

func TestBrokenExtractions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		body   string
		kind   errdefs.Kind
	}{
		"garbage":  {200, "x", errdefs.Protocol},
		"negative": {200, `{"entries":-1}`, errdefs.Protocol},
		"overflow": {200, `{"bytes":1e30}`, errdefs.Protocol},
		"endless":  {200, `{"skipped":[` + strings.Repeat(`{"name":"x"},`, 500_000), errdefs.Protocol},
		"refusal":  {400, `{"message":"\u001b[31mno"}`, errdefs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := hostile(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body)
			}))
			_, err := c.Extract(t.Context(), "/d", strings.NewReader("x"))
			wantKind(t, err, test.kind)
		})
	}
	many := `{"skipped":[` + strings.Repeat(`{"name":"x"},`, 5000) + `{"name":"\u001b"}]}`
	c := hostile(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, many)
	}))
	if got, err := c.Extract(t.Context(), "/d", strings.NewReader("x")); err != nil || len(got.Skipped) != 1000 || got.More != 4001 {
		t.Errorf("%d named, %d more, %v", len(got.Skipped), got.More, err)
	}
}

// heapWatch tells by how much the heap has grown, at most, since it was made.
type heapWatch struct{ before, most uint64 }

func newHeapWatch() *heapWatch {
	runtime.GC()
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return &heapWatch{before: now.HeapAlloc}
}

func (h *heapWatch) look() {
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	h.most = max(h.most, now.HeapAlloc)
}

func (h *heapWatch) check(t *testing.T, what string) {
	t.Helper()
	if h.most > h.before+64<<20 {
		t.Errorf("%s: the heap of both sides grew by %d bytes", what, h.most-h.before)
	}
}

// TestLargeTreesNeedLittleMemory: a tree of a gigabyte goes out of a real agent,
// and a large one into it, in less memory than it takes to hold a part of it.
func TestLargeTreesNeedLittleMemory(t *testing.T) {
	c, home := started(t)
	size, files := int64(16<<20), 20
	if !testing.Short() {
		size, files = 64<<20, 2000
	}
	from := filepath.Join(home, "from")
	if err := os.MkdirAll(from, 0o755); err != nil {
		t.Fatal(err)
	}
	// Files without content cost the test no disk, and are read as any.
	for i := range 16 {
		if err := errors.Join(os.WriteFile(fmt.Sprint(from, "/big", i), nil, 0o644), os.Truncate(fmt.Sprint(from, "/big", i), size)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range files {
		write(t, fmt.Sprint(from, "/small", i), "x")
	}
	heap := newHeapWatch()
	tree, err := c.Archive(t.Context(), from, agentclient.TreeLimits{Entries: 10_000, Bytes: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tree.Close() }()
	var total int64
	for {
		e, err := tree.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, tree)
		if err != nil || n != e.Size {
			t.Fatalf("%s: %d of %d bytes, %v", e.Name, n, e.Size, err)
		}
		total += n
		heap.look()
	}
	if total != 16*size+int64(files) {
		t.Errorf("%d bytes", total)
	}
	heap.check(t, "out")
	heap = newHeapWatch()
	pipe, into := io.Pipe()
	go func() { _ = into.CloseWithError(generate(into, 16, size/4, heap.look)) }()
	if got, err := c.Extract(t.Context(), filepath.Join(home, "to"), pipe); err != nil || got.Entries != 16 || got.Bytes != 4*size {
		t.Errorf("%+v, %v", got, err)
	}
	heap.check(t, "in")
}

// generate writes an archive of n files of zeros.
func generate(w io.Writer, n int, size int64, each func()) error {
	out := tar.NewWriter(w)
	for i := range n {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprint(i), Size: size, Mode: 0o644}); err != nil {
			return err
		}
		if _, err := io.CopyN(out, zeros{}, size); err != nil {
			return err
		}
		each()
	}
	return out.Close()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
