package mux

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/libp2p/go-yamux/v5"

	"github.com/berm-dev/berm/errdefs"
)

// GuestConfig tunes the guest's side. The zero value is good.
type GuestConfig struct {
	// Key, Handshake and HandshakeTimeout are those of Config.
	Key              []byte
	Handshake        Handshake
	HandshakeTimeout time.Duration
	// MaxStreams bounds the streams that the host may have open, and the
	// connections that are carried out for egress; 0 is 1024 and 512.
	MaxStreams int
	// WriteTimeout is that of Config.
	WriteTimeout time.Duration
}

const (
	defaultGuestStreams = 1024
	// linger is how long one direction of a connection for egress may go on after
	// the other has ended.
	linger = 5 * time.Minute
)

// GuestSide is the agent's side of the link. All methods may be called
// concurrently.
type GuestSide struct {
	*trunk
	config  GuestConfig
	data    *planeListener
	control *planeListener
	greet   sync.Once
}

// Serve starts the agent's side on conn, which it owns from now on, also when it
// fails; conn is as New wants it. It waits for the host's preface and gives the
// boot payload. Errors: Invalid, Denied when the host does not have the key,
// Protocol, TransportLost, Timeout, Cancelled.
func Serve(ctx context.Context, conn io.ReadWriteCloser, config GuestConfig) (*GuestSide, []byte, error) {
	if config.MaxStreams < 0 || config.WriteTimeout < 0 || config.HandshakeTimeout < 0 {
		_ = conn.Close()
		return nil, nil, errdefs.New(errdefs.Invalid, "open link", "a bound is negative")
	}
	if config.MaxStreams == 0 {
		config.MaxStreams = defaultGuestStreams
	}
	if config.WriteTimeout == 0 {
		config.WriteTimeout = defaultWriteTimeout
	}
	var payload []byte
	err := shake(ctx, conn, config.HandshakeTimeout, func(ctx context.Context) error {
		err := custom(ctx, conn, config.Handshake)
		if err == nil {
			payload, err = greetHost(conn, config.Key)
		}
		return err
	})
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return &GuestSide{
		trunk: newTrunk(conn, false), config: config,
		data: newPlaneListener("data"), control: newPlaneListener("control"),
	}, payload, nil
}

// Hello tells the host that the agent serves. egress, when not nil, is a
// listening socket whose connections are carried to the host from now on; it
// stays the caller's, who closes its copy. A second call is Invalid. Errors:
// TransportLost when the host is gone, Closed after Close.
func (g *GuestSide) Hello(egress *os.File) error {
	const op = "send hello"
	err := error(errdefs.New(errdefs.Invalid, op, "hello was said before"))
	g.greet.Do(func() { err = g.start(op, egress) })
	return err
}

func (g *GuestSide) start(op string, egress *os.File) error {
	hello := []byte{helloPlain}
	var listener net.Listener
	if egress != nil {
		hello[0] = helloEgress
		var err error
		if listener, err = net.FileListener(egress); err != nil {
			return errdefs.Wrap(errdefs.Invalid, op, err)
		}
	}
	_, err := g.guard.conn.Write(hello)
	var session *yamux.Session
	if err != nil {
		err = lostError(op, err)
	} else {
		session, err = g.open(uint32(g.config.MaxStreams), g.config.WriteTimeout)
	}
	if err == nil && !g.spawn(func() { g.receive(session) }) {
		err = g.endError(op)
	}
	if listener == nil {
		return err
	}
	if err != nil || !g.spawn(func() { g.carry(listener) }) {
		_ = listener.Close()
	}
	return err
}

// Data gives the listener of the data plane. Its Accept fails with Closed once
// the link has ended.
func (g *GuestSide) Data() net.Listener { return g.data }

// Control gives the listener of the control plane.
func (g *GuestSide) Control() net.Listener { return g.control }

// Wait returns when the host's end is gone, or after Close, with nil, or with
// Protocol when the host broke the protocol. The listeners are closed then, and
// every stream is reset. Before the hello the host's end is not noticed.
func (g *GuestSide) Wait() error {
	<-g.done
	if err := g.Err(); errors.Is(err, errdefs.Protocol) {
		return err
	}
	return nil
}

// Close ends the guest's side: every stream is reset, also those that were
// accepted. It waits for all goroutines of the link. It returns nil.
func (g *GuestSide) Close() error {
	err := g.trunk.Close()
	_ = g.data.Close()
	_ = g.control.Close()
	return err
}

