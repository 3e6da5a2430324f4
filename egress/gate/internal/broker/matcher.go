package broker

import (
	"slices"
	"strings"
)

// matcher finds spellings of texts in a stream of bytes. It is not changed after
// newMatcher and safe for concurrent use.
type matcher struct {
	// texts gives the spellings; a function for the reason that secret is one.
	texts func() []string
	// longest is the most bytes that a spelling has.
	longest int
	// first and pairs have the bytes, and pairs of bytes, with which a spelling can
	// begin: nearly all of a stream is passed over by them.
	first [256]uint8
	pairs [1 << 16 / 64]uint64
}

func newMatcher(texts []string) *matcher {
	var all []string
	for _, text := range texts {
		all = append(all, spellings(text)...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	m := &matcher{texts: func() []string { return all }}
	for _, text := range all {
		m.longest = max(m.longest, longestCharacter*len(text))
	}
	for a := range 256 {
		length, partial := m.at([]byte{byte(a)})
		if length == 0 && !partial {
			continue
		}
		m.first[a] = 1
		for b := range 256 {
			if length, partial := m.at([]byte{byte(a), byte(b)}); length > 0 || partial {
				i := a<<8 | b
				m.pairs[i>>6] |= 1 << (i & 63)
			}
		}
	}
	return m
}

// at reports the longest spelling with which b begins, and whether more bytes
// could make it longer or one at all.
func (m *matcher) at(b []byte) (length int, partial bool) {
	escape := strings.IndexByte(`%=+\&`, b[0]) >= 0
	for _, text := range m.texts() {
		if !escape && text[0] != b[0] {
			continue
		}
		n, more := spelled(text, b)
		length, partial = max(length, n), partial || more
	}
	return length, partial
}

// find looks for the leftmost spelling in b, and there the longest: it is
// b[start:start+length]. With length 0 there is none that is whole, and what
// is before start is not part of any. Unless final, bytes that come later may
// complete what begins at start, so that what is found does not depend on how a
// stream is cut.
func (m *matcher) find(b []byte, final bool) (start, length int) {
	for i := range b {
		if m.first[b[i]] == 0 {
			continue
		}
		if i+1 < len(b) {
			pair := int(b[i])<<8 | int(b[i+1])
			if m.pairs[pair>>6]&(1<<(pair&63)) == 0 {
				continue
			}
		}
		n, partial := m.at(b[i:])
		if partial && !final {
			return i, 0
		}
		if n > 0 {
			return i, n
		}
	}
	return len(b), 0
}

// mask is what stands for each byte of a secret: the length stays, and with it
// Content-Length and the frames around.
const mask = '*'

// redact masks in place what is found in b, and reports how many bytes are settled;
// all when final.
func (m *matcher) redact(b []byte, final bool) int {
	done := 0
	for {
		start, length := m.find(b[done:], final)
		if length == 0 {
			return done + start
		}
		for i := range length {
			b[done+start+i] = mask
		}
		done += start + length
	}
}

// redactString is redact for a text that is whole.
func (m *matcher) redactString(s string) string {
	b := []byte(s)
	m.redact(b, true)
	return string(b)
}

// in reports whether a whole text has a spelling in it.
func (m *matcher) in(s string) bool {
	_, length := m.find([]byte(s), true)
	return length > 0
}
