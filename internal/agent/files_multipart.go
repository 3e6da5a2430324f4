package agent

import (
	"bufio"
	"errors"
	"io"
	"mime/multipart"
	"net/url"
	"strings"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/defence"
)

// Bounds of one form.
const (
	maxFormFiles    = 20_000
	maxFormParts    = 40_000
	maxSkippedBytes = 1 << 20 // of parts that are no files, all together
	maxBoundary     = 70      // as RFC 2046 has it
	maxPartHeader   = 64 << 10
)

// budget bounds how much is read of a body on the way to a part's content.
type budget struct {
	body io.Reader
	left int // negative for no bound
}

func (b *budget) limit(n int) { b.left = n }

// Read implements io.Reader.
func (b *budget) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if b.left < 0 || defence.UploadFormSize.Off() {
		return n, err
	}
	if b.left -= n; b.left < 0 {
		return 0, faultf(connect.CodeInvalidArgument, "the form has more than %d bytes before a part's content", maxPartHeader)
	}
	return n, err
}

// whole fills what it is given to read into: few large writes are cheaper.
type whole struct{ part io.Reader }

// Read implements io.Reader.
func (w whole) Read(p []byte) (int, error) {
	n, err := io.ReadFull(w.part, p)
	if errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
		// The part may have said so itself; then it says it again.
		return n, nil
	}
	return n, err
}

// formReader reads the files of a multipart/form-data body as a stream.
type formReader struct {
	boundary string
	body     io.Reader
	// path is where the one file goes; empty where each part says that itself.
	path string
}

// each calls take for every part that is called "file", in order. Errors are
// take's, faults, or the reason why the body is no such form.
func (f formReader) each(take func(path string, content io.Reader) error) error {
	if f.boundary == "" || len(f.boundary) > maxBoundary {
		return faultf(connect.CodeInvalidArgument, "the form has no boundary, or too long a one")
	}
	// The library reads little at a time, and would take 10 MiB of header.
	body := &budget{body: bufio.NewReaderSize(f.complete(), copyBytes)}
	form := multipart.NewReader(body, f.boundary)
	skipped := int64(maxSkippedBytes)
	for parts := 0; ; parts++ {
		body.limit(maxPartHeader)
		part, err := form.NextRawPart()
		body.limit(-1)
		if errors.Is(err, io.EOF) && parts > 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if parts >= maxFormParts && !defence.UploadFormSize.Off() {
			return faultf(connect.CodeInvalidArgument, "the form has more than %d parts", maxFormParts)
		}
		field, err := parseDisposition(part.Header["Content-Disposition"])
		if err != nil {
			return err
		}
		if field.name != "file" {
			// What nobody takes must not keep the agent busy for long.
			n, err := io.Copy(io.Discard, io.LimitReader(part, skipped+1))
			if skipped -= n; skipped < 0 && !defence.UploadFormSize.Off() {
				return faultf(connect.CodeInvalidArgument, "the form has more than %d bytes that are no file", maxSkippedBytes)
			}
			if err != nil {
				return err
			}
			continue
		}
		name := f.path
		if name == "" {
			name = field.filename
		}
		if err := take(name, whole{part}); err != nil {
			return err
		}
	}
}

// complete is the body with an empty line behind it. The library takes a body that
// ends within a part's header for one that has come to its end; with a line more
// that is a part without content, which it takes for what it is. Behind the last
// boundary the line is nothing.
func (f formReader) complete() io.Reader {
	if defence.UploadFormWhole.Off() {
		return f.body
	}
	return io.MultiReader(f.body, strings.NewReader("\r\n\r\n"))
}

// disposition is what a part says of itself.
type disposition struct{ name, filename string }

// parseDisposition reads a part's Content-Disposition. It is done by hand because
// the file name is a path here, of which the standard library keeps only the last
// element, and because in quoted text a backslash is nothing but a backslash,
// except before a quote or another one: that is how clients write it.
func parseDisposition(headers []string) (disposition, error) {
	malformed := faultf(connect.CodeInvalidArgument, "a part has no well-formed Content-Disposition")
	if len(headers) != 1 {
		return disposition{}, malformed
	}
	kind, rest, _ := strings.Cut(headers[0], ";")
	if !strings.EqualFold(trimSpace(kind), "form-data") {
		return disposition{}, malformed
	}
	values := map[string]string{}
	for rest = trimSpace(rest); rest != ""; {
		key, after, found := strings.Cut(rest, "=")
		key = strings.ToLower(trimSpace(key))
		value, left, ok := parseValue(trimSpace(after))
		if _, twice := values[key]; !found || !ok || !isToken(key) || twice && !defence.UploadPathsUnique.Off() {
			return disposition{}, malformed
		}
		values[key] = value
		if left = trimSpace(left); left != "" && left[0] != ';' {
			return disposition{}, malformed
		}
		rest = trimSpace(strings.TrimPrefix(left, ";"))
	}
	out := disposition{name: values["name"], filename: values["filename"]}
	if extended, given := values["filename*"]; given {
		name, ok := parseExtended(extended)
		if !ok {
			return disposition{}, malformed
		}
		out.filename = name
	}
	return out, nil
}

// parseValue takes a token or a quoted text from the front.
func parseValue(in string) (value, rest string, ok bool) {
	if !strings.HasPrefix(in, `"`) {
		end := strings.IndexAny(in, "; \t")
		if end < 0 {
			end = len(in)
		}
		return in[:end], in[end:], isToken(in[:end])
	}
	var out strings.Builder
	for i := 1; i < len(in); i++ {
		switch c := in[i]; {
		case c == '"':
			return out.String(), in[i+1:], true
		case c == '\\' && i+1 < len(in) && (in[i+1] == '"' || in[i+1] == '\\'):
			i++
			out.WriteByte(in[i])
		default:
			out.WriteByte(c)
		}
	}
	return "", "", false
}

// parseExtended reads a value of RFC 5987, in UTF-8 only.
func parseExtended(in string) (string, bool) {
	charset, rest, ok := strings.Cut(in, "'")
	_, encoded, ok2 := strings.Cut(rest, "'")
	if !ok || !ok2 || !strings.EqualFold(charset, "utf-8") {
		return "", false
	}
	value, err := url.PathUnescape(encoded)
	return value, err == nil
}

// isToken is true for what RFC 7230 calls a token.
func isToken(text string) bool {
	for _, c := range []byte(text) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`()<>@,;:\"/[]?={}`, c) >= 0 {
			return false
		}
	}
	return text != ""
}

func trimSpace(text string) string { return strings.Trim(text, " \t") }
