//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// moment is how long an attempt waits for an answer.
const moment = 300 * time.Millisecond

// tries counts attempts and writes those that worked.
type tries struct {
	mu sync.Mutex
	n  int
}

func (a *tries) note(what string, worked bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	if worked {
		fmt.Println("out:", what)
	}
}

// out tries to reach its arguments, addresses without ports, by every way around
// the gate. It writes a line for each that worked, and how many it tried.
func out(args []string) error {
	a := &tries{}
	for _, arg := range args {
		for _, port := range []string{"22", "53", "80", "443", "853", "8443"} {
			to := net.JoinHostPort(arg, port)
			conn, err := dial("tcp", to, moment)
			a.note("tcp "+to, err == nil)
			if err == nil {
				_ = conn.Close()
			}
		}
		for _, port := range []string{"53", "123", "443"} {
			to := net.JoinHostPort(arg, port)
			a.note("udp "+to, datagram(to) == nil)
		}
		if addr, err := netip.ParseAddr(arg); err == nil && addr.Zone() == "" {
			a.sockets(addr)
		}
	}
	a.names()
	a.rights()
	fmt.Println("tried", a.n)
	return nil
}

// datagram asks for the root's name servers, and fails where nothing comes back
// and the packet could not even be sent.
func datagram(to string) error {
	conn, err := dial("udp", to, moment)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01")
	return err
}

// sockets tries to send a packet to an address by each kind of socket below, or
// beside, TCP and UDP.
func (a *tries) sockets(addr netip.Addr) {
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: addr.As16(), Port: 80})
	if addr.Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Addr: addr.As4(), Port: 80}
	}
	for name, kind := range map[string][2]int{
		"raw": {unix.SOCK_RAW, unix.IPPROTO_RAW}, "raw icmp": {unix.SOCK_RAW, unix.IPPROTO_ICMP}, "raw tcp": {unix.SOCK_RAW, unix.IPPROTO_TCP},
		"raw icmp6": {unix.SOCK_RAW, unix.IPPROTO_ICMPV6}, "ping": {unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, "ping6": {unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6},
		"sctp": {unix.SOCK_STREAM, unix.IPPROTO_SCTP}, "sctp packets": {unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP}, "mptcp": {unix.SOCK_STREAM, unix.IPPROTO_MPTCP},
		"udplite": {unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE}, "dccp": {unix.SOCK_DCCP, unix.IPPROTO_DCCP}, "fast open": {unix.SOCK_STREAM, unix.IPPROTO_TCP},
	} {
		fd, err := unix.Socket(family, kind[0]|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, kind[1])
		if err != nil {
			a.note(name, false)
			continue
		}
		flags := 0
		if name == "fast open" {
			flags = unix.MSG_FASTOPEN
		}
		err = unix.Sendto(fd, []byte("\x08\x00\xf7\xff\x00\x00\x00\x00"), flags, to)
		if err != nil && kind[0] != unix.SOCK_DGRAM {
			err = unix.Connect(fd, to)
		}
		a.note(name+" to "+addr.String(), err == nil || errors.Is(err, unix.EINPROGRESS))
		_ = unix.Close(fd)
	}
}

// names asks name servers by the machine's own means.
func (a *tries) names() {
	for _, name := range []string{"api.example.com", "pkg.example.org", "metadata.google.internal"} {
		addrs, err := net.LookupHost(name) //nolint:noctx // there is nobody to wait for
		a.note(fmt.Sprintf("a look-up of %s: %v", name, addrs), err == nil)
	}
}

