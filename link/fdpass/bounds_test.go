package fdpass_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/fdpass"
)

// TestAStreamIsNoControlSocket: a socket that joins packets would let a guest
// choose where one ends.
func TestAStreamIsNoControlSocket(t *testing.T) {
	t.Parallel()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	other := os.NewFile(uintptr(fds[1]), "other")
	defer other.Close()
	l, err := fdpass.New(os.NewFile(uintptr(fds[0]), "control"), nil, nil, fdpass.Options{})
	if err == nil {
		_ = l.Close()
	}
	if !errors.Is(err, errdefs.Invalid) {
		t.Errorf("error %v", err)
	}
}

const empty200 = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

// TestUnaskedAnswerIsNotUsed: an answer that lies on an idle stream is not taken
// for that of the next request.
func TestUnaskedAnswerIsNotUsed(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"at once": false, "later": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, g := openHostile(t, fdpass.Options{})
			spoilt := make(chan struct{}, 16)
			g.serve(func(conn net.Conn) {
				readRequest(conn)
				const unasked = "HTTP/1.1 418 Unasked\r\nContent-Length: 0\r\n\r\n"
				if late {
					_, _ = io.WriteString(conn, empty200)
					time.Sleep(20 * time.Millisecond)
					_, _ = io.WriteString(conn, unasked)
				} else {
					_, _ = io.WriteString(conn, empty200+unasked)
				}
				spoilt <- struct{}{}
				_, _ = io.Copy(io.Discard, conn)
			})
			for range 3 {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+link.DataHost+"/", nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := l.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("a request was answered with %s", resp.Status)
				}
				<-spoilt
			}
		})
	}
}

// TestAGuestThatTakesNoStream: who has no deadline does not wait for ever until a
// guest takes its stream.
func TestAGuestThatTakesNoStream(t *testing.T) {
	t.Parallel()
	l, g := openHostile(t, fdpass.Options{MaxStreams: 4096, SendTimeout: 100 * time.Millisecond})
	g.send([]byte("h"))
	var waiting sync.WaitGroup
	var refused atomic.Int64
	// They wait for answers, until the link's end, except those that do not get
	// that far: the control socket holds some hundred packets.
	for range 1000 {
		waiting.Go(func() {
			if err := get(t.Context(), l, "/"); errors.Is(err, errdefs.Timeout) || errors.Is(err, errdefs.Exhausted) {
				refused.Add(1)
			}
		})
	}
	for deadline := time.Now().Add(3 * time.Second); refused.Load() == 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if refused.Load() == 0 {
		t.Error("a stream that nobody takes has no end")
	}
	_ = l.Close()
	waiting.Wait()
}

// TestIdleStreamsAreFew: after many requests at once the guest has a few streams
// left, not as many.
func TestIdleStreamsAreFew(t *testing.T) {
	t.Parallel()
	const requests, kept = 40, 16
	l, g := openHostile(t, fdpass.Options{})
	var arrived sync.WaitGroup
	arrived.Add(requests)
	var ended atomic.Int64
	g.serve(func(conn net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
			return
		}
		arrived.Done()
		arrived.Wait()
		_, _ = io.WriteString(conn, empty200)
		_, _ = io.Copy(io.Discard, conn)
		ended.Add(1)
	})
	var asking sync.WaitGroup
	for range requests {
		asking.Go(func() {
			if err := get(t.Context(), l, "/"); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	for deadline := time.Now().Add(3 * time.Second); ended.Load() < requests-kept && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if n := ended.Load(); n < requests-kept {
		t.Errorf("%d of %d streams are kept", requests-n, requests)
	}
}
