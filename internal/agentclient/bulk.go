package agentclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/link"
)

// maxErrorBody bounds an answer that is not a file's content, in bytes.
const maxErrorBody = 64 << 10

// Open opens a regular file for reading from an offset and gives the size of the
// whole file. ctx bounds the reading too. At or past the end the reader is empty.
// A file that shrinks meanwhile ends in TransportLost.
func (c *Client) Open(ctx context.Context, p string, offset int64) (io.ReadCloser, int64, error) {
	const op = "read file"
	p, err := cleanPath(op, p)
	if err != nil {
		return nil, 0, err
	}
	if offset < 0 {
		return nil, 0, errdefs.New(errdefs.Invalid, op, "the offset is negative")
	}
	call := newCall(ctx)
	req, err := call.request(http.MethodGet, url.Values{"path": {p}}, nil)
	if err != nil {
		call.cancel(nil)
		return nil, 0, errdefs.Wrap(errdefs.Internal, op, err)
	}
	if offset > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(offset, 10)+"-")
	}
	call.arm()
	defer call.disarm()
	res, err := c.rt.RoundTrip(req)
	if err != nil {
		err = call.fault(op, err)
		call.cancel(nil)
		return nil, 0, err
	}
	body, size, err := opened(op, res, offset, call)
	if err != nil {
		_ = res.Body.Close()
		call.cancel(nil)
		return nil, 0, err
	}
	return body, size, nil
}

// opened checks the answer to a download.
func opened(op string, res *http.Response, offset int64, call *call) (io.ReadCloser, int64, error) {
	if (res.Header.Get("Content-Encoding") != "" || res.Uncompressed) && !defence.ClientCompression.Off() {
		return nil, 0, broken(op, "compressed content")
	}
	switch {
	case res.StatusCode == http.StatusOK && offset == 0:
		if res.ContentLength < 0 && !defence.ClientLength.Off() {
			return nil, 0, broken(op, "content without a length")
		}
		return &download{op: op, body: res.Body, call: call}, res.ContentLength, nil
	case res.StatusCode == http.StatusPartialContent && offset > 0:
		first, size, ok := contentRange(res.Header.Get("Content-Range"))
		if (!ok || first != offset || res.ContentLength != size-offset) && !defence.ClientRange.Off() {
			return nil, 0, broken(op, "range %q with %d bytes for offset %d", res.Header.Get("Content-Range"), res.ContentLength, offset)
		}
		return &download{op: op, body: res.Body, call: call}, size, nil
	case res.StatusCode == http.StatusRequestedRangeNotSatisfiable && offset > 0:
		size, err := strconv.ParseInt(strings.TrimPrefix(res.Header.Get("Content-Range"), "bytes */"), 10, 64)
		if err != nil || size < 0 || size > offset {
			return nil, 0, broken(op, "range %q for offset %d", res.Header.Get("Content-Range"), offset)
		}
		_ = res.Body.Close()
		call.cancel(nil)
		return io.NopCloser(strings.NewReader("")), size, nil
	}
	return nil, 0, refusal(call.ctx, op, res)
}

// contentRange reads "bytes FIRST-LAST/SIZE" where the range reaches the end.
func contentRange(header string) (first, size int64, ok bool) {
	rest, found := strings.CutPrefix(header, "bytes ")
	span, total, cut := strings.Cut(rest, "/")
	from, to, dash := strings.Cut(span, "-")
	first, err1 := strconv.ParseInt(from, 10, 64)
	last, err2 := strconv.ParseInt(to, 10, 64)
	size, err3 := strconv.ParseInt(total, 10, 64)
	ok = found && cut && dash && errors.Join(err1, err2, err3) == nil &&
		first >= 0 && size > first && last == size-1
	return first, size, ok
}

// download is a file's content.
type download struct {
	op   string
	body io.ReadCloser
	call *call
}

// Read implements io.Reader. The caller's pauses are the caller's affair; only the
// agent's have a bound.
func (d *download) Read(p []byte) (int, error) {
	d.call.arm()
	n, err := d.body.Read(p)
	d.call.disarm()
	if err != nil && !errors.Is(err, io.EOF) {
		err = d.call.fault(d.op, err)
	}
	return n, err
}

// Close gives the rest up.
func (d *download) Close() error {
	_ = d.body.Close()
	d.call.cancel(nil)
	return nil
}

