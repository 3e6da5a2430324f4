package agent_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestDownloadEncodings(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	content := strings.Repeat("text ", 1000)
	if err := errors.Join(os.WriteFile(home+"/f.txt", []byte(content), 0o644), os.WriteFile(home+"/empty", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for accept, want := range map[string]string{
		"": "identity", "gzip, deflate": "gzip", "gzip": "gzip", "GZIP": "gzip", "x-gzip": "gzip", "br": "identity", "identity, gzip": "identity",
		"gzip, identity": "gzip", "gzip;q=0.5, identity": "identity", "identity;q=0.5, gzip;q=0.6": "gzip", "gzip;q=0": "identity",
		"*": "identity", "identity;q=0, *": "gzip", "identity;q=0": "406", "*;q=0": "406", "*;q=0, gzip": "gzip", "br, identity;q=0": "406",
		"gzip;q=x": "identity", "gzip;q=2": "identity", "gzip;q=NaN": "identity", ",,;": "identity", "br, *;q=0.1": "identity", "*, gzip;q=0.5": "identity",
		"deflate, gzip;q=0.001": "gzip",
	} {
		headers := []string{}
		if accept != "" {
			headers = append(headers, "Accept-Encoding: "+accept)
		}
		rec := call(t, a.Data(), "GET", filesURL("path", "f.txt"), "", headers...)
		got, body := "identity", rec.Body.String()
		switch {
		case rec.Code != 200:
			got, body = strconv.Itoa(rec.Code), content
		case rec.Header().Get("Content-Encoding") == "gzip":
			got = "gzip"
			zip, err := gzip.NewReader(rec.Body)
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(zip)
			if body = string(data); err != nil || rec.Header().Get("Content-Length") != "" {
				t.Errorf("%q: %v %v", accept, err, rec.Header())
			}
		case rec.Header().Get("Content-Length") != strconv.Itoa(len(content)):
			t.Errorf("%q: %v", accept, rec.Header())
		}
		if got != want || body != content || rec.Code == 200 && rec.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("%q: %s, %d bytes, %v", accept, got, len(body), rec.Header())
		}
	}
	for _, accept := range []string{"gzip, deflate", "identity"} {
		if rec := call(t, a.Data(), "GET", filesURL("path", "empty"), "", "Accept-Encoding: "+accept); rec.Code != 200 || rec.Header().Get("Content-Length") != "0" || rec.Header().Get("Content-Encoding") != "" {
			t.Errorf("empty: %d %v", rec.Code, rec.Header())
		}
	}
	rec := call(t, a.Data(), "HEAD", filesURL("path", "f.txt"), "", "Accept-Encoding: gzip")
	if rec.Code != 200 || rec.Body.Len() != 0 || rec.Header().Get("Content-Encoding") != "gzip" || rec.Header().Get("Last-Modified") == "" {
		t.Errorf("HEAD: %d %v", rec.Code, rec.Header())
	}
}

// Ranges and conditions are about the bytes as they are.
func TestDownloadRanges(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	modified := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if err := errors.Join(os.WriteFile(home+"/f", []byte("0123456789"), 0o644), os.Chtimes(home+"/f", modified, modified)); err != nil {
		t.Fatal(err)
	}
	stamp := modified.Format(http.TimeFormat)
	for name, test := range map[string]struct {
		headers []string
		code    int
		body    string
		ranged  string
	}{
		"first":             {[]string{"Range: bytes=0-3"}, 206, "0123", "bytes 0-3/10"},
		"rest":              {[]string{"Range: bytes=7-"}, 206, "789", "bytes 7-9/10"},
		"last":              {[]string{"Range: bytes=-2"}, 206, "89", "bytes 8-9/10"},
		"beyond":            {[]string{"Range: bytes=10-"}, 416, "", "bytes */10"},
		"malformed":         {[]string{"Range: bytes=x"}, 416, "", ""},
		"not changed":       {[]string{"If-Modified-Since: " + stamp}, 304, "", ""},
		"changed":           {[]string{"If-Modified-Since: Mon, 01 Jan 2024 00:00:00 GMT"}, 200, "0123456789", ""},
		"not the same":      {[]string{"If-Unmodified-Since: Mon, 01 Jan 2024 00:00:00 GMT"}, 412, "", ""},
		"same, and range":   {[]string{"Range: bytes=1-1", "If-Range: " + stamp}, 206, "1", "bytes 1-1/10"},
		"other, and range":  {[]string{"Range: bytes=1-1", "If-Range: Mon, 01 Jan 2024 00:00:00 GMT"}, 200, "0123456789", ""},
		"range, no plain":   {[]string{"Range: bytes=1-1", "Accept-Encoding: gzip, identity;q=0"}, 406, "", ""},
		"no match for none": {[]string{`If-Match: "x"`}, 412, "", ""},
	} {
		rec := call(t, a.Data(), "GET", filesURL("path", "f"), "", append(test.headers, "Accept-Encoding: gzip, deflate")...)
		if strings.Contains(strings.Join(test.headers, ""), "Accept-Encoding") {
			rec = call(t, a.Data(), "GET", filesURL("path", "f"), "", test.headers...)
		}
		if rec.Code != test.code || rec.Code < 300 && rec.Body.String() != test.body || rec.Header().Get("Content-Encoding") != "" || test.ranged != rec.Header().Get("Content-Range") {
			t.Errorf("%s: %d %q %v", name, rec.Code, rec.Body, rec.Header())
		}
	}
}

// The type comes from the name, never from the content, and a browser that shows
// the file does not run it.
func TestDownloadHeaders(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	for name, kind := range map[string]string{
		"a.html": "text/html; charset=utf-8", "a.JSON": "application/json", "a.png": "image/png", "a.jpg": "image/jpeg", "a.svg": "image/svg+xml",
		"a.tar": "application/x-tar", "a": octets, "a.unknown": octets, "ü \"x\".txt": "text/plain; charset=utf-8", "a\n.pdf": "application/pdf",
	} {
		if err := os.WriteFile(home+"/"+name, []byte("<!DOCTYPE html><script>alert(1)</script>"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, accept := range []string{"identity", "gzip"} {
			header := call(t, a.Data(), "GET", filesURL("path", name), "", "Accept-Encoding: "+accept).Header()
			if header.Get("Content-Type") != kind || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Content-Security-Policy") != "sandbox" {
				t.Errorf("%s: %v", name, header)
			}
			shown := header.Get("Content-Disposition")
			if !strings.HasPrefix(shown, "inline; filename") || strings.ContainsAny(shown, "\r\n") {
				t.Errorf("%s: %q", name, shown)
			}
		}
	}
}

func zipped(tb testing.TB, content string) string {
	tb.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	_, err := io.WriteString(zip, content)
	if err := errors.Join(err, zip.Close()); err != nil {
		tb.Fatal(err)
	}
	return out.String()
}

func TestUploadEncodings(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	whole := zipped(t, "content")
	form, formKind := formOf(part{"file", home + "/form", "content"})
	for name, test := range map[string]struct {
		coding, kind, body string
		code               int
	}{
		"plain":     {"identity", octets, "content", 200},
		"gzip":      {"gzip", octets, whole, 200},
		"two":       {"GZIP", octets, zipped(t, "con") + zipped(t, "tent"), 200},
		"form":      {"gzip", formKind, zipped(t, form), 200},
		"cut":       {"gzip", octets, whole[:len(whole)-4], 400},
		"tail":      {"gzip", octets, whole + "x", 400},
		"damaged":   {"gzip", octets, whole[:len(whole)-8] + "12345678", 400},
		"none":      {"gzip", octets, "", 400},
		"no gzip":   {"gzip", octets, "content", 400},
		"other":     {"br", octets, "content", 400},
		"twice":     {"gzip, gzip", octets, whole, 400},
		"cut form":  {"gzip", formKind, zipped(t, form[:len(form)-20]), 400},
		"cut plain": {"identity", formKind, form[:len(form)-60], 400},
	} {
		path := home + "/" + name
		target := filesURL("path", path)
		rec := call(t, a.Data(), "POST", target, test.body, "Content-Type: "+test.kind, "Content-Encoding: "+test.coding)
		data, err := os.ReadFile(path)
		if rec.Code != test.code || (test.code == 200) != (string(data) == "content") || test.code != 200 && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %d %s; %q %v", name, rec.Code, rec.Body, data, err)
		}
	}
	for _, entry := range must(os.ReadDir(home))(t) {
		if strings.HasPrefix(entry.Name(), ".berm") {
			t.Errorf("left: %s", entry.Name())
		}
	}
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return value
	}
}

