package fdpass

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
)

// exhausted tells whether err says that descriptors or memory are used up. The
// kernel answers ETOOMANYREFS when too many descriptors are in flight.
func exhausted(err error) bool {
	for _, errno := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM, unix.ETOOMANYREFS} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// lost tells whether err says that the other end of a socket is gone.
func lost(err error) bool {
	for _, gone := range []error{io.EOF, io.ErrUnexpectedEOF, unix.EPIPE, unix.ECONNRESET, unix.ENOTCONN} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// contextError gives the error of a context that is done a kind, and stays
// recognisable as the context's own.
func contextError(ctx context.Context, op string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &errdefs.Error{Kind: errdefs.Timeout, Op: op, Err: ctx.Err()}
	}
	return &errdefs.Error{Kind: errdefs.Cancelled, Op: op, Err: ctx.Err()}
}

// lostError is a TransportLost error. It never matches io.EOF, which a reader
// of a body would take for the body's end.
func lostError(op string, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return errdefs.Wrap(errdefs.TransportLost, op, err)
}
