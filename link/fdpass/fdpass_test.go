package fdpass_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/fdpass"
	"github.com/berm-dev/berm/link/linktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// guestServer is an honest guest in this process.
type guestServer struct {
	side    *fdpass.GuestSide
	servers []*http.Server
	group   sync.WaitGroup
	once    sync.Once
}

func (g *guestServer) serve(listener net.Listener, handler http.Handler) {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
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

// open makes a link to an honest guest with two handlers.
func open(t testing.TB, data, control http.Handler, egress net.Listener) (*fdpass.Link, func()) {
	t.Helper()
	host, guest, err := fdpass.Pair()
	if err != nil {
		t.Fatal(err)
	}
	l, err := fdpass.New(host, []byte("boot"), nil, fdpass.Options{})
	if err != nil {
		t.Fatal(err)
	}
	side, _, _, err := fdpass.Guest(guest)
	if err != nil {
		t.Fatal(err)
	}
	g := &guestServer{side: side}
	g.serve(side.Data(), data)
	g.serve(side.Control(), control)
	hello(t, side, egress)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := l.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return l, g.stop
}

func hello(t testing.TB, side *fdpass.GuestSide, egress net.Listener) {
	t.Helper()
	if egress == nil {
		if err := side.Hello(nil); err != nil {
			t.Fatal(err)
		}
		return
	}
	tcp, ok := egress.(*net.TCPListener)
	if !ok {
		t.Fatalf("listener is a %T", egress)
	}
	file, err := tcp.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := side.Hello(file); err != nil {
		t.Fatal(err)
	}
	if err := egress.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestConformance is not parallel: the suite measures memory and goroutines.
func TestConformance(t *testing.T) { //nolint:paralleltest // see above
	linktest.Run(t, func(t *testing.T, data, control http.Handler) (link.Link, func()) {
		return open(t, data, control, nil)
	})
}

// TestDyingGuest: a dying guest's stream may close before its control socket;
// what was read until then is not taken for all there was.
func TestDyingGuest(t *testing.T) {
	t.Parallel()
	l, g := openHostile(t, fdpass.Options{})
	die := make(chan struct{})
	g.serve(func(conn net.Conn) {
		readRequest(conn)
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\npart")
		<-die
		_ = conn.Close()
		_ = g.conn.Close()
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+link.ControlHost+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "x")
	resp, err := l.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	close(die)
	got, err := io.ReadAll(resp.Body)
	if string(got) != "part" || !errors.Is(err, errdefs.TransportLost) {
		t.Errorf("read %q, %v", got, err)
	}
}
