package gate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate"
)

// TestH2RequestLine: what HTTP/2 lets into a method or a path, and a request line
// cannot bear, does not go upstream.
func TestH2RequestLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newPKI(t), setup{brokered: true})
	rows := [][2]string{
		{"GET", "/?a HTTP/1.1"}, {"GET", "/?a b"}, {"GET", "/a b"}, {"GET", "/?a#b"}, {"GET", "/?\xff"},
		{"GET /evil HTTP/1.1", "/"}, {"get", "/"}, {"M@", "/"},
	}
	for _, row := range rows {
		conn := w.inside(t, "h2")
		rawH2(t, conn, [][2]string{{":method", row[0]}, {":scheme", "https"}, {":authority", "api.example.com"}, {":path", row[1]}}, "400")
		_ = conn.Close()
	}
	if got := w.secure.requests(); len(got) != 0 {
		t.Errorf("the upstream saw %+v", got)
	}
	w.finish(t, 2*len(rows))
}

// TestCredentialOfAnOldPolicy: a request that has not been sent when the policy
// changes is not sent with the credential of the one before.
func TestCredentialOfAnOldPolicy(t *testing.T) {
	t.Parallel()
	asked, changed := make(chan struct{}, 1), make(chan struct{})
	w := newWorld(t, newPKI(t), setup{policy: sourced(func(ctx context.Context) (string, error) {
		asked <- struct{}{}
		select {
		case <-changed:
		case <-ctx.Done():
		}
		return "old-secret-value", nil
	})})
	c := w.dial(t)
	c.send("POST http://api.example.com/ HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
	<-asked
	next := policy()
	next.Credentials = []egress.Credential{credential()}
	if err := w.gate.SetPolicy(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	close(changed)
	if got := c.answer(http.MethodPost); got.status != http.StatusForbidden || got.reason != egress.ReasonGeneration {
		t.Errorf("answer %d %q", got.status, got.reason)
	}
	if got := w.secure.requests(); len(got) != 0 {
		t.Errorf("the upstream saw %+v", got)
	}
	if got := plainGet(t, w, "http://api.example.com/", "", ""); got.status != http.StatusOK {
		t.Errorf("the next request: %d", got.status)
	}
	w.finish(t, 2)
}

// TestOpenRequestLosesItsMethod: a change of what a credential is for ends the open
// requests that it is for no longer, and no others.
func TestOpenRequestLosesItsMethod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newPKI(t), setup{brokered: true, handler: endless})
	c := w.dial(t)
	c.send("GET http://api.example.com/v1 HTTP/1.1\r\nHost: a\r\n\r\n")
	if _, err := c.r.ReadByte(); err != nil {
		t.Fatal(err)
	}
	set := func(methods, paths []string) {
		next, cred := policy(), credential()
		cred.Methods, cred.Paths = methods, paths
		next.Credentials = []egress.Credential{cred}
		if err := w.gate.SetPolicy(t.Context(), next); err != nil {
			t.Fatal(err)
		}
	}
	set([]string{http.MethodGet}, []string{"/v1"})
	if n := w.gate.Stats().Flows; n != 1 {
		t.Errorf("%d flows after a change that allows it", n)
	}
	set([]string{http.MethodPost}, nil)
	if end := w.sink.ends(t, 1)[0]; end.Reason != egress.ReasonGeneration {
		t.Errorf("end %+v", end)
	}
	_, _ = io.Copy(io.Discard, c.r)
	w.finish(t, 1)
}

// TestResolverTakesAwayAfterAFailure: what a Resolver no longer allows ends, also
// when it failed in between.
func TestResolverTakesAwayAfterAFailure(t *testing.T) {
	t.Parallel()
	var turn atomic.Int32
	p := newPKI(t)
	w := newWorld(t, p, resolverSetup(func(context.Context) ([]string, error) {
		switch turn.Add(1) {
		case 1:
			return []string{"api.example.com"}, nil
		case 2:
			return nil, errors.New("down")
		}
		return nil, nil
	}))
	c, _ := w.connectTo(t, "api.example.com:443")
	if _, err := c.tls(p, &tls.Config{ServerName: "api.example.com"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []egress.Reason{egress.ReasonResolver, egress.ReasonNoRule} {
		w.gate.AgeAnswer()
		if got := plainGet(t, w, "http://evil.test/", "", ""); got.reason != want {
			t.Errorf("reason %q, want %q", got.reason, want)
		}
	}
	if end := w.sink.ends(t, 1)[0]; end.Reason != egress.ReasonGeneration {
		t.Errorf("end %+v", end)
	}
	w.finish(t, 3)
}

// TestRequestsAreBounded: HTTP/2 has many requests on one connection, and each
// would take an upstream connection of its own.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newPKI(t), setup{brokered: true, handler: endless, config: func(c *gate.Config) { c.Limits.Requests = 1 }})
	client := w.h2(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	first, err := client.Do(req)
	if err != nil || first.StatusCode != http.StatusOK {
		t.Fatalf("first %v, %v", first, err)
	}
	if got := h2Get(t, client, "api.example.com", nil); got.status != http.StatusServiceUnavailable || got.reason != egress.ReasonLimit {
		t.Errorf("second %d %q", got.status, got.reason)
	}
	_ = first.Body.Close()
	until(t, "the first is over", func() bool { return w.gate.Stats().Flows == 1 })
	w.finish(t, 3)
}

// TestSinkBreaksDownAtTheLimit: nothing of a sink's ends the goroutine that
// accepts.
func TestSinkBreaksDownAtTheLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newPKI(t), setup{sink: breaksAtLimit{}, config: func(c *gate.Config) { c.Limits.Connections = 1 }})
	only := w.dial(t)
	until(t, "it is taken", func() bool { return w.gate.Stats().Connections == 1 })
	w.dial(t).closed()
	_ = only.Close()
	until(t, "it is gone", func() bool { return w.gate.Stats().Connections == 0 })
	w.finish(t, 0)
}

type breaksAtLimit struct{}

func (breaksAtLimit) Write(_ context.Context, r *egress.Record) error {
	if r.Reason == egress.ReasonLimit {
		panic("a sink that breaks down")
	}
	return nil
}

// TestDenialsThatAreNotRead: a client that asks and never reads loses its
// connection, as the time for it runs out.
func TestDenialsThatAreNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, newPKI(t), setup{config: func(c *gate.Config) { c.Timeouts.Idle = 200 * time.Millisecond }})
	c := w.dial(t)
	c.allow(t, patience)
	ask := []byte(strings.Repeat("GET http://evil.test/ HTTP/1.1\r\nHost: a\r\n\r\n", 200))
	// Sooner or later nothing is taken any more, then the connection is broken off.
	for err := error(nil); err == nil; {
		_, err = c.Write(ask)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the connection is still there")
		}
	}
	for end := time.Now().Add(patience); w.gate.Stats().Connections > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the gate still has the connection")
		}
	}
	w.finish(t, len(w.sink.decisions()))
}
