package broker

import (
	"bytes"
	"errors"
	"io"
)

// blockBytes is how much of a body is read at once.
const blockBytes = 32 << 10

// errMisplaced ends a request in whose body a placeholder was found.
var errMisplaced = errors.New("a placeholder outside of its place")

// stream is a body that passes a matcher. It holds back as many bytes as a spelling
// can have, or those behind the last line end: memory does not grow with the body,
// and lines pass at once. It is used by one goroutine, as every body is.
type stream struct {
	source  io.ReadCloser
	matcher *matcher
	// refuse: what is found ends the stream; otherwise it is masked.
	refuse bool
	// block is how much is read at once; 0 for blockBytes.
	block int
	// atEnd is called once, before the end is given out; nil for nothing.
	atEnd func()

	// buffer[from:settled] can be given out, buffer[settled:to] is held back.
	buffer []byte
	// Up to looked, what can be masked was.
	from, settled, looked, to int
	err                       error
}

// Read implements io.Reader.
func (s *stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for empty := 0; s.from == s.settled; {
		if s.err != nil {
			return 0, s.err
		}
		n, err := s.fill()
		if s.look(err); n > 0 || err != nil {
			empty = 0
			continue
		}
		if empty++; empty == 100 {
			s.err = io.ErrNoProgress
		}
	}
	n := copy(p, s.buffer[s.from:s.settled])
	s.from += n
	return n, nil
}

// fill reads behind what is held back, which it moves to the front.
func (s *stream) fill() (int, error) {
	s.to = copy(s.buffer, s.buffer[s.settled:s.to])
	s.from, s.settled, s.looked = 0, 0, max(s.looked-s.settled, 0)
	if s.block == 0 {
		s.block = blockBytes
	}
	if len(s.buffer)-s.to < s.block/2 {
		larger := make([]byte, s.to+s.block)
		copy(larger, s.buffer[:s.to])
		s.buffer = larger
	}
	n, err := s.source.Read(s.buffer[s.to:])
	s.to += n
	return n, err
}

// look decides about what was read. A body that breaks off is given out as far as
// it came: it is decided like one that ends.
func (s *stream) look(err error) {
	if s.refuse {
		rest := s.buffer[s.settled:s.to]
		start, length := s.matcher.find(rest, err != nil)
		s.settled += start
		if length > 0 {
			err = errMisplaced
			s.to = s.settled
		}
	} else {
		fresh := s.buffer[s.looked:s.to]
		s.looked += s.matcher.redact(fresh, err != nil)
		due := s.to
		if err == nil {
			// Whatever it is: who saw that the beginning of a secret is held back, and
			// other bytes are not, would learn the secret by guessing it byte by byte.
			// No spelling has a line end in it, as no header has.
			due = max(s.settled, s.to-s.matcher.longest+1)
			if line := bytes.LastIndexByte(s.buffer[max(due, s.to-len(fresh)):s.to], '\n'); line >= 0 {
				due = max(due, s.to-len(fresh)) + line + 1
			}
		}
		s.settled = min(s.looked, due)
	}
	if err == nil || s.err != nil {
		return
	}
	s.err = err
	if s.atEnd != nil {
		s.atEnd()
	}
}

// Close implements io.Closer.
func (s *stream) Close() error { return s.source.Close() }