// receive takes streams until the host is gone.
func (g *GuestSide) receive(session *yamux.Session) {
	for {
		inner, err := session.AcceptStream()
		if err != nil {
			g.end(g.why("receive stream", err))
			_ = g.data.Close()
			_ = g.control.Close()
			return
		}
		if s, ok := g.adopt(inner, nil); ok {
			g.spawn(func() { g.sort(s) })
		}
	}
}

// sort gives a stream to the plane that it names.
func (g *GuestSide) sort(s *stream) {
	tag, err := s.plane()
	if err != nil {
		_ = s.Close()
		return
	}
	switch tag {
	case tagData:
		g.data.push(s)
	case tagControl:
		g.control.push(s)
	default:
		g.end(protocolError("receive stream", "the host opened a stream with tag %q", tag))
	}
}

// carry takes the connections of the inside to the host.
func (g *GuestSide) carry(listener net.Listener) {
	stop := make(chan struct{})
	defer close(stop)
	g.spawn(func() {
		select {
		case <-g.done:
		case <-stop:
		}
		_ = listener.Close()
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	slots := make(chan struct{}, defaultMaxStreams)
	// The inside connects as often as it likes: it must not bring the host to slow
	// the whole link down.
	pace := bucket{level: openBurst / 4, burst: openBurst / 4, rate: openRate / 4, at: time.Now()}
	for {
		select {
		case <-time.After(pace.pause(time.Now())):
		case <-g.done:
			return
		}
		select {
		case slots <- struct{}{}:
		case <-g.done:
			return
		}
		pace.take(time.Now())
		conn, err := listener.Accept()
		if err != nil {
			if g.endError("accept") != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			// Short of descriptors: the inside waits.
			<-slots
			select {
			case <-time.After(50 * time.Millisecond):
				continue
			case <-g.done:
				return
			}
		}
		if !g.spawn(func() { defer func() { <-slots }(); g.relay(ctx, conn) }) {
			_ = conn.Close()
		}
	}
}

// relay joins one connection to a stream of its own.
func (g *GuestSide) relay(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	s, err := g.dial(ctx, func() {})
	if err != nil {
		return
	}
	defer s.Close()
	if _, err := s.Write([]byte{tagEgress}); err != nil {
		return
	}
	stop := make(chan struct{})
	var both sync.WaitGroup
	both.Go(func() {
		select {
		case <-g.done:
			_ = conn.Close()
		case <-stop:
		}
	})
	var pumps sync.WaitGroup
	pumps.Go(func() { pump(s, conn) })
	pumps.Go(func() { pump(conn, s) })
	pumps.Wait()
	close(stop)
	both.Wait()
}

// halfCloser is a connection whose directions end one by one.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// pump copies one direction and passes its end on. An error ends both.
func pump(to, from net.Conn) {
	_, err := io.CopyBuffer(onlyWriter{to}, onlyReader{from}, make([]byte, 32<<10))
	half, ok := to.(halfCloser)
	if err == nil && ok {
		err = half.CloseWrite()
	}
	if err != nil || !ok {
		_ = to.Close()
		_ = from.Close()
		return
	}
	// The other direction may go on, not for ever. It fails on a closed stream.
	_ = to.SetReadDeadline(time.Now().Add(linger))
}

// onlyReader hides WriteTo.
type onlyReader struct{ io.Reader }

// planeListener gives a plane's streams to an http.Server.
type planeListener struct {
	name  addr
	queue chan net.Conn
	done  chan struct{}
	close sync.Once
	// mu is held while a stream is put into the queue, so that none is put there
	// after Close has emptied it.
	mu     sync.Mutex
	closed bool
}

var _ net.Listener = (*planeListener)(nil)

func newPlaneListener(name addr) *planeListener {
	return &planeListener{name: name, queue: make(chan net.Conn, defaultGuestStreams), done: make(chan struct{})}
}

// push queues a stream; where the queue is full, or closed, the stream ends.
func (p *planeListener) push(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		select {
		case p.queue <- conn:
			return
		default:
		}
	}
	_ = conn.Close()
}

// Accept waits for the plane's next stream.
func (p *planeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.queue:
		return conn, nil
	case <-p.done:
		return nil, errdefs.New(errdefs.Closed, "accept", "the link has ended")
	}
}

// Close ends the listener and resets what nobody accepted. A second call
// returns nil.
func (p *planeListener) Close() error {
	p.close.Do(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		close(p.done)
		for {
			select {
			case conn := <-p.queue:
				_ = conn.Close()
			default:
				return
			}
		}
	})
	return nil
}

// Addr names the plane.
func (p *planeListener) Addr() net.Addr { return p.name }
