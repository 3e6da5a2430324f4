package gate

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

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
