package fdpass

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"
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
