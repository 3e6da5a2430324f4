package linktest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/berm-dev/berm/errdefs"
)

const soon = 100 * time.Millisecond

// hanging is a handler that does nothing on /hang until release, without
// reading the body, and answers on all other paths.
func hanging(release <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-release
		}
	})
}

// expires sends the request and fails the test unless it ends by its deadline.
func (s *session) expires(what string, body io.Reader) {
	s.t.Helper()
	for _, deadline := range []bool{true, false} {
		ctx, cancel := context.WithTimeout(s.t.Context(), soon)
		kind, sentinel := errdefs.Timeout, context.DeadlineExceeded
		if !deadline {
			cancel()
			ctx, cancel = context.WithCancel(s.t.Context())
			time.AfterFunc(soon, cancel)
			kind, sentinel = errdefs.Cancelled, context.Canceled
		}
		within(s.t, 2*time.Second+soon, what, func() {
			resp, err := s.RoundTrip(s.request(ctx, http.MethodPost, "/hang", body))
			if err == nil {
				_ = resp.Body.Close()
			}
			isKind(s.t, what, err, kind)
			if !errors.Is(err, sentinel) {
				s.t.Errorf("%s: %v does not show the context's error", what, err)
			}
		})
		cancel()
	}
	s.works()
}

func testDeadlineWaiting(t *testing.T, open Opener) {
	release := make(chan struct{})
	s := start(t, open, hanging(release), nil)
	defer close(release)
	s.expires("waiting for the response", nil)
}

// testDeadlineSendingBody: the peer does not read, so that the writer blocks.
func testDeadlineSendingBody(t *testing.T, open Opener) {
	release := make(chan struct{})
	s := start(t, open, hanging(release), nil)
	defer close(release)
	s.expires("sending a body that nobody reads", zeros(1<<40))
}

// testDeadlineReadingOwnBody: the caller's own reader blocks, and nothing wakes
// it, as with a terminal.
func testDeadlineReadingOwnBody(t *testing.T, open Opener) {
	release := make(chan struct{})
	s := start(t, open, hanging(release), nil)
	defer close(release)
	s.expires("sending a body that does not come", io.NopCloser(stuck{release}))
}

// stuck is a reader that only release wakes.
type stuck struct{ release <-chan struct{} }

func (s stuck) Read([]byte) (int, error) {
	<-s.release
	return 0, io.EOF
}

func testDeadlineReadingResponse(t *testing.T, open Opener) {
	release := make(chan struct{})
	s := start(t, open, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hang" {
			return
		}
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-release
	}), nil)
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	resp, err := s.RoundTrip(s.request(ctx, http.MethodGet, "/hang", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got []byte
	within(t, 2*time.Second+soon, "reading the response", func() { got, err = io.ReadAll(resp.Body) })
	isKind(t, "reading the response", err, errdefs.Timeout)
	if string(got) != "first" {
		t.Errorf("read %q", got)
	}
	s.works()
}

// endless writes until it fails, then tells how.
func endless(failed chan<- error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/endless" {
			return
		}
		block := make([]byte, 64<<10)
		for {
			if _, err := w.Write(block); err != nil {
				failed <- err
				return
			}
		}
	})
}

// testCancelWakesPeersWriter: the far writer, blocked because the host does not
// read, ends soon after the request was cancelled or its body closed.
func testCancelWakesPeersWriter(t *testing.T, open Opener) {
	failed := make(chan error, 1)
	s := start(t, open, endless(failed), nil)
	for _, closeBody := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := s.RoundTrip(s.request(ctx, http.MethodGet, "/endless", nil))
		if err != nil {
			cancel()
			t.Fatal(err)
		}
		if closeBody {
			within(t, 2*time.Second, "closing the body", func() { _ = resp.Body.Close() })
		} else {
			cancel()
		}
		await(t, "end of the peer's writer", failed)
		cancel()
		_ = resp.Body.Close()
	}
	s.works()
}

func testCloseWakesPeersWriter(t *testing.T, open Opener) {
	failed := make(chan error, 1)
	s := start(t, open, endless(failed), nil)
	resp, err := s.RoundTrip(s.request(t.Context(), http.MethodGet, "/endless", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	within(t, 2*time.Second, "Close", func() { _ = s.Close() })
	await(t, "end of the peer's writer", failed)
}
