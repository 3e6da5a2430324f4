// Package fdpass is the link between a host and an agent on the same kernel.
// One control socket (SOCK_SEQPACKET) joins them. For every stream the host
// makes a pair of stream sockets and sends one end over the control socket, so
// that each stream is a kernel socket and there is no multiplexer.
//
// The conversation on the control socket is fixed: the host sends one boot
// packet; the guest answers with one hello, which may carry a listening socket
// for the streams that the inside opens; from then on the host only sends
// packets of one byte, the plane, with exactly one stream socket, and the guest
// sends nothing. After the hello the host reads the socket without room for
// descriptors, so the guest cannot plant any.
//
// Neither side trusts the other's bytes: each queue is bounded, each send has a
// deadline, and what breaks the protocol ends the link.
package fdpass

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
)

// Pair makes a control socket. Both ends are close-on-exec; the caller gives
// one to New and the other to the guest's process. Errors: Exhausted where the
// process or the host is out of descriptors, else Internal.
func Pair() (host, guest *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, wrapSystem("make control socket", err)
	}
	return os.NewFile(uintptr(fds[0]), "fdpass-host"), os.NewFile(uintptr(fds[1]), "fdpass-guest"), nil
}

// wrapSystem gives an error of a system call its kind: Exhausted for what is
// used up, TransportLost for a peer that is gone, else Internal.
func wrapSystem(op string, err error) error {
	switch {
	case exhausted(err):
		return errdefs.Wrap(errdefs.Exhausted, op, err)
	case lost(err):
		return lostError(op, err)
	default:
		return errdefs.Wrap(errdefs.Internal, op, err)
	}
}

// protocolError says how the peer broke the protocol.
func protocolError(op, format string, args ...any) error {
	return errdefs.New(errdefs.Protocol, op, fmt.Sprintf(format, args...))
}
