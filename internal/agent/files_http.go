package agent

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/defence"
)

// octetStream is the one media type of whole files.
const octetStream = "application/octet-stream"

// download serves GET /files?path=P: the file as it is, with its length, ranges
// and conditions.
func (f *files) download(w http.ResponseWriter, r *http.Request) {
	p, err := f.target(r)
	if err != nil {
		refuse(w, fileFault("read", r.URL.Query().Get("path"), err))
		return
	}
	file, info, err := f.work.open(r.Context(), p)
	if err != nil {
		refuse(w, fileFault("read", p, err))
		return
	}
	defer func() { _ = file.Close() }()
	header := w.Header()
	// The type is never guessed: what the file holds is the payload's.
	header.Set("Content-Type", octetStream)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(p)}))
	header.Set("Vary", "Accept-Encoding")
	http.ServeContent(bulkWriter{w}, r, "", info.ModTime(), file)
}

// bulkWriter copies in large blocks; the standard library's way to a unix socket
// is 32 KiB at a time.
type bulkWriter struct{ http.ResponseWriter }

// ReadFrom implements io.ReaderFrom.
func (b bulkWriter) ReadFrom(src io.Reader) (int64, error) {
	size := int64(copyBytes)
	if limited, ok := src.(*io.LimitedReader); ok {
		size = max(1, min(size, limited.N))
	}
	return io.CopyBuffer(struct{ io.Writer }{b.ResponseWriter}, struct{ io.Reader }{src}, make([]byte, size))
}

// uploaded is what POST /files answers for each file.
type uploaded struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Path string `json:"path"`
}

// upload serves POST /files?path=P: the body becomes the file.
func (f *files) upload(w http.ResponseWriter, r *http.Request) {
	p, err := f.target(r)
	if err != nil {
		refuse(w, fileFault("write", r.URL.Query().Get("path"), err))
		return
	}
	options, err := uploadOptions(r)
	if err != nil {
		refuse(w, fileFault("write", p, err))
		return
	}
	body := &lengthChecked{body: r.Body, left: r.ContentLength}
	if _, err := f.work.write(r.Context(), p, options, body); err != nil {
		refuse(w, fileFault("write", p, err))
		return
	}
	answer(w, http.StatusOK, []uploaded{{Name: path.Base(p), Type: "file", Path: p}})
}

// target gives the request's path after the checks that both directions share.
func (f *files) target(r *http.Request) (string, error) {
	query := r.URL.Query()
	if query.Has("signature") || query.Has("signature_expiration") {
		return "", faultf(connect.CodeInvalidArgument, "signed requests are not supported")
	}
	if user := query.Get("username"); user != "" && user != f.user && !defence.FilesUser.Off() {
		return "", faultf(connect.CodeUnauthenticated, "unknown user %q", user)
	}
	if len(query["path"]) > 1 {
		return "", faultf(connect.CodeInvalidArgument, "more than one path")
	}
	return cleanPath(f.home, query.Get("path"))
}

// uploadOptions reads how the body is encoded and how the file is replaced.
func uploadOptions(r *http.Request) (writeOptions, error) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return writeOptions{}, faultf(connect.CodeInvalidArgument, "Content-Type is missing or malformed")
	}
	if media != octetStream {
		return writeOptions{}, faultf(connect.CodeUnimplemented, "Content-Type %q is not supported, only %s", media, octetStream)
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return writeOptions{}, faultf(connect.CodeUnimplemented, "Content-Encoding %q is not supported", encoding)
	}
	var options writeOptions
	query := r.URL.Query()
	if text := query.Get("mode"); text != "" {
		mode, err := strconv.ParseUint(text, 8, 32)
		if err != nil || mode == 0 || mode > 0o777 && !defence.FilesMode.Off() {
			return writeOptions{}, faultf(connect.CodeInvalidArgument, "mode %q is not octal permission bits", text)
		}
		options.mode = uint32(mode)
	}
	switch text := query.Get("exclusive"); text {
	case "", "0":
	case "1":
		options.exclusive = true
	default:
		return writeOptions{}, faultf(connect.CodeInvalidArgument, "exclusive is %q, not 0 or 1", text)
	}
	return options, nil
}

// lengthChecked makes a body that ends early an error. The server's own body
// does the same; this does not rely on it. left is the announced length, -1 for
// none.
type lengthChecked struct {
	body io.Reader
	left int64
}

func (l *lengthChecked) Read(p []byte) (int, error) {
	n, err := l.body.Read(p)
	if l.left >= 0 {
		l.left = max(0, l.left-int64(n))
	}
	if errors.Is(err, io.EOF) && l.left > 0 && !defence.FilesWhole.Off() {
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

// refuse answers with envd's form of an error.
func refuse(w http.ResponseWriter, f *fault) {
	status := f.status()
	answer(w, status, struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{status, f.text})
}

func answer(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	// A failed write means that the client is gone.
	_, _ = w.Write(data)
}
