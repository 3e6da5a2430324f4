package wire

import (
	"bytes"
	"errors"
	"io"
)

// ErrUnsolicited is what Read gives when bytes come that belong to no message.
var ErrUnsolicited = errors.New("bytes that belong to no message")

type state int

const (
	inHead state = iota
	inLength
	inChunkSize
	inChunk
	inChunkEnd
	inTrailer
	idle // after a message, before Next
	raw
)

// Reader hands on the bytes of messages, each part only after it was checked. It
// is not for concurrent use, Next apart, see there.
type Reader struct {
	src io.Reader
	// head is called with each whole head and says how the body ends.
	head func(head []byte) (Framing, error)
	max  int // of a head's bytes

	buf     []byte
	r, w    int
	scanned int   // bytes from r on in which no end was found
	pass    int   // checked bytes from r on
	n       int64 // left of the body or the chunk
	state   state
	after   state // when a message has ended
	fault   error
}

// NewReader reads requests: one follows another. head's error ends the reading.
func NewReader(src io.Reader, max int, head func([]byte) (Framing, error)) *Reader {
	return &Reader{src: src, head: head, max: max, state: inHead, after: inHead}
}

// NewResponseReader reads responses: each only after Next.
func NewResponseReader(src io.Reader, max int, head func([]byte) (Framing, error)) *Reader {
	return &Reader{src: src, head: head, max: max, state: idle, after: idle}
}

// Next says that a response is expected now. It reports false when bytes came
// before it was. The caller excludes a concurrent Read's bookkeeping, see Begin.
func (r *Reader) Next() bool {
	if r.state != idle || r.r != r.w || r.fault != nil {
		return false
	}
	r.state = inHead
	return true
}

// Clean reports whether a message has ended and nothing came after it.
func (r *Reader) Clean() bool { return r.state == idle && r.r == r.w && r.fault == nil }

// Raw ends the checking: what comes from now on is handed on as it is.
func (r *Reader) Raw() { r.state, r.pass, r.fault = raw, 0, nil }

// Buffered takes out what was read and not handed on.
func (r *Reader) Buffered() []byte {
	out := bytes.Clone(r.buf[r.r:r.w])
	r.r, r.w, r.pass, r.scanned = 0, 0, 0, 0
	return out
}

// Partial reports whether a head has begun and not ended.
func (r *Reader) Partial() bool { return r.state == inHead && r.pass == 0 && r.w > r.r }

// InHead reports whether the next bytes are a head's.
func (r *Reader) InHead() bool { return r.state == inHead && r.pass == 0 }

// Read hands on checked bytes. After a *Fault every call gives it again.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if r.fault != nil {
			return 0, r.fault
		}
		if r.pass > 0 {
			n := copy(p, r.buf[r.r:r.r+r.pass])
			r.r += n
			r.pass -= n
			return n, nil
		}
		if n, done, err := r.body(p); done {
			return n, err
		}
		if err := r.step(); err != nil {
			if f := (*Fault)(nil); errors.As(err, &f) || errors.Is(err, ErrUnsolicited) {
				r.fault = err
			}
			return 0, err
		}
	}
}

