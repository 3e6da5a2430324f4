package mux

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	headerSize = 12
	// streamWindow bounds what a peer may send ahead on one stream, in bytes.
	streamWindow = 1 << 20
	// maxBuffered bounds what waits to be read on all streams together, in bytes
	// of memory. Beyond it the guard stops reading.
	maxBuffered = 16 << 20
	// frameCost is what a frame takes in memory beside its payload.
	frameCost = 64
)

// The types and flags of yamux frames.
const (
	frameData   = 0
	frameWindow = 1
	framePing   = 2
	frameGoAway = 3

	flagSYN = 1
	flagACK = 2
	flagFIN = 4
	flagRST = 8
)

// guard is the byte stream as the multiplexer sees it, a net.Conn. It reads
// along in both directions: what was opened is known from the frames that went
// out, so that nothing depends on when a goroutine runs.
type guard struct {
	conn io.ReadWriteCloser
	// host is set on the host's side, which opens the odd streams.
	host bool

	// The reading goroutine owns these: a frame's header as far as it has come,
	// and what is still to come of its payload.
	header [headerSize]byte
	have   int
	skip   uint32

	closing  sync.Once
	closed   chan struct{}
	closeErr error

	mu       sync.Mutex
	fault    error
	flows    map[uint32]*flow
	buffered int64
	// room is made anew whenever the reader has to wait, and closed when it need
	// not any more.
	room  chan struct{}
	rules rules
	// deadline is that of writes, where conn has none of its own.
	deadline time.Time
}

// flow is what is known of one stream.
type flow struct {
	buffered, overhead int64
	// sent and granted are what went out and what the peer lets out beyond the
	// first window; received and allowed are the same for what comes in.
	sent, granted     int64
	received, allowed int64
	seen              uint16
}

// firstWindow is what the protocol lets either side send before any grant.
const firstWindow = 256 << 10

func newGuard(conn io.ReadWriteCloser, host bool) *guard {
	return &guard{conn: conn, host: host, closed: make(chan struct{}), flows: map[uint32]*flow{}, rules: newRules(time.Now())}
}

// Read reads what has passed the rules.
func (g *guard) Read(p []byte) (int, error) {
	if err := g.wait(); err != nil {
		return 0, err
	}
	n, err := g.conn.Read(p)
	if fault := g.inspect(p[:max(n, 0)]); fault != nil {
		return 0, fault
	}
	return n, err
}

// wait waits until the peer may send more.
func (g *guard) wait() error {
	for {
		g.mu.Lock()
		if g.fault != nil {
			defer g.mu.Unlock()
			return g.fault
		}
		pause := g.rules.opens.pause(time.Now())
		full := g.buffered >= maxBuffered
		if full && g.room == nil {
			g.room = make(chan struct{})
		}
		room := g.room
		g.mu.Unlock()
		switch {
		case full:
			select {
			case <-room:
			case <-g.closed:
				return net.ErrClosed
			}
		case pause > 0:
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-g.closed:
				timer.Stop()
				return net.ErrClosed
			}
		default:
			return nil
		}
	}
}

// inspect judges the frames that begin in p. The first fault stays.
func (g *guard) inspect(p []byte) error {
	for len(p) > 0 {
		if g.skip > 0 {
			n := min(uint64(g.skip), uint64(len(p)))
			g.skip -= uint32(n)
			p = p[n:]
			continue
		}
		n := copy(g.header[g.have:], p)
		g.have += n
		p = p[n:]
		if g.have < headerSize {
			return nil
		}
		g.have = 0
		f := parseFrame(g.header[:])
		if f.kind == frameData {
			g.skip = f.length
		}
		g.mu.Lock()
		if g.fault == nil {
			g.fault = g.judge(f)
		}
		fault := g.fault
		g.mu.Unlock()
		if fault != nil {
			return fault
		}
	}
	return nil
}

