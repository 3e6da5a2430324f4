package agent

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// readSize is one read of a command's output, and the size of its pipes
	// where the kernel allows it: the throughput of the link hangs on it.
	readSize = 512 << 10
	// defaultPipe is a pipe's size when nobody asked for another.
	defaultPipe = 64 << 10
	// smallChunk is copied out of the read buffer instead of holding it.
	smallChunk = 8 << 10
	// quiet is how long after the leader's end an open pipe has to be silent to
	// be given up, drainTime how long it may go on at most.
	quiet     = 50 * time.Millisecond
	drainTime = 250 * time.Millisecond
)

// chunk is a piece of output on its way to the subscribers. The last of them
// gives the buffer back.
type chunk struct {
	stream int
	data   []byte
	// offset is where in its stream the data begins, where that is counted.
	offset uint64
	whole  *[readSize]byte
	refs   *atomic.Int32
}

// buffers lends read buffers.
type buffers struct{ pool sync.Pool }

func (b *buffers) get() *[readSize]byte {
	if buf, ok := b.pool.Get().(*[readSize]byte); ok {
		return buf
	}
	return new([readSize]byte)
}

// release drops one reference.
func (b *buffers) release(c chunk) {
	if c.whole != nil && c.refs.Add(-1) == 0 {
		b.pool.Put(c.whole)
	}
}

// output reads one of a command's pipes to its end.
type output struct {
	stream  int
	file    *os.File
	buffers *buffers
	deliver func(chunk)

	// leaderEnded is closed by the process when its leader has ended.
	leaderEnded <-chan struct{}
	// settled is closed when all of the leader's own output was delivered, done
	// when the pipe's end was reached.
	settled    chan struct{}
	done       chan struct{}
	incomplete bool

	enlarged bool
	total    int64
	capacity int
	drained  int
	deadline time.Time
}

// run owns the pipe. It never stops reading before the end of the pipe: what a
// child writes after its leader's end is thrown away, so that it neither blocks
// nor dies of SIGPIPE.
func (o *output) run() {
	defer close(o.done)
	defer o.file.Close()
	o.capacity = defaultPipe
	raw, err := o.file.SyscallConn()
	if err != nil {
		close(o.settled)
		return
	}
	o.incomplete = o.relay(raw)
	close(o.settled)
	if o.incomplete {
		_ = o.file.SetReadDeadline(time.Time{})
		for {
			c, err := o.read(raw.Read)
			if err != nil {
				return
			}
			o.discard(c)
		}
	}
}

// relay delivers until the pipe's end, or until the leader has ended and what
// it wrote is through. It reports whether a child still holds the pipe.
func (o *output) relay(raw syscall.RawConn) (incomplete bool) {
	for {
		o.aim()
		c, err := o.read(raw.Read)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// The time is up, but perhaps nobody has looked into the pipe since
			// the leader's end: only an empty pipe is silent.
			if c, err = o.read(look(raw)); errors.Is(err, unix.EAGAIN) {
				return true
			}
		}
		if err != nil {
			return false
		}
		n := len(c.data)
		o.deliver(c)
		if o.overdue(n) {
			return true
		}
	}
}

// look is raw.Read without waiting and without a deadline.
func look(raw syscall.RawConn) func(func(uintptr) bool) error {
	return func(read func(uintptr) bool) error {
		empty := false
		err := raw.Control(func(fd uintptr) { empty = !read(fd) })
		if empty {
			return unix.EAGAIN
		}
		return err
	}
}

// wake ends a blocked read soon after the leader's end. The process calls it
// after it has closed leaderEnded.
func (o *output) wake() { _ = o.file.SetReadDeadline(time.Now().Add(quiet)) }

// isSettled is true when there is nothing to wake.
func (o *output) isSettled() bool {
	select {
	case <-o.settled:
		return true
	default:
		return false
	}
}

// ended is true after the leader's end.
func (o *output) ended() bool {
	select {
	case <-o.leaderEnded:
		return true
	default:
		return false
	}
}

// aim gives the next read its deadline once the leader has ended.
func (o *output) aim() {
	if !o.ended() {
		return
	}
	if o.deadline.IsZero() {
		o.deadline = time.Now().Add(drainTime)
	}
	_ = o.file.SetReadDeadline(time.Now().Add(quiet))
}

// overdue is true when a child goes on writing after the drain's time. The pipe
// is first in, first out: what the leader wrote is within its capacity.
func (o *output) overdue(n int) bool {
	if o.deadline.IsZero() {
		return false
	}
	o.drained += n
	return o.drained >= o.capacity && time.Now().After(o.deadline)
}

// read takes the buffer only when there is something to read: an idle command
// holds none. wait is the connection's Read, or look.
func (o *output) read(wait func(func(fd uintptr) bool) error) (chunk, error) {
	var (
		buf *[readSize]byte
		n   int
		err error
	)
	waitErr := wait(func(fd uintptr) bool {
		buf = o.buffers.get()
		n, err = unix.Read(int(fd), buf[:])
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Read(int(fd), buf[:])
		}
		if errors.Is(err, unix.EAGAIN) {
			o.buffers.pool.Put(buf)
			buf = nil
			return false
		}
		if o.total += int64(max(n, 0)); o.total >= defaultPipe && !o.enlarged {
			o.enlarge(int(fd))
		}
		return true
	})
	if waitErr != nil || err != nil || n <= 0 {
		if buf != nil {
			o.buffers.pool.Put(buf)
		}
		return chunk{}, cmp.Or(waitErr, err, errPipeEnd)
	}
	c := chunk{stream: o.stream, data: buf[:n], whole: buf, refs: new(atomic.Int32)}
	if n <= smallChunk {
		c.data, c.whole = append([]byte(nil), buf[:n]...), nil
		o.buffers.pool.Put(buf)
	}
	return c, nil
}

// errPipeEnd ends a reader.
var errPipeEnd = errors.New("end of the pipe")

// enlarge raises the pipe's size for a command that writes much. A refusal (the
// user's share of pipe memory is used up) changes nothing.
func (o *output) enlarge(fd int) {
	o.enlarged = true
	if size, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, readSize); err == nil {
		o.capacity = size
	}
}

func (o *output) discard(c chunk) {
	if c.whole != nil {
		o.buffers.pool.Put(c.whole)
	}
}

// pollable makes a file of our end of a pipe, or of a pidfd, on which reads and
// writes wait in the runtime's poller and obey deadlines.
func pollable(fd int, name string) (*os.File, error) {
	// Neither kind has another flag that F_SETFL could lose.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_NONBLOCK); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("prepare a descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
