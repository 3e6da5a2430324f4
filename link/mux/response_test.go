package mux_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/mux"
)

// byHand makes a link to a guest that speaks the multiplexer's protocol, and
// serves the data plane's streams by hand.
func byHand(t *testing.T, f func(net.Conn)) *mux.Link {
	t.Helper()
	host, guest := pair(t)
	l, side, _ := join(t, host, guest, mux.Config{}, mux.GuestConfig{})
	if err := side.Hello(nil); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := side.Data().Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					f(conn)
				}
			})
		}
	})
	t.Cleanup(func() {
		closeInTime(t, l)
		_ = side.Close()
		group.Wait()
	})
	return l
}

// forever writes block again and again until it fails.
func forever(conn net.Conn, first, block string) {
	_, err := io.WriteString(conn, first)
	for err == nil {
		_, err = io.WriteString(conn, block)
	}
}

// TestHostileResponses is not parallel: it measures the heap.
func TestHostileResponses(t *testing.T) { //nolint:paralleltest // see above
	const ok = "HTTP/1.1 200 OK\r\n"
	kilo := strings.Repeat("x", 1024)
	for _, c := range []struct {
		name string
		f    func(net.Conn)
		want errdefs.Kind
	}{
		{"binary garbage", func(c net.Conn) { forever(c, "", "\x00\xff\xfe\n") }, errdefs.Protocol},
		{"endless line", func(c net.Conn) { forever(c, "HTTP/1.1 200 ", kilo) }, errdefs.Protocol},
		{"endless headers", func(c net.Conn) { forever(c, ok, "A: "+kilo+"\r\n") }, errdefs.Protocol},
		{"endless 103", func(c net.Conn) { forever(c, "", "HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n") }, errdefs.Protocol},
		{"bad chunk", func(c net.Conn) { forever(c, ok+"Transfer-Encoding: chunked\r\n\r\nzz\r\n", kilo) }, errdefs.Protocol},
		{"endless trailer", func(c net.Conn) { forever(c, ok+"Transfer-Encoding: chunked\r\n\r\n0\r\n", "A: "+kilo+"\r\n") }, errdefs.Protocol},
		{"no length", func(c net.Conn) { _, _ = io.WriteString(c, ok+"\r\nbody") }, errdefs.Protocol},
		{"unasked upgrade", func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		}, errdefs.Protocol},
		{"end before the answer", func(net.Conn) {}, errdefs.TransportLost},
		{"end in the header", func(c net.Conn) { _, _ = io.WriteString(c, ok+"A: ") }, errdefs.TransportLost},
		{"end in the body", func(c net.Conn) { _, _ = io.WriteString(c, ok+"Content-Length: 9\r\n\r\nbody") }, errdefs.TransportLost},
		{"silence", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, errdefs.Timeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := byHand(t, c.f)
			growth := heapGrowth(func() {
				for range 3 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
					err := get(ctx, l, "/")
					cancel()
					if errdefs.KindOf(err) != c.want || errors.Is(err, io.EOF) {
						t.Errorf("error %v (kind %s), want %s", err, errdefs.KindOf(err), c.want)
					}
				}
			})
			if growth > 32<<20 {
				t.Errorf("the heap grew by %d MiB", growth>>20)
			}
			if err := l.Err(); err != nil {
				t.Errorf("one bad stream ended the link: %v", err)
			}
		})
	}
}

// TestManyRequests: requests one after the other do not use up what the rules
// allow a peer, whichever side ends the stream first.
func TestManyRequests(t *testing.T) {
	t.Parallel()
	n := 6000
	if testing.Short() {
		n = 2000
	}
	host, guest := pair(t)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/close":
			w.Header().Set("Connection", "close")
		case "/break":
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "ok")
	})
	l, g := open(t, host, guest, mux.Config{}, handler, handler, nil)
	defer g.stop()
	defer closeInTime(t, l)
	var group sync.WaitGroup
	for worker := range 4 {
		group.Go(func() {
			for i := range n / 4 {
				path := []string{"/", "/close", "/break", "/"}[i%4]
				err := get(t.Context(), l, path)
				if path == "/break" && !errors.Is(err, errdefs.TransportLost) || path != "/break" && err != nil {
					t.Errorf("worker %d, request %d: %v", worker, i, err)
					return
				}
			}
		})
	}
	group.Wait()
	if err := l.Err(); err != nil {
		t.Error(err)
	}
}

// TestOwnBodyFails: a body that fails is the caller's fault, and is closed.
func TestOwnBodyFails(t *testing.T) {
	t.Parallel()
	l := byHand(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	fault := errors.New("no more")
	body := &failing{err: fault}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+link.DataHost+"/", body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.RoundTrip(req); !errors.Is(err, errdefs.Invalid) || !errors.Is(err, fault) {
		t.Errorf("error %v", err)
	}
	closeInTime(t, l)
	if !body.closed {
		t.Error("the body was not closed")
	}
}

type failing struct {
	err    error
	closed bool
}

func (f *failing) Read([]byte) (int, error) { return 0, f.err }
func (f *failing) Close() error             { f.closed = true; return nil }