// What nobody takes of a form, and what precedes a part's content, is bounded.
func TestFormBounds(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	zeros := zipped(t, strings.Repeat("\x00", 16<<20))
	_, kind := formOf()
	boundary := kind[strings.IndexByte(kind, '=')+1:]
	begin := "--" + boundary + "\r\n"
	many := strings.Repeat(begin+"Content-Disposition: form-data; name=\"x\"\r\n\r\n\r\n", 50_000)
	for name, body := range map[string]string{
		"skipped part": zipped(t, begin+"Content-Disposition: form-data; name=\"x\"\r\n\r\n") + zeros,
		"header":       zipped(t, begin+"X: ") + zeros,
		"headers":      zipped(t, begin+strings.Repeat("X: y\r\n", 1<<20)),
		"preamble":     zeros,
		"parts":        zipped(t, many+"--"+boundary+"--"),
		"names":        zipped(t, strings.Repeat(begin+"Content-Disposition: form-data; name=\"file\"; filename=\""+strings.Repeat("x", 5000)+"\"\r\n\r\n\r\n", 2)+"--"+boundary+"--"),
		"cut header":   zipped(t, begin+"Content-Disposition: form-data; name=\"x\"\r\n\r\nx\r\n"+begin+"Content-Disp"),
		"two names":    zipped(t, begin+"Content-Disposition: form-data; name=\"file\"; name=\"x\"; filename=\"two\"\r\n\r\n\r\n--"+boundary+"--"),
		"two headers":  zipped(t, begin+"Content-Disposition: form-data; name=\"file\"; filename=\"two\"\r\nContent-Disposition: x\r\n\r\n\r\n--"+boundary+"--"),
	} {
		rec := call(t, a.Data(), "POST", "/files", body, "Content-Type: "+kind, "Content-Encoding: gzip")
		if rec.Code != 400 {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
	}
	rec := call(t, a.Data(), "POST", "/files", "x", "Content-Type: multipart/form-data; boundary="+strings.Repeat("x", 71))
	if rec.Code != 400 {
		t.Errorf("boundary: %d %s", rec.Code, rec.Body)
	}
	if left := must(os.ReadDir(home))(t); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A download that the client breaks off ends, and a compressed one whose file
// changes is not taken for whole.
func TestDownloadThatIsBrokenOff(t *testing.T) {
	t.Parallel()
	a, home := handled(t)
	if err := os.WriteFile(home+"/f", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(home+"/f", 1<<32); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(a.Data())
	defer server.Close()
	for _, accept := range []string{"identity", "gzip"} {
		req, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+filesURL("path", "f"), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", accept)
		res, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(res.Body, make([]byte, 1000)); err != nil {
			t.Error(err)
		}
		_ = res.Body.Close()
	}
	ended := make(chan struct{})
	go func() {
		server.Close()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("a download goes on without its client")
	}
}
