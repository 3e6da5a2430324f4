package mux_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
	"github.com/berm-dev/berm/link/mux"
)

// The wire, written down a second time: types and flags of frames.
const (
	data, window, ping, goAway = 0, 1, 2, 3
	syn, ack, fin, rst         = 1, 2, 4, 8
)

// frame is a frame's header, with a payload behind it or not.
func frame(kind byte, flags uint16, id, length uint32, payload ...byte) []byte {
	out := []byte{0, kind}
	out = binary.BigEndian.AppendUint16(out, flags)
	out = binary.BigEndian.AppendUint32(out, id)
	return append(binary.BigEndian.AppendUint32(out, length), payload...)
}

func sum(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

// greet is a guest's preface up to and with its hello, by hand.
func greet(conn io.ReadWriter, hello byte) error {
	head := make([]byte, 16+32)
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	nonce := make([]byte, 32)
	out := append([]byte("berm-mux/1 gues\n"), nonce...)
	if _, err := conn.Write(append(out, sum(nil, []byte("guest"), head[16:], nonce)...)); err != nil {
		return err
	}
	boot := make([]byte, 32+4)
	if _, err := io.ReadFull(conn, boot); err != nil {
		return err
	}
	_, err := conn.Write([]byte{hello})
	return err
}

// openHostile makes a link to a guest that has said hello and is then used by
// hand. Close of the link has its bound checked.
func openHostile(t testing.TB, config mux.Config, hello byte) (*mux.Link, net.Conn) {
	t.Helper()
	host, guest := pair(t)
	greeted := make(chan error, 1)
	go func() { greeted <- greet(guest, hello) }()
	l, err := mux.New(t.Context(), host, config)
	if err := errors.Join(err, <-greeted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closeInTime(t, l)
		_ = guest.Close()
	})
	return l, guest
}

func closeInTime(t testing.TB, l *mux.Link) {
	t.Helper()
	start := time.Now()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// heapGrowth runs f and gives how much larger than before the heap was.
func heapGrowth(f func()) int64 {
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	stop, largest := make(chan struct{}), make(chan uint64)
	go func() {
		var most uint64
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc)
			case <-stop:
				largest <- most
				return
			}
		}
	}()
	f()
	close(stop)
	return int64(<-largest) - int64(before.HeapAlloc)
}

