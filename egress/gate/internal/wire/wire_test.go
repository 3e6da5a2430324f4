package wire_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/berm-dev/berm/egress/gate/internal/wire"
)

func TestHeadsThatAreTooLarge(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"one line without an end": strings.Repeat("a", 2*maxHead),
		"many fields":             "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("a: b\r\n", maxFields),
		"large fields":            "GET / HTTP/1.1\r\nHost: a\r\nb: " + strings.Repeat("c", maxHead),
	} {
		p := readRequests(strings.NewReader(in + "\r\n\r\n"))
		var fault *wire.Fault
		if !errors.As(p.err, &fault) || fault.Status != 431 || len(p.out) > 0 {
			t.Errorf("%s: %v, handed on %d bytes", name, p.err, len(p.out))
		}
	}
}

// TestReaderIsLazy: nothing of a second request is needed to hand on the first.
func TestReaderIsLazy(t *testing.T) {
	t.Parallel()
	in, out := io.Pipe()
	defer in.Close()
	r := wire.NewReader(in, maxHead, func(head []byte) (wire.Framing, error) {
		req, fault := wire.ParseRequest(head, maxFields)
		if fault != nil {
			return wire.Framing{}, fault
		}
		return req.Body, nil
	})
	const first = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
	go func() { _, _ = io.WriteString(out, first) }()
	got := make([]byte, len(first))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != first || !r.InHead() || r.Partial() {
		t.Fatalf("%q, %v", got, err)
	}
	go func() {
		_, _ = io.WriteString(out, "GET")
		_ = out.Close()
	}()
	if _, err := r.Read(got); !errors.Is(err, io.ErrUnexpectedEOF) || !r.Partial() {
		t.Errorf("half a head: %v", err)
	}
}

// TestUnsolicited: a response is only taken after Next, and one at a time.
func TestUnsolicited(t *testing.T) {
	t.Parallel()
	const answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	r := wire.NewResponseReader(strings.NewReader(answer), maxHead, func(head []byte) (wire.Framing, error) {
		body, _ := wire.ParseResponse(head, "GET", maxFields)
		return body, nil
	})
	if _, err := r.Read(make([]byte, 100)); !errors.Is(err, wire.ErrUnsolicited) || r.Next() || r.Clean() {
		t.Errorf("before Next: %v", err)
	}
	out, clean, _, err := readResponse(strings.NewReader(answer+answer), "GET")
	if string(out) != answer || !clean || !errors.Is(err, wire.ErrUnsolicited) {
		t.Errorf("two for one: %q, %v", out, err)
	}
}
