package mux_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/link/fdpass"
	"github.com/berm-dev/berm/link/mux"
)

// guestSide is what an agent needs of a link: it serves either.
type guestSide interface {
	Hello(egress *os.File) error
	Data() net.Listener
	Control() net.Listener
	Wait() error
	Close() error
}

var (
	_ guestSide = (*mux.GuestSide)(nil)
	_ guestSide = (*fdpass.GuestSide)(nil)
)

// outlet is a listener for egress, and a function that connects to it.
func outlet(t *testing.T) (file *os.File, connect func() *net.UnixConn) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "out")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if file, err = listener.File(); err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	t.Cleanup(func() { _ = file.Close() })
	return file, func() *net.UnixConn {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil {
			t.Error(err)
			return nil
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Error(err)
		}
		return conn
	}
}

// carried makes a link with egress.
func carried(t *testing.T, config mux.Config) (*mux.Link, *guestServer, func() *net.UnixConn) {
	t.Helper()
	host, guest := pair(t)
	file, connect := outlet(t)
	l, g := open(t, host, guest, config, http.NotFoundHandler(), http.NotFoundHandler(), file)
	t.Cleanup(func() {
		closeInTime(t, l)
		g.stop()
	})
	return l, g, connect
}

func accept(t *testing.T, l *mux.Link) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestEgress: what the inside connects to its listener comes out of Accept, each
// direction ends by itself, and all of it arrives.
func TestEgress(t *testing.T) {
	t.Parallel()
	l, _, connect := carried(t, mux.Config{Egress: true})
	sent := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	var group sync.WaitGroup
	const many = 20
	for range many {
		group.Go(func() {
			conn := connect()
			defer conn.Close()
			if _, err := conn.Write(sent); err != nil {
				t.Error(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Error(err)
			}
			if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes came back, %v", len(got), err)
			}
		})
	}
	for range many {
		conn := accept(t, l)
		group.Go(func() {
			defer conn.Close()
			got, err := io.ReadAll(conn)
			if err != nil {
				t.Errorf("read: %v", err)
			}
			// The end of this direction must not cut what is under way.
			if _, err := conn.Write(got); err != nil {
				t.Errorf("write: %v", err)
			}
		})
	}
	group.Wait()
	if err := l.Err(); err != nil {
		t.Error(err)
	}
}

// TestEgressEnds: a connection ends inside when the host closes it, and when the
// link ends.
func TestEgressEnds(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		l, _, connect := carried(t, mux.Config{Egress: true})
		conn := connect()
		far := accept(t, l)
		if whole {
			closeInTime(t, l)
			if _, err := far.Read(make([]byte, 1)); !errors.Is(err, errdefs.Closed) {
				t.Errorf("read: %v", err)
			}
		} else if err := far.Close(); err != nil {
			t.Error(err)
		}
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection did not end")
		}
		_ = conn.Close()
	}
}

// TestNoEgress: a host that carries none, as a client of a relay, gives out
// nothing; the guest's connections end, and the link lives.
func TestNoEgress(t *testing.T) {
	t.Parallel()
	l, _, connect := carried(t, mux.Config{})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Accept(over); !errors.Is(err, errdefs.Unsupported) {
		t.Errorf("accept: %v", err)
	}
	for range 10 {
		conn := connect()
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a refused connection: %v", err)
		}
		_ = conn.Close()
	}
	if err := get(t.Context(), l, "/"); err != nil {
		t.Error(err)
	}
}

// TestAcceptUnsupported: a guest that hands out no listener opens no streams.
func TestAcceptUnsupported(t *testing.T) {
	t.Parallel()
	l, _ := openHostile(t, mux.Config{Egress: true}, 'h')
	if err := l.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(t.Context()); !errors.Is(err, errdefs.Unsupported) {
		t.Errorf("accept: %v", err)
	}
}

