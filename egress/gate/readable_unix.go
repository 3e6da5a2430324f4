//go:build unix

package gate

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

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
