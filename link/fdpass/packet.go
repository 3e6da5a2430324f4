package fdpass

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/defence"
)

// The first byte of each packet says what it is.
const (
	tagBoot    = 'b'
	tagHello   = 'h'
	tagData    = 'd'
	tagControl = 'c'
)

// maxFiles bounds the descriptors of the boot packet.
const maxFiles = 16

// packet is one received message. Its descriptors belong to whoever holds it.
type packet struct {
	data []byte
	fds  []int
	// short: the packet had more bytes than the reader asked for. starved: it
	// had more descriptors than the reader had room for, or than this process
	// may still open.
	short, starved bool
}

// drop closes the packet's descriptors.
func (p *packet) drop() {
	for _, fd := range p.fds {
		if defence.LinkDescriptorsClosed.Off() {
			break
		}
		// The descriptor is unwanted; there is nothing to do about a failure.
		_ = unix.Close(fd)
	}
	p.fds = nil
}

// receive reads one packet with room for size bytes and files descriptors. The
// caller owns the descriptors unless there is an error. A packet without bytes
// reads as the end of the stream, with io.EOF, like the end itself.
func receive(conn *net.UnixConn, size, files int) (packet, error) {
	data := make([]byte, size)
	oob := make([]byte, unix.CmsgSpace(4*files))
	// Go receives with MSG_CMSG_CLOEXEC, so that no descriptor can slip into a
	// child that is started at the same moment.
	n, oobn, flags, _, err := conn.ReadMsgUnix(data, oob)
	p, parseErr := parsePacket(data[:max(n, 0)], oob[:max(oobn, 0)], flags)
	if err = errors.Join(err, parseErr); err != nil {
		p.drop()
		return packet{}, err
	}
	return p, nil
}

// parsePacket takes a message apart. The packet holds every descriptor that was
// found, also beside an error, so that none can leak.
func parsePacket(data, oob []byte, flags int) (packet, error) {
	p := packet{
		data:    data,
		short:   flags&unix.MSG_TRUNC != 0,
		starved: flags&unix.MSG_CTRUNC != 0,
	}
	var faults []error
	for len(oob) >= unix.CmsgLen(0) {
		header, body, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return p, errors.Join(append(faults, fmt.Errorf("parse control message: %w", err))...)
		}
		if header.Level != unix.SOL_SOCKET || header.Type != unix.SCM_RIGHTS {
			faults = append(faults, fmt.Errorf("control message of level %d type %d", header.Level, header.Type))
		} else if len(body)%4 != 0 {
			faults = append(faults, errors.New("control message ends within a descriptor"))
		}
		if header.Level == unix.SOL_SOCKET && header.Type == unix.SCM_RIGHTS {
			// Not ParseUnixRights, which panics on such an end.
			for ; len(body) >= 4; body = body[4:] {
				p.fds = append(p.fds, int(int32(binary.NativeEndian.Uint32(body))))
			}
		}
		oob = rest
	}
	// The kernel gives none; -1 means something else here.
	if slices.ContainsFunc(p.fds, func(fd int) bool { return fd < 0 }) {
		faults = append(faults, errors.New("negative descriptor"))
	}
	return p, errors.Join(faults...)
}

// encode gives the bytes and the control message that receive takes apart.
func encode(tag byte, payload []byte, fds ...int) (data, oob []byte) {
	data = append([]byte{tag}, payload...)
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	return data, oob
}

// bootPayload checks a boot packet.
func (p *packet) bootPayload() ([]byte, error) {
	switch {
	case defence.LinkBootPacket.Off() && len(p.data) > 0:
	case p.short || len(p.data) > 1+boot.MaxBytes:
		return nil, protocolError("read boot packet", "more than %d bytes", boot.MaxBytes)
	case p.starved || len(p.fds) > maxFiles:
		return nil, protocolError("read boot packet", "more than %d descriptors", maxFiles)
	case len(p.data) < 1 || p.data[0] != tagBoot:
		return nil, protocolError("read boot packet", "the first packet is of another type")
	}
	return p.data[1:], nil
}

// helloListener checks a hello and gives its descriptor, or -1.
func (p *packet) helloListener() (int, error) {
	switch {
	case (p.short || len(p.data) != 1 || p.data[0] != tagHello) && !defence.LinkHello.Off():
		return -1, protocolError("read hello", "the first packet is not a hello")
	case (p.starved || len(p.fds) > 1) && !defence.LinkHelloDescriptors.Off():
		return -1, protocolError("read hello", "more than one descriptor")
	case len(p.fds) == 0:
		return -1, nil
	}
	return p.fds[0], nil
}

// stream checks a packet of the host after the hello and gives its plane and
// its descriptor. A descriptor of -1 means that this process could not open
// one more; the stream is then refused, the packet itself was in order.
func (p *packet) stream() (tag byte, fd int, err error) {
	known := len(p.data) == 1 && !p.short && (p.data[0] == tagData || p.data[0] == tagControl)
	if !known && (!defence.LinkStreamPacket.Off() || len(p.data) == 0) {
		return 0, -1, protocolError("read stream packet", "neither a data nor a control stream")
	}
	switch {
	case len(p.fds) == 0 && p.starved:
		return p.data[0], -1, nil
	case (len(p.fds) != 1 || p.starved) && (!defence.LinkStreamDescriptors.Off() || len(p.fds) == 0):
		return 0, -1, protocolError("read stream packet", "not exactly one descriptor")
	}
	return p.data[0], p.fds[0], nil
}
