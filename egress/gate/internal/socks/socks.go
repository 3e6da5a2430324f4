// Package socks reads and answers the part of SOCKS5 (RFC 1928, RFC 1929) that
// the egress gate serves: CONNECT, by name or address. It decides nothing and
// checks no name: what a client wrote comes out as it was written.
package socks

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// Reply is the code of an answer to a request.
type Reply byte

// The replies of RFC 1928 that the gate uses.
const (
	Granted       Reply = 0x00
	Failed        Reply = 0x01
	NotAllowed    Reply = 0x02
	Unreachable   Reply = 0x04
	Refused       Reply = 0x05
	NoCommand     Reply = 0x07
	NoAddressType Reply = 0x08
)

// Version is the first byte of every client's greeting.
const Version = 5

var (
	// ErrMalformed: the bytes are not SOCKS5.
	ErrMalformed = errors.New("malformed SOCKS5")
	// ErrMethod: the client offers no way of authentication that is asked for.
	ErrMethod = errors.New("no common SOCKS5 authentication")
	// ErrCredential: the client's user name or password is wrong.
	ErrCredential = errors.New("wrong SOCKS5 user name or password")
)

// Credential is what clients have to give. The zero value asks for nothing.
type Credential struct {
	Username, Password string
}

// Request is what a client asks for.
type Request struct {
	// Connect is false for every other command.
	Connect bool
	// AddressType is one of 1 (IPv4), 3 (name), 4 (IPv6); others leave Host empty.
	AddressType byte
	// Host is the name as it was sent, or the address in its canonical form.
	Host string
	Port int
}

// Greet reads the greeting and, where want asks for it, the credential, and
// answers both. Errors: ErrMalformed, ErrMethod, ErrCredential, and those of rw.
func Greet(rw io.ReadWriter, want Credential) error {
	const (
		none       = 0x00
		userPass   = 0x02
		noneCommon = 0xff
	)
	var head [2]byte
	if err := read(rw, head[:]); err != nil {
		return err
	}
	if head[0] != Version || head[1] == 0 {
		return fmt.Errorf("%w: version or number of methods", ErrMalformed)
	}
	methods := make([]byte, head[1])
	if err := read(rw, methods); err != nil {
		return err
	}
	method := byte(none)
	if want != (Credential{}) {
		method = userPass
	}
	for _, offered := range methods {
		if offered != method {
			continue
		}
		if err := write(rw, []byte{Version, method}); err != nil || method == none {
			return err
		}
		return authenticate(rw, want)
	}
	return errors.Join(ErrMethod, write(rw, []byte{Version, noneCommon}))
}

func authenticate(rw io.ReadWriter, want Credential) error {
	const subnegotiation = 1
	var head [1]byte
	if err := read(rw, head[:]); err != nil {
		return err
	}
	if head[0] != subnegotiation {
		return fmt.Errorf("%w: version of the credential", ErrMalformed)
	}
	user, err := text(rw)
	if err != nil {
		return err
	}
	password, err := text(rw)
	if err != nil {
		return err
	}
	// Both are compared always, so that the time tells nothing.
	same := subtle.ConstantTimeCompare(user, []byte(want.Username)) & subtle.ConstantTimeCompare(password, []byte(want.Password))
	if same != 1 {
		return errors.Join(ErrCredential, write(rw, []byte{subnegotiation, 1}))
	}
	return write(rw, []byte{subnegotiation, 0})
}

// text reads one byte of length, which is not zero, and so many bytes.
func text(r io.Reader) ([]byte, error) {
	var length [1]byte
	if err := read(r, length[:]); err != nil {
		return nil, err
	}
	if length[0] == 0 {
		return nil, fmt.Errorf("%w: an empty text", ErrMalformed)
	}
	b := make([]byte, length[0])
	return b, read(r, b)
}

// ReadRequest reads the request after the greeting. The client waits for Answer.
// Errors: ErrMalformed and those of r.
func ReadRequest(r io.Reader) (Request, error) {
	const connect = 1
	var head [4]byte
	if err := read(r, head[:]); err != nil {
		return Request{}, err
	}
	if head[0] != Version || head[2] != 0 {
		return Request{}, fmt.Errorf("%w: version or reserved byte", ErrMalformed)
	}
	req := Request{Connect: head[1] == connect, AddressType: head[3]}
	var err error
	switch req.AddressType {
	case 1:
		var b [4]byte
		err = read(r, b[:])
		req.Host = netip.AddrFrom4(b).String()
	case 3:
		var b []byte
		b, err = text(r)
		req.Host = string(b)
	case 4:
		var b [16]byte
		err = read(r, b[:])
		req.Host = netip.AddrFrom16(b).String()
	default:
		// How long the address is, is not known: nothing more can be read.
		return req, nil
	}
	if err != nil {
		return Request{}, err
	}
	var port [2]byte
	if err := read(r, port[:]); err != nil {
		return Request{}, err
	}
	req.Port = int(binary.BigEndian.Uint16(port[:]))
	return req, nil
}

// Answer writes the reply to a request. The bound address in it is always zero:
// the gate's own addresses are none of the client's business.
func Answer(w io.Writer, code Reply) error {
	return write(w, []byte{Version, byte(code), 0, 1, 0, 0, 0, 0, 0, 0})
}

func read(r io.Reader, p []byte) error {
	_, err := io.ReadFull(r, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends too early", ErrMalformed)
	}
	return err
}

func write(w io.Writer, p []byte) error {
	_, err := w.Write(p)
	return err
}
