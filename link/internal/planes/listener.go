package planes

import (
	"net"
	"sync"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

// Listener gives a plane's streams to an http.Server. All methods may be called
// concurrently.
type Listener struct {
	address net.Addr
	queue   chan net.Conn
	done    chan struct{}
	close   sync.Once
	// mu is held while a stream is put into the queue, so that none is put there
	// after Close has emptied it.
	mu     sync.Mutex
	closed bool
}

var _ net.Listener = (*Listener)(nil)

// NewListener makes one that holds so many streams which nobody has accepted.
func NewListener(address net.Addr, queue int) *Listener {
	return &Listener{address: address, queue: make(chan net.Conn, queue), done: make(chan struct{})}
}

// Push queues a stream; where the queue is full, or closed, the stream ends.
func (p *Listener) Push(conn net.Conn) {
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

// wait is Push without a bound.
func (p *Listener) wait(conn net.Conn) {
	select {
	case p.queue <- conn:
	case <-p.done:
		_ = conn.Close()
	}
}

// Accept waits for the plane's next stream. The error after Close is Closed.
func (p *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.queue:
		return conn, nil
	case <-p.done:
		return nil, errdefs.New(errdefs.Closed, "accept", "the link has ended")
	}
}

// Close ends the listener and resets what nobody accepted. A second call
// returns nil.
func (p *Listener) Close() error {
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

// Addr is what the listener was made with.
func (p *Listener) Addr() net.Addr { return p.address }
