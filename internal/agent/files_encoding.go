package agent

import (
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/defence"
)

// Content codings.
const (
	codingGzip     = "gzip"
	codingIdentity = "identity"
	// maxCodings bounds how many a request may list.
	maxCodings = 64
)

// wantsGzip decides how a file is sent: compressed when the client lists gzip
// before everything else that can be had, or with a higher weight. Ranges and
// conditions are about the bytes as they are, and so is a file without any. It is
// false at the end when nothing is acceptable.
func wantsGzip(header http.Header, empty bool) (zip, ok bool) {
	weights := acceptedCodings(header)
	plain := true
	if w, given := weights.of(codingIdentity); given {
		plain = w > 0
	} else if w, given := weights.of("*"); given {
		plain = w > 0
	}
	asItIs := empty
	for _, name := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
		asItIs = asItIs || header.Get(name) != ""
	}
	if asItIs {
		return false, plain
	}
	var best coding
	for _, c := range weights {
		if c.name == "*" {
			// Whatever is left: as it is, unless that is ruled out.
			c.name = codingIdentity
			if !plain {
				c.name = codingGzip
			}
			if _, given := weights.of(c.name); given {
				continue
			}
		}
		if c.weight > best.weight && (c.name == codingGzip || c.name == codingIdentity) {
			best = c
		}
	}
	switch {
	case best.weight == 0:
		return false, plain
	case best.name == codingGzip:
		return true, true
	}
	return false, true
}

// coding is one entry of Accept-Encoding.
type coding struct {
	name   string
	weight float64
}

// codings are in the order of the header.
type codings []coding

// of gives a coding's weight, and false when it is not listed.
func (c codings) of(name string) (float64, bool) {
	for _, one := range c {
		if one.name == name {
			return one.weight, true
		}
	}
	return 0, false
}

// acceptedCodings reads Accept-Encoding. What is malformed is left out.
func acceptedCodings(header http.Header) codings {
	var out codings
	for entry := range strings.SplitSeq(strings.Join(header.Values("Accept-Encoding"), ","), ",") {
		name, params, _ := strings.Cut(entry, ";")
		c := coding{name: strings.ToLower(strings.TrimSpace(name)), weight: 1}
		if c.name == "x-gzip" {
			c.name = codingGzip
		}
		key, value, weighted := strings.Cut(params, "=")
		if weighted && strings.EqualFold(strings.TrimSpace(key), "q") {
			weight, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil || !(weight >= 0 && weight <= 1) {
				continue
			}
			c.weight = weight
		}
		if c.name != "" && len(out) < maxCodings {
			out = append(out, c)
		}
	}
	return out
}

// sendGzip sends a file compressed as it is read, and so without a length.
func sendGzip(w http.ResponseWriter, r *http.Request, file *os.File, modified time.Time) {
	header := w.Header()
	header.Set("Content-Encoding", codingGzip)
	if !modified.IsZero() && modified.Unix() != 0 {
		header.Set("Last-Modified", modified.UTC().Format(http.TimeFormat))
	}
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	out := bufio.NewWriterSize(struct{ io.Writer }{w}, copyBytes)
	zip, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err == nil {
		_, err = io.CopyBuffer(struct{ io.Writer }{zip}, cancellable{r.Context(), file}, make([]byte, copyBytes))
	}
	if err == nil {
		err = errors.Join(zip.Close(), out.Flush())
	}
	if err != nil {
		// What was sent must not pass for the whole.
		panic(http.ErrAbortHandler)
	}
}

// decoded gives an upload's body without its content coding. However much comes
// out of it goes to the file system, which has its limits, and never to memory.
func decoded(body io.Reader, coding string) (io.Reader, error) {
	switch strings.ToLower(strings.TrimSpace(coding)) {
	case "", codingIdentity:
		return clientBody{body}, nil
	case codingGzip, "x-gzip":
		return clientBody{&unzip{body: bufio.NewReaderSize(body, copyBytes)}}, nil
	}
	return nil, faultf(connect.CodeInvalidArgument, "Content-Encoding %q is not supported", coding)
}

// unzip begins to read its body when it is read, so that a body that does not
// even begin well is a failed read.
type unzip struct {
	body *bufio.Reader
	zip  *gzip.Reader
}

// Read implements io.Reader.
func (u *unzip) Read(p []byte) (int, error) {
	if u.zip == nil {
		zip, err := gzip.NewReader(u.body)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, err
		}
		u.zip = zip
	}
	return u.zip.Read(p)
}

// clientBody makes every failure to read a body the client's fault: what else
// breaks a read is its connection, and then nobody is told.
type clientBody struct{ body io.Reader }

// Read implements io.Reader.
func (c clientBody) Read(p []byte) (int, error) {
	n, err := c.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &fault{code: connect.CodeInvalidArgument, text: "the body cannot be read: " + err.Error(), err: err}
	}
	return n, err
}

// lengthChecked makes a body that ends early an error. The server's own body
// does the same; this does not rely on it. left is the announced length, -1 for
// none.
type lengthChecked struct {
	body io.Reader
	left int64
}

// Read implements io.Reader.
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