// rights tries to get another network: sockets of other families, devices,
// interfaces, and other namespaces.
func (a *tries) rights() {
	for name, kind := range map[string][3]int{
		"packet": {unix.AF_PACKET, unix.SOCK_RAW, 0x0300}, "packet datagram": {unix.AF_PACKET, unix.SOCK_DGRAM, 0x0300},
		"vsock": {unix.AF_VSOCK, unix.SOCK_STREAM, 0}, "xdp": {unix.AF_XDP, unix.SOCK_RAW, 0}, "tipc": {unix.AF_TIPC, unix.SOCK_STREAM, 0},
		"bluetooth": {unix.AF_BLUETOOTH, unix.SOCK_RAW, 0}, "can": {unix.AF_CAN, unix.SOCK_RAW, 1},
	} {
		fd, err := unix.Socket(kind[0], kind[1]|unix.SOCK_CLOEXEC, kind[2])
		a.note("a socket of "+name, err == nil)
		if err == nil {
			_ = unix.Close(fd)
		}
	}
	for _, name := range []string{"/dev/net/tun", "/dev/vhost-net", "/dev/vsock", "/dev/kvm"} {
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
		a.note(name, err == nil)
		if err == nil {
			_ = unix.Close(fd)
		}
	}
	for name, flag := range map[string]int{"user": unix.CLONE_NEWUSER, "network": unix.CLONE_NEWNET, "both": unix.CLONE_NEWUSER | unix.CLONE_NEWNET} {
		a.note("a new namespace: "+name, unix.Unshare(flag) == nil)
	}
	own, _ := os.Readlink("/proc/self/ns/net")
	entries, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, name := range entries {
		other, err := os.Readlink(name)
		a.note("another network in "+name, err == nil && other != own)
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		a.note("entering "+name, unix.Setns(fd, unix.CLONE_NEWNET) == nil)
		_ = unix.Close(fd)
	}
	a.note("a route", newRoute() == nil)
}

// newRoute asks the kernel for a default route by way of loopback.
func newRoute() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ifreq, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := ifreq.SetInet4Addr([]byte{93, 184, 216, 34}); err != nil {
		return err
	}
	return unix.IoctlIfreq(fd, unix.SIOCSIFADDR, ifreq)
}

// neighbours looks for a gate other than this sandbox's own: behind every port of
// loopback, every Unix socket, and every descriptor of every process. The arguments
// are a host that this sandbox may not reach, and the last port to try. It writes what answers 200 for it,
// and how much there was to ask.
func neighbours(args []string) error {
	last, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	a := &tries{}
	var asking sync.WaitGroup
	places := make(chan string)
	for range 32 {
		asking.Go(func() {
			for to := range places {
				conn, err := dial("tcp", to, limit)
				if err != nil {
					a.note(to, false)
					continue
				}
				fmt.Println("open:", to)
				a.note(to, reaches(conn, args[0]))
			}
		})
	}
	for _, ip := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
		for port := 1; port <= last; port++ {
			places <- net.JoinHostPort(ip, strconv.Itoa(port))
		}
	}
	close(places)
	asking.Wait()
	for _, name := range unixSockets() {
		conn, err := dial("unix", name, limit)
		a.note("socket "+name, err == nil && reaches(conn, args[0]))
	}
	a.descriptors(args[0])
	fmt.Println("tried", a.n)
	return nil
}

// unixSockets lists those that have a name, in any namespace that can be seen.
func unixSockets() (out []string) {
	tables, _ := filepath.Glob("/proc/[0-9]*/net/unix")
	for _, table := range tables {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) == 8 {
				out = append(out, fields[7])
			}
		}
	}
	_ = filepath.WalkDir("/", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // what cannot be read cannot be used
		case entry.IsDir() && (name == "/proc" || name == "/usr"):
			return filepath.SkipDir
		case entry.Type() == fs.ModeSocket:
			out = append(out, name)
		}
		return nil
	})
	return out
}

// descriptors takes the sockets of other processes, where it is let.
func (a *tries) descriptors(host string) {
	entries, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, name := range entries {
		parts := strings.Split(name, "/")
		pid, _ := strconv.Atoi(parts[2])
		number, _ := strconv.Atoi(parts[4])
		if pid == os.Getpid() {
			continue
		}
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			a.note(name, false)
			continue
		}
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		_ = unix.Close(pidfd)
		if err != nil {
			a.note(name, false)
			continue
		}
		conn, err := net.FileConn(os.NewFile(uintptr(fd), name))
		a.note(name, err == nil && reaches(conn, host))
	}
}

// reaches asks whatever is there for a page of a host's.
func reaches(conn net.Conn, host string) bool {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := fmt.Fprintf(conn, "GET http://%s/page HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host, host); err != nil {
		return false
	}
	head := make([]byte, 12)
	_, err := io.ReadFull(conn, head)
	return err == nil && string(head) == "HTTP/1.1 200"
}

// raiseFiles allows as many descriptors as there may be.
func raiseFiles() (uint64, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	l.Cur = l.Max
	return l.Cur, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}
