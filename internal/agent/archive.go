package agent

import (
	"archive/tar"
	"bufio"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// Bounds of an archive, in either direction.
const (
	maxArchiveDepth = 256      // levels, each of which holds a descriptor
	maxArchiveNames = 32 << 20 // bytes of the names of the directories that are open
	maxArchiveSkips = 1000     // that an answer names
	archiveMedia    = "application/x-tar"
)

// Records of a global header, by which an archive says what it does not have. An
// extractor that does not know them ignores them.
const (
	recordSkipped = "BERM.skipped" // a name
	recordReason  = "BERM.reason"  // why it is left out, or not as it was
	recordEnd     = "BERM.end"     // the archive is whole
	recordError   = "BERM.error"   // it is not, and why
)

// mountArchive adds the routes for trees.
func (f *files) mountArchive(mux *http.ServeMux) {
	mux.HandleFunc("GET /archive", f.archive)
	mux.HandleFunc("POST /archive", f.extract)
}

// archiveTarget gives the request's path after the checks that both directions
// share.
func (f *files) archiveTarget(r *http.Request) (string, error) {
	query := r.URL.Query()
	if user := query.Get("username"); user != "" && user != f.user && !defence.FilesUser.Off() {
		return "", faultf(connect.CodeUnauthenticated, "unknown user %q", user)
	}
	for name := range query {
		if name != "path" && name != "username" || len(query[name]) > 1 {
			return "", faultf(connect.CodeInvalidArgument, "unknown or repeated parameter %.64q", name)
		}
	}
	return cleanPath(f.home, query.Get("path"))
}

// archive serves GET /archive?path=P: a directory's tree, or one file, as a tar
// stream. Whoever reads it has to look for the record that says that it is whole.
func (f *files) archive(w http.ResponseWriter, r *http.Request) {
	p, err := f.archiveTarget(r)
	if err != nil {
		refuse(w, fileFault("archive", r.URL.Query().Get("path"), err))
		return
	}
	source, err := openSource(p)
	if err != nil {
		refuse(w, fileFault("archive", p, err))
		return
	}
	w.Header().Set("Content-Type", archiveMedia)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	out := bufio.NewWriterSize(w, copyBytes)
	pk := &packer{ctx: r.Context(), tar: tar.NewWriter(out), buf: make([]byte, copyBytes)}
	err = pk.pack(source)
	record := map[string]string{recordEnd: "ok"}
	if err != nil {
		record = map[string]string{recordError: text(fileFault("archive", p, err).text)}
	}
	if markErr := pk.record(record); markErr != nil {
		return // nobody listens
	}
	if err == nil {
		err = pk.tar.Close()
	}
	// Without tar's own end where the archive is not whole.
	_ = errors.Join(err, out.Flush())
}

// extract serves POST /archive?path=P: the body's tree comes to be in the
// directory P, which is made. The answer says what was left out.
func (f *files) extract(w http.ResponseWriter, r *http.Request) {
	p, err := f.archiveTarget(r)
	if err == nil {
		err = archiveBody(r)
	}
	if err != nil {
		refuse(w, fileFault("extract", r.URL.Query().Get("path"), err))
		return
	}
	body := &lengthChecked{body: r.Body, left: r.ContentLength}
	u := newUnpacker(r.Context())
	if err := u.unpack(p, body); err != nil {
		refuse(w, fileFault("extract", p, err))
		return
	}
	// What comes after the end of an archive fills its last block.
	_, _ = io.CopyN(io.Discard, body, copyBytes)
	answer(w, http.StatusOK, &u.report)
}

// archiveBody refuses a body that is no plain tar.
func archiveBody(r *http.Request) error {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != archiveMedia {
		return faultf(connect.CodeUnimplemented, "the Content-Type is not %s", archiveMedia)
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return faultf(connect.CodeUnimplemented, "Content-Encoding %q is not supported", encoding)
	}
	return nil
}

// extracted is what POST /archive answers.
type extracted struct {
	Entries int64            `json:"entries"`
	Bytes   int64            `json:"bytes"`
	Skipped []skippedArchive `json:"skipped"`
	// More counts what was left out and is not named.
	More int64 `json:"more"`
}

type skippedArchive struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

func (e *extracted) skip(name, reason string) {
	if len(e.Skipped) >= maxArchiveSkips {
		e.More++
		return
	}
	e.Skipped = append(e.Skipped, skippedArchive{Name: text(name), Reason: text(reason)})
}

// archiveMode gives the mode bits that pass through an archive.
func archiveMode(mode uint32, directory bool) uint32 {
	most := uint32(0o777)
	if directory {
		most |= unix.S_ISVTX
	}
	if defence.ArchiveModes.Off() {
		most |= unix.S_ISUID | unix.S_ISGID
	}
	return mode & most
}
