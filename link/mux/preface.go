package mux

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/boot"
)

const (
	opPreface = "shake hands"
	// hostMagic and guestMagic begin the two sides' prefaces.
	hostMagic  = "berm-mux/1 host\n"
	guestMagic = "berm-mux/1 gues\n"
	nonceSize  = 32
	// maxDiscard bounds what may lie in a stream before the preface, in bytes: a
	// serial port keeps what was sent to it before.
	maxDiscard = 64 << 10

	defaultHandshakeTimeout = 10 * time.Second

	// The hello: whether the guest will open streams for egress.
	helloPlain  = 'h'
	helloEgress = 'e'
)

// Handshake is a caller's own exchange before the preface, such as the line that
// tells a relay which sandbox is meant. It may read and write 64 KiB each, and
// must return when an operation fails, which happens when ctx ends.
type Handshake func(ctx context.Context, conn io.ReadWriter) error

// shake runs f over conn within timeout and ctx: their end closes conn.
func shake(ctx context.Context, conn io.ReadWriteCloser, timeout time.Duration, f func(ctx context.Context) error) error {
	if timeout == 0 {
		timeout = defaultHandshakeTimeout
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	closed := make(chan struct{})
	stop := context.AfterFunc(limited, func() {
		defer close(closed)
		_ = conn.Close()
	})
	err := f(limited)
	if !stop() {
		<-closed
		return contextError(limited, opPreface)
	}
	var known *errdefs.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, net.ErrClosed):
		return lostError(opPreface, err)
	}
	return errdefs.Wrap(errdefs.TransportLost, opPreface, err)
}

// budgeted is a stream with bounds.
type budgeted struct {
	conn         io.ReadWriter
	reads, write int
}

func (b *budgeted) Read(p []byte) (int, error) {
	if b.reads <= 0 {
		return 0, protocolError(opPreface, "the peer sent more than %d bytes", maxDiscard)
	}
	n, err := b.conn.Read(p[:min(len(p), b.reads)])
	b.reads -= n
	return n, err
}

func (b *budgeted) Write(p []byte) (int, error) {
	if len(p) > b.write {
		return 0, errdefs.New(errdefs.Invalid, opPreface, "the hand-shake writes too much")
	}
	n, err := b.conn.Write(p)
	b.write -= n
	return n, err
}

// custom runs a caller's own exchange.
func custom(ctx context.Context, conn io.ReadWriter, f Handshake) error {
	if f == nil {
		return nil
	}
	return f(ctx, &budgeted{conn: conn, reads: maxDiscard, write: maxDiscard})
}

// seek reads up to the end of magic. It reads byte by byte, so that what follows
// stays where it is.
func seek(conn io.Reader, magic string) error {
	var tail []byte
	one := make([]byte, 1)
	for range maxDiscard + len(magic) {
		if _, err := io.ReadFull(conn, one); err != nil {
			return err
		}
		if len(tail) == len(magic) {
			copy(tail, tail[1:])
			tail = tail[:len(magic)-1]
		}
		tail = append(tail, one[0])
		if bytes.Equal(tail, []byte(magic)) {
			return nil
		}
	}
	return protocolError(opPreface, "no preface within %d bytes", maxDiscard)
}

// proof binds a side to both nonces, and to the key. Without a key it still
// tells an answer to this preface from one that lay in the stream.
func proof(key []byte, side string, nonces ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(side)) // never fails
	for _, nonce := range nonces {
		mac.Write(nonce)
	}
	return mac.Sum(nil)
}

// prove compares in constant time.
func prove(got, want []byte) error {
	if hmac.Equal(got, want) {
		return nil
	}
	return errdefs.New(errdefs.Denied, opPreface, "the peer does not have the sandbox's key, or another preface is in the stream")
}

func nonce() []byte {
	out := make([]byte, nonceSize)
	// It never fails; the program ends if it would.
	_, _ = rand.Read(out)
	return out
}

// greetGuest is the host's part of the preface.
func greetGuest(conn io.ReadWriter, key, payload []byte) error {
	mine := nonce()
	if _, err := conn.Write(append([]byte(hostMagic), mine...)); err != nil {
		return err
	}
	if err := seek(conn, guestMagic); err != nil {
		return err
	}
	answer := make([]byte, nonceSize+sha256.Size)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	theirs := answer[:nonceSize]
	if err := prove(answer[nonceSize:], proof(key, "guest", mine, theirs)); err != nil {
		return err
	}
	size := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	out := append(proof(key, "host", mine, theirs, size, payload), size...)
	_, err := conn.Write(append(out, payload...))
	return err
}

// greetHost is the guest's part; it gives the boot payload.
func greetHost(conn io.ReadWriter, key []byte) ([]byte, error) {
	if err := seek(conn, hostMagic); err != nil {
		return nil, err
	}
	theirs, mine := make([]byte, nonceSize), nonce()
	if _, err := io.ReadFull(conn, theirs); err != nil {
		return nil, err
	}
	answer := append([]byte(guestMagic), mine...)
	if _, err := conn.Write(append(answer, proof(key, "guest", theirs, mine)...)); err != nil {
		return nil, err
	}
	head := make([]byte, sha256.Size+4)
	if _, err := io.ReadFull(conn, head); err != nil {
		return nil, err
	}
	size := head[sha256.Size:]
	n := binary.BigEndian.Uint32(size)
	if n > boot.MaxBytes {
		return nil, protocolError(opPreface, "a boot payload of %d bytes", n)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(conn, payload); err != nil {
		return nil, err
	}
	return payload, prove(head[:sha256.Size], proof(key, "host", theirs, mine, size, payload))
}
