package gate

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/wire"
)

// arrival is one request whose head was checked, or refused.
type arrival struct {
	head *wire.Request // nil where it could not be read
	// authority is the host, and port, of the target; empty for a mere path.
	authority string
	refused   *denial
}

// client is a connection that speaks HTTP/1 to the gate, as net/http sees it: it
// reads only what was checked. In place of a request that is refused net/http
// gets one that ends the connection, so that each answer comes in its turn.
type client struct {
	net.Conn
	g       *Gate
	session *session
	release func()

	// Of the reading goroutine; net/http has one at a time.
	reader  *wire.Reader
	again   *bufio.Reader
	front   []byte // bytes read before
	canned  []byte
	refused bool
	begun   time.Time // of the head that is being read
	pending *arrival  // whose head is being judged

	mu       sync.Mutex
	arrivals []*arrival
	busy     int       // requests whose handler has not ended
	phase    time.Time // the gate's deadline for reading
	asked    time.Time // net/http's
	linger   bool
	closed   bool
}

func newClient(g *Gate, conn net.Conn, s *session, front []byte) *client {
	c := &client{Conn: conn, g: g, session: s, front: front}
	s.client = c
	c.reader = wire.NewReader(readerFunc(c.readConn), g.config.Limits.HeaderBytes, c.head)
	return c
}

type readerFunc func([]byte) (int, error)

// Read calls f.
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// head judges the form of one request.
func (c *client) head(b []byte) (wire.Framing, error) {
	c.begun = time.Time{}
	req, fault := wire.ParseRequest(b, c.g.config.Limits.HeaderFields)
	a := &arrival{head: req}
	c.pending = a
	if fault != nil {
		return wire.Framing{}, fault
	}
	if fault := c.target(a); fault != nil {
		return wire.Framing{}, fault
	}
	// What net/http would refuse by itself would leave no record.
	if c.again == nil {
		c.again = bufio.NewReader(nil)
	}
	c.again.Reset(bytes.NewReader(b))
	if _, err := http.ReadRequest(c.again); err != nil {
		return wire.Framing{}, &wire.Fault{Status: http.StatusBadRequest, What: err.Error()}
	}
	body := req.Body
	switch {
	case req.Method == http.MethodConnect:
		body.Raw = true
	case req.Upgrade == "websocket" && !body.Chunked && body.Length == 0:
		// Whether it is granted or not, no request follows on this connection.
		body.Raw = true
	default:
		req.Upgrade = ""
	}
	c.pending = nil
	c.arrive(a)
	return body, nil
}

// target checks the form of what is asked for.
func (c *client) target(a *arrival) *wire.Fault {
	bad := func(what string) *wire.Fault { return &wire.Fault{Status: http.StatusBadRequest, What: what} }
	target := a.head.Target
	if a.head.Method == http.MethodConnect {
		a.authority = target
		if _, port, err := egress.SplitAuthority(target); err != nil || port == 0 {
			return bad("a target of CONNECT that is not host and port")
		}
		return nil
	}
	if c.session.tunnel != nil && (strings.HasPrefix(target, "/") || target == "*") {
		return nil
	}
	scheme := "http"
	if c.session.tunnel != nil && c.session.tunnel.secure {
		scheme = "https"
	}
	got, rest, ok := strings.Cut(target, "://")
	if !ok || !strings.EqualFold(got, scheme) {
		return bad("a target that is not an absolute " + scheme + " URL")
	}
	a.authority = rest
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		a.authority = rest[:i]
	}
	if _, _, err := egress.SplitAuthority(a.authority); err != nil {
		return bad("a host that is none")
	}
	if _, err := url.ParseRequestURI(target); err != nil {
		return bad("a target that is no URL")
	}
	return nil
}

func malformed(f *wire.Fault) *denial {
	reason := egress.ReasonMalformed
	if f.Status == http.StatusRequestHeaderFieldsTooLarge {
		reason = egress.ReasonLimit
	}
	return &denial{reason: reason, status: f.Status, err: f}
}

// arrive queues a request for the handler.
func (c *client) arrive(a *arrival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrivals = append(c.arrivals, a)
	c.busy++
}

// next takes the request that the handler was called for.
func (c *client) next() *arrival {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.arrivals) == 0 {
		return nil
	}
	a := c.arrivals[0]
	c.arrivals = c.arrivals[1:]
	return a
}

// done says that a request's handler has ended.
func (c *client) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy--; c.busy == 0 {
		c.phase = time.Now().Add(c.g.config.Timeouts.Idle)
		c.deadline()
	}
}

// Read gives net/http what was checked.
func (c *client) Read(p []byte) (int, error) {
	for {
		if len(c.canned) > 0 {
			n := copy(p, c.canned)
			c.canned = c.canned[n:]
			return n, nil
		}
		if c.refused {
			return 0, io.EOF
		}
		n, err := c.reader.Read(p)
		if n > 0 || err == nil || !c.refuses(err) {
			return n, err
		}
		c.refused = true
		c.canned = []byte("GET http://refused.invalid/ HTTP/1.1\r\nHost: refused.invalid\r\nConnection: close\r\n\r\n")
	}
}

