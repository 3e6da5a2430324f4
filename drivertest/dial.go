package drivertest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func dialGroup() group {
	return group{name: "dial", behaviours: []behaviour{
		{"half-close", dialHalfClose},
		{"big", dialBig},
		{"http", dialHTTP},
		{"refused", dialRefused},
		{"faults", dialFaults},
		{"deadline", dialDeadline},
		{"own-loopback", dialOwnLoopback},
	}}
}

// serve starts a server of the suite's program inside, for the life of the
// test, and gives its port.
func (s *suite) serve(t *testing.T, sb *berm.Sandbox, verb string) string {
	t.Helper()
	payload := s.install(t, sb)
	ctx, cancel := context.WithCancel(context.Background())
	port := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = sb.Exec(ctx, berm.Command{
			Args:   []string{payload, verb},
			Stdout: writerFunc(func(p []byte) { port <- strings.TrimSpace(string(p)) }),
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	select {
	case p := <-port:
		return p
	case <-ended:
		t.Fatalf("the %s ended at once", verb)
	case <-time.After(patience):
		t.Fatalf("the %s does not come up", verb)
	}
	return ""
}

// closeWriter is what a half-closable connection has.
type closeWriter interface{ CloseWrite() error }

func dial(t *testing.T, sb *berm.Sandbox, port string) net.Conn {
	t.Helper()
	conn, err := sb.DialContext(bounded(t), "tcp", net.JoinHostPort("localhost", port))
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// dialHalfClose: the end of one direction arrives, and the other goes on.
func dialHalfClose(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	conn := dial(t, sb, s.serve(t, sb, "echo-server"))
	half, ok := conn.(closeWriter)
	if !ok {
		t.Fatalf("%T cannot be half-closed", conn)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	within(t, liveness, "the echo and its end", func() {
		if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
			t.Errorf("echo: %q, %v", got, err)
		}
	})
}

// dialBig: both directions at once, exactly.
func dialBig(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	conn := dial(t, sb, s.serve(t, sb, "echo-server"))
	data := random(int(scaled(16 << 20)))
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		if half, ok := conn.(closeWriter); ok && err == nil {
			err = half.CloseWrite()
		}
		sent <- err
	}()
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("read: %v", err)
	}
	if err := <-sent; err != nil {
		t.Errorf("write: %v", err)
	}
	equal(t, "echo", got, data)
}

// dialHTTP: an ordinary client of the standard library talks to servers inside.
func dialHTTP(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	port := s.serve(t, sb, "http-server")
	transport := sb.Transport()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	body := random(1 << 20)
	for range 3 {
		req, err := http.NewRequestWithContext(bounded(t), http.MethodPost, "http://localhost:"+port+"/some/path", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.Header.Get("X-Request") != "POST /some/path" {
			t.Errorf("%v, header %q", err, resp.Header.Get("X-Request"))
		}
		equal(t, "body", got, body)
	}
}

// dialRefused: a port where nothing listens is told at once.
func dialRefused(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	within(t, liveness, "a dial to a closed port", func() {
		conn, err := sb.DialContext(bounded(t), "tcp", "localhost:1")
		if err == nil {
			_ = conn.Close()
		}
		wantKind(t, err, errdefs.Unavailable)
	})
}

func dialFaults(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for _, c := range [][2]string{
		{"udp", "localhost:80"}, {"unix", "/tmp/x"}, {"tcp", "example.com:80"}, {"tcp", "10.0.0.1:80"}, {"tcp", "localhost:0"},
		{"tcp", "localhost:65536"}, {"tcp", "localhost:-1"}, {"tcp", "localhost"}, {"tcp", ""}, {"tcp", "localhost:http"}, {"tcp", "[::2]:80"},
	} {
		conn, err := sb.DialContext(bounded(t), c[0], c[1])
		if err == nil {
			_ = conn.Close()
		}
		wantKind(t, err, errdefs.Invalid)
	}
}

// dialDeadline: a read on a silent connection ends at its deadline, and the
// connection at Close, also under a reader.
func dialDeadline(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	conn := dial(t, sb, s.serve(t, sb, "echo-server"))
	if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	within(t, liveness, "a read with a deadline", func() {
		var netErr net.Error
		if _, err := conn.Read(one); !asNetError(err, &netErr) || !netErr.Timeout() {
			t.Errorf("read: %v, want a timeout", err)
		}
	})
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := conn.Read(one)
		read <- err
	}()
	if err := conn.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	within(t, liveness, "a read on a closed connection", func() {
		if err := <-read; err == nil {
			t.Error("the read succeeded")
		}
	})
}

// dialOwnLoopback: where the network is isolated, ports of the host and of
// another sandbox cannot be reached from inside, nor mistaken for its own.
func dialOwnLoopback(t *testing.T, s *suite) {
	if !s.declared(t).Isolation.Network {
		t.Skip("the backend declares no network isolation")
	}
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	a, b := s.sandbox(t), s.sandbox(t)
	other := s.serve(t, b, "echo-server")
	payload := s.install(t, a)
	for what, p := range map[string]string{"the host's": port, "another sandbox's": other} {
		res, err := a.Exec(bounded(t), berm.Command{Args: []string{payload, "dial", "tcp", "127.0.0.1:" + p}})
		if err != nil || res.Success() {
			t.Errorf("%s port was reached from inside: %v, %v", what, res, err)
		}
		conn, err := a.DialContext(bounded(t), "tcp", "localhost:"+p)
		if err == nil {
			_ = conn.Close()
			t.Errorf("%s port was reached through the sandbox", what)
		}
	}
}
