package fdpass

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

const (
	// copySize is the size of the writes of a bulk body: fewer, larger system
	// calls are what makes a unix socket fast.
	copySize = 256 << 10
	// lostGrace is how long the end of a handed-over stream waits to see whether
	// the whole guest has ended. A dying guest's sockets close one by one, its
	// control socket perhaps last.
	lostGrace = 20 * time.Millisecond
	// maxHeaderBytes bounds a response's header, with what was read behind it.
	maxHeaderBytes = 64 << 10
	// unlimited is the room where no header is being read.
	unlimited = -1
	// bufferSize is that of a stream's buffers. Larger reads and writes go past
	// them.
	bufferSize = 16 << 10
	// guestBuffer is how much the guest may send ahead where the kernel allows it:
	// room for a whole message of output, so that it reads on while the host does.
	guestBuffer = 1 << 20
)

// stream is the host's end of one stream, as a net.Conn with CloseWrite.
type stream struct {
	inner *net.UnixConn
	link  *Link
	raw   syscall.RawConn
	// buffered reads the responses through limited; room is what is left for
	// the header. Both belong to the request that has the stream.
	buffered *bufio.Reader
	room     int
	// broken is set when the guest's end was seen to be gone.
	broken  atomic.Bool
	closing sync.Once

	// The link's lock guards the rest. detached is set once the stream belongs to
	// the caller of an upgrade; released then gives its slot back. upload sends
	// the present request, if that needs a goroutine.
	detached  bool
	released  func()
	upload    *upload
	idleSince time.Time
}

var _ net.Conn = (*stream)(nil)

// dial makes a stream.
func (l *Link) dial(ctx context.Context, tag byte) (*stream, error) {
	const op = "open stream"
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, wrapSystem(op, err)
	}
	// A kernel with a lower limit takes that; the queue is charged to the sender.
	_ = unix.SetsockoptInt(fds[1], unix.SOL_SOCKET, unix.SO_SNDBUF, guestBuffer)
	s := &stream{link: l, room: unlimited}
	s.buffered = bufio.NewReaderSize(limited{s}, bufferSize)
	s.inner, err = openConn(fds[0], "fdpass-stream")
	if err == nil {
		s.raw, err = s.inner.SyscallConn()
	}
	if err == nil {
		err = l.send(ctx, tag, fds[1])
	}
	// The guest's copy is in flight, or the stream is not wanted.
	err = errors.Join(err, unix.Close(fds[1]))
	if err == nil && !l.begin(func() { l.streams[s] = struct{}{} }) {
		err = l.endError(op)
	}
	if err == nil {
		return s, nil
	}
	if s.inner != nil {
		err = errors.Join(err, s.inner.Close())
	}
	return nil, wrapSystem(op, err)
}

// send hands one stream over. A guest that does not take it blocks the sender
// until the context ends or SendTimeout has passed.
func (l *Link) send(ctx context.Context, tag byte, fd int) error {
	const op = "open stream"
	data, oob := encode(tag, nil, fd)
	raw, err := l.control.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach control socket: %w", err)
	}
	// Nearly always there is room; then no deadline is needed.
	var sendErr error
	if err := raw.Control(func(control uintptr) {
		sendErr = unix.Sendmsg(int(control), data, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}); err != nil {
		return fmt.Errorf("use control socket: %w", err)
	}
	if !errors.Is(sendErr, unix.EAGAIN) && !errors.Is(sendErr, unix.EINTR) {
		return sendErr
	}
	wait := l.sendTimeout
	if defence.LinkSendTimeout.Off() {
		wait = time.Hour
	}
	timeout, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	select {
	case l.sending <- struct{}{}:
		defer func() { <-l.sending }()
	case <-timeout.Done():
		return contextError(timeout, op)
	}
	if err := l.control.SetWriteDeadline(time.Time{}); err != nil {
		return fmt.Errorf("use control socket: %w", err)
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(timeout, func() {
		defer close(woken)
		// It fails only on a closed socket, which wakes the writer as well.
		_ = l.control.SetWriteDeadline(time.Unix(1, 0))
	})
	_, _, err = l.control.WriteMsgUnix(data, oob, nil)
	if !stop() {
		<-woken
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return contextError(timeout, op)
	}
	return err
}

// Read reads; io.EOF is the guest's CloseWrite. After the link's end it gives
// the link's error.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.inner.Read(p)
	return n, s.explain(err)
}

