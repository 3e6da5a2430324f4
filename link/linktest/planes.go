package linktest

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berm-dev/berm/link"
)

// named answers with its own name.
func named(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, name)
	})
}

func testPlanes(t *testing.T, open Opener) {
	s := start(t, open, named("data"), named("control"))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var group sync.WaitGroup
	for i := range 100 {
		host, want := link.DataHost, "data"
		if i%2 == 1 {
			host, want = link.ControlHost, "control"
		}
		req := s.request(ctx, http.MethodGet, "/"+strconv.Itoa(i), nil)
		req.URL.Host = host
		// The header says the opposite, and must not matter.
		req.Host = map[string]string{"data": link.ControlHost, "control": link.DataHost}[want]
		group.Go(func() {
			resp, err := s.RoundTrip(req)
			if err != nil {
				t.Errorf("%s: %v", host, err)
				return
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != want {
				t.Errorf("%s was answered by %q, %v", host, got, err)
			}
		})
	}
	group.Wait()
}

// testForeignHosts: only the exact name reaches the control plane.
func testForeignHosts(t *testing.T, open Opener) {
	var reached atomic.Int32
	control := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	s := start(t, open, named("data"), control)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, host := range []string{
		"", "localhost", "127.0.0.1", "data.berm:80", "data.berm:443", "control.berm.", "control.berm:1", "x.control.berm",
		"CONTROL.BERM", "data.berm@control.berm", "control.berm/", "data.berm,control.berm", "control%2eberm", "\u0441ontrol.berm",
	} {
		req := s.request(ctx, http.MethodGet, "/", nil)
		req.URL.Host = host
		if resp, err := s.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		}
	}
	for _, scheme := range []string{"https", "", "file"} {
		req := s.request(ctx, http.MethodGet, "/", nil)
		req.URL.Scheme = scheme
		if resp, err := s.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
			t.Errorf("scheme %q was accepted", scheme)
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("the control plane was reached %d times", n)
	}
	s.works()
}

func testRedirectIsNotFollowed(t *testing.T, open Opener) {
	var reached atomic.Int32
	control := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	data := http.RedirectHandler("http://"+link.ControlHost+"/", http.StatusTemporaryRedirect)
	s := start(t, open, data, control)
	resp, err := s.RoundTrip(s.request(t.Context(), http.MethodGet, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusTemporaryRedirect || reached.Load() != 0 {
		t.Errorf("status %d, control plane reached %d times", resp.StatusCode, reached.Load())
	}
}

// testBurst: an honest burst is served.
func testBurst(t *testing.T, open Opener) {
	const streams = 200
	var arrived sync.WaitGroup
	arrived.Add(streams)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/burst" {
			arrived.Done()
			arrived.Wait()
		}
		_, _ = io.WriteString(w, "ok")
	})
	s := start(t, open, handler, nil)
	var group sync.WaitGroup
	for range streams {
		group.Go(func() {
			if got, err := s.get("/burst"); err != nil || got != "ok" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	within(t, 2*patience, "burst", group.Wait)
	s.works()
}