// refuses turns the end of a head that was not whole or not good into a refusal.
func (c *client) refuses(err error) bool {
	if !c.reader.InHead() {
		return false
	}
	a := c.pending
	if a == nil {
		a = &arrival{}
	}
	var fault *wire.Fault
	switch {
	case errors.As(err, &fault):
		a.refused = malformed(fault)
	case !c.reader.Partial():
		return false
	case errors.Is(err, os.ErrDeadlineExceeded):
		if c.interrupted() {
			return false
		}
		a.refused = deny(egress.ReasonTimeout, errors.New("the header took too long"))
	default:
		a.refused = deny(egress.ReasonMalformed, errors.New("the header has no end"))
	}
	c.arrive(a)
	c.stayBriefly()
	return true
}

// interrupted reports whether it was net/http that ended a read.
func (c *client) interrupted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.asked.IsZero() && !time.Now().Before(c.asked)
}

// readConn reads from the connection, within the time that the phase has.
func (c *client) readConn(p []byte) (int, error) {
	if len(c.front) > 0 {
		n := copy(p, c.front)
		c.front = c.front[n:]
		if c.reader.InHead() {
			c.begun = time.Now()
		}
		return n, nil
	}
	c.arm()
	n, err := c.Conn.Read(p)
	if n > 0 && c.begun.IsZero() && c.reader.InHead() {
		c.begun = time.Now()
	}
	return n, err
}

// arm sets the deadline of the next read.
func (c *client) arm() {
	t := c.g.config.Timeouts
	inHead := c.reader.InHead()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !inHead && c.reader.IsRaw():
		c.phase = time.Time{}
	case !inHead:
		c.phase = time.Now().Add(t.Body)
	case c.busy > 0:
		// While a request is being answered the next may take its time.
		c.phase = time.Time{}
	case !c.begun.IsZero():
		c.phase = c.begun.Add(t.Header)
	default:
		c.phase = time.Now().Add(t.Idle)
	}
	c.deadline()
}

// deadline applies the earlier of the two. The lock is held.
func (c *client) deadline() {
	at := c.phase
	if at.IsZero() || !c.asked.IsZero() && c.asked.Before(at) {
		at = c.asked
	}
	_ = c.Conn.SetReadDeadline(at)
}

// SetReadDeadline is net/http's, beside the gate's own.
func (c *client) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = t
	c.deadline()
	return nil
}

// SetDeadline sets both.
func (c *client) SetDeadline(t time.Time) error {
	if err := c.SetWriteDeadline(t); err != nil {
		return err
	}
	return c.SetReadDeadline(t)
}

// Close closes the connection. After a refusal it waits a little for the client
// to take the answer: closing with unread bytes would throw it away.
func (c *client) Close() error {
	c.mu.Lock()
	linger := c.linger && !c.closed && c.g.ctx.Err() == nil
	c.closed = true
	c.mu.Unlock()
	if linger {
		drain(c.Conn)
	}
	return c.Conn.Close()
}

// drain reads what a client still sends, within bounds.
func drain(conn net.Conn) {
	const (
		most  = 1 << 20
		grace = 500 * time.Millisecond
	)
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || conn.SetReadDeadline(time.Now().Add(grace)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, conn, most)
}

// stayBriefly makes Close wait as after a refusal.
func (c *client) stayBriefly() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.linger = true
}

// detach takes the connection out, with the bytes that were read from it.
func (c *client) detach() *tunnelConn {
	_ = c.SetReadDeadline(time.Time{})
	prefix := append(bytes.Clone(c.canned), c.reader.Buffered()...)
	return &tunnelConn{Conn: c.Conn, prefix: append(prefix, c.front...)}
}

// findSession finds what the gate knows about a connection that net/http has.
func findSession(conn net.Conn) *session {
	switch c := conn.(type) {
	case *client:
		return c.session
	case *tls.Conn:
		if t, ok := c.NetConn().(*tunnelConn); ok {
			return t.session
		}
	}
	return nil
}

// released tells the owner of a connection that net/http is through with it.
func released(conn net.Conn) {
	switch c := conn.(type) {
	case *client:
		c.release()
	case *tls.Conn:
		if t, ok := c.NetConn().(*tunnelConn); ok && t.release != nil {
			t.release()
		}
	}
}

// arrest puts back what net/http has read ahead, once it has let go.
func (c *client) arrest(r *bufio.Reader) {
	ahead, _ := r.Peek(r.Buffered())
	c.canned = append(bytes.Clone(ahead), c.canned...)
	_ = c.SetReadDeadline(time.Time{})
}
