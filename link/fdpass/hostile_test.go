package fdpass_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/fdpass"
)

const patience = 10 * time.Second

// hostileGuest is the guest's end of a link, used by hand.
type hostileGuest struct {
	t    *testing.T
	conn *net.UnixConn
}

// openHostile makes a link whose guest has read the boot packet and nothing
// else.
func openHostile(t *testing.T, opts fdpass.Options) (*fdpass.Link, *hostileGuest) {
	t.Helper()
	host, guest, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	l, err := fdpass.New(host, []byte("boot"), nil, opts)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(guest)
	if err := errors.Join(err, guest.Close()); err != nil {
		t.Fatal(err)
	}
	g := &hostileGuest{t: t, conn: conn.(*net.UnixConn)}
	boot := make([]byte, 16)
	if n, err := g.conn.Read(boot); err != nil || string(boot[:n]) != "bboot" {
		t.Fatalf("boot packet %q, %v", boot[:n], err)
	}
	t.Cleanup(func() {
		start := time.Now()
		_ = l.Close()
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("Close took %v", took)
		}
		_ = g.conn.Close()
	})
	return l, g
}

// send sends a packet with copies of descriptors; a host that has ended the link
// already is no fault.
func (g *hostileGuest) send(data []byte, fds ...int) {
	g.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	raw, err := g.conn.SyscallConn()
	if err != nil {
		g.t.Fatal(err)
	}
	err = raw.Write(func(fd uintptr) bool {
		return !errors.Is(sendmsg(int(fd), data, oob), unix.EAGAIN)
	})
	if err != nil {
		g.t.Logf("send: %v", err)
	}
}

// sendmsg is the system call itself: the one of x/sys adds a byte to a packet
// that has none.
func sendmsg(fd int, data, oob []byte) error {
	var message unix.Msghdr
	var part unix.Iovec
	if len(data) > 0 {
		part.Base = &data[0]
		part.SetLen(len(data))
		message.Iov = &part
		message.SetIovlen(1)
	}
	if len(oob) > 0 {
		message.Control = &oob[0]
		message.SetControllen(len(oob))
	}
	_, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&message)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	if errno != 0 {
		return errno
	}
	return nil
}

// take receives one stream.
func (g *hostileGuest) take() (net.Conn, error) {
	data, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := g.conn.ReadMsgUnix(data, oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(err, errors.New("no descriptor"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fds[0]), "stream")
	defer file.Close()
	return net.FileConn(file)
}

// serve says hello and gives each stream to f, in its own goroutine.
func (g *hostileGuest) serve(f func(net.Conn)) {
	g.send([]byte("h"))
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := g.take()
			if err != nil {
				return
			}
			group.Go(func() {
				defer conn.Close()
				f(conn)
			})
		}
	})
	g.t.Cleanup(group.Wait)
	g.t.Cleanup(func() { _ = g.conn.Close() })
}

func get(ctx context.Context, l *fdpass.Link, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+link.DataHost+path, nil)
	if err != nil {
		return err
	}
	resp, err := l.RoundTrip(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// planted is a pipe whose writing end is sent to the host; the reading end shows
// whether a copy is still open anywhere.
type planted struct{ r, w *os.File }

func plant(t *testing.T) planted {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return planted{r, w}
}

// isGone fails the test unless the last copy of the writing end is closed.
func (p planted) isGone(t *testing.T) {
	t.Helper()
	_ = p.w.Close()
	if err := p.r.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a descriptor leaked: %v", err)
	}
}

func TestHostileControlSocket(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("x"), 100<<10)
	for _, c := range []struct {
		name string
		do   func(g *hostileGuest, fd int)
		want errdefs.Kind
	}{
		{"garbage for a hello", func(g *hostileGuest, _ int) { g.send([]byte("x")) }, errdefs.Protocol},
		{"long hello", func(g *hostileGuest, _ int) { g.send([]byte("hh")) }, errdefs.Protocol},
		{"oversized hello", func(g *hostileGuest, _ int) { g.send(long) }, errdefs.Protocol},
		{"garbage with a descriptor", func(g *hostileGuest, fd int) { g.send([]byte("x"), fd) }, errdefs.Protocol},
		{"hello with a pipe", func(g *hostileGuest, fd int) { g.send([]byte("h"), fd) }, errdefs.Protocol},
		{"hello with two descriptors", func(g *hostileGuest, fd int) { g.send([]byte("h"), fd, fd) }, errdefs.Protocol},
		{"hello with 100 descriptors", func(g *hostileGuest, fd int) {
			fds := make([]int, 100)
			for i := range fds {
				fds[i] = fd
			}
			g.send([]byte("h"), fds...)
		}, errdefs.Protocol},
		{"empty packet with a descriptor for a hello", func(g *hostileGuest, fd int) { g.send(nil, fd) }, errdefs.TransportLost},
		{"end before the hello", func(g *hostileGuest, _ int) { _ = g.conn.Close() }, errdefs.TransportLost},
		{"end after the hello", func(g *hostileGuest, _ int) { g.send([]byte("h")); _ = g.conn.Close() }, errdefs.TransportLost},
		{"two hellos", func(g *hostileGuest, _ int) { g.send([]byte("h")); g.send([]byte("h")) }, errdefs.Protocol},
		{"descriptor after the hello", func(g *hostileGuest, fd int) { g.send([]byte("h")); g.send([]byte("h"), fd) }, errdefs.Protocol},
		{"empty packet with a descriptor after the hello", func(g *hostileGuest, fd int) {
			g.send([]byte("h"))
			g.send(nil, fd)
		}, errdefs.TransportLost},
		{"oversized packet after the hello", func(g *hostileGuest, fd int) { g.send([]byte("h")); g.send(long, fd, fd) }, errdefs.Protocol},
		{"flood after the hello", func(g *hostileGuest, fd int) {
			g.send([]byte("h"))
			for range 100 {
				g.send([]byte("dcbh"), fd)
			}
		}, errdefs.Protocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, g := openHostile(t, fdpass.Options{})
			p := plant(t)
			c.do(g, int(p.w.Fd()))
			endsWith(t, l, c.want)
			_ = l.Close()
			p.isGone(t)
		})
	}
}

