package fdpass

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/defence"
)

// helloTimeout bounds how long the hello waits for room; a fresh socket has it.
const helloTimeout = 10 * time.Second

// GuestSide is the agent's side of the link. All methods may be called
// concurrently.
type GuestSide struct {
	conn    *net.UnixConn
	data    *planeListener
	control *planeListener
	greet   sync.Once
	// done is closed when the receiving goroutine has returned, after which err
	// does not change.
	done chan struct{}
	err  error
}

// Guest starts the agent's side on control, which it owns from now on, also when
// it fails. It waits for the boot packet and gives its payload, at most
// boot.MaxBytes, and its files, at most 16, close-on-exec and the caller's.
// Errors: Invalid when control is no control socket, TransportLost when the
// host is gone, Protocol.
func Guest(control *os.File) (*GuestSide, []byte, []*os.File, error) {
	const op = "read boot packet"
	defer control.Close()
	conn, err := openControl(control)
	if err != nil {
		return nil, nil, nil, errdefs.Wrap(errdefs.Invalid, op, err)
	}
	p, err := receive(conn, 1+boot.MaxBytes, maxFiles)
	if err != nil {
		if lost(err) {
			err = lostError(op, err)
		}
		_ = conn.Close()
		return nil, nil, nil, errdefs.Wrap(errdefs.Protocol, op, err)
	}
	payload, err := p.bootPayload()
	if err != nil {
		p.drop()
		_ = conn.Close()
		return nil, nil, nil, err
	}
	files := make([]*os.File, len(p.fds))
	for i, fd := range p.fds {
		files[i] = os.NewFile(uintptr(fd), "boot-"+strconv.Itoa(i))
	}
	g := &GuestSide{
		conn:    conn,
		data:    newPlaneListener("data"),
		control: newPlaneListener("control"),
		done:    make(chan struct{}),
	}
	go g.receive()
	return g, payload, files, nil
}

// Hello tells the host that the agent serves. egress, when not nil, is a
// listening socket on loopback, or a unix one, that the host accepts on from now
// on; it stays the caller's, who closes its copy. A second call is Invalid.
// Errors: TransportLost when the host is gone, Closed after Close.
func (g *GuestSide) Hello(egress *os.File) error {
	const op = "send hello"
	err := error(errdefs.New(errdefs.Invalid, op, "hello was said before"))
	var files []*os.File
	if egress != nil {
		files = append(files, egress)
	}
	g.greet.Do(func() {
		err = withDescriptors(files, nil, func(fds []int) error {
			data, oob := encode(tagHello, nil, fds...)
			if err := g.conn.SetWriteDeadline(time.Now().Add(helloTimeout)); err != nil {
				return fmt.Errorf("set deadline: %w", err)
			}
			_, _, err := g.conn.WriteMsgUnix(data, oob, nil)
			return err
		})
		switch {
		case errors.Is(err, net.ErrClosed):
			err = errdefs.Wrap(errdefs.Closed, op, err)
		case err != nil:
			err = wrapSystem(op, err)
		}
	})
	return err
}

// Data gives the listener of the data plane. Its Accept fails with Closed once
// the link has ended.
func (g *GuestSide) Data() net.Listener { return g.data }

// Control gives the listener of the control plane.
func (g *GuestSide) Control() net.Listener { return g.control }

// Wait returns when the host's end is gone, or after Close, with nil, or with
// Protocol when the host broke the protocol. The listeners are closed then;
// accepted streams are their holders'.
func (g *GuestSide) Wait() error {
	<-g.done
	return g.err
}

// Close ends the guest's side: no more streams come, those that nobody accepted
// are reset. Accepted streams are their holders'. It waits for its goroutine. A
// second call returns nil.
func (g *GuestSide) Close() error {
	err := g.conn.Close()
	<-g.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// receive takes streams until the host is gone.
func (g *GuestSide) receive() {
	defer close(g.done)
	for {
		err := g.receiveStream()
		if err == nil {
			continue
		}
		if !lost(err) && !errors.Is(err, net.ErrClosed) {
			g.err = errdefs.Wrap(errdefs.Protocol, "receive stream", err)
		}
		// Nothing depends on how these end.
		_ = g.conn.Close()
		_ = g.data.Close()
		_ = g.control.Close()
		return
	}
}

// receiveStream takes one packet; io.EOF is the host's end.
func (g *GuestSide) receiveStream() error {
	p, err := receive(g.conn, 1, 2)
	if err != nil {
		return err
	}
	tag, fd, err := p.stream()
	if err != nil {
		p.drop()
		return err
	}
	if fd < 0 {
		// Out of descriptors: the host sees this one stream end.
		return nil
	}
	if err := checkStream(fd); err != nil {
		p.drop()
		return protocolError("read stream packet", "%v", err)
	}
	conn, err := openConn(fd, "stream")
	if err != nil {
		// Out of descriptors, for the poller's copy.
		return nil //nolint:nilerr // refuses one stream, not the link
	}
	if tag == tagControl {
		g.control.push(conn)
	} else {
		g.data.push(conn)
	}
	return nil
}

// queueLimit bounds the streams of a plane that nobody has accepted; it is all
// that a host sends by default before it has answers.
const queueLimit = 1024

// planeListener gives a plane's streams to an http.Server.
type planeListener struct {
	name  string
	queue chan net.Conn
	done  chan struct{}
	close sync.Once
	// mu is held while a stream is put into the queue, so that none is put there
	// after Close has emptied it.
	mu     sync.Mutex
	closed bool
}

var _ net.Listener = (*planeListener)(nil)

func newPlaneListener(name string) *planeListener {
	return &planeListener{name: name, queue: make(chan net.Conn, queueLimit), done: make(chan struct{})}
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
			if defence.LinkGuestQueue.Off() {
				go p.wait(conn)
				return
			}
		}
	}
	_ = conn.Close()
}

// wait is push without a bound.
func (p *planeListener) wait(conn net.Conn) {
	select {
	case p.queue <- conn:
	case <-p.done:
		_ = conn.Close()
	}
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
func (p *planeListener) Addr() net.Addr { return planeAddr(p.name) }

type planeAddr string

// Network and String are those of net.Addr.
func (planeAddr) Network() string  { return "fdpass" }
func (a planeAddr) String() string { return string(a) }
