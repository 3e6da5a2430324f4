// Package linktest is the conformance suite of link.Link. Each implementation's
// own test calls Run with a function that makes a link to a peer that serves two
// http.Handlers, one for each plane.
package linktest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

// Opener makes a link whose far side serves data and control, and is ready. stop
// ends the far side at once, as its death would, and waits until nothing of it
// runs; the suite calls it after Close too, and may call it more than once.
type Opener func(t *testing.T, data, control http.Handler) (l link.Link, stop func())

// patience bounds each wait for an event that has to come.
const patience = 10 * time.Second

// Run runs the suite. The calling test must not be parallel, because the first
// cases measure the memory and the goroutines of the process; both sides may be
// in it.
func Run(t *testing.T, open Opener) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(*testing.T, Opener)
	}{
		{"DownloadMemory", testDownloadMemory},
		{"UploadMemory", testUploadMemory},
		{"CloseLeavesNoGoroutine", testCloseLeavesNoGoroutine},
		{"DeathLeavesNoGoroutine", testDeathLeavesNoGoroutine},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, open) })
	}
	for _, c := range []struct {
		name string
		run  func(*testing.T, Opener)
	}{
		{"Planes", testPlanes},
		{"ForeignHosts", testForeignHosts},
		{"Duplex", testDuplex},
		{"Burst", testBurst},
		{"UpgradeHalfCloseByHost", testUpgradeHalfCloseByHost},
		{"UpgradeHalfCloseByPeer", testUpgradeHalfCloseByPeer},
		{"UpgradeDeadlines", testUpgradeDeadlines},
		{"UnaskedUpgrade", testUnaskedUpgrade},
		{"DeadlineWaiting", testDeadlineWaiting},
		{"DeadlineSendingBody", testDeadlineSendingBody},
		{"DeadlineReadingOwnBody", testDeadlineReadingOwnBody},
		{"DeadlineReadingResponse", testDeadlineReadingResponse},
		{"CancelWakesPeersWriter", testCancelWakesPeersWriter},
		{"CloseWakesPeersWriter", testCloseWakesPeersWriter},
		{"ConcurrentClose", testConcurrentClose},
		{"AfterClose", testAfterClose},
		{"CloseDuringTraffic", testCloseDuringTraffic},
		{"Death", testDeath},
		{"DeathWhileSendingBody", testDeathWhileSendingBody},
		{"TruncatedResponse", testTruncatedResponse},
		{"RedirectIsNotFollowed", testRedirectIsNotFollowed},
		{"AcceptHonoursContext", testAcceptHonoursContext},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, open)
		})
	}
}

// session is one link under test.
type session struct {
	link.Link
	t    *testing.T
	stop func()
}

// start opens a link and sees to its end.
func start(t *testing.T, open Opener, data, control http.Handler) *session {
	t.Helper()
	if data == nil {
		data = http.NotFoundHandler()
	}
	if control == nil {
		control = http.NotFoundHandler()
	}
	l, stop := open(t, data, control)
	s := &session{Link: l, t: t, stop: stop}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		stop()
	})
	return s
}

// request makes a request to the data plane.
func (s *session) request(ctx context.Context, method, path string, body io.Reader) *http.Request {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+link.DataHost+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	return req
}

// get fetches a small response of the data plane.
func (s *session) get(path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resp, err := s.RoundTrip(s.request(ctx, http.MethodGet, path, nil))
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), errors.Join(err, resp.Body.Close())
}

// works fails the test unless the link still serves.
func (s *session) works() {
	s.t.Helper()
	if _, err := s.get("/still-there"); err != nil {
		s.t.Errorf("the link does not serve any more: %v", err)
	}
}

// within runs f and fails the test when it takes longer than the limit.
func within(t *testing.T, limit time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s did not end within %v", what, limit)
	}
}

// await waits for an event.
func await[T any](t *testing.T, what string, events <-chan T) T {
	t.Helper()
	select {
	case event := <-events:
		return event
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
	}
	var none T
	return none
}

// isKind fails the test unless err is of a kind, and could not be taken for a
// plain end of a stream.
func isKind(t *testing.T, what string, err error, kind errdefs.Kind) {
	t.Helper()
	if !errors.Is(err, kind) || errors.Is(err, io.EOF) {
		t.Errorf("%s: error %v (kind %s), want %s", what, err, errdefs.KindOf(err), kind)
	}
}

// zeros is a body of n zero bytes; its size shows in no field, so that it is
// sent as it comes.
func zeros(n int64) io.Reader { return io.LimitReader(zero{}, n) }

type zero struct{}

func (zero) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// halfCloser is a stream whose directions end one by one.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// upgrade opens an upgraded stream. The connection is the one that
// httptrace.GotConn tells of; reading goes through the response's body, which
// may hold bytes already.
func (s *session) upgrade(path string) (body io.ReadWriteCloser, conn halfCloser) {
	s.t.Helper()
	var got net.Conn
	ctx := httptrace.WithClientTrace(s.t.Context(), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { got = info.Conn },
	})
	req := s.request(ctx, http.MethodGet, path, nil)
	req.URL.Host = link.ControlHost
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "linktest")
	resp, err := s.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		s.t.Fatalf("status %s", resp.Status)
	}
	body, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		s.t.Fatalf("the body of an upgrade is a %T and cannot be written", resp.Body)
	}
	conn, ok = got.(halfCloser)
	if !ok {
		s.t.Fatalf("the connection is a %T and has no CloseWrite", got)
	}
	s.t.Cleanup(func() { _ = body.Close() })
	return body, conn
}

// hijack is a handler that switches protocols and hands the stream to f.
func hijack(f func(conn halfCloser, r io.Reader)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/up" {
			return
		}
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer conn.Close()
		half, ok := conn.(halfCloser)
		if !ok {
			return
		}
		header := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: linktest\r\n\r\n"
		if _, err := io.WriteString(conn, header); err != nil {
			return
		}
		f(half, buffered)
	}
}

// pattern is n bytes that show a shift or a loss.
func pattern(n int) []byte {
	return bytes.Repeat([]byte(strings.Repeat("0123456789abcdef", 16)+"\n"), n/257+1)[:n]
}
