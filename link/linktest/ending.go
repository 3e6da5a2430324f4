package linktest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/berm-dev/berm/errdefs"
)

// mixed serves all kinds of traffic.
func mixed(release <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hang":
			<-release
		case "/endless":
			endless(make(chan error, 1)).ServeHTTP(w, r)
		case "/sink":
			_, _ = io.Copy(io.Discard, r.Body)
		default:
			_, _ = io.WriteString(w, "ok")
		}
	})
}

// traffic starts requests of all kinds, among them responses that nobody reads
// and upgraded streams that nobody closes, and gives a function that waits until
// each has failed, and one that waits for their start.
func (s *session) traffic(kind errdefs.Kind) (wait func()) {
	var running, group sync.WaitGroup
	check := func(what string, err error) {
		isKind(s.t, what, err, kind)
	}
	for range 4 {
		running.Add(4)
		group.Go(func() {
			running.Done()
			_, err := s.RoundTrip(s.request(context.Background(), http.MethodGet, "/hang", nil))
			check("request without an answer", err)
		})
		group.Go(func() {
			var started sync.Once
			body := readerFunc(func(p []byte) (int, error) {
				started.Do(running.Done)
				return len(p), nil
			})
			_, err := s.RoundTrip(s.request(context.Background(), http.MethodPost, "/sink", body))
			check("endless upload", err)
		})
		group.Go(func() {
			resp, err := s.RoundTrip(s.request(context.Background(), http.MethodGet, "/endless", nil))
			running.Done()
			if err == nil {
				_, err = io.Copy(onlyWriter{io.Discard}, resp.Body)
			}
			check("endless download", err)
		})
		group.Go(func() {
			resp, err := s.RoundTrip(s.request(context.Background(), http.MethodGet, "/endless", nil))
			running.Done()
			if err != nil {
				check("download", err)
				return
			}
			<-s.Done()
			// What was buffered may still be read; the end is an error.
			_, err = io.Copy(onlyWriter{io.Discard}, resp.Body)
			check("download that nobody reads", err)
		})
	}
	body, _ := s.upgrade("/up")
	group.Go(func() {
		_, err := body.Read(make([]byte, 1))
		check("upgraded stream", err)
		_, err = body.Write(make([]byte, 1))
		check("writing to an upgraded stream", err)
	})
	running.Wait()
	return group.Wait
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// held is an upgraded stream that the peer holds open.
func held(release <-chan struct{}) http.Handler {
	return hijack(func(halfCloser, io.Reader) { <-release })
}

func testCloseDuringTraffic(t *testing.T, open Opener) {
	release := make(chan struct{})
	s := start(t, open, mixed(release), held(release))
	defer close(release)
	wait := s.traffic(errdefs.Closed)
	within(t, 2*time.Second, "Close", func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	within(t, patience, "traffic after Close", wait)
	if err := s.Err(); err != nil {
		t.Errorf("Err after a plain Close: %v", err)
	}
}

func testDeath(t *testing.T, open Opener) {
	release := make(chan struct{})
	s := start(t, open, mixed(release), held(release))
	wait := s.traffic(errdefs.TransportLost)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.stop()
	}()
	await(t, "end of the link", s.Done())
	isKind(t, "Err", s.Err(), errdefs.TransportLost)
	// The far handlers that do nothing can only end with their process.
	close(release)
	await(t, "end of the peer", stopped)
	within(t, patience, "traffic after the peer's death", wait)
	_, err := s.get("/")
	isKind(t, "request after the peer's death", err, errdefs.TransportLost)
	within(t, 2*time.Second, "Close", func() { _ = s.Close() })
	_, err = s.get("/")
	isKind(t, "request after Close", err, errdefs.Closed)
	isKind(t, "Err after Close", s.Err(), errdefs.TransportLost)
}

// testDeathWhileSendingBody: the peer dies while the caller's own reader blocks.
func testDeathWhileSendingBody(t *testing.T, open Opener) {
	release := make(chan struct{})
	arrived := make(chan struct{}, 1)
	s := start(t, open, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body)
	}), nil)
	defer close(release)
	failed := make(chan error, 1)
	go func() {
		body := io.MultiReader(zeros(128<<10), stuck{release})
		_, err := s.RoundTrip(s.request(context.Background(), http.MethodPost, "/", body))
		failed <- err
	}()
	await(t, "request", arrived)
	s.stop()
	isKind(t, "request", await(t, "end of the request", failed), errdefs.TransportLost)
}

