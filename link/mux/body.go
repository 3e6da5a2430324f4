package mux

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/berm-dev/berm/errdefs"
)

// errAbandoned ends an upload whose request is over. It is never seen outside.
var errAbandoned = errors.New("the request is over")

// upload sends a request whose body may block, on a goroutine that the link
// waits for, except while it is inside the caller's Read. It is the request's
// body towards net/http.
type upload struct {
	trunk   *trunk
	body    io.ReadCloser
	closing sync.Once

	mu sync.Mutex
	// counted: the goroutine is in the link's account. left: it has ended.
	counted, left bool
	reading, over bool
	err           error
}

// run sends the request behind its tag. An error of the stream is left to the
// reader of the response: the agent may have answered before it hung up.
func (u *upload) run(req *http.Request, s *stream, tag byte) {
	defer u.leave()
	w := bufio.NewWriterSize(s, bufferSize)
	err := w.WriteByte(tag)
	if err == nil {
		err = req.Write(w)
	}
	if err == nil {
		err = w.Flush()
	}
	if err != nil && u.fault() != nil {
		_ = s.Close()
	}
}

// leave is the end of the goroutine.
func (u *upload) leave() {
	_ = u.Close()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.left = true
	if u.counted {
		u.counted = false
		u.trunk.work.Done()
	}
}

// Read reads from the caller's body. Meanwhile nobody waits for it.
func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	if u.over {
		u.mu.Unlock()
		return 0, errAbandoned
	}
	u.reading = true
	if u.counted {
		u.counted = false
		u.trunk.work.Done()
	}
	u.mu.Unlock()
	n, err := u.body.Read(p)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reading = false
	if !u.left {
		u.counted = u.trunk.begin(func() { u.trunk.work.Add(1) })
	}
	if u.over || !u.counted {
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
	u.mu.Unlock()
	if blocked {
		// In its own goroutine: a Close may wait for its Read.
		go func() { _ = u.Close() }()
	}
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
		b.request.finish()
		return n, io.EOF
	}
	err = b.request.explain(err)
	b.request.finish()
	return n, err
}

// Close ends the response, and its stream.
func (b *responseBody) Close() error {
	b.closed.Store(true)
	b.request.finish()
	return nil
}

// upgraded is the body of a 101 response: the stream itself, read through what
// came with the response's header.
type upgraded struct {
	*stream
	buffered *bufio.Reader
}

// Read reads what followed the response's header.
func (u upgraded) Read(p []byte) (int, error) {
	if n := u.buffered.Buffered(); n > 0 {
		return u.buffered.Read(p[:min(n, len(p))])
	}
	return u.stream.Read(p)
}
