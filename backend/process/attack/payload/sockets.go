//go:build linux

package main

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func socketFamily() map[string]attack {
	return map[string]attack{"families": addressFamilies, "netlink": netlink, "inet": inet, "connect": connect, "bind": bind, "interfaces": interfaces}
}

// highs are bits above those of an int, which the kernel does not look at.
func highs() []uintptr { return []uintptr{0, 1 << 32, 1 << 63, 0xffffffff << 32} }

// addressFamilies makes sockets of every family that a sandbox must not have.
func addressFamilies(r *report, _ []string) error {
	allowed := []uintptr{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}
	for family := uintptr(0); family <= 48; family++ {
		if slices.Contains(allowed, family) {
			continue
		}
		for _, high := range highs() {
			for _, kind := range []uintptr{1, 2, 3, 4, 5, 10} {
				name := fmt.Sprintf("%d %#x type %d", family, high, kind)
				r.socket("socket "+name, family|high, kind, 0)
				r.call("socketpair "+name, unix.SYS_SOCKETPAIR, family|high, kind, 0, r.memory(make([]byte, 8)))
			}
		}
	}
	r.socket("control socket unix", unix.AF_UNIX, unix.SOCK_STREAM, 0)
	r.socket("control socket unix high", unix.AF_UNIX|1<<32, unix.SOCK_STREAM, 0)
	r.socket("control socket inet", unix.AF_INET, unix.SOCK_DGRAM, 0)
	r.socket("control socket inet6", unix.AF_INET6, unix.SOCK_STREAM, 0)
	_, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	r.add("control socketpair", err)
	return nil
}

// socket makes one socket and closes it.
func (r *report) socket(name string, family, kind, protocol uintptr) {
	if fd := r.call(name, unix.SYS_SOCKET, family, kind|unix.SOCK_CLOEXEC, protocol); fd != 0 {
		_ = unix.Close(int(fd))
	}
}

// netlink makes sockets of every netlink protocol but that for routes.
func netlink(r *report, _ []string) error {
	for protocol := uintptr(1); protocol < 40; protocol++ {
		for _, high := range highs() {
			for _, kind := range []uintptr{unix.SOCK_RAW, unix.SOCK_DGRAM} {
				name := fmt.Sprintf("netlink %d %#x type %d", protocol, high, kind)
				r.socket(name, unix.AF_NETLINK, kind, protocol|high)
				r.socket(name+" family high", unix.AF_NETLINK|high, kind|high, protocol)
			}
		}
	}
	r.socket("control netlink route", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	r.socket("control netlink route high", unix.AF_NETLINK|1<<32, unix.SOCK_RAW|1<<32, unix.NETLINK_ROUTE|1<<32)
	return nil
}

// inet makes the sockets of the allowed families that are for root, or for
// protocols of their own.
func inet(r *report, _ []string) error {
	for name, family := range map[string]uintptr{"inet": unix.AF_INET, "inet6": unix.AF_INET6} {
		for protocol := uintptr(0); protocol < 256; protocol++ {
			r.socket(fmt.Sprintf("%s raw %d", name, protocol), family, unix.SOCK_RAW, protocol)
		}
		for _, protocol := range []uintptr{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6, unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_L2TP, 256} {
			for _, kind := range []uintptr{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET, unix.SOCK_DCCP} {
				r.socket(fmt.Sprintf("%s type %d protocol %d", name, kind, protocol), family, kind, protocol)
			}
		}
		r.socket(name+" packet", family, unix.SOCK_PACKET, 0)
	}
	return nil
}

// connect connects to each argument ("tcp 127.0.0.1:80"), sends a byte, and waits
// for an answer.
func connect(r *report, args []string) error {
	for _, arg := range args {
		network, address, _ := strings.Cut(arg, " ")
		r.add(arg, exchange(network, address))
	}
	return nil
}

func exchange(network, address string) error {
	conn, err := net.DialTimeout(network, address, time.Second) //nolint:forbid // bounded
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{'x'}); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// bind takes the names of its arguments.
func bind(r *report, args []string) error {
	for _, name := range args {
		l, err := net.Listen("unix", name) //nolint:forbid // at once
		if err != nil {
			return err
		}
		r.add("bind "+name, l.Close())
	}
	return nil
}

// interfaces lists the interfaces and tries to make and to change some.
func interfaces(r *report, _ []string) error {
	all, err := net.Interfaces()
	r.add("control list", err)
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 {
			r.add("interface "+i.Name, nil)
		}
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request := func(name string) uintptr { return r.memory(append([]byte(name), make([]byte, 40)...)) }
	for name, number := range map[string]uintptr{
		"SIOCSIFFLAGS": unix.SIOCSIFFLAGS, "SIOCSIFADDR": unix.SIOCSIFADDR, "SIOCADDRT": unix.SIOCADDRT, "SIOCSIFNAME": unix.SIOCSIFNAME,
		"SIOCSIFMTU": unix.SIOCSIFMTU,
	} {
		r.call(name, unix.SYS_IOCTL, uintptr(fd), number, request("lo"))
	}
	r.call("SIOCBRADDBR", unix.SYS_IOCTL, uintptr(fd), 0x89a0, request("br0"))
	for _, device := range []string{"/dev/net/tun", "/dev/vhost-net", "/dev/vhost-vsock", "/dev/vsock", "/dev/kvm", "/dev/fuse", "/dev/mem"} {
		_, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
		r.add("open "+device, err)
	}
	r.add("RTM_NEWADDR", newAddress())
	return nil
}

// newAddress gives the loopback interface an address by a route message.
func newAddress() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	message := []byte{
		32, 0, 0, 0, unix.RTM_NEWADDR, 0, 5, 6, 1, 0, 0, 0, 0, 0, 0, 0, // header: request, ack, create, exclusive
		unix.AF_INET, 8, 0, 0, 1, 0, 0, 0, // of interface 1
		8, 0, unix.IFA_LOCAL, 0, 127, 9, 9, 9,
	}
	if err := unix.Sendto(fd, message, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil || n < 20 {
		return fmt.Errorf("no answer of %d bytes: %w", n, err)
	}
	// The acknowledgement holds the negative error number behind its header.
	if code := int32(uint32(answer[16]) | uint32(answer[17])<<8 | uint32(answer[18])<<16 | uint32(answer[19])<<24); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