func get(ctx context.Context, l *mux.Link, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+link.DataHost+path, nil)
	if err != nil {
		return err
	}
	resp, err := l.RoundTrip(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// flood writes what next gives until it fails, in large pieces.
func flood(conn net.Conn, next func(i uint32) []byte) {
	var block []byte
	for i := uint32(0); ; i++ {
		if block = append(block, next(i)...); len(block) < 16<<10 {
			continue
		}
		if _, err := conn.Write(block); err != nil {
			return
		}
		block = block[:0]
	}
}

// same is a flood of one and the same.
func same(b []byte) func(uint32) []byte { return func(uint32) []byte { return b } }

// opens is a flood of streams, each with a tail of further frames.
func opens(tail func(id uint32) []byte) func(uint32) []byte {
	return func(i uint32) []byte {
		id := 2*i + 2
		return append(frame(window, syn, id, 0), tail(id)...)
	}
}

func nothing(uint32) []byte { return nil }

// TestHostileFrames is not parallel: it measures the heap. A host has one
// request under way on stream 1, and its guest floods it.
func TestHostileFrames(t *testing.T) { //nolint:paralleltest // see above
	bytes := make([]byte, 64<<10)
	tagged := func(id uint32) []byte { return frame(data, 0, id, 1, 'e') }
	for _, c := range []struct {
		name   string
		egress bool
		deaf   bool // the guest does not read
		next   func(uint32) []byte
		// want is how the link ends; empty when the guest is held back instead.
		want errdefs.Kind
	}{
		{"pings", false, false, same(frame(ping, syn, 0, 7)), errdefs.Protocol},
		{"pings, deaf", false, true, same(frame(ping, syn, 0, 7)), errdefs.Protocol},
		{"ping answers", false, false, same(frame(ping, ack, 0, 7)), errdefs.Protocol},
		{"empty windows", false, false, same(frame(window, 0, 1, 0)), errdefs.Protocol},
		{"small windows", false, false, same(frame(window, 0, 1, 1)), errdefs.Protocol},
		{"large windows", false, false, same(frame(window, 0, 1, 256<<10)), errdefs.Protocol},
		{"a huge window", false, false, same(frame(window, 0, 1, 1<<31)), errdefs.Protocol},
		{"acknowledgements", false, false, same(frame(window, ack, 1, 0)), errdefs.Protocol},
		{"empty data", false, false, same(frame(data, 0, 1, 0)), errdefs.Protocol},
		{"unknown odd stream", false, false, same(frame(data, 0, 99, 1, 'x')), errdefs.Protocol},
		{"unknown even stream", true, false, same(frame(data, 0, 98, 1, 'x')), errdefs.Protocol},
		{"windows of an unknown stream", false, false, same(frame(window, 0, 99, 1)), errdefs.Protocol},
		{"resets of unknown streams", false, false, func(i uint32) []byte { return frame(window, rst, 2*i+3, 0) }, errdefs.Protocol},
		{"resets of a stream", false, false, same(frame(window, rst, 1, 0)), errdefs.Protocol},
		{"no stream", false, false, same(frame(data, 0, 0, 1, 'x')), errdefs.Protocol},
		{"beyond the window", false, false, same(frame(data, 0, 1, 256<<10+1)), errdefs.Protocol},
		{"a frame of 4 GiB", false, false, same(frame(data, 0, 1, 1<<32-1)), errdefs.Protocol},
		{"a reset of 4 GiB", false, false, same(frame(data, rst, 1, 1<<32-1)), errdefs.Protocol},
		{"the host's streams", true, false, same(frame(window, syn, 101, 0)), errdefs.Protocol},
		{"a stream twice", true, false, same(frame(window, syn, 2, 0)), errdefs.Protocol},
		{"unknown flags", false, false, same(frame(data, 1<<9, 1, 0)), errdefs.Protocol},
		{"unknown type", false, false, same(frame(9, 0, 1, 0)), errdefs.Protocol},
		{"garbage", false, false, same([]byte("HTTP/1.1 200 OK\r\n\r\n")), errdefs.Protocol},
		{"zeros after garbage", false, false, same([]byte("\x00\xff")), errdefs.Protocol},
		{"go away", false, false, same(frame(goAway, 0, 0, 0)), errdefs.TransportLost},
		{"streams without egress", false, false, opens(nothing), ""},
		{"streams without egress, deaf", false, true, opens(nothing), ""},
		{"streams with the data tag", true, false, opens(func(id uint32) []byte { return frame(data, 0, id, 1, 'd') }), errdefs.Protocol},
		{"streams with the control tag", true, false, opens(func(id uint32) []byte { return frame(data, 0, id, 1, 'c') }), errdefs.Protocol},
		{"streams without a tag", true, false, opens(nothing), ""},
		{"streams", true, false, opens(tagged), ""},
		{"streams, deaf", true, true, opens(tagged), ""},
		{"streams with data", true, false, opens(func(id uint32) []byte {
			return append(tagged(id), frame(data, 0, id, 64<<10, bytes...)...)
		}), ""},
		{"streams that are reset", true, false, opens(func(id uint32) []byte { return frame(window, rst, id, 0) }), ""},
		{"streams that are used and reset", true, false, opens(func(id uint32) []byte {
			return append(tagged(id), frame(window, rst, id, 0)...)
		}), ""},
		{"streams that end", true, false, opens(func(id uint32) []byte { return append(tagged(id), frame(window, fin, id, 0)...) }), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, guest := openHostile(t, mux.Config{Egress: c.egress}, 'e')
			growth := heapGrowth(func() { suffer(t, l, guest, c.deaf, c.next, c.want) })
			if growth > 32<<20 {
				t.Errorf("the heap grew by %d MiB", growth>>20)
			}
		})
	}
}

// suffer lets the guest send until the link ends as wanted, or for a moment.
func suffer(t *testing.T, l *mux.Link, guest net.Conn, deaf bool, next func(uint32) []byte, want errdefs.Kind) {
	t.Helper()
	var group sync.WaitGroup
	group.Go(func() {
		if err := get(t.Context(), l, "/"); err == nil {
			t.Error("a request was answered")
		}
	})
	// The request's first frame is on the wire.
	if _, err := io.ReadFull(guest, make([]byte, 12)); err != nil {
		t.Error(err)
	}
	if !deaf {
		group.Go(func() { _, _ = io.Copy(io.Discard, guest) })
	}
	group.Go(func() { flood(guest, next) })
	select {
	case <-l.Done():
	case <-time.After(patience):
		if want != "" {
			t.Error("the link did not end")
		}
	case <-after(want == "", time.Second):
	}
	if err := l.Err(); want != "" && !errors.Is(err, want) || want == "" && err != nil {
		t.Errorf("the link ended with %v, want %q", err, want)
	}
	closeInTime(t, l)
	_ = guest.Close()
	group.Wait()
}

