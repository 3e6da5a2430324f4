package mux_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/mux"
)

const bulk = 64 << 20

// serveBulk answers with much, or takes what comes.
func serveBulk(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/down":
		block := make([]byte, 256<<10)
		for range bulk / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	case "/up":
		_, _ = io.CopyBuffer(sink{}, r.Body, make([]byte, 256<<10))
	}
}

type sink struct{}

func (sink) Write(p []byte) (int, error) { return len(p), nil }

func BenchmarkLink(b *testing.B) {
	host, guest := pair(b)
	handler := http.HandlerFunc(serveBulk)
	l, g := open(b, host, guest, mux.Config{}, handler, handler, nil)
	defer g.stop()
	defer l.Close()
	buffer := make([]byte, 256<<10)
	exchange := func(b *testing.B, method, path string, body io.Reader) {
		req, err := http.NewRequestWithContext(b.Context(), method, "http://"+link.DataHost+path, body)
		if err != nil {
			b.Fatal(err)
		}
		if body != nil {
			req.ContentLength = bulk
		}
		resp, err := l.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.CopyBuffer(sink{}, resp.Body, buffer); err != nil {
			b.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("RoundTrip", func(b *testing.B) {
		for b.Loop() {
			exchange(b, http.MethodGet, "/", nil)
		}
	})
	b.Run("Download", func(b *testing.B) {
		b.SetBytes(bulk)
		for b.Loop() {
			exchange(b, http.MethodGet, "/down", nil)
		}
	})
	b.Run("Upload", func(b *testing.B) {
		b.SetBytes(bulk)
		for b.Loop() {
			exchange(b, http.MethodPost, "/up", io.LimitReader(zero{}, bulk))
		}
	})
	// The same bytes without a link.
	b.Run("RawSocket", func(b *testing.B) {
		from, to := pair(b)
		defer from.Close()
		defer to.Close()
		b.SetBytes(bulk)
		for b.Loop() {
			go func() {
				block := make([]byte, 256<<10)
				for range bulk / len(block) {
					if _, err := from.Write(block); err != nil {
						return
					}
				}
			}()
			if _, err := io.CopyBuffer(sink{}, io.LimitReader(to, bulk), buffer); err != nil {
				b.Fatal(err)
			}
		}
	})
}
