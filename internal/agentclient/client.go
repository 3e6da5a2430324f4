// Package agentclient is the host's side of the agent: processes, files, the
// probe and tunnels, over the streams of a link.
//
// The agent is treated as hostile. Every message, string, number and listing is
// bounded and checked before it is handed on, every call has a deadline, nothing
// is redirected, decompressed or remembered, and text from the agent that ends up
// in an error has its control characters escaped and is cut to 4 KiB. What
// breaks these rules is a Protocol error.
package agentclient

import (
	"context"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1/agentv1connect"
	"github.com/berm-dev/berm/link"
)

// Bounds.
const (
	callTimeout     = 30 * time.Second // of a call whose context has no deadline
	maxMessage      = 1 << 20          // bytes of a message that is not data
	maxDataMessage  = 512<<10 + 4<<10  // bytes of a message of output
	maxListMessage  = 16 << 20         // bytes of a listing
	maxListEntries  = 100_000
	maxProcesses    = 10_000
	maxRequestBytes = 8 << 20 // of a command's arguments and environment
	inputBytes      = 256 << 10
	maxPathBytes    = 4096
)

// Client talks to one agent. Its methods may be called concurrently. It has no
// goroutines and nothing to close; the link belongs to whoever made it.
type Client struct {
	rt        *access
	processes agentv1connect.ProcessClient
	files     agentv1connect.FilesystemClient
	control   agentv1connect.ControlClient
	buffers   sync.Pool // of *[inputBytes]byte
}

// roundTripper gives Connect the link without what http.Client adds: there are
// no redirects, cookies and proxies to switch off.
type roundTripper struct{ http.RoundTripper }

// Do implements connecthttp.HTTPClient.
func (r roundTripper) Do(req *http.Request) (*http.Response, error) {
	if defence.ClientRedirects.Off() {
		return (&http.Client{Transport: r}).Do(req)
	}
	return r.RoundTrip(req)
}

// New makes a client over a link, usually a link.Link.
func New(rt http.RoundTripper) *Client {
	known := &access{rt: rt}
	data := connect.NewClient(transport(known, link.DataHost))
	control := connect.NewClient(transport(known, link.ControlHost))
	return &Client{
		rt:        known,
		processes: agentv1connect.NewProcessClient(data),
		files:     agentv1connect.NewFilesystemClient(data),
		control:   agentv1connect.NewControlClient(control),
		buffers:   sync.Pool{New: func() any { return new([inputBytes]byte) }},
	}
}

func transport(rt http.RoundTripper, host string) connect.Transport {
	most := maxMessage
	if defence.ClientMessageSize.Off() {
		most = 1 << 30
	}
	limits := map[string][]connecthttp.Option{
		agentv1connect.ProcessStartProcedure:       {connecthttp.WithReadMaxBytes(maxDataMessage)},
		agentv1connect.FilesystemListDirProcedure:  {connecthttp.WithReadMaxBytes(maxListMessage)},
		agentv1connect.FilesystemWatchDirProcedure: {connecthttp.WithReadMaxBytes(maxWatchMessage)},
	}
	return connecthttp.NewTransport(roundTripper{rt}, "http://"+host,
		connecthttp.WithCodecs(&codec{}),
		connecthttp.WithCompressors(),
		connecthttp.WithReadMaxBytes(most),
		connecthttp.WithConditionalOptions(func(spec connect.Spec) []connecthttp.Option {
			if defence.ClientMessageSize.Off() {
				return nil
			}
			return limits[spec.Procedure]
		}))
}

// bounded gives a call a deadline if it has none.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok || defence.ClientDeadline.Off() {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, callTimeout)
}

// quiet is a context that ends as its parent does but does not say when, so
// that the deadline of a stream is not sent to the agent, which would take it
// for the command's.
type quiet struct{ context.Context }

// Deadline implements context.Context.
func (quiet) Deadline() (time.Time, bool) { return time.Time{}, false }

// cleanPath checks a path that is sent and gives its clean form.
func cleanPath(op, p string) (string, error) {
	switch {
	case (p == "" || p[0] != '/') && !defence.ClientPaths.Off():
		return "", errdefs.New(errdefs.Invalid, op, "path is not absolute: "+clean(p))
	case len(p) > maxPathBytes && !defence.ClientPaths.Off():
		return "", errdefs.New(errdefs.Invalid, op, "path is longer than 4096 bytes")
	}
	if err := checkText(op, "path", p); err != nil {
		return "", err
	}
	return path.Clean(p), nil
}

// checkText refuses what neither the kernel nor the messages can carry.
func checkText(op, what, text string) error {
	if strings.IndexByte(text, 0) >= 0 {
		return errdefs.New(errdefs.Invalid, op, what+" contains a NUL byte")
	}
	if !utf8.ValidString(text) {
		return errdefs.New(errdefs.Invalid, op, what+" is not valid UTF-8")
	}
	return nil
}
