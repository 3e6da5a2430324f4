package agent

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"slices"
	"strings"
	"testing"
)

const fuzzBoundary = "----berm0123456789"

// taken is one file of a form.
type taken struct {
	name    string
	content string
}

// read takes a form apart by the agent's reader.
func readForm(body []byte, path string) ([]taken, error) {
	var out []taken
	err := formReader{boundary: fuzzBoundary, body: clientBody{bytes.NewReader(body)}, path: path}.each(func(name string, content io.Reader) error {
		data, err := io.ReadAll(content)
		out = append(out, taken{name, string(data)})
		return err
	})
	return out, err
}

// readReference takes a form apart by the standard library alone. exact is false
// where the two read names in different ways on purpose.
func readReference(body []byte, path string) (out []taken, exact bool, err error) {
	form := multipart.NewReader(bytes.NewReader(body), fuzzBoundary)
	exact = true
	for parts := 0; ; parts++ {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) && parts > 0 {
			return out, exact, nil
		}
		if err != nil {
			return nil, exact, err
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return nil, exact, err
		}
		header := part.Header.Get("Content-Disposition")
		kind, params, err := mime.ParseMediaType(header)
		// A backslash is an escape in fewer places here, and there are no
		// continuations.
		exact = exact && err == nil && !strings.ContainsAny(header, `\*`) && kind == "form-data"
		if params["name"] != "file" {
			continue
		}
		name := path
		if name == "" {
			name = params["filename"]
		}
		out = append(out, taken{name, string(data)})
	}
}

// formOfFiles writes a form by the standard library.
func formOfFiles(tb testing.TB, files []taken) []byte {
	tb.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	if err := w.SetBoundary(fuzzBoundary); err != nil {
		tb.Fatal(err)
	}
	for _, file := range files {
		part, err := w.CreateFormFile("file", file.name)
		if err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(part, file.content); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return body.Bytes()
}

// FuzzForms: any bytes are taken apart as the standard library does, or refused;
// what a client has written comes back as it was; and a form that was cut is
// never taken for a whole one.
func FuzzForms(f *testing.F) {
	begin := "--" + fuzzBoundary + "\r\n"
	end := "\r\n--" + fuzzBoundary + "--\r\n"
	field := "Content-Disposition: form-data; name=\"file\"; filename=\"/tmp/a\"\r\n\r\n"
	for _, raw := range []string{
		"", begin, begin + end, begin + field + "x" + end, begin + field + end, "preamble\r\n" + begin + field + "x" + end + "epilogue",
		begin + field + "x\r\n" + begin + field + "y" + end, begin + field + "x", begin + field + "--" + fuzzBoundary + end,
		begin + "Content-Disposition: form-data; name=file; filename=a\r\n\r\nx" + end,
		begin + "Content-Disposition: form-data; name=\"file\"; filename=\"a\\\"b\\\\c\\d\"\r\n\r\nx" + end,
		begin + "content-disposition: FORM-DATA;NAME=\"file\" ; FileName = \"a;b=c\"\r\n\r\nx" + end,
		begin + "Content-Disposition: form-data; name=\"file\"; filename*=utf-8''%c3%bc\r\n\r\nx" + end,
		begin + "Content-Disposition: form-data; name=\"file\"; filename*=latin1''%fc; filename=b\r\n\r\nx" + end,
		begin + "Content-Disposition: form-data; name=\"file\"; filename*0=a; filename*1=b\r\n\r\nx" + end,
		begin + "Content-Disposition: form-data; name=\"file\"; name=\"x\"\r\n\r\nx" + end,
		begin + "Content-Disposition: attachment; name=\"file\"\r\n\r\nx" + end,
		begin + "Content-Disposition: form-data; name=\"file\r\n\r\nx" + end,
		begin + "X: y\r\n\r\nx" + end, begin + ": y\r\n\r\nx" + end, begin + "Content-Disposition: form-data; name=\"other\"\r\n\r\nx" + end,
		begin + "Content-Transfer-Encoding: quoted-printable\r\n" + field + "=41" + end,
		strings.ReplaceAll(begin+field+"x"+end, "\r\n", "\n"), begin + " folded: x\r\n" + field + "x" + end,
		begin + "Content-Disposition: form-data; name=\"file\"; filename=\"\xff\x00\"\r\n\r\nx" + end,
		begin + "Content-Disposition: form-data; name=\"file\"; filename=\"a%22b\"\r\n\r\nx" + end,
	} {
		f.Add([]byte(raw), "/tmp/a b/ü\"\\", "content\r\n--"+fuzzBoundary, "", uint16(len(raw)/2))
	}
	f.Add([]byte(begin+field+"x"+end), "", "", "/from/query", uint16(3))
	f.Fuzz(func(t *testing.T, raw []byte, name, content, path string, cut uint16) {
		got, err := readForm(raw, path)
		want, exact, wantErr := readReference(raw, path)
		if err == nil && wantErr != nil {
			t.Fatalf("taken: %q, refused by the standard library: %v", got, wantErr)
		}
		if err == nil && exact && !slices.Equal(got, want) {
			t.Fatalf("%q, by the standard library %q", got, want)
		}
		// Line ends do not survive in a header; the standard library's writer
		// replaces them.
		if strings.ContainsAny(name, "\r\n") || strings.Contains(content, "\r\n--"+fuzzBoundary) || strings.HasPrefix(content, "--"+fuzzBoundary) {
			return
		}
		if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(name)+len(content) > maxPartHeader/4 {
			return
		}
		files := []taken{{name, content}, {"second", name}}
		if path != "" {
			files[0].name, files[1].name = path, path
		}
		body := formOfFiles(t, []taken{{name, content}, {"second", name}})
		if got, err = readForm(body, path); err != nil || !slices.Equal(got, files) {
			t.Fatalf("written %q, read %q, %v", files, got, err)
		}
		if at := int(cut); at < len(body)-len("--\r\n") {
			if got, err := readForm(body[:at], path); err == nil {
				t.Fatalf("cut at %d of %d and taken: %q", at, len(body), got)
			}
		}
	})
}
