package broker

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf16"
)

// shortest is the least that a value or a placeholder has, in bytes: what is
// shorter can be guessed, and looking for it would find it everywhere.
const shortest = 8

// longest bounds them, and with them what has to be held back of a stream.
const longest = 8 << 10

// spellings lists the ways in which a server shows a text that it has read in a
// header: as it is, in hexadecimal, in UTF-16, and as the part of a base64 text
// that depends on nothing but it, wherever it stands in what was encoded. Escapes
// of single characters are not in the list; see spelled.
func spellings(text string) []string {
	out := []string{text, hex.EncodeToString([]byte(text)), strings.ToUpper(hex.EncodeToString([]byte(text)))}
	// Either order of the bytes: the zero at the one end or the other is left out.
	var wide []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		wide = append(wide, byte(unit>>8), byte(unit))
	}
	out = append(out, string(wide[1:]))
	for shift := range 3 {
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			encoded := alphabet.EncodeToString(append(make([]byte, shift), text...))
			// Six bits a character: the first and the last ones may have bits of the
			// neighbours.
			whole := (shift + len(text)) * 8 / 6
			out = append(out, encoded[(shift*8+5)/6:whole])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// spelled reports how many bytes at the beginning of b are text, each of whose
// bytes may be escaped on its own, in the ways of URLs, JSON, HTML and quoted-
// printable. Where several readings fit it is the longest. partial says that more
// bytes could make it one, or a longer one.
func spelled(text string, b []byte) (length int, partial bool) {
	var store, spare [4]int
	ends, next := append(store[:0], 0), spare[:0]
	for i := range len(text) {
		next = next[:0]
		for _, end := range ends {
			if end == len(b) {
				partial = true
				continue
			}
			var more bool
			next, more = character(next, text[i], b, end)
			partial = partial || more
		}
		if len(next) == 0 {
			return 0, partial
		}
		ends, next = next, ends
	}
	return slices.Max(ends), partial
}

// character appends to ends where the character c may end that begins at b[at].
func character(ends []int, c byte, b []byte, at int) (out []int, partial bool) {
	rest := b[at:]
	note := func(n int, more bool) {
		if n > 0 && !slices.Contains(ends, at+n) {
			ends = append(ends, at+n)
		}
		partial = partial || more
	}
	if rest[0] == c {
		note(1, false)
	}
	switch rest[0] {
	case '%':
		note(escaped(c, rest, "%"))
		note(escaped(c, rest, "%25"))
	case '=':
		note(escaped(c, rest, "="))
	case '+':
		if c == ' ' {
			note(1, false)
		}
	case '\\':
		note(escaped(c, rest, `\u00`))
		note(escaped(c, rest, `\x`))
		switch {
		case len(rest) == 1:
			note(0, true)
		case rest[1] == c && !alphanumeric(c):
			note(2, false)
		}
	case '&':
		note(reference(c, rest))
	}
	return ends, partial
}

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// escaped reports whether b begins with prefix and c in two hexadecimal digits.
func escaped(c byte, b []byte, prefix string) (length int, partial bool) {
	const digits = "0123456789abcdef"
	for i := range len(prefix) + 2 {
		if i == len(b) {
			return 0, true
		}
		var same bool
		switch i - len(prefix) {
		case 0:
			same = lower(b[i]) == digits[c>>4]
		case 1:
			same = lower(b[i]) == digits[c&15]
		default:
			same = b[i] == prefix[i]
		}
		if !same {
			return 0, false
		}
	}
	return len(prefix) + 2, false
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// longestDigits bounds a reference by number: `&#x0000002B;` is looked for, longer
// ones are not.
const (
	longestDigits    = 8
	longestCharacter = len("&#x") + longestDigits + len(";")
)

// reference reports whether b, which begins with an ampersand, begins with an HTML
// character reference for c.
func reference(c byte, b []byte) (length int, partial bool) {
	if len(b) > 1 && b[1] == '#' {
		return numbered(c, b)
	}
	name := named(c)
	if name == "" {
		// Only a number could come.
		return 0, len(b) == 1
	}
	for i := range len(name) {
		// HTML takes names without the semicolon as well.
		most := 0
		if name[i] == ';' {
			most = i
		}
		if i == len(b) {
			return most, true
		}
		if lower(b[i]) != name[i] {
			return most, false
		}
	}
	return len(name), false
}

func named(c byte) string {
	switch c {
	case '&':
		return "&amp;"
	case '<':
		return "&lt;"
	case '>':
		return "&gt;"
	case '"':
		return "&quot;"
	case '\'':
		return "&apos;"
	}
	return ""
}

// numbered is reference for those by number, which begin with `&#`.
func numbered(c byte, b []byte) (length int, partial bool) {
	at, base := 2, 10
	if len(b) > 2 && lower(b[2]) == 'x' {
		at, base = 3, 16
	}
	value, digits := 0, 0
	for ; at < len(b); at++ {
		if b[at] == ';' {
			if digits == 0 || value != int(c) {
				return 0, false
			}
			return at + 1, false
		}
		digit := strings.IndexByte("0123456789abcdef", lower(b[at]))
		if digits > 0 && value == int(c) && (digit < 0 || digit >= base) {
			return at, false // without the semicolon
		}
		if digits++; digit < 0 || digit >= base || digits > longestDigits {
			return 0, false
		}
		if value = value*base + digit; value > int(c) {
			return 0, false
		}
	}
	if digits > 0 && value == int(c) {
		return at, true
	}
	return 0, true
}
