package agent

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/defence"
)

// uploaded is what an upload answers for each file.
type uploaded struct {
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Path     string            `json:"path"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload serves POST /files. The body is the file at the query's path, or a form
// whose parts are files. Each file appears whole or not at all; of a form that
// breaks, the files before are there.
func (f *files) upload(w http.ResponseWriter, r *http.Request) {
	q, p, err := f.admit(r, operationWrite)
	if err != nil {
		refuse(w, fileFault("write", q.path, err))
		return
	}
	options, err := uploadOptions(r, q)
	if err != nil {
		refuse(w, fileFault("write", p, err))
		return
	}
	done, err := f.receive(r, p, options)
	if err != nil {
		refuse(w, fileFault("write", p, err))
		return
	}
	answer(w, http.StatusOK, done)
}

// receive takes an upload's body, whatever its type.
func (f *files) receive(r *http.Request, p string, options writeOptions) ([]uploaded, error) {
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, faultf(connect.CodeInvalidArgument, "Content-Type is missing or malformed")
	}
	body, err := decoded(&lengthChecked{body: r.Body, left: r.ContentLength}, r.Header.Get("Content-Encoding"))
	if err != nil {
		return nil, err
	}
	switch {
	case media == "multipart/form-data":
		return f.receiveForm(r.Context(), formReader{boundary: params["boundary"], body: body, path: p}, options)
	case media != octetStream:
		return nil, faultf(connect.CodeInvalidArgument, "Content-Type %q is not supported, only %s and multipart/form-data", media, octetStream)
	case p == "":
		return nil, faultf(connect.CodeInvalidArgument, "path is empty")
	}
	one, err := f.put(r.Context(), p, options, body)
	if err != nil {
		return nil, err
	}
	return []uploaded{one}, nil
}

// put writes one file.
func (f *files) put(ctx context.Context, p string, options writeOptions, body io.Reader) (uploaded, error) {
	e, err := f.work.write(ctx, p, options, body)
	if err != nil {
		return uploaded{}, fileFault("write", p, err)
	}
	return uploaded{Name: text(path.Base(p)), Type: "file", Path: text(p), Metadata: e.metadata}, nil
}

// uploadOptions reads how files are replaced and what is noted beside them.
func uploadOptions(r *http.Request, q fileQuery) (writeOptions, error) {
	var options writeOptions
	if text := q.values.Get("mode"); text != "" {
		mode, err := strconv.ParseUint(text, 8, 32)
		if err != nil || mode == 0 || mode > 0o777 && !defence.FilesMode.Off() {
			return writeOptions{}, faultf(connect.CodeInvalidArgument, "mode %q is not octal permission bits", text)
		}
		options.mode = uint32(mode)
	}
	switch text := q.values.Get("exclusive"); text {
	case "", "0":
	case "1":
		options.exclusive = true
	default:
		return writeOptions{}, faultf(connect.CodeInvalidArgument, "exclusive is %q, not 0 or 1", text)
	}
	var err error
	options.metadata, err = metadataOf(r.Header)
	return options, err
}

// receiveForm writes the files of a form.
func (f *files) receiveForm(ctx context.Context, form formReader, options writeOptions) ([]uploaded, error) {
	out := []uploaded{}
	seen := map[string]bool{}
	bytes := 0
	err := form.each(func(name string, content io.Reader) error {
		p, err := cleanPath(f.home, name)
		if err != nil {
			return err
		}
		if seen[p] && !defence.UploadPathsUnique.Off() {
			return faultf(connect.CodeInvalidArgument, "you cannot upload multiple files to the same path %q", p)
		}
		seen[p] = true
		if bytes += len(p); (len(seen) > maxFormFiles || bytes > maxListBytes) && !defence.UploadFormSize.Off() {
			return faultf(connect.CodeInvalidArgument, "the form has more than %d files, or their names more than %d bytes", maxFormFiles, maxListBytes)
		}
		one, err := f.put(ctx, p, options, content)
		out = append(out, one)
		return err
	})
	var known *fault
	if err != nil && !errors.As(err, &known) {
		err = &fault{code: connect.CodeInvalidArgument, text: "the form is malformed: " + err.Error(), err: err}
	}
	return out, err
}
