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
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/libp2p/go-yamux/v5"

	"github.com/berm-dev/berm/errdefs"
)

// The first byte of a stream names its plane.
const (
	tagData    = 'd'
	tagControl = 'c'
	tagEgress  = 'e'
)

// protocolError says how the peer broke the protocol.
func protocolError(op, format string, args ...any) error {
	return errdefs.New(errdefs.Protocol, op, fmt.Sprintf(format, args...))
}

// contextError gives the error of a context that is done a kind, and stays
// recognisable as the context's own.
func contextError(ctx context.Context, op string) error {
	kind := errdefs.Cancelled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		kind = errdefs.Timeout
	}
	return &errdefs.Error{Kind: kind, Op: op, Err: ctx.Err()}
}

// lost tells whether err says that the other end of a stream is gone.
func lost(err error) bool {
	for _, gone := range []error{io.EOF, io.ErrUnexpectedEOF, yamux.ErrStreamReset, yamux.ErrStreamClosed, yamux.ErrSessionShutdown} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// lostError is a TransportLost error. It never matches io.EOF, which a reader
// of a body would take for the body's end.
func lostError(op string, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return errdefs.Wrap(errdefs.TransportLost, op, err)
}