// Write sends p, which is one frame: the multiplexer writes each by itself.
func (g *guard) Write(p []byte) (int, error) {
	if len(p) >= headerSize {
		g.note(parseFrame(p[:headerSize]))
	}
	if _, own := g.conn.(deadliner); own {
		return g.conn.Write(p)
	}
	g.mu.Lock()
	deadline := g.deadline
	g.mu.Unlock()
	if deadline.IsZero() {
		return g.conn.Write(p)
	}
	// Without deadlines of its own, a stream that takes nothing can only be closed.
	expired := make(chan struct{})
	timer := time.AfterFunc(time.Until(deadline), func() {
		close(expired)
		_ = g.Close()
	})
	n, err := g.conn.Write(p)
	if !timer.Stop() {
		<-expired
		return n, os.ErrDeadlineExceeded
	}
	return n, err
}

// note keeps account of a frame that goes out.
func (g *guard) note(f frame) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f.kind != frameData && f.kind != frameWindow {
		return
	}
	if f.flags&flagSYN != 0 {
		g.flows[f.id] = &flow{}
		g.rules.opened = max(g.rules.opened, f.id)
	}
	switch s := g.flows[f.id]; {
	case f.flags&flagRST != 0:
		g.drop(f.id)
	case s == nil:
	case f.kind == frameData:
		s.sent += int64(f.length)
	default:
		s.allowed += int64(f.length)
	}
}

// consumed says that n bytes of a stream were read.
func (g *guard) consumed(id uint32, n int) {
	if n <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.flows[id]
	if s == nil || s.buffered == 0 {
		return
	}
	bytes := min(int64(n), s.buffered)
	overhead := s.overhead * bytes / s.buffered
	s.buffered -= bytes
	s.overhead -= overhead
	g.free(bytes + overhead)
}

// forget ends the account of a stream.
func (g *guard) forget(id uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(id)
}

func (g *guard) drop(id uint32) {
	s := g.flows[id]
	if s == nil {
		return
	}
	delete(g.flows, id)
	g.rules.ended()
	g.free(s.buffered + s.overhead)
}

func (g *guard) free(bytes int64) {
	g.buffered -= bytes
	if g.buffered < maxBuffered && g.room != nil {
		close(g.room)
		g.room = nil
	}
}

// reason is the fault of the peer, nil when there is none.
func (g *guard) reason() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fault
}

// Close closes the byte stream. A second call gives what the first gave.
func (g *guard) Close() error {
	g.closing.Do(func() {
		close(g.closed)
		g.closeErr = g.conn.Close()
	})
	return g.closeErr
}

// deadliner is a byte stream with deadlines for writes.
type deadliner interface{ SetWriteDeadline(t time.Time) error }

// SetWriteDeadline bounds the writes that follow.
func (g *guard) SetWriteDeadline(t time.Time) error {
	if conn, ok := g.conn.(deadliner); ok {
		return conn.SetWriteDeadline(t)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deadline = t
	return nil
}

// SetDeadline and SetReadDeadline are not used by the multiplexer.
func (g *guard) SetDeadline(time.Time) error     { return os.ErrNoDeadline }
func (g *guard) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// LocalAddr and RemoteAddr name the link.
func (g *guard) LocalAddr() net.Addr  { return addr("mux") }
func (g *guard) RemoteAddr() net.Addr { return addr("mux") }

// addr names a plane, or the link.
type addr string

// Network and String are those of net.Addr.
func (addr) Network() string  { return "mux" }
func (a addr) String() string { return string(a) }

// frame is the header of one frame.
type frame struct {
	version, kind uint8
	flags         uint16
	id, length    uint32
}

func parseFrame(b []byte) frame {
	return frame{
		version: b[0], kind: b[1], flags: binary.BigEndian.Uint16(b[2:]),
		id: binary.BigEndian.Uint32(b[4:]), length: binary.BigEndian.Uint32(b[8:]),
	}
}
