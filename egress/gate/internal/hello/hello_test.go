package hello_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/berm-dev/berm/egress/gate/internal/hello"
)

// keeper is a connection that keeps what is written.
type keeper struct {
	net.Conn
	out bytes.Buffer
}

func (k *keeper) Write(p []byte) (int, error)      { return k.out.Write(p) }
func (k *keeper) Read([]byte) (int, error)         { return 0, io.EOF }
func (k *keeper) Close() error                     { return nil }
func (k *keeper) SetWriteDeadline(time.Time) error { return nil }

func made(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	config.InsecureSkipVerify = true
	k := &keeper{}
	if err := tls.Client(k, config).Handshake(); err == nil {
		t.Fatal("a handshake with nobody")
	}
	return k.out.Bytes()
}

// again splits the hello over records of so many bytes.
func again(whole []byte, size int) []byte {
	var out []byte
	for body := whole[5:]; len(body) > 0; {
		n := min(size, len(body))
		out = append(out, 0x16, 3, 1, byte(n>>8), byte(n))
		out = append(out, body[:n]...)
		body = body[n:]
	}
	return out
}

func TestRead(t *testing.T) {
	t.Parallel()
	whole := made(t, &tls.Config{ServerName: "api.example.com"})
	for name, in := range map[string][]byte{"whole": whole, "two records": again(whole, 100), "many records": again(whole, 1)} {
		for _, src := range []io.Reader{bytes.NewReader(in), iotest.OneByteReader(bytes.NewReader(in))} {
			got, err := hello.Read(t.Context(), src)
			if err != nil || got.Name != "api.example.com" || got.ECH || !bytes.Equal(got.Raw, in) {
				t.Errorf("%s: %q %v, %v", name, got.Name, got.ECH, err)
			}
		}
	}
	// What comes behind is kept or left, never lost.
	rest := bytes.NewReader(append(bytes.Clone(whole), "behind"...))
	got, err := hello.Read(t.Context(), rest)
	left, _ := io.ReadAll(rest)
	if err != nil || string(got.Raw)+string(left) != string(whole)+"behind" {
		t.Errorf("with bytes behind: %v", err)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	whole := made(t, &tls.Config{ServerName: "api.example.com"})
	for name, in := range map[string]string{
		"text": "GET / HTTP/1.1\r\n\r\n", "half": string(whole[:50]), "other handshake": "\x16\x03\x01\x00\x04\x02\x00\x00\x00",
		"alert": "\x15\x03\x01\x00\x02\x01\x00", "endless": "\x16\x03\x01\x40\x00\x01\x00\xff\xff" + strings.Repeat("\x00", 1<<20),
	} {
		got, err := hello.Read(t.Context(), strings.NewReader(in))
		if !errors.Is(err, hello.ErrNotTLS) || len(got.Raw) > 256<<10 {
			t.Errorf("%s: %v, kept %d bytes", name, err, len(got.Raw))
		}
	}
	if _, err := hello.Read(t.Context(), iotest.ErrReader(os.ErrDeadlineExceeded)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a timeout: %v", err)
	}
	if _, err := hello.Read(t.Context(), io.MultiReader(bytes.NewReader(whole[:9]), iotest.ErrReader(os.ErrDeadlineExceeded))); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a timeout inside: %v", err)
	}
}

// FuzzRead: what was read is a prefix of what came, in whatever pieces it comes;
// and a plain parser finds the same name and extension.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"api.example.com", "a", "", "UPPER.example", "xn--ap-ioc.example.com", strings.Repeat("a.", 120) + "example"} {
		for _, config := range []*tls.Config{{}, {MaxVersion: tls.VersionTLS12}, {NextProtos: []string{"h2", "http/1.1"}}, {MinVersion: tls.VersionTLS13}} {
			// Without the large keys: a hello in which the fuzzer gets about.
			config.ServerName, config.CurvePreferences = name, []tls.CurveID{tls.X25519}
			f.Add(made(f, config))
		}
	}
	f.Add(again(made(f, &tls.Config{ServerName: "api.example.com"}), 7))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := hello.Read(t.Context(), bytes.NewReader(in))
		if !bytes.HasPrefix(in, got.Raw) {
			t.Fatal("other bytes than came")
		}
		slow, slowErr := hello.Read(t.Context(), iotest.OneByteReader(bytes.NewReader(in)))
		if (err == nil) != (slowErr == nil) || got.Name != slow.Name || got.ECH != slow.ECH {
			t.Fatalf("whole %q %v, in pieces %q %v", got.Name, err, slow.Name, slowErr)
		}
		if err != nil {
			return
		}
		name, ech, ok := plainly(in)
		if ok && (name != got.Name || ech != got.ECH) {
			t.Fatalf("%q %v, plainly read %q %v", got.Name, got.ECH, name, ech)
		}
	})
}

// plainly reads a hello that is in one record.
func plainly(in []byte) (name string, ech, ok bool) {
	if len(in) < 5 {
		return "", false, false
	}
	n := int(binary.BigEndian.Uint16(in[3:]))
	r := &cursor{b: in[5:min(len(in), 5+n)]}
	if r.take(1)[0] != 1 {
		return "", false, false
	}
	body := r.vector(3)
	r = &cursor{b: body, bad: r.bad}
	r.take(2 + 32)
	r.vector(1)
	r.vector(2)
	r.vector(1)
	all := &cursor{b: r.vector(2), bad: r.bad}
	for len(all.b) > 0 && !all.bad {
		kind := binary.BigEndian.Uint16(all.take(2))
		data := &cursor{b: all.vector(2)}
		switch kind {
		case 0:
			list := &cursor{b: data.vector(2)}
			for len(list.b) > 0 && !list.bad {
				if t := list.take(1)[0]; t == 0 {
					name = string(list.vector(2))
				} else {
					list.vector(2)
				}
			}
		case 0xfe0d:
			ech = true
		}
	}
	return name, ech, !all.bad
}

type cursor struct {
	b   []byte
	bad bool
}

// take gives n bytes, zeros when there are not so many.
func (c *cursor) take(n int) []byte {
	if len(c.b) < n {
		c.bad, c.b = true, nil
		return make([]byte, n)
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

// vector gives bytes that follow their number, which is so many bytes long.
func (c *cursor) vector(size int) []byte {
	n := 0
	for _, b := range c.take(size) {
		n = n<<8 | int(b)
	}
	if len(c.b) < n {
		c.bad, c.b = true, nil
		return nil
	}
	return c.take(n)
}
