//go:build !unix

package gate

import (
	"net"
	"time"
)

// waitReadable does nothing where sockets cannot be looked at: a copy waits with
// its buffer.
func waitReadable(net.Conn, time.Duration) error { return nil }
