package mux_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/mux"
)

// awaitStreams reads frames until the host has opened n streams, and goes on
// reading; it closes opened then.
func awaitStreams(conn net.Conn, n int, opened chan<- struct{}) {
	header := make([]byte, 12)
	for {
		if _, err := io.ReadFull(conn, header); err != nil {
			return
		}
		if header[0] == 0 && header[1] == window && header[3]&syn != 0 {
			if n--; n == 0 {
				close(opened)
			}
		}
		if header[1] == data {
			if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(header[8:]))); err != nil {
				return
			}
		}
	}
}

// answerAll sends an answer that fills the first window on each of n streams, in
// frames of a size, and counts what it has sent.
func answerAll(t *testing.T, conn net.Conn, n, body, size int, sent *atomic.Int64) {
	const head = "HTTP/1.1 200 OK\r\nContent-Length: 261000\r\n\r\n"
	all := []byte(head + strings.Repeat("x", body))
	for i := range n {
		for rest := all; len(rest) > 0; {
			part := rest[:min(size, len(rest))]
			rest = rest[len(part):]
			if _, err := conn.Write(frame(data, 0, uint32(2*i+1), uint32(len(part)), part...)); err != nil {
				t.Errorf("stream %d: %v", i, err)
				return
			}
			sent.Add(int64(len(part)))
		}
	}
}

// TestUnreadAnswers: what waits to be read is bounded over all streams, also
// where each frame is small, and none of it is lost. It is not parallel: it
// measures the heap.
func TestUnreadAnswers(t *testing.T) { //nolint:paralleltest // see above
	for name, c := range map[string]struct{ streams, size int }{
		"large frames": {200, 64 << 10},
		"small frames": {25, 16},
	} {
		t.Run(name, func(t *testing.T) { unread(t, c.streams, c.size) })
	}
}

func unread(t *testing.T, streams, size int) {
	t.Helper()
	const body = 261000
	l, guest := openHostile(t, mux.Config{}, 'h')
	runtime.GC()
	before := heapNow()
	opened, release := make(chan struct{}), make(chan struct{})
	var far, group sync.WaitGroup
	far.Go(func() { awaitStreams(guest, streams, opened) })
	for range streams {
		group.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+link.DataHost+"/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := l.RoundTrip(req)
			if err != nil {
				t.Errorf("request: %v", err)
				return
			}
			defer resp.Body.Close()
			<-release
			if n, err := io.Copy(io.Discard, resp.Body); n != body || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
	}
	<-opened
	var sent atomic.Int64
	group.Go(func() { answerAll(t, guest, streams, body, size, &sent) })
	// The guest is held back once its counter stands still.
	for last := int64(-1); sent.Load() != last; time.Sleep(300 * time.Millisecond) {
		last = sent.Load()
	}
	if all := int64(streams * body); sent.Load() >= all {
		t.Errorf("the host took all of the %d MiB", all>>20)
	}
	runtime.GC()
	if now := heapNow(); now > before+32<<20 {
		t.Errorf("the heap grew by %d MiB", (now-before)>>20)
	}
	close(release)
	group.Wait()
	if err := l.Err(); err != nil {
		t.Errorf("the link ended: %v", err)
	}
	closeInTime(t, l)
	_ = guest.Close()
	far.Wait()
}

// TestUnopenedStream: a frame for a stream that has ended is nothing; one for a
// stream that was never opened ends the link.
func TestUnopenedStream(t *testing.T) {
	t.Parallel()
	l, guest := openHostile(t, mux.Config{}, 'h')
	opened, reset := make(chan struct{}), make(chan struct{})
	var far sync.WaitGroup
	far.Go(func() { awaitStreams(guest, 2, reset) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := get(ctx, l, "/"); !errors.Is(err, errdefs.Timeout) {
		t.Errorf("request: %v", err)
	}
	far.Go(func() {
		close(opened)
		_ = get(t.Context(), l, "/")
	})
	<-opened
	// The first stream's end is on the wire before the second stream's begin.
	<-reset
	if _, err := guest.Write(frame(window, 0, 1, 1)); err != nil {
		t.Error(err)
	}
	select {
	case <-l.Done():
		t.Fatalf("a late frame ended the link: %v", l.Err())
	case <-time.After(100 * time.Millisecond):
	}
	if _, err := guest.Write(frame(window, 0, 99, 1)); err != nil {
		t.Error(err)
	}
	select {
	case <-l.Done():
	case <-time.After(patience):
		t.Error("the link did not end")
	}
	if !errors.Is(l.Err(), errdefs.Protocol) {
		t.Errorf("the link ended with %v", l.Err())
	}
	closeInTime(t, l)
	_ = guest.Close()
	far.Wait()
}

// TestOpensAreSlowed: a guest that opens streams and resets them is read from no
// faster than an honest one would need.
func TestOpensAreSlowed(t *testing.T) {
	t.Parallel()
	l, guest := openHostile(t, mux.Config{Egress: true}, 'e')
	var far sync.WaitGroup
	var sent atomic.Int64
	far.Go(func() { _, _ = io.Copy(io.Discard, guest) })
	far.Go(func() {
		flood(guest, func(i uint32) []byte {
			sent.Add(1)
			id := 2*i + 2
			return append(frame(window, syn, id, 0), frame(window, rst, id, 0)...)
		})
	})
	<-time.After(2 * time.Second)
	// Without the bound it is a million and more.
	if n := sent.Load(); n > 100_000 {
		t.Errorf("the guest opened %d streams", n)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the link ended: %v", err)
	}
	closeInTime(t, l)
	_ = guest.Close()
	far.Wait()
}
