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
)

// stuckGrace is how long a closed stream waits for those inside its calls. They
// are woken at once, unless the peer has stopped taking anything while data of a
// direction that it has ended is read; such a peer is given up.
const stuckGrace = time.Second

// copySize is the size of the reads and writes of a bulk body.
const copySize = 256 << 10

// stream is one end of one stream, a net.Conn with CloseWrite.
type stream struct {
	trunk *trunk
	inner *yamux.Stream
	// writing is held by a writer: the multiplexer counts the window for one.
	writing sync.Mutex

	mu     sync.Mutex
	closed bool
	broken bool
	// users are the calls inside inner. It grows only under mu and before closed.
	users sync.WaitGroup
	// release is called once the stream is gone; nil for nothing.
	release func()
	upload  *upload
}

var _ net.Conn = (*stream)(nil)

// adopt takes a stream into the account; after the link's end it is false.
func (t *trunk) adopt(inner *yamux.Stream, release func()) (*stream, bool) {
	s := &stream{trunk: t, inner: inner, release: release}
	return s, t.begin(func() { t.streams[s] = struct{}{} })
}

// enter begins a call.
func (s *stream) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	s.users.Add(1)
	return nil
}

// Read reads; io.EOF is the peer's CloseWrite. After the link's end it gives the
// link's error.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := s.enter(); err != nil {
		return 0, s.explain(err)
	}
	n, err := s.inner.Read(p)
	s.users.Done()
	s.trunk.guard.consumed(s.inner.StreamID(), n)
	return n, s.explain(err)
}

// Write writes all of p.
func (s *stream) Write(p []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.enter(); err != nil {
		return 0, s.explain(err)
	}
	n, err := s.inner.Write(p)
	s.users.Done()
	return n, s.explain(err)
}

// ReadFrom copies r in large pieces; net/http uses it for bodies.
func (s *stream) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(onlyWriter{s}, r, make([]byte, copySize))
}

// onlyWriter hides ReadFrom.
type onlyWriter struct{ io.Writer }

// plane reads the byte that names the stream's plane. A peer that does not send
// it loses the stream.
func (s *stream) plane() (byte, error) {
	// A deadline could not be taken back once the peer has ended its direction.
	late := time.AfterFunc(tagTimeout, func() { _ = s.Close() })
	defer late.Stop()
	tag := make([]byte, 1)
	_, err := io.ReadFull(s, tag)
	return tag[0], err
}

// CloseWrite ends this direction; the peer reads io.EOF. It waits for a Write
// that is under way.
func (s *stream) CloseWrite() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.enter(); err != nil {
		return s.explain(err)
	}
	defer s.users.Done()
	// The frame has no deadline of its own: a peer that takes nothing ends the
	// link by the session's write timeout, and the stream's Close by stuckGrace.
	return s.explain(s.inner.CloseWrite())
}

// Close ends the stream at once for those who use it here. The peer reads what
// was written before, then the end; its writes fail. A second call returns nil.
func (s *stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	upload := s.upload
	s.mu.Unlock()
	// Deadlines that have passed wake whoever is inside. They cannot fail.
	_ = s.inner.SetDeadline(time.Unix(1, 0))
	if upload != nil {
		upload.abandon()
	}
	if !s.trunk.spawn(s.bury) {
		s.drop()
	}
	return nil
}

// bury tells the peer. That may block, until the session ends.
func (s *stream) bury() {
	stuck := time.AfterFunc(stuckGrace, func() {
		s.trunk.end(lostError("close stream", errors.New("the peer takes nothing")))
	})
	s.users.Wait()
	stuck.Stop()
	// Their errors say that the peer, or the link, was faster.
	_ = s.inner.CloseWrite()
	_ = s.inner.Reset()
	s.drop()
}

// drop takes the stream out of the account.
func (s *stream) drop() {
	s.trunk.guard.forget(s.inner.StreamID())
	s.trunk.mu.Lock()
	delete(s.trunk.streams, s)
	s.trunk.mu.Unlock()
	if s.release != nil {
		s.release()
	}
}

// abandon is called at the link's end.
func (s *stream) abandon() {
	s.mu.Lock()
	upload := s.upload
	s.mu.Unlock()
	if upload != nil {
		upload.abandon()
	}
}

// explain turns errors of the multiplexer into those of a net.Conn, and an error
// after the link's end into the link's own.
func (s *stream) explain(err error) error {
	if err == nil {
		return nil
	}
	if !errors.Is(err, io.EOF) && s.inner.Session().IsClosed() {
		// The end of the link is under way and knows the reason.
		<-s.trunk.done
	}
	if ended := s.trunk.endError("use stream"); ended != nil {
		return ended
	}
	if errors.Is(err, yamux.ErrTimeout) || errors.Is(err, net.ErrClosed) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			return net.ErrClosed
		}
		return os.ErrDeadlineExceeded
	}
	if lost(err) {
		s.mu.Lock()
		s.broken = true
		s.mu.Unlock()
	}
	return err
}

// isBroken tells whether the peer's end was seen to be gone.
func (s *stream) isBroken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// LocalAddr and RemoteAddr name the link.
func (s *stream) LocalAddr() net.Addr  { return addr("mux") }
func (s *stream) RemoteAddr() net.Addr { return addr("mux") }

// SetDeadline, SetReadDeadline and SetWriteDeadline are those of net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	return s.deadline(t, s.inner.SetDeadline)
}

// SetReadDeadline is that of net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error { return s.deadline(t, s.inner.SetReadDeadline) }

// SetWriteDeadline is that of net.Conn.
func (s *stream) SetWriteDeadline(t time.Time) error { return s.deadline(t, s.inner.SetWriteDeadline) }

// deadline sets one, unless Close has set the last.
func (s *stream) deadline(t time.Time, set func(time.Time) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	return set(t)
}

// pass is a stream on its way from the goroutine that opens it.
type pass struct {
	stream *stream
	err    error
}

// dial opens a stream. The multiplexer loses what it needs for a stream whose
// opening is cancelled, so that it is never cancelled, but left to a goroutine;
// release is called once it is over.
func (t *trunk) dial(ctx context.Context, release func()) (*stream, error) {
	const op = "open stream"
	ready := make(chan pass)
	opening := t.spawn(func() {
		// It ends with the session at the latest.
		inner, err := t.session.OpenStream(context.WithoutCancel(ctx))
		p := pass{err: err}
		if err == nil {
			var ok bool
			if p.stream, ok = t.adopt(inner, release); !ok {
				p = pass{err: t.endError(op)}
			}
		}
		if p.err != nil {
			release()
		}
		select {
		case ready <- p:
		case <-ctx.Done():
			if p.stream != nil {
				_ = p.stream.Close()
			}
		}
	})
	if !opening {
		release()
		return nil, t.endError(op)
	}
	select {
	case p := <-ready:
		if p.err != nil && t.session.IsClosed() {
			<-t.done
			return nil, t.endError(op)
		}
		return p.stream, p.err
	case <-ctx.Done():
		return nil, contextError(ctx, op)
	}
}
