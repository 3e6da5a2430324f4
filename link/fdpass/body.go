package fdpass

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

// errAbandoned ends an upload whose request is over. It is never seen outside.
var errAbandoned = errors.New("the request is over")

// sentGrace is how long the end of a response waits for the end of the request,
// which is only a matter of scheduling when the agent has read it all.
const sentGrace = 50 * time.Millisecond

// upload sends a request whose body may block, on a goroutine that the link
// waits for, except while it is inside the caller's Read. It is the request's
// body towards net/http.
type upload struct {
	link    *Link
	body    io.ReadCloser
	closing sync.Once
	done    chan struct{}

	mu      sync.Mutex
	reading bool
	over    bool
	counted bool
	failed  bool
	err     error
}

// run sends the request. An error of the stream is left to the reader of the
// response: the agent may have answered before it hung up.
func (u *upload) run(req *http.Request, s *stream) {
	defer u.leave()
	w := bufio.NewWriterSize(s, bufferSize)
	err := req.Write(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		return
	}
	u.mu.Lock()
	u.failed = true
	if u.err == nil && !u.over && !s.broken.Load() && !errors.Is(err, net.ErrClosed) {
		u.err = err
	}
	fault := u.err
	u.mu.Unlock()
	if fault != nil {
		_ = s.Close()
	}
}

// leave is the end of the goroutine.
func (u *upload) leave() {
	_ = u.Close()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.counted {
		u.counted = false
		u.link.work.Done()
	}
	close(u.done)
}

// Read reads from the caller's body.
func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	if u.over {
		u.mu.Unlock()
		return 0, errAbandoned
	}
	u.reading = true
	u.mu.Unlock()
	n, err := u.body.Read(p)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reading = false
	if u.over {
		return 0, errAbandoned
	}
	if err != nil && !errors.Is(err, io.EOF) {
		u.err = err
	}
	return n, err
}

// Close closes the caller's body, once.
func (u *upload) Close() error {
	var err error
	u.closing.Do(func() { err = u.body.Close() })
	return err
}

// abandon is called when the stream is closed: nobody enters the caller's Read
// again, and who is inside it is not waited for.
func (u *upload) abandon() {
	u.mu.Lock()
	blocked := u.reading && !u.over
	u.over = true
	if blocked && u.counted {
		u.counted = false
		u.link.work.Done()
	}
	u.mu.Unlock()
	if blocked {
		// In its own goroutine: a Close may wait for its Read.
		go func() { _ = u.Close() }()
	}
}

// sent tells whether all of the request was sent.
func (u *upload) sent() bool {
	grace := time.NewTimer(sentGrace)
	defer grace.Stop()
	select {
	case <-u.done:
	case <-grace.C:
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.failed
}

// fault is what the caller's own body failed with, nil if it did not.
func (u *upload) fault() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// responseBody gives the errors of a response's body their kinds and ends the
// request at the body's end.
type responseBody struct {
	inner   io.Reader
	request *request
	closed  atomic.Bool
}

// Read reads; io.EOF is the whole body's end and nothing else.
func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.inner.Read(p)
	switch {
	case err == nil:
		return n, nil
	case b.closed.Load():
		return n, errdefs.Wrap(errdefs.Closed, "read response body", err)
	case errors.Is(err, io.EOF):
		b.request.finish(b.request.keep)
		return n, io.EOF
	}
	err = b.request.explain(err)
	b.request.finish(false)
	return n, err
}

// Close ends the response; one that was not read to its end ends its stream.
func (b *responseBody) Close() error {
	b.closed.Store(true)
	b.request.finish(false)
	return nil
}

// upgraded is the body of a 101 response: the stream itself, read through what
// came with the response's header.
type upgraded struct{ *stream }

var _ net.Conn = upgraded{}

// Read reads what followed the response's header.
func (u upgraded) Read(p []byte) (int, error) {
	if n := u.buffered.Buffered(); n > 0 {
		return u.buffered.Read(p[:min(n, len(p))])
	}
	return u.stream.Read(p)
}

// upgrade hands the stream to the caller. The slot goes with it.
func (r *request) upgrade(req *http.Request, resp *http.Response) (*http.Response, error) {
	if (r.upload != nil || req.Header.Get("Upgrade") == "") && !defence.LinkUnaskedUpgrade.Off() {
		r.finish(false)
		return nil, protocolError(opRoundTrip, "the agent switched protocols without being asked")
	}
	detached := r.link.begin(func() {
		r.stream.detached = true
		r.stream.released = func() { <-r.plane.slots }
	})
	if !detached {
		r.finish(false)
		return nil, r.link.endError(opRoundTrip)
	}
	if !r.disarm() {
		// The watch closes the stream, which gives the slot back.
		<-r.cancelled
		return nil, contextError(r.parent, opRoundTrip)
	}
	resp.Body = upgraded{r.stream}
	return resp, nil
}
