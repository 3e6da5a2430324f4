package wire_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/berm-dev/berm/egress/gate/internal/wire"
)

const (
	maxHead   = 4096
	maxFields = 64
)

// requestSeeds are streams of requests, good ones and such as were read in two
// ways before.
func requestSeeds() []string {
	const start = "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n"
	return []string{
		"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET http://a.example/ HTTP/1.0\r\n\r\n",
		"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n\x16\x03\x01",
		start + "Content-Length: 5\r\n\r\nhelloGET http://b.example/ HTTP/1.1\r\nHost: b\r\n\r\n",
		start + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET http://b.example/ HTTP/1.1\r\nHost: b\r\n\r\n",
		start + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n",
		start + "Transfer-Encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n0\r\n\r\n",
		start + "Transfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
		start + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
		start + "Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
		start + "Transfer-Encoding: chunked\r\n\r\n00000000000000000005\r\nhello\r\n0\r\n\r\n",
		start + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
		start + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		start + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		start + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
		start + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		start + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
		start + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
		start + "Content-Length: +5\r\n\r\nhello",
		start + "Content-Length: 5, 5\r\n\r\nhello",
		start + "X: a\r\n b\r\n\r\n",
		start + "X: a\n\r\n",
		start + "X: a\rb\r\n\r\n",
		start + "X: a\x00b\r\n\r\n",
		start + "Host: b\r\n\r\n",
		start + "Upgrade: websocket\r\nConnection: upgrade\r\n\r\n",
		start + "Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
		"get http://a.example/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET  http://a.example/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"\r\nGET http://a.example/ HTTP/1.1\r\nHost: a\r\n\r\n",
	}
}

// passed is what a Reader made of a stream.
type passed struct {
	out   []byte
	heads []*wire.Request
	err   error
}

func readRequests(src io.Reader) passed {
	var p passed
	r := wire.NewReader(src, maxHead, func(head []byte) (wire.Framing, error) {
		req, fault := wire.ParseRequest(head, maxFields)
		if fault != nil {
			return wire.Framing{}, fault
		}
		if req.Method == http.MethodConnect {
			req.Body.Raw = true
		}
		p.heads = append(p.heads, req)
		return req.Body, nil
	})
	p.out, p.err = io.ReadAll(r)
	return p
}

// FuzzRequests: what a Reader hands on is a prefix of what came in, whatever the
// pieces; and net/http finds in it the same requests, with the same ends.
func FuzzRequests(f *testing.F) {
	for _, s := range requestSeeds() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		p := readRequests(bytes.NewReader(in))
		if !bytes.HasPrefix(in, p.out) {
			t.Fatalf("%q became %q", in, p.out)
		}
		slow := readRequests(iotest.OneByteReader(bytes.NewReader(in)))
		if len(slow.heads) != len(p.heads) || (slow.err == nil) != (p.err == nil) || !bytes.Equal(slow.out, p.out) {
			t.Fatalf("whole: %q %v; in pieces: %q %v", p.out, p.err, slow.out, slow.err)
		}
		sameAsStandard(t, p)
	})
}

func sameAsStandard(t *testing.T, p passed) {
	t.Helper()
	r := bufio.NewReader(bytes.NewReader(p.out))
	for i, head := range p.heads {
		req, err := http.ReadRequest(r)
		if err != nil {
			return // stricter than us: the gate asks it, too
		}
		if req.Method != head.Method || req.RequestURI != head.Target {
			t.Fatalf("request %d is %s %q to us and %s %q to net/http", i, head.Method, head.Target, req.Method, req.RequestURI)
		}
		if chunked := len(req.TransferEncoding) > 0; chunked != head.Body.Chunked || !chunked && req.ContentLength != head.Body.Length {
			t.Fatalf("request %d ends by %+v to us and by %v %d to net/http", i, head.Body, req.TransferEncoding, req.ContentLength)
		}
		if head.HasHost && req.URL.Host == "" && req.Host != head.Host {
			t.Fatalf("request %d has host %q to us and %q to net/http", i, head.Host, req.Host)
		}
		if head.Body.Raw {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			if i < len(p.heads)-1 {
				t.Fatalf("the body of request %d is broken to net/http (%v), and we saw another request behind it", i, err)
			}
			return
		}
	}
	if _, err := r.Peek(1); err == nil && p.err == nil {
		t.Fatal("net/http sees bytes behind the last request")
	}
}

