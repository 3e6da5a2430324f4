package socks_test

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/berm-dev/berm/egress/gate/internal/socks"
)

// script is a client that says in and keeps what it is told.
type script struct {
	io.Reader
	out bytes.Buffer
}

func (s *script) Write(p []byte) (int, error) { return s.out.Write(p) }

func TestGreet(t *testing.T) {
	t.Parallel()
	login := socks.Credential{Username: "user", Password: "pass"}
	for name, c := range map[string]struct {
		in, out string
		want    socks.Credential
		err     error
	}{
		"nothing asked":          {in: "\x05\x02\x02\x00", out: "\x05\x00"},
		"nothing offered":        {in: "\x05\x01\x02", out: "\x05\xff", err: socks.ErrMethod},
		"right":                  {in: "\x05\x01\x02\x01\x04user\x04pass", out: "\x05\x02\x01\x00", want: login},
		"wrong password":         {in: "\x05\x01\x02\x01\x04user\x04pasS", out: "\x05\x02\x01\x01", want: login, err: socks.ErrCredential},
		"wrong user":             {in: "\x05\x01\x02\x01\x04useR\x04pass", out: "\x05\x02\x01\x01", want: login, err: socks.ErrCredential},
		"prefix":                 {in: "\x05\x01\x02\x01\x04user\x03pas", out: "\x05\x02\x01\x01", want: login, err: socks.ErrCredential},
		"not offered":            {in: "\x05\x01\x00", out: "\x05\xff", want: login, err: socks.ErrMethod},
		"version":                {in: "\x04\x01\x00", err: socks.ErrMalformed},
		"no method":              {in: "\x05\x00", err: socks.ErrMalformed},
		"version of the login":   {in: "\x05\x01\x02\x05\x04user\x04pass", out: "\x05\x02", want: login, err: socks.ErrMalformed},
		"login cut off":          {in: "\x05\x01\x02\x01\x04us", out: "\x05\x02", want: login, err: socks.ErrMalformed},
		"login without password": {in: "\x05\x01\x02\x01\x04user\x00", out: "\x05\x02", want: login, err: socks.ErrMalformed},
	} {
		s := &script{Reader: iotest.OneByteReader(strings.NewReader(c.in))}
		if err := socks.Greet(s, c.want); !errors.Is(err, c.err) || s.out.String() != c.out {
			t.Errorf("%s: %v, answered %q", name, err, s.out.String())
		}
	}
}

// FuzzRequest: what is read can be written again as the bytes that it was read
// from, and no byte behind them was taken.
func FuzzRequest(f *testing.F) {
	const name = "\x05\x01\x00\x03\x0fapi.example.com\x01\xbb"
	for _, s := range []string{
		name, name + "more", "\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50", "\x05\x01\x00\x04" + strings.Repeat("\x00", 15) + "\x01\x00\x50",
		"\x05\x02" + name[2:], "\x05\x03" + name[2:], "\x05\x00" + name[2:], "\x04" + name[1:], "\x05\x01\x01" + name[3:], "\x05\x01\x00\x02" + name[4:], "\x05\x01\x00\x00",
		"\x05\x01\x00\x03\x00\x01\xbb", "\x05\x01\x00\x03\xff" + strings.Repeat("a", 255) + "\x00\x00", "\x05\x01\x00\x03\x05evil\x00\x01\xbb", "\x05\x01\x00\x03\x04a\r\nb\x01\xbb",
		"\x05", "\x05\x01", "\x05\x01\x00", "\x05\x01\x00\x03", "\x05\x01\x00\x03\x0fapi", "\x05\x01\x00\x01\x7f", name[:len(name)-1], "", "\x05\x01\x00\x04" + string(netip.MustParseAddr("::ffff:1.2.3.4").AsSlice()) + "\xff\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		src := bytes.NewReader(in)
		req, err := socks.ReadRequest(src)
		used := in[:len(in)-src.Len()]
		if err != nil {
			if !errors.Is(err, socks.ErrMalformed) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if req.Host == "" {
			if len(used) != 4 || req.AddressType == 1 || req.AddressType == 3 || req.AddressType == 4 {
				t.Fatalf("%q is %+v", used, req)
			}
			return
		}
		again := []byte{5, in[1], 0, req.AddressType}
		switch req.AddressType {
		case 3:
			again = append(append(again, byte(len(req.Host))), req.Host...)
		default:
			addr := netip.MustParseAddr(req.Host)
			if want := map[byte]int{1: 4, 4: 16}[req.AddressType]; addr.BitLen()/8 != want {
				t.Fatalf("%q has the address %v", used, addr)
			}
			again = append(again, addr.AsSlice()...)
		}
		again = append(again, byte(req.Port>>8), byte(req.Port))
		if !bytes.Equal(again, used) || req.Connect != (in[1] == 1) {
			t.Fatalf("%q is %+v, which is %q", used, req, again)
		}
	})
}

// FuzzGreet: it ends, answers in whole messages, and lets nobody in without the
// credential.
func FuzzGreet(f *testing.F) {
	for _, s := range []string{
		"\x05\x01\x00", "\x05\x02\x00\x02", "\x05\x01\x02\x01\x04user\x04pass", "\x05\x01\x02\x01\x04user\x04pasS", "\x05\x00", "\x04\x01\x00", "\x05\xff" + strings.Repeat("\x02", 255),
		"\x05\xff" + strings.Repeat("\x01", 255), "\x05\x01\x02\x01\x00\x00", "\x05\x01\x02\x01\xff" + strings.Repeat("u", 255) + "\xff" + strings.Repeat("p", 255), "\x05\x01\x02\x02\x04user\x04pass",
		"\x05", "", "\x05\x01", "\x05\x01\x02", "\x05\x01\x02\x01", "\x05\x01\x02\x01\x04us", "\x05\x01\x02\x01\x04user", "\x05\x01\x02\x01\x04user\x04", "\x05\x01\xff", "GET / HTTP/1.1\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s := &script{Reader: bytes.NewReader(in)}
		err := socks.Greet(s, socks.Credential{Username: "user", Password: "pass"})
		if n := s.out.Len(); n != 0 && n != 2 && n != 4 {
			t.Fatalf("answered %q", s.out.String())
		}
		if err == nil && !bytes.Contains(in, []byte("\x01\x04user\x04pass")) {
			t.Fatalf("%q was let in", in)
		}
		if (err == nil) != (s.out.String() == "\x05\x02\x01\x00") {
			t.Fatalf("%v, and it was told %q", err, s.out.String())
		}
	})
}

func TestAnswer(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := socks.Answer(&out, socks.NotAllowed); err != nil || out.String() != "\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
