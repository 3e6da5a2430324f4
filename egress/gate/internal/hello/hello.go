// Package hello reads the ClientHello of a TLS connection and keeps its bytes, so
// that it can be judged before the other side gets any of it.
package hello

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// ErrNotTLS: what came first is no ClientHello.
var ErrNotTLS = errors.New("not a TLS ClientHello")

// Hello is what a ClientHello says in clear.
type Hello struct {
	// Name is the server name as it was sent; empty when there is none.
	Name string
	// ECH: there is an encrypted ClientHello in it, or one that pretends to be.
	ECH bool
	// Raw has every byte that was read, from the first on.
	Raw []byte
}

// most is a bound on the bytes of a hello; TLS itself ends at 64 KiB.
const most = 128 << 10

var errSeen = errors.New("seen")

// Read reads from r until the hello is complete. Raw is set also with an error.
// Errors: ErrNotTLS, those of r.
func Read(ctx context.Context, r io.Reader) (Hello, error) {
	const (
		handshake = 0x16
		extension = 0xfe0d // encrypted_client_hello
	)
	tape := &recorder{src: r}
	var first [1]byte
	if _, err := io.ReadFull(tape, first[:]); err != nil {
		return Hello{}, err
	}
	if first[0] != handshake {
		return Hello{Raw: tape.bytes.Bytes()}, ErrNotTLS
	}
	tape.back = first[:]
	var hello Hello
	seen := false
	server := tls.Server(tape, &tls.Config{
		MinVersion: tls.VersionTLS10, // no session is made: the server's own minimum holds
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			seen = true
			hello.Name = info.ServerName
			hello.ECH = slices.Contains(info.Extensions, extension)
			return nil, errSeen
		},
	})
	err := server.HandshakeContext(ctx)
	hello.Raw = tape.bytes.Bytes()
	switch {
	case seen:
		return hello, nil
	case tape.err != nil && !errors.Is(tape.err, io.EOF):
		return hello, tape.err
	case err == nil:
		err = errSeen
	}
	return hello, fmt.Errorf("%w: %w", ErrNotTLS, err)
}

// recorder is a connection that gives r's bytes, keeps them, and drops what is
// written: an alert of the trial handshake is not the client's to see.
type recorder struct {
	src   io.Reader
	bytes bytes.Buffer
	back  []byte // read again, recorded already
	err   error
}

func (c *recorder) Read(p []byte) (int, error) {
	if len(c.back) > 0 {
		n := copy(p, c.back)
		c.back = c.back[n:]
		return n, nil
	}
	if c.bytes.Len() >= most {
		return 0, io.EOF
	}
	n, err := c.src.Read(p)
	c.bytes.Write(p[:n])
	if err != nil {
		c.err = err
	}
	return n, err
}

// Write drops p.
func (c *recorder) Write(p []byte) (int, error) { return len(p), nil }

// Close does nothing: the connection beneath is the caller's.
func (c *recorder) Close() error { return nil }

// LocalAddr is nobody's.
func (c *recorder) LocalAddr() net.Addr { return &net.UnixAddr{} }

// RemoteAddr is nobody's.
func (c *recorder) RemoteAddr() net.Addr { return &net.UnixAddr{} }

// SetDeadline is not supported; the reader beneath has its own.
func (c *recorder) SetDeadline(time.Time) error { return nil }

// SetReadDeadline is not supported.
func (c *recorder) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is not supported.
func (c *recorder) SetWriteDeadline(time.Time) error { return nil }
