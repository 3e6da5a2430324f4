package fdpass_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/fdpass"
)

func TestBootPacket(t *testing.T) {
	t.Parallel()
	host, guest, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	payload := bytes.Repeat([]byte("p"), boot.MaxBytes)
	var files []*os.File
	var pipes []planted
	for range 16 {
		p := plant(t)
		pipes, files = append(pipes, p), append(files, p.w)
	}
	l, err := fdpass.New(host, payload, files, fdpass.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	side, got, received, err := fdpass.Guest(guest)
	if err != nil {
		t.Fatal(err)
	}
	defer side.Close()
	if !bytes.Equal(got, payload) || len(received) != len(files) {
		t.Fatalf("%d bytes and %d files arrived", len(got), len(received))
	}
	for i, file := range received {
		flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("file %d: flags %x, %v", i, flags, err)
		}
		if _, err := file.Write([]byte{byte(i)}); err != nil {
			t.Error(err)
		}
		one := make([]byte, 1)
		if _, err := pipes[i].r.Read(one); err != nil || one[0] != byte(i) {
			t.Errorf("file %d is another one: %d, %v", i, one[0], err)
		}
		_ = file.Close()
		pipes[i].isGone(t)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, make := range map[string]func(control *os.File) (*fdpass.Link, error){
		"payload": func(c *os.File) (*fdpass.Link, error) {
			return fdpass.New(c, make([]byte, boot.MaxBytes+1), nil, fdpass.Options{})
		},
		"files": func(c *os.File) (*fdpass.Link, error) {
			return fdpass.New(c, nil, bytesOf(null, 17), fdpass.Options{})
		},
		"options": func(c *os.File) (*fdpass.Link, error) {
			return fdpass.New(c, nil, nil, fdpass.Options{MaxStreams: -1})
		},
	} {
		host, guest, err := fdpass.Pair()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := make(host); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("%s: error %v", name, err)
		}
		// The host's end was closed.
		if _, _, _, err := fdpass.Guest(guest); !errors.Is(err, errdefs.TransportLost) {
			t.Errorf("%s: guest: %v", name, err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := fdpass.New(w, nil, nil, fdpass.Options{}); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("a pipe as control socket: %v", err)
	}
	host, guest, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	_ = guest.Close()
	if _, err := fdpass.New(host, nil, nil, fdpass.Options{}); !errors.Is(err, errdefs.TransportLost) {
		t.Errorf("a guest that is gone: %v", err)
	}
}

func bytesOf(file *os.File, n int) []*os.File {
	files := make([]*os.File, n)
	for i := range files {
		files[i] = file
	}
	return files
}

// openByHand makes a guest side whose host is used by hand.
func openByHand(t *testing.T) (*fdpass.GuestSide, *hostileGuest) {
	t.Helper()
	host, guest, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(host)
	if err := errors.Join(err, host.Close()); err != nil {
		t.Fatal(err)
	}
	h := &hostileGuest{t: t, conn: conn.(*net.UnixConn)}
	h.send([]byte("b"))
	side, _, _, err := fdpass.Guest(guest)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = side.Close()
		_ = h.conn.Close()
	})
	if err := side.Hello(nil); err != nil {
		t.Fatal(err)
	}
	return side, h
}