// endsWith fails the test unless the link ends by itself, with an error of a
// kind that every method then gives.
func endsWith(t *testing.T, l *fdpass.Link, want errdefs.Kind) {
	t.Helper()
	select {
	case <-l.Done():
	case <-time.After(patience):
		t.Fatal("the link did not end")
	}
	for what, err := range map[string]error{
		"Err": l.Err(), "Ready": l.Ready(t.Context()), "RoundTrip": get(t.Context(), l, "/"),
	} {
		if errdefs.KindOf(err) != want {
			t.Errorf("%s: %v (kind %s), want %s", what, err, errdefs.KindOf(err), want)
		}
	}
	if _, err := l.Accept(t.Context()); !errors.Is(err, errdefs.Closed) || !errors.Is(err, want) {
		t.Errorf("Accept: %v", err)
	}
}

// forever writes block again and again until it fails.
func forever(conn net.Conn, first, block string) {
	_, err := io.WriteString(conn, first)
	for err == nil {
		_, err = io.WriteString(conn, block)
	}
}

// readRequest reads a request's header.
func readRequest(conn net.Conn) {
	buffer := make([]byte, 4096)
	var all []byte
	for !bytes.Contains(all, []byte("\r\n\r\n")) {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		all = append(all, buffer[:n]...)
	}
}

// TestHostileStreams is not parallel: it measures the heap and takes the log.
func TestHostileStreams(t *testing.T) { //nolint:paralleltest // see above
	const ok = "HTTP/1.1 200 OK\r\n"
	kilo := strings.Repeat("x", 1024)
	for _, c := range []struct {
		name string
		f    func(net.Conn)
		want errdefs.Kind
	}{
		{"garbage", func(c net.Conn) { _, _ = io.WriteString(c, "garbage\r\n\r\n"); readRequest(c) }, errdefs.Protocol},
		{"binary garbage", func(c net.Conn) { forever(c, "", "\x00\xff\xfe\n") }, errdefs.Protocol},
		{"endless line", func(c net.Conn) { forever(c, "HTTP/1.1 200 ", kilo) }, errdefs.Protocol},
		{"oversized header", func(c net.Conn) {
			_, _ = io.WriteString(c, ok+"A: "+strings.Repeat(kilo, 1024)+"\r\n\r\n")
		}, errdefs.Protocol},
		{"endless headers", func(c net.Conn) { forever(c, ok, "A: "+kilo+"\r\n") }, errdefs.Protocol},
		{"endless 100", func(c net.Conn) { forever(c, "", "HTTP/1.1 100 Continue\r\n\r\n") }, errdefs.Protocol},
		{"endless 103", func(c net.Conn) { forever(c, "", "HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n") }, errdefs.Protocol},
		{"bad chunk", func(c net.Conn) { forever(c, ok+"Transfer-Encoding: chunked\r\n\r\nzz\r\n", kilo) }, errdefs.Protocol},
		{"endless chunk extension", func(c net.Conn) { forever(c, ok+"Transfer-Encoding: chunked\r\n\r\n1;", kilo) }, errdefs.Protocol},
		{"endless small chunks with extensions", func(c net.Conn) {
			forever(c, ok+"Transfer-Encoding: chunked\r\n\r\n", "1;"+kilo+"\r\nx\r\n")
		}, errdefs.Protocol},
		{"endless trailer", func(c net.Conn) { forever(c, ok+"Transfer-Encoding: chunked\r\n\r\n0\r\n", "A: "+kilo+"\r\n") }, errdefs.Protocol},
		{"two lengths", func(c net.Conn) {
			_, _ = io.WriteString(c, ok+"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab")
			readRequest(c)
		}, errdefs.Protocol},
		{"no length", func(c net.Conn) { _, _ = io.WriteString(c, ok+"\r\nbody") }, errdefs.Protocol},
		{"unasked upgrade", func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		}, errdefs.Protocol},
		{"end before the answer", func(net.Conn) {}, errdefs.TransportLost},
		{"end in the header", func(c net.Conn) { _, _ = io.WriteString(c, ok+"A: ") }, errdefs.TransportLost},
		{"end in the body", func(c net.Conn) { _, _ = io.WriteString(c, ok+"Content-Length: 9\r\n\r\nbody") }, errdefs.TransportLost},
		{"dribble", dribble, errdefs.Timeout},
		{"silence", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, errdefs.Timeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, g := openHostile(t, fdpass.Options{})
			g.serve(func(conn net.Conn) {
				readRequest(conn)
				c.f(conn)
			})
			growth := heapGrowth(func() { failThrice(t, l, c.want) })
			if growth > 32<<20 {
				t.Errorf("the heap grew by %d MiB", growth>>20)
			}
			if err := l.Err(); err != nil {
				t.Errorf("one bad stream ended the link: %v", err)
			}
		})
	}
}