// testTruncatedResponse: a response that breaks off is an error, never an end.
func testTruncatedResponse(t *testing.T, open Opener) {
	s := start(t, open, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sized" {
			w.Header().Set("Content-Length", "1000")
		}
		if r.URL.Path == "/still-there" {
			return
		}
		_, _ = io.WriteString(w, "part")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}), nil)
	for _, path := range []string{"/sized", "/chunked"} {
		got, err := s.get(path)
		isKind(t, path, err, errdefs.TransportLost)
		if got != "part" {
			t.Errorf("%s: read %q", path, got)
		}
	}
	s.works()
}

func testConcurrentClose(t *testing.T, open Opener) {
	s := start(t, open, named("data"), nil)
	s.works()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	within(t, 2*time.Second, "Close", group.Wait)
}

func testAfterClose(t *testing.T, open Opener) {
	s := start(t, open, named("data"), nil)
	s.works()
	if err := s.Err(); err != nil {
		t.Errorf("Err of a living link: %v", err)
	}
	select {
	case <-s.Done():
		t.Error("a living link is done")
	default:
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	await(t, "Done", s.Done())
	var closed closeNoter
	_, err := s.RoundTrip(s.request(t.Context(), http.MethodPost, "/", &closed))
	isKind(t, "request", err, errdefs.Closed)
	if !closed.done {
		t.Error("the body of a refused request was not closed")
	}
	_, err = s.Accept(t.Context())
	if !errors.Is(err, errdefs.Closed) && !errors.Is(err, errdefs.Unsupported) {
		t.Errorf("accept: %v", err)
	}
	if err := s.Err(); err != nil {
		t.Errorf("Err after a plain Close: %v", err)
	}
}

// closeNoter is a body that notes its Close.
type closeNoter struct{ done bool }

func (*closeNoter) Read([]byte) (int, error) { return 0, io.EOF }
func (c *closeNoter) Close() error           { c.done = true; return nil }

func testAcceptHonoursContext(t *testing.T, open Opener) {
	s := start(t, open, nil, nil)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	within(t, 2*time.Second+soon, "Accept", func() {
		_, err := s.Accept(ctx)
		if !errors.Is(err, errdefs.Unsupported) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("accept: %v", err)
		}
	})
}

func testCloseLeavesNoGoroutine(t *testing.T, open Opener) {
	leavesNothing(t, func(t *testing.T) {
		release := make(chan struct{})
		s := start(t, open, mixed(release), held(release))
		wait := s.traffic(errdefs.Closed)
		_ = s.Close()
		wait()
		close(release)
		s.stop()
	})
}

func testDeathLeavesNoGoroutine(t *testing.T, open Opener) {
	leavesNothing(t, func(t *testing.T) {
		release := make(chan struct{})
		s := start(t, open, mixed(release), held(release))
		wait := s.traffic(errdefs.TransportLost)
		time.AfterFunc(soon, func() { close(release) })
		s.stop()
		wait()
		_ = s.Close()
	})
}

// leavesNothing runs f a few times as subtests and compares the numbers of
// goroutines. Those of http.Transport end just after they closed their stream,
// so that they get a moment.
func leavesNothing(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	before := runtime.NumGoroutine()
	for i := range 3 {
		t.Run(strconv.Itoa(i), f)
	}
	deadline := time.Now().Add(2 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if after := runtime.NumGoroutine(); after > before {
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines before, %d after\n%s", before, after, stacks[:runtime.Stack(stacks, true)])
	}
}