// body reads a body's bytes, from the buffer or past it.
func (r *Reader) body(p []byte) (n int, done bool, err error) {
	var limit int64
	switch r.state {
	case inLength, inChunk:
		limit = r.n
	case raw:
		limit = int64(len(p))
	default:
		return 0, false, nil
	}
	if limit < int64(len(p)) {
		p = p[:limit]
	}
	if r.w > r.r {
		n = copy(p, r.buf[r.r:r.w])
		r.r += n
	} else {
		n, err = r.src.Read(p)
	}
	if r.state != raw {
		r.n -= int64(n)
		if r.n == 0 {
			r.bodyEnd()
		} else if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, true, err
}

func (r *Reader) bodyEnd() {
	if r.state == inChunk {
		r.state = inChunkEnd
		return
	}
	r.state = r.after
}

// step moves to the next part that may be handed on, or reads more.
func (r *Reader) step() error {
	switch r.state {
	case inHead:
		return r.stepHead()
	case inChunkSize:
		return r.stepChunkSize()
	case inChunkEnd:
		return r.stepChunkEnd()
	case inTrailer:
		return r.stepTrailer()
	case idle:
		if r.w > r.r {
			return ErrUnsolicited
		}
		return r.fill(1)
	case inLength, inChunk, raw:
	}
	return nil
}

func (r *Reader) stepHead() error {
	end, err := r.findEnd()
	if end == 0 {
		return err
	}
	framing, err := r.head(r.buf[r.r : r.r+end])
	if err != nil {
		return err
	}
	r.pass, r.scanned = end, 0
	switch {
	case framing.Raw:
		r.state = raw
	case framing.Interim:
	case framing.Chunked:
		r.state = inChunkSize
	case framing.Length > 0:
		r.state, r.n = inLength, framing.Length
	default:
		r.state = r.after
	}
	return nil
}

// findEnd gives the length of a head that ends in an empty line, or reads more.
// A line that ends otherwise than all others is a fault at once: waiting for the
// right end would wait for ever.
func (r *Reader) findEnd() (int, error) {
	block := r.buf[r.r:r.w]
	for i := r.scanned; i < len(block); i++ {
		switch {
		case block[i] != '\n':
			continue
		case i == 0 || block[i-1] != '\r':
			return 0, bad("a line that ends in a bare line feed")
		case i == 1, i >= 3 && block[i-2] == '\n':
			return i + 1, nil
		}
	}
	r.scanned = len(block)
	if len(block) >= r.max {
		return 0, tooMuch("a head that is too large")
	}
	return 0, r.fill(r.max)
}

// stepChunkSize takes hexadecimal digits alone: chunk extensions mean nothing to
// anybody and were read in two ways before.
func (r *Reader) stepChunkSize() error {
	const longest = 15 + 2
	block := r.buf[r.r:r.w]
	end := bytes.IndexByte(block, '\n')
	if end < 0 {
		if len(block) >= longest {
			return bad("a chunk size that is too long")
		}
		return r.fill(longest)
	}
	if end < 2 || end+1 > longest || block[end-1] != '\r' {
		return bad("a chunk size that is none")
	}
	var size int64
	for _, c := range block[:end-1] {
		v := hexDigit(c)
		if v < 0 {
			return bad("a chunk size that is none")
		}
		size = size<<4 | int64(v)
	}
	if size == 0 {
		// Checked together with the trailer: both end at an empty line.
		r.state, r.scanned = inTrailer, 0
		r.pass = end + 1
		return nil
	}
	r.state, r.n, r.pass = inChunk, size, end+1
	return nil
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

func (r *Reader) stepChunkEnd() error {
	if r.w-r.r < 2 {
		return r.fill(2)
	}
	if r.buf[r.r] != '\r' || r.buf[r.r+1] != '\n' {
		return bad("a chunk that is longer than it says")
	}
	r.pass, r.state = 2, inChunkSize
	return nil
}

func (r *Reader) stepTrailer() error {
	end, err := r.findEnd()
	if end == 0 {
		return err
	}
	const maxTrailers = 64
	if _, fault := parseFields(r.buf[r.r:r.r+end], maxTrailers); fault != nil {
		return fault
	}
	r.pass, r.scanned, r.state = end, 0, r.after
	return nil
}

// fill reads once, into a buffer that grows up to what a part may have.
func (r *Reader) fill(most int) error {
	const first = 4096
	if r.r == r.w {
		r.r, r.w = 0, 0
	}
	if r.buf == nil {
		r.buf = make([]byte, first)
	}
	if r.w == len(r.buf) {
		if r.r > 0 {
			r.w = copy(r.buf, r.buf[r.r:r.w])
			r.r = 0
		} else {
			grown := make([]byte, min(2*len(r.buf), max(most, 2*first)))
			r.w = copy(grown, r.buf)
			r.buf = grown
		}
	}
	n, err := r.src.Read(r.buf[r.w:])
	r.w += n
	if n > 0 {
		return nil
	}
	if errors.Is(err, io.EOF) && (r.w > r.r || r.state != inHead && r.state != idle) {
		return io.ErrUnexpectedEOF
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

// IsRaw reports whether there are only bytes from here on.
func (r *Reader) IsRaw() bool { return r.state == raw }

// AtEnd reports whether a message has ended, also where bytes came after it.
func (r *Reader) AtEnd() bool { return r.state == idle && r.pass == 0 }