// TestBoot: the payload arrives, and what does not fit is refused.
func TestBoot(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, boot.MaxBytes} {
		host, guest := net.Pipe()
		sent := bytes.Repeat([]byte("b"), size)
		l, side, got := join(t, host, guest, mux.Config{Boot: sent, Key: []byte("k")}, mux.GuestConfig{Key: []byte("k")})
		if !bytes.Equal(got, sent) {
			t.Errorf("%d of %d bytes arrived", len(got), size)
		}
		_ = l.Close()
		_ = side.Close()
		if err := side.Wait(); err != nil {
			t.Errorf("Wait: %v", err)
		}
		if err := side.Hello(nil); !errors.Is(err, errdefs.Closed) && !errors.Is(err, errdefs.TransportLost) {
			t.Errorf("hello after Close: %v", err)
		}
		if err := side.Hello(nil); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("second hello: %v", err)
		}
	}
	host, guest := net.Pipe()
	defer guest.Close()
	if _, err := mux.New(t.Context(), host, mux.Config{Boot: make([]byte, boot.MaxBytes+1)}); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("too large a payload: %v", err)
	}
}

// TestKey: each side finds out that the other does not have the key.
func TestKey(t *testing.T) {
	t.Parallel()
	for _, keys := range [][2]string{{"a", "b"}, {"a", ""}, {"", "b"}} {
		host, guest := pair(t)
		far := make(chan error, 1)
		go func() {
			_, _, err := mux.Serve(t.Context(), guest, mux.GuestConfig{Key: []byte(keys[1])})
			far <- err
		}()
		_, err := mux.New(t.Context(), host, mux.Config{Key: []byte(keys[0]), Boot: []byte("secret")})
		if !errors.Is(err, errdefs.Denied) {
			t.Errorf("%q: the host said %v", keys, err)
		}
		if err := <-far; !errors.Is(err, errdefs.TransportLost) {
			t.Errorf("%q: the guest said %v", keys, err)
		}
	}
}

// TestForgedHost: the guest does not take a payload from who lacks the key.
func TestForgedHost(t *testing.T) {
	t.Parallel()
	host, guest := pair(t)
	defer host.Close()
	far := make(chan error, 1)
	go func() {
		_, payload, err := mux.Serve(t.Context(), guest, mux.GuestConfig{Key: []byte("key")})
		if payload != nil {
			t.Error("the guest took the payload")
		}
		far <- err
	}()
	if _, err := host.Write(append([]byte("berm-mux/1 host\n"), make([]byte, 32)...)); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 16+64)
	if _, err := io.ReadFull(host, answer); err != nil {
		t.Fatal(err)
	}
	// The guest's own proof, sent back, is none of the host's.
	if _, err := host.Write(append(answer[48:], 0, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	if err := <-far; !errors.Is(err, errdefs.Denied) {
		t.Errorf("error %v", err)
	}
}

// TestPrefaceBudgets: bytes that lay in the stream are skipped, up to a bound; a
// peer that says nothing, or too much, is given up.
func TestPrefaceBudgets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		before int
		silent bool
		hook   mux.Handshake
		want   errdefs.Kind
	}{
		{name: "left over", before: 1000},
		{name: "left over up to the bound", before: 64 << 10},
		{name: "too much", before: 1 << 20, want: errdefs.Protocol},
		{name: "silence", silent: true, want: errdefs.Timeout},
		{name: "a line before", before: 3, hook: func(_ context.Context, conn io.ReadWriter) error {
			_, err := io.ReadFull(conn, make([]byte, 3))
			return err
		}},
		{name: "a hook that reads on and on", before: 1 << 20, hook: func(_ context.Context, conn io.ReadWriter) error {
			_, err := io.Copy(io.Discard, conn)
			return err
		}, want: errdefs.Protocol},
		{name: "a hook that waits", silent: true, hook: func(_ context.Context, conn io.ReadWriter) error {
			_, err := conn.Read(make([]byte, 1))
			return err
		}, want: errdefs.Timeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			host, guest := pair(t)
			var group sync.WaitGroup
			group.Go(func() {
				if !c.silent {
					_, _ = guest.Write(bytes.Repeat([]byte("berm"), c.before/4+1)[:c.before])
					_ = greet(guest, 'h')
				}
			})
			timeout := patience
			if c.silent {
				timeout = 100 * time.Millisecond
			}
			l, err := mux.New(t.Context(), host, mux.Config{Handshake: c.hook, HandshakeTimeout: timeout})
			if c.want == "" && err != nil || c.want != "" && !errors.Is(err, c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if err == nil {
				if err := l.Ready(t.Context()); err != nil {
					t.Error(err)
				}
				closeInTime(t, l)
			}
			_ = guest.Close()
			group.Wait()
		})
	}
}
