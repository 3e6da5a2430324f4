package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

const (
	// MaxText is the most that is kept of one text, in bytes.
	MaxText = 1024
	// MaxList is the most that is kept of one list: names and addresses come from
	// DNS, which the other side may own.
	MaxList = 64
)

// Line is a record as one line of JSON with its newline. It has printable ASCII
// only; a reader of JSON gets back what the record had, up to the caps.
func Line(r *egress.Record) ([]byte, error) {
	bounded := bound(r)
	data, err := json.Marshal(&bounded)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Internal, "write audit record", err)
	}
	return append(ascii(data), '\n'), nil
}

// ascii writes what is left above ASCII, and DEL, as escapes. Such characters stand
// within JSON's strings only.
func ascii(data []byte) []byte {
	if bytes.IndexFunc(data, func(c rune) bool { return c >= 0x7f }) < 0 {
		return data
	}
	out := make([]byte, 0, len(data)+1)
	for len(data) > 0 {
		c, n := utf8.DecodeRune(data)
		data = data[n:]
		switch {
		case c < 0x7f:
			out = append(out, byte(c))
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, c)
		}
	}
	return out
}

// bound is a copy of r within the caps. It shares nothing with r that a caller
// could change.
func bound(r *egress.Record) egress.Record {
	out := *r
	for _, text := range []*string{&out.Sandbox, &out.Rule, &out.Asked, &out.Host, &out.Method, &out.SNI, &out.Dialled, &out.Credential, &out.Error} {
		*text = clip(*text)
	}
	out.Event, out.Protocol, out.Reason = egress.Event(clip(string(r.Event))), egress.Protocol(clip(string(r.Protocol))), egress.Reason(clip(string(r.Reason)))
	out.Chain = slices.Clone(r.Chain[:min(len(r.Chain), MaxList)])
	for i, name := range out.Chain {
		out.Chain[i] = clip(name)
	}
	out.Addresses = slices.Clone(r.Addresses[:min(len(r.Addresses), MaxList)])
	return out
}

// clip cuts a text at the last whole character that fits.
func clip(s string) string {
	if len(s) <= MaxText {
		return s
	}
	end := MaxText
	for end > MaxText-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
