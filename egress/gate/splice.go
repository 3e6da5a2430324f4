package gate

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/egress"
)

// splice carries bytes both ways until both directions have ended, one has broken
// or the flow was stopped. It returns after both copies have.
func (g *Gate) splice(f *flow, conn *tunnelConn, up net.Conn) (egress.Reason, error) {
	n, err := up.Write(conn.prefix)
	f.count(&f.sent, n)
	if err != nil {
		return f.stopped(egress.ReasonUpstream), err
	}
	conn.prefix = nil
	out := make(chan error, 1)
	// Waited for below, whatever happens.
	go func() { out <- g.pump(f, up, conn, &f.sent) }()
	in := g.pump(f, conn, up, &f.received)
	return f.stopped(egress.ReasonDone), errors.Join(in, <-out)
}

// pump copies one direction and then ends it, so that the other side sees the end
// and can still answer. A copy that failed breaks both directions off.
func (g *Gate) pump(f *flow, dst, src net.Conn, count *atomic.Int64) error {
	err := g.copy(f, dst, src, count)
	half, ok := dst.(interface{ CloseWrite() error })
	if err == nil && ok && half.CloseWrite() == nil {
		return nil
	}
	_ = dst.Close()
	_ = src.Close()
	return err
}

// copy moves bytes as they come. Between pieces it waits without a buffer and
// without the pipe that splice(2) needs, because most tunnels are idle.
func (g *Gate) copy(f *flow, dst, src net.Conn, count *atomic.Int64) error {
	const piece = 4 << 20
	// What moved is known when a copy returns.
	pause := min(time.Second, g.config.Timeouts.Flow/4)
	from, to := base(src), base(dst)
	for {
		if err := waitReadable(from, g.config.Timeouts.Flow); err != nil {
			return err
		}
		if err := from.SetReadDeadline(time.Now().Add(pause)); err != nil {
			return err
		}
		limited := &io.LimitedReader{R: from, N: piece}
		n, err := io.Copy(to, limited)
		f.count(count, int(n))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return err
		case limited.N > 0:
			return nil
		}
	}
}

// base finds the connection beneath wrappers, so that the kernel can copy.
func base(c net.Conn) net.Conn {
	for {
		switch w := c.(type) {
		case *tls.Conn:
			return c
		case *tunnelConn:
			c = w.Conn
		case interface{ NetConn() net.Conn }:
			c = w.NetConn()
		default:
			return c
		}
	}
}

// waitReadable waits until there is something to read, the end included. A
// connection that is no socket is just read. The janitor breaks off what is idle
// for longer than it may be.
func waitReadable(c net.Conn, limit time.Duration) error {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	// Twice the limit: the flow may be alive in its other direction.
	if err := c.SetReadDeadline(time.Now().Add(2 * limit)); err != nil {
		return err
	}
	for {
		err = raw.Read(func(fd uintptr) bool {
			var b [1]byte
			_, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
		})
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(2 * limit)); err != nil {
			return err
		}
	}
}
