package agent_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/link"
)

// peak gives the most memory that a process has had, in bytes.
func peak(tb testing.TB, pid int) int64 {
	tb.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmHWM:" {
			n, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return n << 10
		}
	}
	tb.Fatal("the process has no peak")
	return 0
}

// patternReader gives bytes that do not repeat in blocks.
type patternReader struct{ at uint64 }

func (p *patternReader) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(p.at >> 16)
		p.at++
	}
	return len(b), nil
}

// compressed compresses content while it is read.
func compressed(content io.Reader) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		zip, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err == nil {
			_, err = io.Copy(zip, content)
		}
		if err == nil {
			err = zip.Close()
		}
		_ = w.CloseWithError(err)
	}()
	return r
}

// Whatever the size and the form of a file's journey, the agent's memory stays
// below 64 MiB.
func TestLargeFilesInLittleMemory(t *testing.T) {
	t.Parallel()
	large, medium := int64(10<<30), int64(1<<30)
	if testing.Short() {
		large, medium = 192<<20, 96<<20
	}
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(home, &fs); err != nil {
		t.Fatal(err)
	}
	if room := int64(fs.Bavail) * fs.Bsize; room < large+large/4 {
		t.Skipf("%d bytes are free for temporary files, the test needs %d", room, large+large/4)
	}
	in := openOwn(t, bootFor(home), nil)
	send := func(method, name string, body io.Reader, headers ...string) (*http.Response, func()) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+link.DataHost+filesURL("path", home+"/"+name), body)
		if err != nil {
			t.Fatal(err)
		}
		for _, header := range headers {
			key, value, _ := strings.Cut(header, ": ")
			req.Header.Set(key, value)
		}
		res, err := in.link.RoundTrip(req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if res.StatusCode != 200 {
			data, _ := io.ReadAll(res.Body)
			t.Fatalf("%s: %d %s", name, res.StatusCode, data)
		}
		return res, func() { _ = res.Body.Close() }
	}
	upload := func(name string, size int64, body io.Reader, headers ...string) {
		_, done := send("POST", name, body, headers...)
		done()
		if info, err := os.Stat(home + "/" + name); err != nil || info.Size() != size {
			t.Errorf("%s: %v %v", name, info, err)
		}
		if err := os.Remove(home + "/" + name); err != nil {
			t.Error(err)
		}
	}
	form, kind := formOf(part{"file", "x", "|"})
	head, tail, _ := strings.Cut(form, "|")
	inForm := func(size int64) io.Reader {
		return io.MultiReader(strings.NewReader(head), io.LimitReader(&patternReader{}, size), strings.NewReader(tail))
	}
	upload("octets", large, io.LimitReader(&patternReader{}, large), "Content-Type: "+octets)
	upload("form", medium, inForm(medium), "Content-Type: "+kind)
	upload("zipped", medium, compressed(io.LimitReader(&patternReader{}, medium)), "Content-Type: "+octets, "Content-Encoding: gzip")
	if err := errors.Join(os.WriteFile(home+"/sparse", nil, 0o644), os.Truncate(home+"/sparse", large)); err != nil {
		t.Fatal(err)
	}
	res, done := send("GET", "sparse", nil)
	if n, err := io.Copy(io.Discard, res.Body); err != nil || n != large {
		t.Errorf("download: %d %v", n, err)
	}
	done()
	if err := os.Truncate(home+"/sparse", medium); err != nil {
		t.Fatal(err)
	}
	res, done = send("GET", "sparse", nil, "Accept-Encoding: gzip")
	zip, err := gzip.NewReader(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, zip); err != nil || n != medium {
		t.Errorf("zipped download: %d %v", n, err)
	}
	done()
	for i := range 4 {
		if err := errors.Join(os.WriteFile(fmt.Sprintf("%s/part%d", home, i), nil, 0o644), os.Truncate(fmt.Sprintf("%s/part%d", home, i), medium/4)); err != nil {
			t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+link.DataHost+"/files/compose", bytes.NewReader([]byte(`{"source_paths":["part0","part1","part2","part3"],"destination":"whole"}`)))
	if err != nil {
		t.Fatal(err)
	}
	if res, err = in.link.RoundTrip(req); err != nil || res.StatusCode != 200 {
		t.Fatalf("compose: %v %v", res, err)
	}
	_ = res.Body.Close()
	if info, err := os.Stat(home + "/whole"); err != nil || info.Size() != medium {
		t.Errorf("compose: %v %v", info, err)
	}
	if most := peak(t, in.agent); most > 64<<20 {
		t.Errorf("the agent has had %d MiB", most>>20)
	} else {
		t.Logf("the agent has had %d MiB", most>>20)
	}
}
