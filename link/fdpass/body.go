package fdpass

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/berm-dev/berm/errdefs"
)

// requestBody is a caller's body that may block: it knows whether somebody is
// inside the caller's Read, and lets nobody in once the request is over.
type requestBody struct {
	inner   io.ReadCloser
	request *request
	closing sync.Once

	mu      sync.Mutex
	reading bool
	over    bool
	err     error
}

// Read reads from the caller's body.
func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	if s := b.request.stream.Load(); s != nil {
		select {
		case <-s.closed:
			b.over = true
		default:
		}
	}
	if b.over {
		b.mu.Unlock()
		return 0, errAbandoned
	}
	b.reading = true
	b.mu.Unlock()
	n, err := b.inner.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	if err != nil && !errors.Is(err, io.EOF) && !b.over {
		b.err = err
	}
	return n, err
}

// Close closes the caller's body, once.
func (b *requestBody) Close() error {
	var err error
	b.closing.Do(func() { err = b.inner.Close() })
	return err
}

// blocked tells whether somebody is inside Read; with over nobody enters again.
func (b *requestBody) blocked(over bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = b.over || over
	return b.reading
}

// fault is what the caller's own Read failed with, nil if it did not.
func (b *requestBody) fault() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// responseBody gives the errors of a response's body their kinds and releases
// the request at the body's end.
type responseBody struct {
	inner   io.ReadCloser
	request *request
	closed  atomic.Bool
}

// Read reads; io.EOF is the whole body's end and nothing else.
func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.inner.Read(p)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF):
		b.request.release()
		return n, io.EOF
	case b.closed.Load():
		return n, errdefs.Wrap(errdefs.Closed, "read response body", err)
	}
	err = b.request.explain(err)
	b.request.release()
	return n, err
}

// Close ends the response; one that was not read to its end ends its stream.
func (b *responseBody) Close() error {
	b.closed.Store(true)
	err := b.inner.Close()
	b.request.release()
	if err != nil && b.request.link.endError("close response") != nil {
		return nil
	}
	return err
}

// upgraded is the body of a 101 response: the stream itself, read through what
// http.Transport may have buffered.
type upgraded struct {
	*stream
	buffered io.ReadWriteCloser
}

var _ net.Conn = (*upgraded)(nil)

// Read reads what followed the response's header.
func (u *upgraded) Read(p []byte) (int, error) { return u.buffered.Read(p) }

// upgrade hands the stream to the caller. The slot goes with it.
func (r *request) upgrade(req *http.Request, resp *http.Response) (*http.Response, error) {
	s := r.stream.Load()
	buffered, ok := resp.Body.(io.ReadWriteCloser)
	if s == nil || !ok || req.Header.Get("Upgrade") == "" {
		_ = resp.Body.Close()
		r.release()
		return nil, protocolError(opRoundTrip, "the agent switched protocols without being asked")
	}
	// The slot is given back by the stream's Close, the rest here.
	detached := r.link.begin(func() {
		s.detached = true
		s.released = r.release
	})
	if !detached {
		_ = s.Close()
		r.release()
		return nil, r.link.endError(opRoundTrip)
	}
	resp.Body = &upgraded{stream: s, buffered: buffered}
	resp.Request = req
	return resp, nil
}