func failThrice(t *testing.T, l *fdpass.Link, want errdefs.Kind) {
	t.Helper()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		err := get(ctx, l, "/")
		cancel()
		if got := errdefs.KindOf(err); got != want || errors.Is(err, io.EOF) {
			t.Errorf("error %v (kind %s), want %s", err, got, want)
		}
	}
}

// dribble writes a header that never ends, byte by byte.
func dribble(conn net.Conn) {
	_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nA: ")
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for err == nil {
		<-tick.C
		_, err = io.WriteString(conn, "x")
	}
}

// heapGrowth runs f and gives how much larger than before the heap was.
func heapGrowth(f func()) int64 {
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	stop, largest := make(chan struct{}), make(chan uint64)
	go func() {
		var most uint64
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc)
			case <-stop:
				largest <- most
				return
			}
		}
	}()
	f()
	close(stop)
	return int64(<-largest) - int64(before.HeapAlloc)
}

// TestUnaskedResponse: bytes on an idle stream end the stream, at the latest
// when it would be used again, and do not come into the host's log. It is not
// parallel: it takes the log.
func TestUnaskedResponse(t *testing.T) { //nolint:paralleltest // see above
	var written bytes.Buffer
	log.SetOutput(&written)
	defer log.SetOutput(os.Stderr)
	l, g := openHostile(t, fdpass.Options{})
	spoilt, ended := make(chan struct{}, 16), make(chan struct{}, 16)
	g.serve(func(conn net.Conn) {
		readRequest(conn)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		<-time.After(20 * time.Millisecond)
		_, _ = io.WriteString(conn, "HTTP/1.1 500 Unasked\r\nContent-Length: 0\r\n\r\n")
		spoilt <- struct{}{}
		forever(conn, "", "unasked for\r\n")
		ended <- struct{}{}
	})
	for i := range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := get(ctx, l, "/"); err != nil {
			t.Error(err)
		}
		cancel()
		<-spoilt
		if i > 0 {
			<-ended
		}
	}
	_ = l.Close()
	<-ended
	if written.Len() > 0 {
		t.Errorf("the guest wrote into the host's log: %q", written.String())
	}
}

// TestStoppedGuest: a guest that takes nothing, as a stopped one, delays nobody
// past the deadline. It is not parallel: it measures the heap.
func TestStoppedGuest(t *testing.T) { //nolint:paralleltest // see above
	for _, c := range []struct {
		name string
		opts fdpass.Options
		size int64
	}{
		{"waiting for an answer", fdpass.Options{}, 0},
		{"sending bodies", fdpass.Options{}, 1 << 40},
		{"more requests than streams", fdpass.Options{MaxStreams: 8}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, g := openHostile(t, c.opts)
			g.send([]byte("h"))
			growth := heapGrowth(func() { stoppedRequests(t, l, c.size) })
			if growth > 64<<20 {
				t.Errorf("the heap grew by %d MiB", growth>>20)
			}
			if err := l.Err(); err != nil {
				t.Errorf("the link ended: %v", err)
			}
		})
	}
}

func stoppedRequests(t *testing.T, l *fdpass.Link, size int64) {
	t.Helper()
	const deadline = time.Second
	var group sync.WaitGroup
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	for range 600 {
		group.Go(func() {
			body := io.LimitReader(zero{}, size)
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+link.DataHost+"/", body)
			if err != nil {
				t.Error(err)
				return
			}
			_, err = l.RoundTrip(req)
			if !errors.Is(err, errdefs.Timeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
		})
	}
	group.Wait()
	if took := time.Since(start); took > deadline+2*time.Second {
		t.Errorf("requests with a deadline of %v took %v", deadline, took)
	}
}

type zero struct{}

func (zero) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
