package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

// Check judges a request by everything that needs no secret and no network:
// method, path, host, a switch of protocols, and where the placeholder stands. It
// changes nothing and does not look at the body or the scheme. The reason is empty
// when err is nil.
func (b *Bound) Check(out *http.Request) (egress.Reason, error) {
	if !b.allowsMethod(out.Method) {
		return egress.ReasonMethod, fmt.Errorf("the credential for %s is not for method %q", b.host, clip(out.Method))
	}
	if out.URL == nil || out.URL.Opaque != "" || out.URL.User != nil {
		return egress.ReasonMalformed, errors.New("the target is no plain URL")
	}
	if !strings.EqualFold(out.URL.Hostname(), b.host) || out.Host != "" && !strings.EqualFold(hostOf(out.Host), b.host) {
		return egress.ReasonHost, fmt.Errorf("a request to %q with the credential for %q", clip(out.URL.Host), b.host)
	}
	if err := pathAllowed(requestPath(out.URL), b.paths); err != nil {
		return egress.ReasonPath, err
	}
	if len(out.Header["Upgrade"]) > 0 || httpguts.HeaderValuesContainsToken(out.Header["Connection"], "upgrade") {
		return egress.ReasonUpgrade, fmt.Errorf("a switch of protocols at %s, whose requests are judged one by one", b.host)
	}
	return b.checkPlaceholders(out)
}

// allowsMethod takes an empty method for GET, as net/http does.
func (b *Bound) allowsMethod(method string) bool {
	if method == "" {
		method = http.MethodGet
	}
	return !neverMethod(method) && (len(b.methods) == 0 || slices.Contains(b.methods, method))
}

// Allows reports whether a request that was sent already still could be: by its
// method and path. A nil Bound allows none.
func (b *Bound) Allows(out *http.Request) bool {
	return b != nil && b.allowsMethod(out.Method) && pathAllowed(requestPath(out.URL), b.paths) == nil
}

func hostOf(authority string) string {
	name := authority
	if i := strings.LastIndexByte(authority, ':'); i >= 0 {
		name = authority[:i]
	}
	return strings.TrimSuffix(name, ".")
}

// requestPath is the path as it goes over the wire.
func requestPath(u *url.URL) string {
	if path := u.EscapedPath(); path != "" {
		return path
	}
	return "/"
}

// checkPlaceholders wants the placeholder, where there is one, as the value of its
// header, and no placeholder of the sandbox's anywhere else.
func (b *Bound) checkPlaceholders(out *http.Request) (egress.Reason, error) {
	if b.set.placeholders == nil {
		return "", nil
	}
	header := out.Header
	if b.placeholder != "" {
		values := header.Values(b.header)
		if len(values) != 1 || !b.isPlaceholder(values[0]) {
			return egress.ReasonPlaceholder, fmt.Errorf("the placeholder of the credential for %s is not the value of %s", b.host, b.header)
		}
		header = header.Clone()
		header.Del(b.header)
	}
	return b.set.misplaced(out.URL, header)
}

// isPlaceholder takes the bare placeholder, and one with the prefix before it,
// which is a scheme and has no case.
func (b *Bound) isPlaceholder(value string) bool {
	rest, ok := strings.CutSuffix(value, b.placeholder)
	return ok && (rest == "" || strings.EqualFold(rest, b.prefix))
}

// misplaced looks for placeholders where none belongs.
func (s *Set) misplaced(target *url.URL, header http.Header) (egress.Reason, error) {
	where := ""
	switch {
	case s.placeholders.in(requestPath(target)):
		where = "the path"
	case s.placeholders.in(target.RawQuery):
		where = "the query"
	}
	for name, values := range header {
		within := func(placeholder string) bool { return strings.Contains(strings.ToLower(name), placeholder) }
		if slices.ContainsFunc(s.folded, within) || slices.ContainsFunc(values, s.placeholders.in) {
			where = "a header"
		}
	}
	if where != "" {
		return egress.ReasonPlaceholder, fmt.Errorf("%w: in %s of a request to %q", errMisplaced, where, clip(target.Host))
	}
	return "", nil
}

// Misplaced judges a request to a host without a credential: no placeholder may
// be in it. The body is looked at as it passes: where one is found, the request
// breaks off with an error for which UpstreamReason is egress.ReasonPlaceholder.
func (s *Set) Misplaced(out *http.Request) (egress.Reason, error) {
	if s == nil || s.placeholders == nil || out.URL == nil {
		return "", nil
	}
	if reason, err := s.misplaced(out.URL, out.Header); err != nil {
		return reason, err
	}
	return s.watch(out)
}

// watched is the largest body that is read before anything is sent, so that a
// placeholder in it is a clean refusal, in bytes.
const watched = 64 << 10