// after is time.After, or never.
func after(wanted bool, d time.Duration) <-chan time.Time {
	if !wanted {
		return nil
	}
	return time.After(d)
}

// TestHostileHello: what is no hello ends the link.
func TestHostileHello(t *testing.T) {
	t.Parallel()
	l, _ := openHostile(t, mux.Config{}, 'x')
	select {
	case <-l.Done():
	case <-time.After(patience):
		t.Fatal("the link did not end")
	}
	for what, err := range map[string]error{
		"Err": l.Err(), "Ready": l.Ready(t.Context()), "RoundTrip": get(t.Context(), l, "/"),
	} {
		if errdefs.KindOf(err) != errdefs.Protocol {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := l.Accept(t.Context()); !errors.Is(err, errdefs.Closed) || !errors.Is(err, errdefs.Protocol) {
		t.Errorf("Accept: %v", err)
	}
}

// TestDribble: an answer that comes byte by byte, in frames that come byte by
// byte, holds up its own request, to the deadline. It is not parallel: it
// measures the heap.
func TestDribble(t *testing.T) { //nolint:paralleltest // see above
	l, guest := openHostile(t, mux.Config{}, 'h')
	var group sync.WaitGroup
	group.Go(func() { _, _ = io.Copy(io.Discard, guest) })
	growth := heapGrowth(func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		group.Go(func() {
			// Once the stream is there.
			time.Sleep(100 * time.Millisecond)
			for err := error(nil); err == nil && ctx.Err() == nil; time.Sleep(time.Millisecond) {
				for _, b := range frame(data, 0, 1, 1, 'H') {
					if _, err = guest.Write([]byte{b}); err != nil {
						break
					}
				}
			}
		})
		if err := get(ctx, l, "/"); !errors.Is(err, errdefs.Timeout) && !errors.Is(err, errdefs.Protocol) {
			t.Errorf("error %v", err)
		}
	})
	if growth > 32<<20 {
		t.Errorf("the heap grew by %d MiB", growth>>20)
	}
	if err := l.Err(); err != nil {
		t.Errorf("the link ended: %v", err)
	}
	closeInTime(t, l)
	_ = guest.Close()
	group.Wait()
}

type zero struct{}

func (zero) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestStoppedGuest: a guest that takes nothing delays nobody past the deadline,
// neither with a body under way nor when the stream cannot even be opened, and
// ends the link by the write timeout. It is not parallel: it measures the heap.
func TestStoppedGuest(t *testing.T) { //nolint:paralleltest // see above
	l, _ := openHostile(t, mux.Config{WriteTimeout: 3 * time.Second}, 'h')
	var late atomic.Int64
	growth := heapGrowth(func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var group sync.WaitGroup
		for range 700 {
			group.Go(func() {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+link.DataHost+"/", io.LimitReader(zero{}, 1<<40))
				if err != nil {
					t.Error(err)
					return
				}
				start := time.Now()
				if _, err = l.RoundTrip(req); !errors.Is(err, errdefs.Timeout) {
					t.Errorf("error %v", err)
				}
				if time.Since(start) > 3*time.Second {
					late.Add(1)
				}
			})
		}
		group.Wait()
	})
	if late.Load() > 0 {
		t.Errorf("%d requests were late", late.Load())
	}
	if growth > 64<<20 {
		t.Errorf("the heap grew by %d MiB", growth>>20)
	}
	select {
	case <-l.Done():
	case <-time.After(patience):
		t.Fatal("the link did not end")
	}
	if !errors.Is(l.Err(), errdefs.TransportLost) {
		t.Errorf("the link ended with %v", l.Err())
	}
}

// TestCloseOfAStoppedGuest: uploads that nobody takes do not hold up Close.
func TestCloseOfAStoppedGuest(t *testing.T) {
	t.Parallel()
	for _, bare := range []bool{false, true} {
		host, guest := pair(t)
		go func() { _ = greet(guest, 'h') }()
		var conn io.ReadWriteCloser = host
		if bare {
			conn = piped{host}
		}
		l, err := mux.New(t.Context(), conn, mux.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		started := make(chan struct{}, 1<<10)
		for range 50 {
			group.Go(func() {
				body := readerFunc(func(p []byte) (int, error) {
					select {
					case started <- struct{}{}:
					default:
					}
					return len(p), nil
				})
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+link.DataHost+"/", body)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := l.RoundTrip(req); !errors.Is(err, errdefs.Closed) {
					t.Errorf("error %v", err)
				}
			})
		}
		// Others wait for the first to get rid of what they have.
		for range 4 {
			<-started
		}
		closeInTime(t, l)
		group.Wait()
		_ = guest.Close()
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
