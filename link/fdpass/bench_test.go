package fdpass_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/link"
)

const (
	bulk  = 64 << 20
	block = 256 << 10
)

func benchHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/down":
			buffer := make([]byte, block)
			for range bulk / block {
				if _, err := w.Write(buffer); err != nil {
					return
				}
			}
		case "/up":
			_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, block))
		default:
			_, _ = io.WriteString(w, "ok")
		}
	})
}

func benchRequest(b *testing.B, l link.Link, method, path string, body io.Reader, buffer []byte, length int64) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), method, "http://"+link.DataHost+path, body)
	if err != nil {
		b.Fatal(err)
	}
	req.ContentLength = length
	req.Close = path == "/fresh"
	resp, err := l.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, resp.Body, buffer)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRequest is a small request over a reused stream, and over a fresh
// one: the difference is the set-up of a stream.
func BenchmarkRequest(b *testing.B) {
	for _, path := range []string{"/reused", "/fresh"} {
		b.Run(path[1:], func(b *testing.B) {
			l, stop := open(b, benchHandler(), http.NotFoundHandler(), nil)
			defer stop()
			defer l.Close()
			buffer := make([]byte, 4096)
			for b.Loop() {
				benchRequest(b, l, http.MethodGet, path, nil, buffer, 0)
			}
		})
	}
}

// BenchmarkBody moves 64 MiB through a raw unix socket pair and as bodies.
func BenchmarkBody(b *testing.B) {
	b.Run("raw", func(b *testing.B) {
		b.SetBytes(bulk)
		for b.Loop() {
			rawCopy(b)
		}
	})
	for _, c := range []struct {
		name, method, path string
		length             int64
	}{
		{"download", http.MethodGet, "/down", 0},
		{"upload", http.MethodPost, "/up", bulk},
		{"upload-chunked", http.MethodPost, "/up", -1},
	} {
		b.Run(c.name, func(b *testing.B) {
			l, stop := open(b, benchHandler(), http.NotFoundHandler(), nil)
			defer stop()
			defer l.Close()
			buffer := make([]byte, block)
			b.SetBytes(bulk)
			for b.Loop() {
				var body io.Reader
				if c.length != 0 {
					body = io.LimitReader(zero{}, bulk)
				}
				benchRequest(b, l, c.method, c.path, body, buffer, c.length)
			}
		})
	}
}

func rawCopy(b *testing.B) {
	b.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		b.Fatal(err)
	}
	ends := make([]net.Conn, 2)
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "raw")
		if ends[i], err = net.FileConn(file); err != nil {
			b.Fatal(err)
		}
		_ = file.Close()
	}
	written := make(chan error, 1)
	go func() {
		buffer := make([]byte, block)
		for range bulk / block {
			if _, err := ends[0].Write(buffer); err != nil {
				written <- err
				return
			}
		}
		written <- ends[0].Close()
	}()
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, ends[1], make([]byte, block))
	if err := errors.Join(err, <-written, ends[1].Close()); err != nil || n != bulk {
		b.Fatal(n, err)
	}
}

// BenchmarkRawRoundTrip is one byte there and back on a socket pair.
func BenchmarkRawRoundTrip(b *testing.B) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		b.Fatal(err)
	}
	ends := make([]net.Conn, 2)
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "raw")
		if ends[i], err = net.FileConn(file); err != nil {
			b.Fatal(err)
		}
		_ = file.Close()
	}
	ctx, cancel := context.WithCancel(b.Context())
	echoed := make(chan struct{})
	go func() {
		defer close(echoed)
		one := make([]byte, 1)
		for ctx.Err() == nil {
			if _, err := ends[1].Read(one); err != nil {
				return
			}
			if _, err := ends[1].Write(one); err != nil {
				return
			}
		}
	}()
	one := make([]byte, 1)
	for b.Loop() {
		if _, err := ends[0].Write(one); err != nil {
			b.Fatal(err)
		}
		if _, err := ends[0].Read(one); err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	_ = ends[0].Close()
	<-echoed
	_ = ends[1].Close()
}