// FuzzResponses: a Reader hands on one response, and net/http sees its end where
// we do.
func FuzzResponses(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokextra",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.0 200 OK\r\n\r\nto the end", "HTTP/1.1 200 OK\r\n\r\nto the end", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "HTTP/1.1 101 Switching Protocols\r\n\r\nraw",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokx", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.1  200 OK\r\n\r\n",
		"HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 099 x\r\n\r\n",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, in []byte, head bool) {
		method := http.MethodGet
		if head {
			method = http.MethodHead
		}
		out, clean, raw, err := readResponse(bytes.NewReader(in), method)
		if !bytes.HasPrefix(in, out) {
			t.Fatalf("%q became %q", in, out)
		}
		if !clean || raw || err != nil && !errors.Is(err, wire.ErrUnsolicited) {
			return
		}
		r := bufio.NewReader(bytes.NewReader(out))
		for {
			resp, err := http.ReadResponse(r, &http.Request{Method: method})
			if err != nil {
				return // stricter than us: it is what reads behind us
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatalf("to net/http the body of %q is broken: %v", out, err)
			}
			if resp.StatusCode >= 200 {
				break
			}
		}
		if rest, _ := io.ReadAll(r); len(rest) > 0 {
			t.Fatalf("net/http sees %q behind the response %q", rest, out)
		}
	})
}

// readResponse reads one response to its end. clean tells that it had one.
func readResponse(src io.Reader, method string) (out []byte, clean, raw bool, err error) {
	r := wire.NewResponseReader(src, maxHead, func(head []byte) (wire.Framing, error) {
		body, fault := wire.ParseResponse(head, method, maxFields)
		if fault != nil {
			return body, fault
		}
		return body, nil
	})
	r.Next()
	var buffer [64]byte
	for {
		var n int
		n, err = r.Read(buffer[:])
		out = append(out, buffer[:n]...)
		if err != nil {
			return out, clean, r.IsRaw(), err
		}
		clean = clean || r.Clean()
		if r.AtEnd() {
			clean = true
		}
	}
}

// FuzzHead: a head that is taken has one reading; the same fields in another order
// and case have the same.
func FuzzHead(f *testing.F) {
	for _, s := range requestSeeds() {
		head, _, _ := strings.Cut(s, "\r\n\r\n")
		f.Add(head + "\r\n\r\n")
	}
	f.Fuzz(func(t *testing.T, head string) {
		req, fault := wire.ParseRequest([]byte(head), maxFields)
		if req == nil {
			t.Fatal("no request")
		}
		if fault != nil {
			if fault.Status < 400 || fault.Status > 499 || fault.What == "" {
				t.Fatalf("fault %+v", fault)
			}
			return
		}
		if strings.ContainsAny(req.Method+req.Target+req.Host, " \t\r\n\x00\x7f") || req.Body.Length < 0 || req.Body.Chunked && req.Body.Length != 0 {
			t.Fatalf("%q is %+v", head, req)
		}
		lines := strings.Split(strings.TrimSuffix(head, "\r\n\r\n"), "\r\n")
		turned := lines[0] + "\r\n"
		for i := len(lines) - 1; i > 0; i-- {
			name, value, _ := strings.Cut(lines[i], ":")
			turned += strings.ToUpper(name) + ":" + value + "\r\n"
		}
		again, fault := wire.ParseRequest([]byte(turned+"\r\n"), maxFields)
		if fault != nil || again.Body != req.Body || again.Host != req.Host || again.Method != req.Method || again.Target != req.Target {
			t.Fatalf("%q is %+v, turned it is %+v, %v", head, req, again, fault)
		}
	})
}
