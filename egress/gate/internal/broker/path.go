package broker

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// segments takes an escaped path apart where every server reads it alike. What
// one server decodes, joins or cuts off and another does not (dot segments, empty
// ones, escaped slashes, escapes of escapes, bytes that are no text) is an error.
func segments(escaped string) ([]string, error) {
	rest, ok := strings.CutPrefix(escaped, "/")
	if !ok {
		return nil, errors.New("it does not begin with a slash")
	}
	if rest == "" {
		return nil, nil
	}
	// A slash at the end names the same as without.
	raw := strings.Split(strings.TrimSuffix(rest, "/"), "/")
	out := make([]string, 0, len(raw))
	for _, part := range raw {
		plain, err := url.PathUnescape(part)
		if err != nil {
			return nil, errors.New("it has a broken escape")
		}
		if err := plainSegment(plain); err != nil {
			return nil, err
		}
		out = append(out, plain)
	}
	return out, nil
}

// lookalikes are what compatibility mappings (NFKC, best fit) make dots and slashes
// of.
const lookalikes = "\u2024\u2025\u2026\ufe52\uff0e\uff0f\uff3c\ufe68\u2044\u2215"

func plainSegment(s string) error {
	// Some servers cut a parameter off before they look for dots, some the spaces
	// around.
	name, _, _ := strings.Cut(s, ";")
	name = strings.TrimSpace(name)
	switch {
	case s == "":
		return errors.New("it has an empty segment")
	case name == "." || name == "..":
		return errors.New("it has a dot segment")
	case strings.ContainsAny(s, lookalikes):
		return errors.New("it has a character that some servers take for a dot or a slash")
	case strings.ContainsAny(s, `/\`):
		return errors.New("it has an escaped slash or a backslash")
	case !utf8.ValidString(s):
		return errors.New("it has bytes that are no text")
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return errors.New("it has a control character")
		}
		if s[i] == '%' && len(s) > i+2 && hexadecimal(s[i+1]) && hexadecimal(s[i+2]) {
			return errors.New("it has an escape within an escape")
		}
	}
	return nil
}

func hexadecimal(c byte) bool {
	return strings.IndexByte("0123456789abcdef", lower(c)) >= 0
}

// pathAllowed reports why a path is not below one of the prefixes, which are
// segments; nil when it is. Without prefixes every path is allowed.
func pathAllowed(escaped string, prefixes [][]string) error {
	if len(prefixes) == 0 {
		return nil
	}
	path, err := segments(escaped)
	if err != nil {
		return fmt.Errorf("path %q cannot be judged: %w", clip(escaped), err)
	}
	for _, prefix := range prefixes {
		if below(path, prefix) {
			return nil
		}
	}
	return fmt.Errorf("path %q is not among those that the credential is for", clip(escaped))
}

func below(path, prefix []string) bool {
	if len(path) < len(prefix) {
		return false
	}
	for i, s := range prefix {
		if path[i] != s {
			return false
		}
	}
	return true
}
