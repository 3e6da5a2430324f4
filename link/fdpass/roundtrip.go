package fdpass

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/link"
)

const (
	opRoundTrip = "send request"
	// inlineBody bounds a body, in bytes, that is sent in one write with its
	// request's header. The socket's buffer has room for both.
	inlineBody = 64 << 10
	// maxInformational bounds the answers of 1xx before the response.
	maxInformational = 5
)

// request is one call of RoundTrip until its response is read, or, after an
// upgrade, until the call returns. Everything happens on the caller's own
// goroutine, because each hand-over to another costs as much as the rest;
// only a body that may block is sent by a goroutine.
type request struct {
	link   *Link
	plane  *plane
	parent context.Context
	stream *stream
	reused bool
	// keep is false when the stream cannot carry another request.
	keep   bool
	upload *upload
	// disarm stops the watch over the context; if it is too late for that,
	// cancelled is closed when the watch has closed the stream.
	disarm    func() bool
	cancelled chan struct{}
	once      sync.Once
}

// RoundTrip sends a request to the plane that the URL's host names; the scheme
// has to be http. It waits for the hello, and for one of the plane's streams to
// be free, as long as the request's context allows, and it returns when that
// ends, also while the body's Read blocks: that Read may then still run, and
// the body is closed. A response of 101 that was asked for has a Body that is a
// net.Conn with CloseWrite. Of httptrace, GotConn is called. Errors, also of
// reading the response's body: Invalid, Cancelled, Timeout, Closed,
// TransportLost, Protocol, Exhausted.
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
	resp, err := r.exchange(req)
	if err != nil {
		err = r.explain(err)
		r.finish(false)
		return nil, err
	}
	r.keep = !req.Close && !resp.Close
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return r.upgrade(req, resp)
	case resp.Body == http.NoBody:
		r.finish(r.keep)
	case resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && !defence.LinkBodyLength.Off():
		// Such a body ends with its stream, as a lost one does.
		r.finish(false)
		return nil, protocolError(opRoundTrip, "the agent answered with a body of no stated length")
	default:
		resp.Body = &responseBody{inner: resp.Body, request: r}
	}
	return resp, nil
}

// enter checks a request, waits for its turn, gets it a stream and puts it into
// the account.
func (l *Link) enter(req *http.Request) (*request, error) {
	p, err := l.planeOf(req)
	if err != nil {
		return nil, err
	}
	parent := req.Context()
	if err := l.Ready(parent); err != nil {
		return nil, err
	}
	if parent.Err() != nil {
		return nil, contextError(parent, opRoundTrip)
	}
	select {
	case p.slots <- struct{}{}:
	case <-l.done:
		return nil, l.endError(opRoundTrip)
	case <-parent.Done():
		return nil, contextError(parent, opRoundTrip)
	}
	if !l.begin(func() { l.work.Add(1) }) {
		<-p.slots
		return nil, l.endError(opRoundTrip)
	}
	r := &request{link: l, plane: p, parent: parent}
	if r.stream, r.reused, err = p.take(parent); err != nil {
		<-p.slots
		l.work.Done()
		return nil, r.explain(err)
	}
	r.watch()
	return r, nil
}

// planeOf picks the plane; only the two exact names exist.
func (l *Link) planeOf(req *http.Request) (*plane, error) {
	switch {
	case req.URL == nil || req.URL.Scheme != "http":
		return nil, errdefs.New(errdefs.Invalid, opRoundTrip, "the URL's scheme is not http")
	case strings.Trim(req.Method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "":
		return nil, errdefs.New(errdefs.Invalid, opRoundTrip, fmt.Sprintf("the method %q is not one", req.Method))
	case req.URL.Host == link.DataHost:
		return l.data, nil
	case req.URL.Host == link.ControlHost:
		return l.admin, nil
	}
	return nil, errdefs.New(errdefs.Invalid, opRoundTrip, fmt.Sprintf("the URL's host %q is not a plane", req.URL.Host))
}

// watch closes the stream when the context ends, which wakes whoever uses it.
func (r *request) watch() {
	r.cancelled = make(chan struct{})
	r.disarm = context.AfterFunc(r.parent, func() {
		defer close(r.cancelled)
		if defence.LinkDeadline.Off() {
			<-time.After(4 * time.Second)
		}
		_ = r.stream.Close()
	})
}

// exchange sends the request and reads the response up to its body.
func (r *request) exchange(req *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(r.parent); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Conn: r.stream, Reused: r.reused})
	}
	if err := r.send(req); err != nil {
		return nil, err
	}
	r.stream.room = maxHeaderBytes
	if defence.LinkHeaderSize.Off() {
		r.stream.room = 64 << 20
	}
	defer func() { r.stream.room = unlimited }()
	for n := 0; n < maxInformational || defence.LinkInformational.Off(); n++ {
		resp, err := http.ReadResponse(r.stream.buffered, req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, nil
		}
	}
	return nil, protocolError(opRoundTrip, "more than %d informational answers", maxInformational)
}

// send sends a small request in one write. A body that may block, or is large,
// gets a goroutine.
func (r *request) send(req *http.Request) error {
	hasBody := req.Body != nil && req.Body != http.NoBody
	if hasBody && (req.GetBody == nil || req.ContentLength <= 0 || req.ContentLength > inlineBody) {
		u := &upload{link: r.link, body: req.Body, done: make(chan struct{}), counted: true}
		if !r.link.begin(func() { r.stream.upload = u; r.link.work.Add(1) }) {
			_ = req.Body.Close()
			return r.link.endError(opRoundTrip)
		}
		r.upload = u
		out := *req
		out.Body = u
		go u.run(&out, r.stream)
		return nil
	}
	buffer, ok := r.link.requests.Get().(*bytes.Buffer)
	if !ok {
		buffer = new(bytes.Buffer)
	}
	defer r.link.requests.Put(buffer)
	buffer.Reset()
	if err := req.Write(buffer); err != nil {
		return errdefs.Wrap(errdefs.Invalid, opRoundTrip, err)
	}
	_, err := r.stream.Write(buffer.Bytes())
	return err
}

// finish ends what the request holds, once. With keep the stream may carry
// another request, if nothing speaks against it.
func (r *request) finish(keep bool) {
	r.once.Do(func() {
		if !r.disarm() {
			<-r.cancelled
			keep = false
		}
		if keep && r.upload != nil {
			keep = r.upload.sent()
		}
		if keep && (r.stream.buffered.Buffered() == 0 || defence.LinkUnaskedAnswer.Off()) {
			r.plane.put(r.stream)
		} else {
			_ = r.stream.Close()
		}
		if r.upload != nil {
			r.upload.abandon()
		}
		<-r.plane.slots
	})
}

// explain gives an error of the exchange, or of the response's body, its kind.
func (r *request) explain(err error) error {
	if r.parent.Err() != nil {
		return contextError(r.parent, opRoundTrip)
	}
	if ended := r.link.endError(opRoundTrip); ended != nil {
		return ended
	}
	if r.upload != nil {
		if fault := r.upload.fault(); fault != nil {
			return errdefs.Wrap(errdefs.Invalid, "read request body", fault)
		}
	}
	var known *errdefs.Error
	switch {
	case errors.As(err, &known):
		return known
	case r.stream.broken.Load() || lost(err):
		return lostError(opRoundTrip, err)
	}
	return errdefs.Wrap(errdefs.Protocol, opRoundTrip, err)
}