// Create writes a whole file: everything that body gives, in one step that others
// see whole or not at all; missing parents are made. A file that is there keeps
// its permission bits; a new one gets those of perm, 0 for 0644, regardless of
// any umask. When the context ends while body blocks in Read, Create returns and
// body may be read once more. An error of body is returned and nothing is
// written. Errors: Exhausted when the file system is full.
func (c *Client) Create(ctx context.Context, p string, perm fs.FileMode, body io.Reader) error {
	const op = "write file"
	p, err := cleanPath(op, p)
	if err != nil {
		return err
	}
	query := url.Values{"path": {p}}
	if perm.Perm() != 0 {
		query.Set("mode", strconv.FormatUint(uint64(perm.Perm()), 8))
	}
	call := newCall(ctx)
	defer call.cancel(nil)
	defer call.disarm()
	upload := &upload{src: body, call: call}
	req, err := call.request(http.MethodPost, query, upload)
	if err != nil {
		return errdefs.Wrap(errdefs.Internal, op, err)
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	// Always chunked: the transport then takes blocks as large as upload's.
	req.ContentLength = -1
	res, err := c.rt.RoundTrip(req)
	// A timer of its own: an answer can come while the body is still being sent.
	answer := time.AfterFunc(callTimeout, func() { call.cancel(errStalled) })
	defer answer.Stop()
	if readErr := upload.failure(); readErr != nil {
		if err == nil {
			_ = res.Body.Close()
		}
		return errdefs.Wrap(errdefs.KindOf(readErr), op, fmt.Errorf("read the content: %w", readErr))
	}
	if err != nil {
		return call.fault(op, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return refusal(call.ctx, op, res)
	}
	// Read to its end, so that the connection can be used again.
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxErrorBody))
	return nil
}

// upload is a request's body that is written in large blocks and remembers its
// source's failure.
type upload struct {
	src  io.Reader
	call *call
	mu   sync.Mutex
	err  error
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.src.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		u.call.arm()
	case err != nil:
		u.mu.Lock()
		u.err = err
		u.mu.Unlock()
	}
	return n, err
}

// WriteTo implements io.WriterTo, which the HTTP transport prefers.
func (u *upload) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(timed{w, u.call}, struct{ io.Reader }{u}, make([]byte, inputBytes))
}

// timed bounds each write: the source may be slow, the agent may not.
type timed struct {
	w    io.Writer
	call *call
}

// Write implements io.Writer.
func (t timed) Write(p []byte) (int, error) {
	t.call.arm()
	defer t.call.disarm()
	return t.w.Write(p)
}

// Close implements io.Closer; the source is the caller's.
func (*upload) Close() error { return nil }

func (u *upload) failure() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// call is one plain HTTP request. It may take as long as the caller's context
// lets it, if only the agent goes on: each wait for it has a bound.
type call struct {
	ctx    context.Context //nolint:containedctx // it lives as long as one request
	cancel context.CancelCauseFunc
	mu     sync.Mutex
	timer  *time.Timer
}

func newCall(parent context.Context) *call {
	ctx, cancel := context.WithCancelCause(parent)
	return &call{ctx: ctx, cancel: cancel}
}

func (c *call) request(method string, query url.Values, body io.Reader) (*http.Request, error) {
	return http.NewRequestWithContext(c.ctx, method, "http://"+link.DataHost+"/files?"+query.Encode(), body)
}

// arm begins to wait for the agent.
func (c *call) arm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil {
		c.timer = time.AfterFunc(callTimeout, func() { c.cancel(errStalled) })
		return
	}
	c.timer.Reset(callTimeout)
}

// disarm ends the wait.
func (c *call) disarm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}

// errStalled ends a call whose agent gave or took nothing for too long.
var errStalled = errdefs.New(errdefs.TransportLost, "", fmt.Sprintf("the agent did nothing for %v", callTimeout))

// fault explains a failure, by the call's own end where that came first.
func (c *call) fault(op string, err error) error {
	if cause := context.Cause(c.ctx); cause != nil {
		return fault(c.ctx, op, cause)
	}
	return fault(c.ctx, op, err)
}

// refusal turns an error answer into an error. envd's form is a JSON object with
// a message; anything else is quoted.
func refusal(ctx context.Context, op string, res *http.Response) error {
	data, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fault(ctx, op, cause)
	} else if err != nil {
		return errdefs.New(errdefs.TransportLost, op, clean(err.Error()))
	}
	var body struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(data, &body) != nil || body.Message == "" {
		body.Message = res.Status + ": " + strings.TrimSpace(string(data))
	}
	return errdefs.New(kindOfStatus(res.StatusCode), op, clean(body.Message))
}
