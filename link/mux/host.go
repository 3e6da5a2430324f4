package mux

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/link"
)

// Config tunes the host's side. The zero value is a link without egress.
type Config struct {
	// Boot is the payload for the agent, at most boot.MaxBytes.
	Boot []byte
	// Key, when not empty, is the sandbox's: each side proves that it has it. An
	// empty one leaves the peer's authentication to what carries the stream.
	Key []byte
	// Handshake, when not nil, runs before all else.
	Handshake Handshake
	// HandshakeTimeout bounds the hand-shakes; 0 is 10 s.
	HandshakeTimeout time.Duration
	// Egress: streams that the guest opens are given out by Accept. Without it
	// they are reset at once.
	Egress bool
	// MaxStreams bounds the streams in use on each plane, and those that the
	// guest has open; a request beyond it waits for as long as its context
	// allows. 0 is 512.
	MaxStreams int
	// WriteTimeout bounds how long the peer may take nothing at all while there is
	// something to send; then the link ends. 0 is 30 s.
	WriteTimeout time.Duration
}

const (
	defaultMaxStreams   = 512
	defaultWriteTimeout = 30 * time.Second
	// tagTimeout bounds how long a stream may take to name its plane.
	tagTimeout = 10 * time.Second
)

// Link is the host's side. It implements link.Link; all methods may be called
// concurrently.
type Link struct {
	*trunk
	config Config
	data   *plane
	admin  *plane
	ready  chan struct{}
	// egress is written before ready is closed: whether streams are accepted.
	egress   bool
	accepted chan net.Conn
}

var _ link.Link = (*Link)(nil)

// New starts the host's side on conn, which it owns from now on, also when it
// fails. conn's Close has to wake its Read and its Write; where it has
// SetWriteDeadline, that is used. New returns when hands are shaken and the boot
// payload is sent; it does not wait for the hello. Errors: Invalid, Denied when
// the peer does not have the key, Protocol, TransportLost, Timeout, Cancelled.
func New(ctx context.Context, conn io.ReadWriteCloser, config Config) (*Link, error) {
	if len(config.Boot) > boot.MaxBytes || config.MaxStreams < 0 || config.WriteTimeout < 0 || config.HandshakeTimeout < 0 {
		_ = conn.Close()
		return nil, errdefs.New(errdefs.Invalid, "open link", "a bound is negative or the boot payload too large")
	}
	if config.MaxStreams == 0 {
		config.MaxStreams = defaultMaxStreams
	}
	if config.WriteTimeout == 0 {
		config.WriteTimeout = defaultWriteTimeout
	}
	err := shake(ctx, conn, config.HandshakeTimeout, func(ctx context.Context) error {
		if err := custom(ctx, conn, config.Handshake); err != nil {
			return err
		}
		return greetGuest(conn, config.Key, config.Boot)
	})
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	l := &Link{
		trunk:    newTrunk(conn, true),
		config:   config,
		data:     &plane{tag: tagData, slots: make(chan struct{}, config.MaxStreams)},
		admin:    &plane{tag: tagControl, slots: make(chan struct{}, config.MaxStreams)},
		ready:    make(chan struct{}),
		accepted: make(chan net.Conn),
	}
	l.spawn(func() { l.end(l.serve()) })
	return l, nil
}

// serve waits for the hello and then for what the guest opens. It returns why
// the link has to end.
func (l *Link) serve() error {
	const op = "serve link"
	hello := make([]byte, 1)
	if _, err := io.ReadFull(l.guard.conn, hello); err != nil {
		return l.why(op, err)
	}
	if hello[0] != helloPlain && hello[0] != helloEgress {
		return protocolError(op, "the first byte is no hello")
	}
	l.egress = l.config.Egress && hello[0] == helloEgress
	incoming := 0
	if l.egress {
		incoming = l.config.MaxStreams
	}
	session, err := l.open(uint32(incoming), l.config.WriteTimeout)
	if err != nil {
		return err
	}
	close(l.ready)
	// Whoever has ended may still wait for Accept: the slots bound that as well.
	slots := make(chan struct{}, max(incoming, 1))
	for {
		held := false
		select {
		case slots <- struct{}{}:
			held = true
		case <-session.CloseChan():
		}
		inner, err := session.AcceptStream()
		if err != nil {
			return l.why(op, err)
		}
		if !held {
			// It lay in the queue when the session ended, and ends with it.
			continue
		}
		if s, ok := l.adopt(inner, func() { <-slots }); ok {
			l.spawn(func() { l.offer(s) })
		}
	}
}

// offer checks what a stream is for and holds it until somebody accepts it.
func (l *Link) offer(s *stream) {
	tag, err := s.plane()
	if err != nil {
		_ = s.Close()
		return
	}
	if tag != tagEgress {
		l.end(protocolError("accept", "the guest opened a stream with tag %q", tag))
		return
	}
	select {
	case l.accepted <- s:
	case <-l.done:
	}
}

// Ready waits for the guest's hello. Errors: Protocol when what came was none,
// TransportLost when the guest is gone, Closed after Close, the context's error.
func (l *Link) Ready(ctx context.Context) error {
	const op = "wait for the agent"
	if err := l.endError(op); err != nil {
		return err
	}
	select {
	case <-l.ready:
		return nil
	case <-l.done:
		return l.endError(op)
	case <-ctx.Done():
		return contextError(ctx, op)
	}
}

// Accept waits for a stream that the inside opened. Errors: Unsupported when
// Config or the guest's hello says that there are none, also to a context that
// is over; Closed after the link's end (and also TransportLost or Protocol where
// that was the reason), the context's error.
func (l *Link) Accept(ctx context.Context) (net.Conn, error) {
	const op = "accept"
	select {
	case <-l.ready: // first, so that also a context that is over learns of no egress
	default:
		select {
		case <-l.ready:
		case <-l.done:
			return nil, l.closedError(op)
		case <-ctx.Done():
			return nil, contextError(ctx, op)
		}
	}
	switch {
	case l.endError(op) != nil:
		return nil, l.closedError(op)
	case !l.egress:
		return nil, errdefs.New(errdefs.Unsupported, op, "the link carries no egress")
	}
	select {
	case conn := <-l.accepted:
		return conn, nil
	case <-l.done:
		return nil, l.closedError(op)
	case <-ctx.Done():
		return nil, contextError(ctx, op)
	}
}

// closedError is a Closed error that also carries why the link ended.
func (l *Link) closedError(op string) error {
	return &errdefs.Error{Kind: errdefs.Closed, Op: op, Reasons: []string{"the link has ended"}, Err: l.Err()}
}
