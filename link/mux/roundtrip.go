package mux

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

const (
	opRoundTrip = "send request"
	// inlineBody bounds a body, in bytes, that is sent in one write with its
	// request's header. The first window has room for both.
	inlineBody = 64 << 10
	// maxInformational bounds the answers of 1xx before the response.
	maxInformational = 5
	// maxHeaderBytes bounds a response's header, with what was read behind it.
	maxHeaderBytes = 64 << 10
	// bufferSize is that of a request's buffers. Larger reads and writes go past
	// them.
	bufferSize = 16 << 10
)

// plane is one of the two ways in.
type plane struct {
	tag byte
	// slots holds one element for each stream in use.
	slots chan struct{}
}

// request is one call of RoundTrip until its response is read. Each has a stream
// of its own: opening one costs no wait.
type request struct {
	link     *Link
	plane    *plane
	parent   context.Context
	stream   *stream
	response *limited
	upload   *upload
	disarm   func() bool
	once     sync.Once
}

// RoundTrip sends a request to the plane that the URL's host names; the scheme
// has to be http. It waits for the hello, and for one of the plane's streams to
// be free, as long as the request's context allows, and it returns when that
// ends, also while the body's Read blocks: that Read may then still run, and
// the body is closed. A response of 101 that was asked for has a Body that is a
// net.Conn with CloseWrite. Of httptrace, GotConn is called. Errors, also of
// reading the response's body: Invalid, Cancelled, Timeout, Closed,
// TransportLost, Protocol.
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
		r.finish()
		return nil, err
	}
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return r.upgrade(req, resp)
	case resp.Body == http.NoBody:
		r.finish()
	case resp.ContentLength < 0 && len(resp.TransferEncoding) == 0:
		// Such a body ends with its stream, as a lost one does.
		r.finish()
		return nil, protocolError(opRoundTrip, "the agent answered with a body of no stated length")
	default:
		resp.Body = &responseBody{inner: resp.Body, request: r}
	}
	return resp, nil
}

// enter checks a request, waits for its turn, opens its stream and puts it into
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
	if r.stream, err = l.dial(parent, func() { <-p.slots }); err != nil {
		err = r.explain(err)
		l.work.Done()
		return nil, err
	}
	r.response = &limited{stream: r.stream, room: maxHeaderBytes}
	// Closing the stream wakes whoever uses it.
	r.disarm = context.AfterFunc(parent, func() { _ = r.stream.Close() })
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

// exchange sends the request and reads the response up to its body.
func (r *request) exchange(req *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(r.parent); trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{Conn: r.stream})
	}
	if err := r.send(req); err != nil {
		return nil, err
	}
	r.response.buffered = bufio.NewReaderSize(r.response, bufferSize)
	for range maxInformational {
		resp, err := http.ReadResponse(r.response.buffered, req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols {
			r.response.room = unlimited
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
		u := &upload{trunk: r.link.trunk, body: req.Body, counted: true}
		r.stream.mu.Lock()
		r.stream.upload = u
		u.over = r.stream.closed
		r.stream.mu.Unlock()
		r.upload = u
		if !r.link.begin(func() { r.link.work.Add(1) }) {
			_ = req.Body.Close()
			return r.link.endError(opRoundTrip)
		}
		out := *req
		out.Body = u
		go u.run(&out, r.stream, r.plane.tag)
		return nil
	}
	buffer := bytes.NewBuffer(make([]byte, 0, 1024))
	if err := errors.Join(buffer.WriteByte(r.plane.tag), req.Write(buffer)); err != nil {
		return errdefs.Wrap(errdefs.Invalid, opRoundTrip, err)
	}
	_, err := r.stream.Write(buffer.Bytes())
	return err
}

// finish ends what the request holds, once.
func (r *request) finish() {
	r.once.Do(func() {
		r.disarm()
		_ = r.stream.Close()
	})
}

// upgrade hands the stream to the caller.
func (r *request) upgrade(req *http.Request, resp *http.Response) (*http.Response, error) {
	if r.upload != nil || req.Header.Get("Upgrade") == "" {
		r.finish()
		return nil, protocolError(opRoundTrip, "the agent switched protocols without being asked")
	}
	if !r.disarm() {
		// The watch over the context closes the stream.
		return nil, contextError(r.parent, opRoundTrip)
	}
	resp.Body = upgraded{r.stream, r.response.buffered}
	return resp, nil
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
	case lost(err) || r.stream != nil && r.stream.isBroken():
		return lostError(opRoundTrip, err)
	}
	return errdefs.Wrap(errdefs.Protocol, opRoundTrip, err)
}

// unlimited is the room where no header is being read.
const unlimited = -1

// limited is a stream as the reader of responses sees it: room is what may still
// come of the header.
type limited struct {
	stream   *stream
	buffered *bufio.Reader
	room     int
}

var _ io.Reader = (*limited)(nil)

// Read reads as much of a header as may come.
func (l *limited) Read(p []byte) (int, error) {
	if l.room == 0 {
		return 0, protocolError("read response", "the header is longer than %d bytes", maxHeaderBytes)
	}
	if l.room > 0 {
		p = p[:min(len(p), l.room)]
	}
	n, err := l.stream.Read(p)
	if l.room > 0 {
		l.room -= n
	}
	return n, err
}
