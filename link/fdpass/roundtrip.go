package fdpass

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

const opRoundTrip = "send request"

// abandonGrace is how long RoundTrip waits for an answer that may have come
// just before its stream ended, while the caller's own body blocks the rest.
const abandonGrace = 100 * time.Millisecond

// requestKey finds the request in the context that http.Transport dials with.
type requestKey struct{}

// request is one call of RoundTrip until its response is read, or, after an
// upgrade, until the call returns.
type request struct {
	link   *Link
	plane  *plane
	parent context.Context
	// ctx is the parent's, ended also by the link's end and by release.
	ctx    context.Context
	cancel context.CancelFunc
	// stream is the last one that http.Transport chose; chosen tells of each.
	stream atomic.Pointer[stream]
	chosen chan *stream
	body   *requestBody
	once   sync.Once
}

// RoundTrip sends a request to the plane that the URL's host names; the scheme
// has to be http. It waits for the hello, and for one of the plane's streams to
// be free, as long as the request's context allows, and it returns when that
// ends, also while the body's Read blocks: that Read may then still run, and
// the body is closed. A response of 101 that was asked for has a Body that is a
// net.Conn with CloseWrite. Errors, also of reading the response's body:
// Invalid, Cancelled, Timeout, Closed, TransportLost, Protocol, Exhausted.
func (l *Link) RoundTrip(req *http.Request) (*http.Response, error) {
	r, err := l.enter(req)
	if err != nil {
		if req.Body != nil {
			// The contract of RoundTripper; its error would hide the first one.
			_ = req.Body.Close()
		}
		return nil, err
	}
	defer l.work.Done()
	resp, err := r.send(req)
	if err != nil {
		err = r.explain(err)
		r.release()
		return nil, err
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return r.upgrade(req, resp)
	}
	if resp.Body == http.NoBody {
		r.release()
	} else if resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 {
		// Such a body ends with its stream, as a lost one does.
		_ = resp.Body.Close()
		r.release()
		return nil, protocolError(opRoundTrip, "the agent answered with a body of no stated length")
	} else {
		resp.Body = &responseBody{inner: resp.Body, request: r}
	}
	resp.Request = req
	return resp, nil
}

// enter checks a request, waits for its turn and puts it into the account.
func (l *Link) enter(req *http.Request) (*request, error) {
	p, err := l.planeOf(req)
	if err != nil {
		return nil, err
	}
	parent := req.Context()
	if err := l.Ready(parent); err != nil {
		return nil, err
	}
	select {
	case p.slots <- struct{}{}:
	case <-l.done:
		return nil, l.endError(opRoundTrip)
	case <-parent.Done():
		return nil, contextError(parent, opRoundTrip)
	}
	r := &request{link: l, plane: p, parent: parent, chosen: make(chan *stream, 4)}
	r.ctx, r.cancel = context.WithCancel(context.WithValue(parent, requestKey{}, r))
	r.ctx = httptrace.WithClientTrace(r.ctx, &httptrace.ClientTrace{GotConn: r.gotConn, PutIdleConn: r.putIdle})
	if !l.begin(func() { l.requests[r] = struct{}{}; l.work.Add(1) }) {
		r.release()
		return nil, l.endError(opRoundTrip)
	}
	return r, nil
}

// planeOf picks the plane; only the two exact names exist.
func (l *Link) planeOf(req *http.Request) (*plane, error) {
	switch {
	case req.URL == nil || req.URL.Scheme != "http":
		return nil, errdefs.New(errdefs.Invalid, opRoundTrip, "the URL's scheme is not http")
	case req.URL.Host == link.DataHost:
		return l.data, nil
	case req.URL.Host == link.ControlHost:
		return l.admin, nil
	}
	return nil, errdefs.New(errdefs.Invalid, opRoundTrip, fmt.Sprintf("the URL's host %q is not a plane", req.URL.Host))
}

func (r *request) gotConn(info httptrace.GotConnInfo) {
	s, ok := info.Conn.(*stream)
	if !ok {
		return
	}
	s.users.Add(1)
	r.stream.Store(s)
	select {
	case r.chosen <- s:
	default:
	}
}

// putIdle runs on the goroutine that reads the stream, before it reads on.
func (r *request) putIdle(error) {
	if s := r.stream.Load(); s != nil {
		s.users.Add(-1)
	}
}

// release ends what the request holds, once.
func (r *request) release() {
	r.once.Do(func() {
		r.cancel()
		r.link.mu.Lock()
		delete(r.link.requests, r)
		r.link.mu.Unlock()
		<-r.plane.slots
	})
}

// send hands the request to http.Transport. A body that is in memory
// (GetBody is set) cannot block; any other gets a goroutine, because
// http.Transport does not return before the body's Read has.
func (r *request) send(req *http.Request) (*http.Response, error) {
	out := req.WithContext(r.ctx)
	if req.Body == nil || req.Body == http.NoBody || req.GetBody != nil {
		return r.plane.transport.RoundTrip(out)
	}
	r.body = &requestBody{inner: req.Body, request: r}
	out.Body = r.body
	type result struct {
		resp *http.Response
		err  error
	}
	results, abandoned := make(chan result), make(chan struct{})
	go func() {
		resp, err := r.plane.transport.RoundTrip(out)
		select {
		case results <- result{resp, err}:
		case <-abandoned:
			if err == nil {
				_ = resp.Body.Close()
			}
		}
	}()
	cancelled := r.ctx.Done()
	var gone <-chan struct{}
	var grace <-chan time.Time
	for {
		select {
		case got := <-results:
			return got.resp, got.err
		case s := <-r.chosen:
			gone = s.closed
			continue
		case <-cancelled:
			cancelled = nil
		case <-gone:
			gone = nil
		case <-grace:
			close(abandoned)
			// In its own goroutine: a Close may wait for its Read.
			go r.body.Close()
			return nil, errAbandoned
		}
		over := cancelled == nil
		switch {
		case !r.body.blocked(over):
		case over:
			grace = time.After(0)
		default:
			grace = time.After(abandonGrace)
		}
	}
}

// errAbandoned is never seen outside: the context or the stream has ended.
var errAbandoned = errors.New("the stream ended while the request's body was being read")

// explain gives an error of http.Transport, or of the response's body, its kind.
func (r *request) explain(err error) error {
	if r.parent.Err() != nil {
		return contextError(r.parent, opRoundTrip)
	}
	if ended := r.link.endError(opRoundTrip); ended != nil {
		return ended
	}
	var known *errdefs.Error
	if errors.As(err, &known) {
		return known
	}
	s := r.stream.Load()
	switch {
	case r.body != nil && r.body.fault() != nil:
		return errdefs.Wrap(errdefs.Invalid, "read request body", r.body.fault())
	case s == nil:
		// http.Transport refused it before it chose a stream.
		return errdefs.Wrap(errdefs.Invalid, opRoundTrip, err)
	case errors.Is(err, errAbandoned) || s.broken.Load() || lost(err):
		return lostError(opRoundTrip, err)
	}
	return errdefs.Wrap(errdefs.Protocol, opRoundTrip, err)
}
