package mux_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime/metrics"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link/mux"
)

// chain puts frames behind each other.
func chain(frames ...[]byte) []byte { return bytes.Join(frames, nil) }

// frameSeeds are the beginnings of conversations, honest and not.
func frameSeeds() [][]byte {
	const answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	opened := frame(window, ack, 1, 0)
	return [][]byte{
		nil,
		opened,
		chain(opened, frame(data, 0, 1, uint32(len(answer)), []byte(answer)...)),
		chain(opened, frame(data, fin, 1, uint32(len(answer)), []byte(answer)...)),
		chain(opened, frame(data, 0, 1, 5, []byte("HTTP/")...), frame(window, rst, 1, 0)),
		chain(opened, frame(window, fin, 1, 0), frame(window, rst, 1, 0)),
		frame(data, ack, 1, 4, []byte("junk")...),
		frame(data, 0, 1, 1<<20),
		frame(data, 0, 1, 1<<20+1),
		frame(data, 0, 1, 1<<32-1),
		frame(data, syn, 1, 0),
		frame(window, syn, 2, 0),
		frame(data, syn, 2, 1, 'e'),
		frame(data, syn, 2, 1, 'd'),
		frame(data, syn|fin, 2, 1, 'c'),
		chain(frame(window, syn, 2, 0), frame(window, syn, 2, 0)),
		chain(frame(window, syn, 2, 0), frame(window, syn, 4, 1<<20)),
		// Streams in the queue when the session ends, beyond what may be open.
		chain(frame(window, syn, 1<<31, 0), frame(window, syn, 4, 0)),
		chain(frame(window, syn, 1<<31, 0), frame(window, syn, 1<<16|4, 0)),
		chain(frame(data, syn, 2, 1, 'e'), frame(data, 0, 2, 3, []byte("abc")...), frame(window, fin, 2, 0)),
		chain(frame(data, syn, 2, 1, 'e'), frame(window, rst, 2, 0), frame(data, 0, 2, 1, 'x')),
		frame(ping, syn, 0, 42),
		frame(ping, ack, 0, 42),
		frame(ping, ack, 0, 0),
		frame(goAway, 0, 0, 0),
		frame(goAway, 0, 0, 1),
		frame(goAway, 0, 0, 99),
		frame(window, 0, 1, 768<<10),
		frame(window, 0, 1, 1<<31),
		frame(window, syn|ack|fin|rst, 2, 0),
		frame(4, 0, 0, 0),
		[]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		[]byte(answer),
	}
}

func heapNow() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// FuzzFrames lets a guest send anything after its hello and then hang up. The
// link ends, for a reason that blames the guest, gives out no stream that is not
// egress, and holds no memory beyond its bound.
func FuzzFrames(f *testing.F) {
	for _, seed := range frameSeeds() {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, sent []byte, egress bool) {
		host, guest := net.Pipe()
		before := heapNow()
		var group sync.WaitGroup
		group.Go(func() {
			if err := greet(guest, 'e'); err != nil {
				t.Error(err)
				return
			}
			group.Go(func() { _, _ = io.Copy(io.Discard, guest) })
			_, _ = guest.Write(sent)
			_ = guest.Close()
		})
		l, err := mux.New(t.Context(), piped{host}, mux.Config{Egress: egress, MaxStreams: 2})
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() { _ = get(t.Context(), l, "/") })
		for {
			conn, err := l.Accept(t.Context())
			if err != nil {
				break
			}
			if !egress || !bytes.Contains(sent, []byte{'e'}) {
				t.Error("a stream came out that nobody opened for egress")
			}
			group.Go(func() {
				defer conn.Close()
				if n, _ := io.Copy(io.Discard, conn); n > int64(len(sent)) {
					t.Errorf("%d bytes came out of %d", n, len(sent))
				}
			})
		}
		select {
		case <-l.Done():
		case <-time.After(patience):
			t.Fatal("the link did not end")
		}
		why := l.Err()
		if !errors.Is(why, errdefs.Protocol) && !errors.Is(why, errdefs.TransportLost) || errors.Is(why, io.EOF) {
			t.Errorf("the link ended with %v", why)
		}
		if why != nil && strings.Contains(why.Error(), "panic") {
			t.Error(why)
		}
		if now := heapNow(); now > before+(32<<20)+uint64(4*len(sent)) {
			t.Errorf("the heap grew by %d MiB", (now-before)>>20)
		}
		closeInTime(t, l)
		group.Wait()
	})
}

// FuzzPreface lets a guest answer the host's preface with anything: without the
// key there is no link.
func FuzzPreface(f *testing.F) {
	for _, seed := range []string{
		"", "\n", "berm-mux/1 gues\n", "berm-mux/1 host\n", "berm-mux/1 gues\nshort", "berm-mux/1 gue",
		"bermberm-mux/1 gues\n", "berm-mux/1 berm-mux/1 gues\n", "\x00\x00\x00\x00", "OK\n", "HTTP/1.1 200 OK\r\n\r\n",
		"SSH-2.0-x\r\n", "ERR unknown\n", "h", "e", "\xff\xfe\xfd", "berm-mux/2 gues\n", "BERM-MUX/1 GUES\n",
		"login: ", "berm-mux/1 gues\r\n",
		"berm-mux/1 gues\n" + strings.Repeat("\x00", 64), "berm-mux/1 gues\n" + strings.Repeat("x", 64) + "h",
		strings.Repeat("berm-mux/1 gues", 20), strings.Repeat("\x00", 200) + "berm-mux/1 gues\n" + strings.Repeat("\x00", 65),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		host, guest := net.Pipe()
		var group sync.WaitGroup
		group.Go(func() {
			if _, err := io.ReadFull(guest, make([]byte, 48)); err != nil {
				t.Error(err)
			}
			_, _ = guest.Write(answer)
			_ = guest.Close()
		})
		l, err := mux.New(t.Context(), host, mux.Config{Key: []byte("key")})
		if err == nil {
			_ = l.Close()
			t.Error("a guest without the key got a link")
		} else if kind := errdefs.KindOf(err); kind != errdefs.Denied && kind != errdefs.Protocol && kind != errdefs.TransportLost {
			t.Errorf("error %v", err)
		}
		group.Wait()
	})
}
