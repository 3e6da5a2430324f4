package agent

import (
	"context"
	"io"
	"mime"
	"net/http"
	"path"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/defence"
)

// octetStream is the media type of bytes that nothing is known about.
const octetStream = "application/octet-stream"

// download serves GET /files?path=P: the file with its length, ranges and
// conditions, or compressed where the client prefers that.
func (f *files) download(w http.ResponseWriter, r *http.Request) {
	q, p, err := f.admit(r, operationRead)
	if err != nil {
		refuse(w, fileFault("read", q.path, err))
		return
	}
	file, info, err := f.work.open(r.Context(), p)
	if err != nil {
		refuse(w, fileFault("read", p, err))
		return
	}
	defer func() { _ = file.Close() }()
	zip, ok := wantsGzip(r.Header, info.Size() == 0)
	if !ok {
		answerError(w, http.StatusNotAcceptable, "no encoding of the file is acceptable")
		return
	}
	describeFile(w.Header(), p)
	if !zip {
		http.ServeContent(bulkWriter{w}, r, "", info.ModTime(), file)
		return
	}
	sendGzip(w, r, file, info.ModTime())
}

// describeFile sets the header of a file's content. The type is never guessed
// from the content, which is the payload's; nor may a browser that shows it run
// what is in it.
func describeFile(header http.Header, p string) {
	header.Set("Content-Type", mediaType(p))
	header.Set("X-Content-Type-Options", "nosniff")
	if !defence.FilesInert.Off() {
		header.Set("Content-Security-Policy", "sandbox")
	}
	header.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(p)}))
	header.Add("Vary", "Accept-Encoding")
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

// admit decides on a request for whole files and gives its query and its path,
// which is empty where the query has none.
func (f *files) admit(r *http.Request, operation string) (fileQuery, string, error) {
	q, err := parseFileQuery(r)
	if err != nil {
		return q, "", err
	}
	if err := q.admit(f.session.current(), r.Header.Get(tokenHeader), operation, time.Now()); err != nil {
		return q, "", err
	}
	if err := f.checkUser(q.user); err != nil {
		return q, "", err
	}
	if q.path == "" && operation == operationWrite {
		return q, "", nil
	}
	p, err := cleanPath(f.home, q.path)
	return q, p, err
}

// checkUser refuses any user but the one that there is.
func (f *files) checkUser(user string) error {
	if user != "" && user != f.user && !defence.FilesUser.Off() {
		return faultf(connect.CodeUnauthenticated, "unknown user %q", user)
	}
	return nil
}

// cancellable ends reading with a request.
type cancellable struct {
	ctx context.Context //nolint:containedctx // the request's, which the reader does not outlive
	io.Reader
}

// Read implements io.Reader.
func (c cancellable) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.Reader.Read(p)
}

// refuse answers a failed operation.
func refuse(w http.ResponseWriter, f *fault) { answerError(w, f.status(), f.text) }
