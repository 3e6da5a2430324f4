package linktest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

const (
	bulk = 64 << 20
	// heapLimit is what a bulk body may add to the heap, both sides together.
	heapLimit = 16 << 20
	chunk     = 256 << 10
)

// heapGrowth runs f and gives how much larger than before the heap was at its
// largest, as far as samples show.
func heapGrowth(f func()) int64 {
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	stop, stopped := make(chan struct{}), make(chan int64)
	go func() {
		var largest uint64
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				stopped <- int64(largest) - int64(before.HeapAlloc)
				return
			case <-tick.C:
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				largest = max(largest, now.HeapAlloc)
			}
		}
	}()
	f()
	close(stop)
	return <-stopped
}

// testDownloadMemory: a large response arrives whole and is not kept in memory.
func testDownloadMemory(t *testing.T, open Opener) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/sized" {
			w.Header().Set("Content-Length", strconv.Itoa(bulk))
		}
		block := pattern(chunk)
		for range bulk / chunk {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	s := start(t, open, handler, nil)
	for _, path := range []string{"/sized", "/chunked"} {
		ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
		sum := sha256.New()
		growth := heapGrowth(func() {
			resp, err := s.RoundTrip(s.request(ctx, http.MethodGet, path, nil))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if n, err := io.CopyBuffer(onlyWriter{sum}, resp.Body, make([]byte, chunk)); err != nil || n != bulk {
				t.Errorf("%s: %d bytes, %v", path, n, err)
			}
		})
		cancel()
		checkBulk(t, path, sum, growth)
	}
}

// testUploadMemory is the same for a request's body, of a stated length and of
// none.
func testUploadMemory(t *testing.T, open Opener) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.CopyBuffer(onlyWriter{sum}, r.Body, make([]byte, chunk))
		if err != nil || n != bulk {
			http.Error(w, fmt.Sprintf("%d bytes, %v", n, err), http.StatusBadRequest)
			return
		}
		_, _ = w.Write(sum.Sum(nil))
	})
	s := start(t, open, handler, nil)
	for _, length := range []int64{bulk, -1} {
		ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
		var answer []byte
		growth := heapGrowth(func() {
			block := pattern(chunk)
			readers := make([]io.Reader, bulk/chunk)
			for i := range readers {
				readers[i] = bytes.NewReader(block)
			}
			req := s.request(ctx, http.MethodPost, "/", io.MultiReader(readers...))
			req.ContentLength = length
			resp, err := s.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if answer, err = io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("status %d, %q, %v", resp.StatusCode, answer, err)
			}
		})
		cancel()
		if want := bulkSum(); !bytes.Equal(answer, want) {
			t.Errorf("length %d: the body arrived changed", length)
		}
		if growth > heapLimit {
			t.Errorf("length %d: the heap grew by %d MiB", length, growth>>20)
		}
	}
}

func bulkSum() []byte {
	sum := sha256.New()
	block := pattern(chunk)
	for range bulk / chunk {
		sum.Write(block)
	}
	return sum.Sum(nil)
}

func checkBulk(t *testing.T, what string, sum hash.Hash, growth int64) {
	t.Helper()
	if !bytes.Equal(sum.Sum(nil), bulkSum()) {
		t.Errorf("%s: the body arrived changed", what)
	}
	if growth > heapLimit {
		t.Errorf("%s: the heap grew by %d MiB", what, growth>>20)
	}
}

// onlyWriter hides every other method.
type onlyWriter struct{ io.Writer }

// testDuplex: both directions of one request flow at once.
func testDuplex(t *testing.T, open Opener) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusOK)
		_, _ = io.Copy(flusher{w}, r.Body)
	})
	s := start(t, open, handler, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	reader, writer := io.Pipe()
	var group sync.WaitGroup
	defer group.Wait()
	// The answer to each part is awaited before the next is sent.
	answers := make(chan string)
	group.Go(func() {
		defer writer.Close()
		for i := range 50 {
			if _, err := fmt.Fprintf(writer, "%04d", i); err != nil {
				t.Errorf("part %d: %v", i, err)
				return
			}
			select {
			case got := <-answers:
				if got != fmt.Sprintf("%04d", i) {
					t.Errorf("answer %q to part %d", got, i)
				}
			case <-ctx.Done():
				t.Errorf("no answer to part %d", i)
				return
			}
		}
	})
	resp, err := s.RoundTrip(s.request(ctx, http.MethodPost, "/", reader))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	part := make([]byte, 4)
	for range 50 {
		if _, err := io.ReadFull(resp.Body, part); err != nil {
			t.Error(err)
			break
		}
		select {
		case answers <- string(part):
		case <-ctx.Done():
		}
	}
}

// flusher sends each write at once.
type flusher struct{ w http.ResponseWriter }

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}
