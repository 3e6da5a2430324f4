package fdpass

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// openConn turns a descriptor into a connection that the runtime polls, and
// consumes the descriptor also when it fails.
func openConn(fd int, name string) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	return fileConn(file)
}

// fileConn opens a connection of its own on file, which stays the caller's.
func fileConn(file *os.File) (*net.UnixConn, error) {
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file.Name(), err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(conn.Close(), fmt.Errorf("open %s: not a unix socket", file.Name()))
	}
	return unixConn, nil
}

// withDescriptors calls use with the descriptors of files. Unlike Fd it leaves
// their blocking mode, which other holders share, as it is.
func withDescriptors(files []*os.File, fds []int, use func(fds []int) error) error {
	if len(files) == 0 {
		return use(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return fmt.Errorf("reach %s: %w", files[0].Name(), err)
	}
	var useErr error
	err = raw.Control(func(fd uintptr) { useErr = withDescriptors(files[1:], append(fds, int(fd)), use) })
	return errors.Join(err, useErr)
}

// openControl takes over a control socket. file stays the caller's.
func openControl(file *os.File) (*net.UnixConn, error) {
	conn, err := fileConn(file)
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		var checkErr error
		err = raw.Control(func(fd uintptr) { checkErr = checkControl(int(fd)) })
		err = errors.Join(err, checkErr)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", file.Name(), err), conn.Close())
	}
	return conn, nil
}

// option is one wanted value of a socket option.
type option struct {
	name  string
	id    int
	value int
}

// checkOptions compares options of the socket level.
func checkOptions(fd int, wanted ...option) error {
	for _, o := range wanted {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o.id)
		if err != nil {
			return fmt.Errorf("not a socket: %w", err)
		}
		if got != o.value {
			return fmt.Errorf("socket %s is %d, not %d", o.name, got, o.value)
		}
	}
	return nil
}

// checkControl tells whether fd is a connected control socket.
func checkControl(fd int) error {
	if defence.LinkControlSocket.Off() {
		return nil
	}
	return checkOptions(fd,
		option{"domain", unix.SO_DOMAIN, unix.AF_UNIX},
		option{"type", unix.SO_TYPE, unix.SOCK_SEQPACKET},
		option{"listening state", unix.SO_ACCEPTCONN, 0})
}

// checkStream tells whether fd is one end of a connected unix stream.
func checkStream(fd int) error {
	if defence.LinkStreamSocket.Off() {
		return nil
	}
	err := checkOptions(fd,
		option{"domain", unix.SO_DOMAIN, unix.AF_UNIX},
		option{"type", unix.SO_TYPE, unix.SOCK_STREAM},
		option{"listening state", unix.SO_ACCEPTCONN, 0})
	if err != nil {
		return err
	}
	if _, err := unix.Getpeername(fd); err != nil {
		return fmt.Errorf("socket is not connected: %w", err)
	}
	return nil
}

// checkListener tells whether fd is a listening stream socket that only the
// same machine can reach: TCP on loopback, or unix.
func checkListener(fd int) error {
	if defence.LinkListener.Off() {
		return nil
	}
	err := checkOptions(fd,
		option{"type", unix.SO_TYPE, unix.SOCK_STREAM},
		option{"listening state", unix.SO_ACCEPTCONN, 1})
	if err != nil {
		return err
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("read the listener's address: %w", err)
	}
	var ip net.IP
	switch a := address.(type) {
	case *unix.SockaddrUnix:
		return checkOptions(fd, option{"domain", unix.SO_DOMAIN, unix.AF_UNIX})
	case *unix.SockaddrInet4:
		ip = a.Addr[:]
	case *unix.SockaddrInet6:
		ip = a.Addr[:]
	default:
		return fmt.Errorf("listener has an address of type %T", address)
	}
	if !ip.IsLoopback() {
		return fmt.Errorf("listener is on %s, not on loopback", ip)
	}
	// Go listens with multipath TCP where the kernel has it.
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_TCP && protocol != unix.IPPROTO_MPTCP {
		return fmt.Errorf("listener has protocol %d: %w", protocol, errors.Join(err, unix.EPROTONOSUPPORT))
	}
	return nil
}
