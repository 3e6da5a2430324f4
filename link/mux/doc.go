// Package mux is the link over one stream of bytes: the standard streams of a
// program started in a container, vsock, virtio-serial, a relay. Many streams
// share it, by the yamux protocol.
//
// The conversation begins with a preface: the host sends a nonce; the guest
// answers with a nonce of its own and a proof of the sandbox's key; the host
// sends its proof and the boot payload; the guest says hello with one byte once
// it serves. From then on there are yamux frames. Each stream begins with one
// byte that names its plane. The host opens streams of the data and the control
// plane; the guest opens streams for egress, and no others.
//
// Neither side trusts the other's bytes. A guard reads the header of each frame
// before the multiplexer does, refuses what no honest peer sends, and stops
// reading while too much waits to be read.
package mux

import (
	"errors"
	"io"

	"github.com/libp2p/go-yamux/v5"
)

// The first byte of a stream names its plane.
const (
	tagData    = 'd'
	tagControl = 'c'
	tagEgress  = 'e'
)

// lost tells whether err says that the other end of a stream is gone.
func lost(err error) bool {
	for _, gone := range []error{io.EOF, io.ErrUnexpectedEOF, yamux.ErrStreamReset, yamux.ErrStreamClosed, yamux.ErrSessionShutdown} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}
