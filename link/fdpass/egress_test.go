package fdpass_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link/fdpass"
)

// guestRole makes the test binary play the guest in a network namespace.
const guestRole = "FDPASS_TEST_GUEST"

// TestGuestProcess is no test: TestListenerFromNamespace starts it.
func TestGuestProcess(t *testing.T) {
	t.Parallel()
	if os.Getenv(guestRole) == "" {
		t.Skip("it is the guest of TestListenerFromNamespace")
	}
	if err := playGuest(); err != nil {
		t.Fatal(err)
	}
}

// playGuest brings loopback up, hands a listener over, connects to it as a
// payload would, echoes once and waits for the host's end.
func playGuest() error {
	side, payload, files, err := fdpass.Guest(os.NewFile(3, "control"))
	if err != nil {
		return err
	}
	defer side.Close()
	if string(payload) != "namespace" || len(files) != 0 {
		return fmt.Errorf("boot packet %q with %d files", payload, len(files))
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	if err := errors.Join(side.Hello(file), file.Close(), listener.Close()); err != nil {
		return err
	}
	// The listener lives on at the host alone.
	conn, err := net.Dial("tcp4", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "from inside "+address); err != nil {
		return err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err != nil || string(answer) != "from the host" {
		return fmt.Errorf("answer %q, %w", answer, err)
	}
	return side.Wait()
}

// loopbackUp sets the interface lo up.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// namespaces gives the attributes of a process in a network namespace of its
// own.
func namespaces() *syscall.SysProcAttr {
	if os.Geteuid() == 0 {
		return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	}
	return &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
}

// TestListenerFromNamespace: the host accepts, from its own network namespace,
// connections made inside another.
func TestListenerFromNamespace(t *testing.T) {
	t.Parallel()
	host, guest, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(os.Args[0], "-test.run", "^TestGuestProcess$", "-test.v")
	command.Env = append(os.Environ(), guestRole+"=1")
	command.ExtraFiles = []*os.File{guest}
	command.SysProcAttr = namespaces()
	output := filepath.Join(t.TempDir(), "guest")
	log, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	err = command.Start()
	_ = guest.Close()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
		_ = host.Close()
		t.Skipf("this host allows no network namespace: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	l, err := fdpass.New(host, []byte("namespace"), nil, fdpass.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	serveOnce(ctx, t, l)
	_ = l.Close()
	if err := command.Wait(); err != nil {
		text, _ := os.ReadFile(output)
		t.Errorf("guest: %v\n%s", err, text)
	}
}

func serveOnce(ctx context.Context, t *testing.T, l *fdpass.Link) {
	t.Helper()
	if err := l.Ready(ctx); err != nil {
		t.Error(err)
		return
	}
	conn, err := l.Accept(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	text, err := io.ReadAll(conn)
	if err != nil || string(text) != "from inside "+conn.LocalAddr().String() {
		t.Errorf("the inside said %q, %v", text, err)
	}
	if here, err := net.DialTimeout("tcp4", conn.LocalAddr().String(), time.Second); err == nil {
		_ = here.Close()
		t.Error("the listener is reachable from the host's namespace")
	}
	if _, err := io.WriteString(conn, "from the host"); err != nil {
		t.Error(err)
	}
}

func listenTCP(t *testing.T, address string) *net.TCPListener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("cannot listen on %s: %v", address, err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.(*net.TCPListener)
}

func TestAccept(t *testing.T) {
	t.Parallel()
	listener := listenTCP(t, "127.0.0.1:0")
	address := listener.Addr().String()
	l, stop := open(t, http.NotFoundHandler(), http.NotFoundHandler(), listener)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.Accept(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errdefs.Timeout) {
		t.Errorf("accept without a caller: %v", err)
	}
	inside, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	conn, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A second one waits in the link, nobody asks for it.
	second, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	waiting := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		waiting <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waiting; !errors.Is(err, errdefs.Closed) {
		t.Errorf("read from inside after Close: %v", err)
	}
	if _, err := l.Accept(t.Context()); !errors.Is(err, errdefs.Closed) {
		t.Errorf("accept after Close: %v", err)
	}
	for _, c := range []net.Conn{inside, second} {
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the inside's connection outlived the link: %v", err)
		}
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("the listener outlived the link")
	}
}

// TestAcceptOnBlockingSocket: the inside can make the shared socket blocking;
// Close must not wait for a connection then.
func TestAcceptOnBlockingSocket(t *testing.T) {
	t.Parallel()
	listener := listenTCP(t, "127.0.0.1:0")
	l, g := openHostile(t, fdpass.Options{})
	raw, err := listener.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) { g.send([]byte("h"), int(fd)) })
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if err := unix.SetNonblock(int(fd), false); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	inside, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	if _, err := l.Accept(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitBlocked(t, unix.SYS_ACCEPT4)
	// The link's goroutine is in accept. openHostile measures Close.
}

// awaitBlocked waits until a thread of this process is in a system call, as no
// thread is by accident in one that Go only makes when it has to wait for nothing.
func awaitBlocked(t *testing.T, number int) {
	t.Helper()
	prefix := fmt.Sprint(number, " ")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		tasks, _ := filepath.Glob("/proc/self/task/*/syscall")
		for _, task := range tasks {
			if text, err := os.ReadFile(task); err == nil && strings.HasPrefix(string(text), prefix) {
				return
			}
		}
	}
	t.Error("nobody is in the call")
}

// TestShutListener: an inside that shuts its listener down ends the link.
func TestShutListener(t *testing.T) {
	t.Parallel()
	listener := listenTCP(t, "127.0.0.1:0")
	l, g := openHostile(t, fdpass.Options{})
	raw, err := listener.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		g.send([]byte("h"), int(fd))
		_ = unix.Shutdown(int(fd), unix.SHUT_RDWR)
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Done():
	case <-time.After(patience):
		t.Fatal("the link did not end")
	}
	if !errors.Is(l.Err(), errdefs.Protocol) {
		t.Errorf("Err is %v", l.Err())
	}
}

