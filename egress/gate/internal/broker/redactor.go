package broker

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/berm-dev/berm/errdefs"
)

// smallest is the least that is read of a body at once, in bytes.
const smallest = 512

// Redactor takes one request's secret out of its response.
type Redactor struct {
	matcher *matcher
	// name is the secret in lower case: the names of headers have no case.
	name secret
}

// Response masks the secret in everything of resp that goes to the sandbox:
// headers, body and trailers, the latter two as they pass, so that memory does
// not grow with the body. resp is changed in place, and its trailers are read
// from it when the body ends. A response that cannot be looked into (encoded
// although nobody asked for it, or a switch of protocols) is errdefs.Protocol; its
// body is closed then.
func (r *Redactor) Response(resp *http.Response) error {
	if err := r.transparent(resp); err != nil {
		return errors.Join(errdefs.Wrap(errdefs.Protocol, "redact response", err), resp.Body.Close())
	}
	resp.Status = r.matcher.redactString(resp.Status)
	r.header(resp.Header)
	r.header(resp.Trailer)
	body := &stream{source: resp.Body, matcher: r.matcher, atEnd: func() { r.header(resp.Trailer) }}
	if n := resp.ContentLength; n >= 0 && n < blockBytes {
		// Most answers are small: they do not take a block each.
		body.block = int(n) + smallest
	}
	resp.Body = body
	return nil
}

// transparent reports why a response cannot be looked into.
func (r *Redactor) transparent(resp *http.Response) error {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return errors.New("the server switches protocols, which nobody asked for")
	}
	for _, value := range resp.Header.Values("Content-Encoding") {
		for coding := range strings.SplitSeq(value, ",") {
			if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
				return fmt.Errorf("the server encodes (%q), which nobody asked for", clip(r.matcher.redactString(coding)))
			}
		}
	}
	return nil
}

// header masks the secret in values, and drops a header with it in its name.
func (r *Redactor) header(h http.Header) {
	for name, values := range h {
		if low := strings.ToLower(name); strings.Contains(low, r.name()) || r.matcher.in(low) {
			delete(h, name)
			continue
		}
		for i, value := range values {
			values[i] = r.matcher.redactString(value)
		}
	}
}
