package fdpass

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

// Accept waits for a stream that the inside opened on the listener that it
// handed over. The connection is closed with the link; NetConn gives the
// *net.TCPConn or *net.UnixConn beneath it. Errors: Unsupported when no listener
// was handed over, also to a context that is over; Closed after the link's end (and also TransportLost or
// Protocol where that was the reason), the context's error.
func (l *Link) Accept(ctx context.Context) (net.Conn, error) {
	const op = "accept"
	select {
	case <-l.ready: // first, so that also a context that is over learns of no listener
	default:
		select {
		case <-l.ready:
		case <-l.done:
			return nil, l.closedError(op)
		case <-ctx.Done():
			return nil, contextError(ctx, op)
		}
	}
	if l.egress == nil {
		if l.endError(op) != nil {
			return nil, l.closedError(op)
		}
		return nil, errdefs.New(errdefs.Unsupported, op, "the agent handed over no listener")
	}
	select {
	case conn := <-l.egress.accepted:
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

// egress accepts on the handed-over listener. The guest keeps a descriptor of
// the same open socket and can change its flags and options at any time.
type egress struct {
	link     *Link
	listener net.Listener
	accepted chan net.Conn

	mu    sync.Mutex
	ended bool
	conns map[*guestConn]struct{}
}

// openEgress checks and takes the descriptor, also when it fails.
func openEgress(l *Link, fd int) (*egress, error) {
	const op = "take egress listener"
	file := os.NewFile(uintptr(fd), "egress-listener")
	defer file.Close()
	if err := checkListener(fd); err != nil {
		return nil, errdefs.Wrap(errdefs.Protocol, op, err)
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, wrapSystem(op, err)
	}
	return &egress{
		link:     l,
		listener: listener,
		accepted: make(chan net.Conn),
		conns:    map[*guestConn]struct{}{},
	}, nil
}

// serve accepts until the link ends. One accepted connection waits for Accept;
// the others wait in the kernel's queue, inside.
func (e *egress) serve() {
	defer e.link.work.Done()
	const longest = time.Second
	pause := 5 * time.Millisecond
	for {
		conn, err := e.listener.Accept()
		if err != nil && exhausted(err) {
			// The host is short of descriptors; the guest has to wait.
			select {
			case <-time.After(pause):
				pause = min(2*pause, longest)
				continue
			case <-e.link.done:
				return
			}
		}
		if err != nil {
			e.link.end(errdefs.Wrap(errdefs.Protocol, "accept", fmt.Errorf("the egress listener ended: %w", err)))
			return
		}
		pause = 5 * time.Millisecond
		guest, ok := e.adopt(conn)
		if !ok {
			return
		}
		select {
		case e.accepted <- guest:
		case <-e.link.done:
			return
		}
	}
}

// adopt puts a connection into the account, or closes it after the end.
func (e *egress) adopt(conn net.Conn) (*guestConn, bool) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		// A linger option that the guest set on the listener is inherited, and
		// would make close wait. A socket that refuses it is closed anyway.
		_ = tcp.SetLinger(-1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended {
		_ = conn.Close()
		return nil, false
	}
	guest := &guestConn{Conn: conn, egress: e}
	e.conns[guest] = struct{}{}
	return guest, true
}

// stop ends the listener and resets its connections.
func (e *egress) stop() error {
	faults := []error{e.wake(), e.listener.Close()}
	e.mu.Lock()
	e.ended = true
	conns := make([]net.Conn, 0, len(e.conns))
	for guest := range e.conns {
		conns = append(conns, guest.Conn)
	}
	clear(e.conns)
	e.mu.Unlock()
	for _, conn := range conns {
		faults = append(faults, conn.Close())
	}
	return errors.Join(faults...)
}

// wake shuts the listening socket down. The guest can make the shared socket
// blocking, and closing a descriptor does not wake a thread that waits in
// accept; shutting the socket down does.
func (e *egress) wake() error {
	if defence.LinkListenerWoken.Off() {
		return nil
	}
	holder, ok := e.listener.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := holder.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach egress listener: %w", err)
	}
	var shutdownErr error
	err = raw.Control(func(fd uintptr) { shutdownErr = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	return errors.Join(err, shutdownErr)
}

// guestConn is a stream that the inside opened.
type guestConn struct {
	net.Conn
	egress *egress
}

// NetConn gives the connection beneath, for system calls that need its type.
func (c *guestConn) NetConn() net.Conn { return c.Conn }

// Read reads; after the link's end it gives the link's error.
func (c *guestConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.explain(err)
}

// Write writes all of p.
func (c *guestConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return n, c.explain(err)
}

// CloseWrite ends the host's direction.
func (c *guestConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errdefs.New(errdefs.Unsupported, "close write")
	}
	return c.explain(half.CloseWrite())
}

// Close closes the connection. A second call returns nil.
func (c *guestConn) Close() error {
	c.egress.mu.Lock()
	delete(c.egress.conns, c)
	c.egress.mu.Unlock()
	if err := c.Conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// explain turns an error of a closed connection into the link's own, where it
// was the link that ended.
func (c *guestConn) explain(err error) error {
	if errors.Is(err, net.ErrClosed) {
		if ended := c.egress.link.endError("use guest stream"); ended != nil {
			return ended
		}
	}
	return err
}