// socketMaker makes a socket to hand over.
type socketMaker func(t *testing.T) int

func rawSocket(family, kind, protocol int, prepare func(fd int) error) socketMaker {
	return func(t *testing.T) int {
		t.Helper()
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		if err == nil && prepare != nil {
			err = prepare(fd)
		}
		if err != nil {
			t.Skipf("cannot make such a socket: %v", err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
}

func listening(address unix.Sockaddr) func(int) error {
	return func(fd int) error {
		if err := unix.Bind(fd, address); err != nil {
			return err
		}
		return unix.Listen(fd, 1)
	}
}

func TestHandedOverSockets(t *testing.T) {
	t.Parallel()
	loopback4 := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	loopback6 := &unix.SockaddrInet6{Addr: [16]byte{15: 1}}
	for _, c := range []struct {
		name string
		make socketMaker
		good bool
	}{
		{"tcp on 127.0.0.1", rawSocket(unix.AF_INET, unix.SOCK_STREAM, 0, listening(loopback4)), true},
		{"tcp on ::1", rawSocket(unix.AF_INET6, unix.SOCK_STREAM, 0, listening(loopback6)), true},
		{"unix", rawSocket(unix.AF_UNIX, unix.SOCK_STREAM, 0, listening(&unix.SockaddrUnix{})), true},
		{"tcp on 0.0.0.0", rawSocket(unix.AF_INET, unix.SOCK_STREAM, 0, listening(&unix.SockaddrInet4{})), false},
		{"tcp on ::", rawSocket(unix.AF_INET6, unix.SOCK_STREAM, 0, listening(&unix.SockaddrInet6{})), false},
		{"tcp that does not listen", rawSocket(unix.AF_INET, unix.SOCK_STREAM, 0, nil), false},
		{"mptcp", rawSocket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, listening(loopback4)), true},
		{"sctp", rawSocket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP, listening(loopback4)), false},
		{"udp", rawSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, func(fd int) error { return unix.Bind(fd, loopback4) }), false},
		{"unix packets", rawSocket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0, listening(&unix.SockaddrUnix{})), false},
		{"unix that does not listen", rawSocket(unix.AF_UNIX, unix.SOCK_STREAM, 0, nil), false},
		{"netlink", rawSocket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, nil), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fd := c.make(t)
			l, g := openHostile(t, fdpass.Options{})
			g.send([]byte("h"), fd)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := l.Ready(ctx)
			if c.good && err != nil {
				t.Error(err)
			}
			if !c.good && !errors.Is(err, errdefs.Protocol) {
				t.Errorf("error %v, want protocol", err)
			}
		})
	}
}
