package mux_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/linktest"
	"github.com/berm-dev/berm/link/mux"
)

const patience = 10 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is two ends of one byte stream.
func pair(t testing.TB) (host, guest net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		conns[i], err = net.FileConn(file)
		_ = file.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return conns[0], conns[1]
}

// piped hides the deadlines and the type of a connection, as the standard
// streams of a program do.
type piped struct{ io.ReadWriteCloser }

// guestServer is an honest guest in this process.
type guestServer struct {
	side    *mux.GuestSide
	servers []*http.Server
	group   sync.WaitGroup
	once    sync.Once
}

func (g *guestServer) serve(listener net.Listener, handler http.Handler) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: patience}
	g.servers = append(g.servers, server)
	g.group.Add(1)
	go func() {
		defer g.group.Done()
		// It ends with the listener or with the server's Close.
		_ = server.Serve(listener)
	}()
}

func (g *guestServer) stop() {
	g.once.Do(func() {
		_ = g.side.Close()
		for _, server := range g.servers {
			_ = server.Close()
		}
		g.group.Wait()
	})
}

// join makes a link to an honest guest that has not said hello.
func join(t testing.TB, host, guest io.ReadWriteCloser, config mux.Config, theirs mux.GuestConfig) (*mux.Link, *mux.GuestSide, []byte) {
	t.Helper()
	type served struct {
		side    *mux.GuestSide
		payload []byte
		err     error
	}
	far := make(chan served, 1)
	go func() {
		side, payload, err := mux.Serve(t.Context(), guest, theirs)
		far <- served{side, payload, err}
	}()
	l, err := mux.New(t.Context(), host, config)
	if err != nil {
		t.Fatal(err)
	}
	s := <-far
	if s.err != nil {
		t.Fatal(s.err)
	}
	return l, s.side, s.payload
}

// open makes a link to an honest guest with two handlers.
func open(t testing.TB, host, guest io.ReadWriteCloser, config mux.Config, data, control http.Handler, egress *os.File) (*mux.Link, *guestServer) {
	t.Helper()
	l, side, _ := join(t, host, guest, config, mux.GuestConfig{Key: config.Key})
	g := &guestServer{side: side}
	g.serve(side.Data(), data)
	g.serve(side.Control(), control)
	if err := side.Hello(egress); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := l.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return l, g
}

// TestConformance is not parallel: the suite measures memory and goroutines.
func TestConformance(t *testing.T) { //nolint:paralleltest // see above
	linktest.Run(t, func(t *testing.T, data, control http.Handler) (link.Link, func()) {
		host, guest := pair(t)
		l, g := open(t, host, guest, mux.Config{}, data, control, nil)
		return l, g.stop
	})
}

// TestConformanceWithoutDeadlines is the same over a stream that has nothing but
// Read, Write and Close.
func TestConformanceWithoutDeadlines(t *testing.T) { //nolint:paralleltest // see above
	linktest.Run(t, func(t *testing.T, data, control http.Handler) (link.Link, func()) {
		host, guest := net.Pipe()
		l, g := open(t, piped{host}, piped{guest}, mux.Config{Key: []byte("key"), Egress: true}, data, control, nil)
		return l, g.stop
	})
}