// watch looks for placeholders in the body.
func (s *Set) watch(out *http.Request) (egress.Reason, error) {
	if s.placeholders == nil || out.Body == nil || out.Body == http.NoBody {
		return "", nil
	}
	body := &stream{source: out.Body, matcher: s.placeholders, refuse: true}
	out.Body, out.GetBody = body, nil
	if out.ContentLength <= 0 || out.ContentLength > watched {
		return "", nil
	}
	data, err := io.ReadAll(body)
	switch {
	case errors.Is(err, errMisplaced):
		return egress.ReasonPlaceholder, fmt.Errorf("%w: in the body of a request to %q", err, clip(out.URL.Host))
	case err != nil:
		return egress.ReasonMalformed, fmt.Errorf("body of the request: %w", err)
	case int64(len(data)) != out.ContentLength:
		return egress.ReasonMalformed, errors.New("the body of the request is not as long as it said")
	}
	out.Body = struct {
		io.Reader
		io.Closer
	}{bytes.NewReader(data), body}
	return "", nil
}

// Apply makes a request that goes out by https carry the credential, in place: it
// is checked, freed of whatever could direct it elsewhere, and given the secret as
// the last step. With an error out must not be sent; the error has no secret in
// it, also where the Source put one into its own. The Redactor is for the response
// to this request.
//
// It is called where nothing comes after but the transport, and after the address
// of the host was screened.
func (b *Bound) Apply(ctx context.Context, out *http.Request) (*Redactor, egress.Reason, error) {
	if reason, err := b.Check(out); err != nil {
		return nil, reason, err
	}
	if out.URL.Scheme != "https" {
		return nil, egress.ReasonInternal, fmt.Errorf("a request to %s that does not go out by https", b.host)
	}
	if reason, err := b.set.watch(out); err != nil {
		return nil, reason, err
	}
	if out.Header == nil {
		out.Header = http.Header{}
	}
	for name := range out.Header {
		if strip(name) || folded(name) == strings.ToLower(b.header) {
			delete(out.Header, name)
		}
	}
	// Trailers come after everything was judged.
	out.Trailer, out.Host = nil, ""
	out.Header.Set("Accept-Encoding", "identity")
	value, err := b.render(ctx)
	if err != nil {
		return nil, egress.ReasonCredentialLost, err
	}
	r := &Redactor{matcher: b.matcherFor(value), name: conceal(strings.ToLower(value))}
	*out = *out.WithContext(httptrace.WithClientTrace(out.Context(), &httptrace.ClientTrace{
		// Informational responses do not come by Response.
		Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
			r.header(http.Header(header))
			return nil
		},
	}))
	out.Header[b.header] = []string{b.prefix + value}
	return r, "", nil
}

// sourceTimeout bounds one call of a Source that heeds its context.
const sourceTimeout = 10 * time.Second

// render gets the secret. What a Source says when it fails, or panics with, is its
// own and may have the secret in it: only its kind is told.
func (b *Bound) render(ctx context.Context) (value string, err error) {
	if b.source == nil {
		return b.value(), nil
	}
	defer func() {
		if recover() != nil {
			value, err = "", errdefs.New(errdefs.Internal, "get credential", fmt.Sprintf("the source of %q broke down", b.id))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	text, err := b.source(ctx)
	if err != nil {
		return "", errdefs.New(errdefs.Unavailable, "get credential", fmt.Sprintf("the source of %q failed (%s)", b.id, errdefs.KindOf(err)))
	}
	if err := checkValue(text); err != nil {
		return "", errdefs.New(errdefs.Unavailable, "get credential", fmt.Sprintf("what the source of %q gave %v", b.id, err))
	}
	return text, nil
}

// folded is a header's name as the laxest server reads it: gateways turn both
// dashes and underscores into the same variable.
func folded(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// strip names the headers that never go to the host of a credential: those that
// concern one hop, that name another host, path or method than the request's, and
// that would have the response come in pieces or in an encoding in which a secret
// is not found.
func strip(name string) bool {
	name = folded(name)
	return strings.HasPrefix(name, "x-forwarded-") || strings.HasPrefix(name, "proxy-") || slices.Contains([]string{
		"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings",
		"forwarded", "host", "x-host", "x-http-host-override", "x-host-override", "x-original-host", "x-forwarded", "x-real-host", "x-backend-host",
		"x-original-url", "x-original-uri", "x-original-path", "x-rewrite-url", "x-rewrite-uri", "x-override-url",
		"x-http-method-override", "x-http-method", "x-method-override",
		"accept-encoding", "accept-charset", "a-im", "range", "if-range", "request-range", "x-ms-range",
	}, name)
}