// limited is the stream as the reader of responses sees it.
type limited struct{ *stream }

// Read reads as much of a header as may come.
func (l limited) Read(p []byte) (int, error) {
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

// Write writes all of p.
func (s *stream) Write(p []byte) (int, error) {
	n, err := s.inner.Write(p)
	return n, s.explain(err)
}

// ReadFrom copies r in large writes; net/http uses it for bodies.
func (s *stream) ReadFrom(r io.Reader) (int64, error) {
	buffer, ok := s.link.buffers.Get().(*[copySize]byte)
	if !ok {
		buffer = new([copySize]byte)
	}
	defer s.link.buffers.Put(buffer)
	var total int64
	for {
		n, err := r.Read(buffer[:])
		if n > 0 {
			written, writeErr := s.Write(buffer[:n])
			total += int64(written)
			if writeErr != nil {
				return total, writeErr
			}
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// CloseWrite ends the host's direction; the guest reads io.EOF.
func (s *stream) CloseWrite() error {
	return s.explain(s.inner.CloseWrite())
}

// Close resets the stream: the guest's blocked writers fail at once. A second
// call returns nil.
func (s *stream) Close() error {
	var err error
	s.closing.Do(func() {
		err = s.inner.Close()
		s.link.mu.Lock()
		delete(s.link.streams, s)
		released, upload := s.released, s.upload
		s.link.mu.Unlock()
		if released != nil {
			released()
		}
		if upload != nil {
			// Whoever should end the request may have left its response alone.
			upload.abandon()
		}
	})
	if errors.Is(err, net.ErrClosed) {
		// The link's end was faster.
		return nil
	}
	return err
}

// explain turns an error after the link's end into the link's own.
func (s *stream) explain(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	gone := lost(err)
	if gone {
		s.broken.Store(true)
	}
	if ended := s.link.endError("use stream"); ended != nil {
		return ended
	}
	if gone && s.isDetached() && s.hungUp() {
		grace := time.NewTimer(lostGrace)
		defer grace.Stop()
		select {
		case <-s.link.done:
			return s.link.endError("use stream")
		case <-grace.C:
		}
	}
	return err
}

func (s *stream) isDetached() bool {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.detached
}

// hungUp tells whether the guest's end is closed altogether, or may be, because
// our own direction is shut and the kernel cannot tell.
func (s *stream) hungUp() bool { return s.events()&unix.POLLHUP != 0 }

// silent tells whether the guest's end is open and has sent nothing.
func (s *stream) silent() bool { return s.events() == 0 }

// events are those of poll(2) that there are now.
func (s *stream) events() int16 {
	poll := []unix.PollFd{{Events: unix.POLLIN}}
	err := s.raw.Control(func(fd uintptr) {
		poll[0].Fd = int32(fd)
		// Without a time to wait there is nothing to interrupt or retry.
		_, _ = unix.Poll(poll, 0)
	})
	if err != nil {
		return unix.POLLNVAL
	}
	return poll[0].Revents
}

// LocalAddr and RemoteAddr are those of unnamed unix sockets.
func (s *stream) LocalAddr() net.Addr  { return s.inner.LocalAddr() }
func (s *stream) RemoteAddr() net.Addr { return s.inner.RemoteAddr() }

// SetDeadline, SetReadDeadline and SetWriteDeadline are those of net.Conn.
func (s *stream) SetDeadline(t time.Time) error      { return s.explain(s.inner.SetDeadline(t)) }
func (s *stream) SetReadDeadline(t time.Time) error  { return s.explain(s.inner.SetReadDeadline(t)) }
func (s *stream) SetWriteDeadline(t time.Time) error { return s.explain(s.inner.SetWriteDeadline(t)) }