func TestGuestRefusesPackets(t *testing.T) {
	t.Parallel()
	dgram := rawSocket(unix.AF_UNIX, unix.SOCK_DGRAM, 0, nil)
	listener := rawSocket(unix.AF_UNIX, unix.SOCK_STREAM, 0, listening(&unix.SockaddrUnix{}))
	lonely := rawSocket(unix.AF_UNIX, unix.SOCK_STREAM, 0, nil)
	udp := rawSocket(unix.AF_INET, unix.SOCK_DGRAM, 0, nil)
	for _, c := range []struct {
		name string
		do   func(t *testing.T, h *hostileGuest, fd int)
	}{
		{"no descriptor", func(_ *testing.T, h *hostileGuest, _ int) { h.send([]byte("d")) }},
		{"two descriptors", func(_ *testing.T, h *hostileGuest, fd int) { h.send([]byte("d"), fd, fd) }},
		{"many descriptors", func(_ *testing.T, h *hostileGuest, fd int) { h.send([]byte("c"), fd, fd, fd, fd, fd) }},
		{"unknown plane", func(_ *testing.T, h *hostileGuest, fd int) { h.send([]byte("x"), fd) }},
		{"two bytes", func(_ *testing.T, h *hostileGuest, fd int) { h.send([]byte("dd"), fd) }},
		{"second boot packet", func(_ *testing.T, h *hostileGuest, fd int) { h.send([]byte("b"), fd) }},
		{"pipe", func(_ *testing.T, h *hostileGuest, fd int) { h.send([]byte("d"), fd) }},
		{"datagrams", func(t *testing.T, h *hostileGuest, _ int) { h.send([]byte("d"), dgram(t)) }},
		{"listener", func(t *testing.T, h *hostileGuest, _ int) { h.send([]byte("d"), listener(t)) }},
		{"not connected", func(t *testing.T, h *hostileGuest, _ int) { h.send([]byte("c"), lonely(t)) }},
		{"udp", func(t *testing.T, h *hostileGuest, _ int) { h.send([]byte("c"), udp(t)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			side, h := openByHand(t)
			p := plant(t)
			c.do(t, h, int(p.w.Fd()))
			// What is taken for good ends here too, in another way.
			_ = h.conn.CloseWrite()
			if err := side.Wait(); !errors.Is(err, errdefs.Protocol) {
				t.Errorf("Wait: %v", err)
			}
			for _, listener := range []net.Listener{side.Data(), side.Control()} {
				if _, err := listener.Accept(); !errors.Is(err, errdefs.Closed) || !errors.Is(err, net.ErrClosed) {
					t.Errorf("Accept: %v", err)
				}
			}
			p.isGone(t)
		})
	}
}

func TestGuestEndsWithHost(t *testing.T) {
	t.Parallel()
	side, h := openByHand(t)
	if err := side.Hello(nil); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("second hello: %v", err)
	}
	_ = h.conn.Close()
	if err := side.Wait(); err != nil {
		t.Errorf("Wait: %v", err)
	}
	for range 2 {
		if err := side.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

// TestGuestQueue: streams that nobody accepts do not pile up, do not hold up
// the other plane, and are reset by Close.
func TestGuestQueue(t *testing.T) {
	t.Parallel()
	side, h := openByHand(t)
	send := func(tag string) net.Conn {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		h.send([]byte(tag), fds[1])
		_ = unix.Close(fds[1])
		file := os.NewFile(uintptr(fds[0]), "stream")
		defer file.Close()
		conn, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	first := send("d")
	for range 1023 {
		send("d")
	}
	refused := send("d")
	other := send("c")
	for _, conn := range []net.Conn{refused, other, first} {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
	}
	if _, err := refused.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a stream beyond the queue: %v", err)
	}
	accepted, err := side.Control().Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if _, err := other.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if n, err := accepted.Read(make([]byte, 1)); n != 1 {
		t.Errorf("the other plane: %v", err)
	}
	_ = side.Close()
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a queued stream after Close: %v", err)
	}
}

func TestStreamsAreReused(t *testing.T) {
	t.Parallel()
	l, stop := open(t, http.NotFoundHandler(), http.NotFoundHandler(), nil)
	defer stop()
	defer l.Close()
	fresh := 0
	for range 20 {
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(info httptrace.GotConnInfo) {
				if !info.Reused {
					fresh++
				}
			},
		})
		for _, host := range []string{link.DataHost, link.ControlHost} {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := l.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			buffer := make([]byte, 1024)
			for err == nil {
				_, err = resp.Body.Read(buffer)
			}
			_ = resp.Body.Close()
		}
	}
	if fresh != 2 {
		t.Errorf("%d streams for 20 requests on each of two planes", fresh)
	}
}

// TestStreamLimit: upgraded streams count until they are closed.
func TestStreamLimit(t *testing.T) {
	t.Parallel()
	l, g := openHostile(t, fdpass.Options{MaxStreams: 2})
	g.serve(func(conn net.Conn) {
		readRequest(conn)
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
	})
	upgrade := func(timeout time.Duration) (io.Closer, error) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+link.ControlHost+"/", nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "x")
		resp, err := l.RoundTrip(req)
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}
	var bodies []io.Closer
	for range 2 {
		body, err := upgrade(patience)
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	if _, err := upgrade(50 * time.Millisecond); !errors.Is(err, errdefs.Timeout) {
		t.Errorf("a third stream: %v", err)
	}
	_ = bodies[0].Close()
	if body, err := upgrade(patience); err != nil {
		t.Errorf("a stream after another's end: %v", err)
	} else {
		_ = body.Close()
	}
	_ = bodies[1].Close()
}
