package broker_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"mime/quotedprintable"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/broker"
	"github.com/berm-dev/berm/errdefs"
)

// redactorFor is what a request with a credential gives.
func redactorFor(t testing.TB, credential egress.Credential) *broker.Redactor {
	t.Helper()
	set, err := broker.Compile([]egress.Credential{credential})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+credential.Host+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	redactor, reason, err := set.For(credential.Host).Apply(t.Context(), req)
	if err != nil {
		t.Fatal(reason, err)
	}
	return redactor
}

// redacted passes a body through a redactor.
func redacted(t testing.TB, r *broker.Redactor, body io.Reader) string {
	t.Helper()
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(body)}
	if err := r.Response(resp); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// spelled are the ways in which servers show what they got.
func spelled(s string) map[string]string {
	inJSON, _ := json.Marshal(s)
	var printable strings.Builder
	w := quotedprintable.NewWriter(&printable)
	_, _ = io.WriteString(w, s)
	_ = w.Close()
	var percents, units, little strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&percents, "%%%02x", s[i])
		fmt.Fprintf(&units, `\u%04X`, s[i])
	}
	for _, u := range utf16.Encode([]rune(s)) {
		little.Write([]byte{byte(u), byte(u >> 8)})
	}
	return map[string]string{
		"raw": s, "hex": hex.EncodeToString([]byte(s)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(s))),
		"base64": base64.StdEncoding.EncodeToString([]byte(s)), "base64 for URLs": base64.RawURLEncoding.EncodeToString([]byte(s)),
		"base64 user:value": base64.StdEncoding.EncodeToString([]byte("user:" + s)), "base64 me:value": base64.StdEncoding.EncodeToString([]byte("me:" + s)),
		"base64 of a header": base64.URLEncoding.EncodeToString([]byte("Authorization: Bearer " + s + "\r\nHost: x\r\n")),
		"base64 in a query":  url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("x:" + s))),
		"query":              url.QueryEscape(s), "path": url.PathEscape(s), "query in small": strings.ToLower(url.QueryEscape(s)), "every byte": percents.String(),
		"twice": url.QueryEscape(url.QueryEscape(s)), "JSON": string(inJSON), "JSON of PHP": strings.ReplaceAll(s, "/", `\/`), "JSON units": units.String(),
		"JSON in JSON": strings.ReplaceAll(string(inJSON), `\`, `\\`), "HTML": html.EscapeString(s), "HTML numbers": strings.NewReplacer("+", "&#43;", "/", "&#x2F;", "=", "&#x0003d;").Replace(s),
		"quoted-printable": printable.String(), "UTF-16": little.String(), "escapes": strings.NewReplacer("+", `\x2b`, "/", `\/`, "=", `\x3D`).Replace(s),
	}
}

// TestK06Reflection: a server that shows the request, in any of the usual ways.
func TestK06Reflection(t *testing.T) {
	t.Parallel()
	redactor := redactorFor(t, bearer())
	for name, form := range spelled(token) {
		t.Run("K06/"+name, func(t *testing.T) {
			t.Parallel()
			// What stays visible of base64 are bits at the edges, less than two characters.
			want := len(token) - 2
			if name == "JSON in JSON" {
				want = 0 // an escape of an escape; the units before and after are found
			}
			body := "before " + form + " after"
			for cut, reader := range map[string]io.Reader{
				"whole": strings.NewReader(body), "bytes": iotest.OneByteReader(strings.NewReader(body)), "halves": iotest.HalfReader(strings.NewReader(body)),
			} {
				got := redacted(t, redactor, reader)
				if len(got) != len(body) || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
					t.Errorf("%s: what stands around has changed: %q", cut, got)
				}
				if strings.Count(got, "*") < want || want > 0 && strings.Contains(got, form) {
					t.Errorf("%s: %q", cut, got)
				}
			}
		})
	}
	const harmless = `{"a": "tok+/en=012345678", "b": 50%, "c": "\u00", "d": "&#", "e": "dG9rKy9lbj0wMTIz", "f": "%74%6f%6b"}`
	if got := redacted(t, redactor, strings.NewReader(harmless)); got != harmless {
		t.Errorf("a harmless text was changed: %q", got)
	}
}

// TestK06Basic: a credential that is a user and a password shows as either.
func TestK06Basic(t *testing.T) {
	t.Parallel()
	const password = "p4ssw0rd/+secret"
	redactor := redactorFor(t, egress.Credential{Host: apiHost, Prefix: "Basic ", Value: base64.StdEncoding.EncodeToString([]byte("robot:" + password))})
	for name, form := range spelled(password) {
		if name == "JSON in JSON" {
			continue
		}
		if got := redacted(t, redactor, strings.NewReader(form)); strings.Contains(got, form) || strings.Count(got, "*") < len(password)-2 {
			t.Errorf("K06/Basic %s: %q", name, got)
		}
	}
}

// TestK06EchoThroughARig: both versions of HTTP, headers, cookies, redirect,
// trailer and body.
func TestK06EchoThroughARig(t *testing.T) {
	t.Parallel()
	r := newRig(t, bearer(), func(w http.ResponseWriter, in *http.Request) {
		secret := in.Header.Get("Authorization")
		bare := strings.TrimPrefix(secret, "Bearer ")
		header := w.Header()
		header.Set("Early", secret)
		w.WriteHeader(http.StatusEarlyHints)
		header.Del("Early")
		header.Set("Trailer", "Checksum, X-Plain")
		header.Set("X-Seen", secret)
		header.Set("Location", "https://evil.test/?token="+url.QueryEscape(bare))
		http.SetCookie(w, &http.Cookie{Name: "t", Value: base64.RawURLEncoding.EncodeToString([]byte(bare))})
		header.Set("X-Token-"+strings.NewReplacer("/", "", "=", "").Replace(bare), "in a name")
		header.Set("Content-Length", fmt.Sprint(len(secret)))
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, secret)
		header.Set("Checksum", secret)
		header.Set("X-Plain", "plain")
	})
	for _, h2 := range []bool{false, true} {
		var early []textproto.MIMEHeader
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			early = append(early, h)
			return nil
		}})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+apiHost+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := r.client(t, h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusTeapot || string(body) != "Bearer "+strings.Repeat("*", len(token)) {
			t.Errorf("K06: %d %q", resp.StatusCode, body)
		}
		if len(early) != 1 || early[0].Get("Early") != "Bearer "+strings.Repeat("*", len(token)) {
			t.Errorf("K08/1xx: %v", early)
		}
		if got := resp.Header.Get("X-Seen"); got != "Bearer "+strings.Repeat("*", len(token)) {
			t.Errorf("K08/header: %q", got)
		}
		if got := resp.Header.Get("Location"); !strings.HasPrefix(got, "https://evil.test/?token=***") || strings.Contains(got, "0123") {
			t.Errorf("K08/Location: %q", got)
		}
		if got := resp.Header.Get("Set-Cookie"); !strings.HasPrefix(got, "t=***") {
			t.Errorf("K08/Set-Cookie: %q", got)
		}
		if resp.ProtoMajor == 2 && resp.Trailer.Get("Checksum") != "Bearer "+strings.Repeat("*", len(token)) {
			t.Errorf("K08/trailer: %v", resp.Trailer)
		}
		all := fmt.Sprint(resp.Header, resp.Trailer, early, string(body))
		for name, form := range spelled(token) {
			if strings.Contains(all, form) {
				t.Errorf("K06/K08: the secret came through, %s: %s", name, all)
			}
		}
	}
}

// TestK08Names: the names of headers have no case, and cannot be masked.
func TestK08Names(t *testing.T) {
	t.Parallel()
	const secret = "ghp_ABCdef0123456789"
	redactor := redactorFor(t, egress.Credential{Host: apiHost, Value: secret})
	resp := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}, Trailer: http.Header{}}
	for _, h := range []http.Header{resp.Header, resp.Trailer} {
		h.Set("X-Seen-"+secret, "1")
		h[strings.ToUpper(secret)] = []string{"2"}
		h.Set("Kept", "3")
	}
	if err := redactor.Response(resp); err != nil {
		t.Fatal(err)
	}
	for _, h := range []http.Header{resp.Header, resp.Trailer} {
		if len(h) != 1 || h.Get("Kept") != "3" {
			t.Errorf("K08: %v", h)
		}
	}
}

// TestK08Trailers: of HTTP/1.1, which come with chunks, and those that nobody
// announced.
func TestK08Trailers(t *testing.T) {
	t.Parallel()
	r := newRig(t, bearer(), func(w http.ResponseWriter, in *http.Request) {
		w.Header().Set("Trailer", "Announced")
		_, _ = io.WriteString(w, "body")
		_ = http.NewResponseController(w).Flush() // else HTTP/1.1 gets a length and no trailers
		w.Header().Set("Announced", in.Header.Get("Authorization"))
		w.Header().Set(http.TrailerPrefix+"Sudden", in.Header.Get("Authorization"))
	})
	for _, h2 := range []bool{false, true} {
		got := ask(t, r.client(t, h2), http.MethodGet, "https://"+apiHost+"/", nil, nil)
		for _, name := range []string{"Announced", "Sudden"} {
			if value := got.trailer.Get(name); value != "Bearer "+strings.Repeat("*", len(token)) {
				t.Errorf("K08/trailer %s, h2 %v: %q", name, h2, value)
			}
		}
	}
}

// TestK06EncodedResponse: what was encoded although nobody offered to decode it
// cannot be looked into.
func TestK06EncodedResponse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		encoding []string
		status   int
		good     bool
	}{
		"K06/gzip":              {[]string{"gzip"}, http.StatusOK, false},
		"K06/br in capitals":    {[]string{"BR"}, http.StatusOK, false},
		"K06/identity and gzip": {[]string{"identity, gzip"}, http.StatusOK, false},
		"K06/second line":       {[]string{"identity", "zstd"}, http.StatusOK, false},
		"K06/identity":          {[]string{"Identity"}, http.StatusOK, true},
		"K06/none":              {nil, http.StatusOK, true},
		"U05/101":               {nil, http.StatusSwitchingProtocols, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := &closing{Reader: strings.NewReader(token)}
			resp := &http.Response{StatusCode: c.status, Header: http.Header{"Content-Encoding": c.encoding}, Body: body}
			err := redactorFor(t, bearer()).Response(resp)
			if (err == nil) != c.good || !c.good && (!errors.Is(err, errdefs.Protocol) || !body.closed) {
				t.Errorf("%v, closed %v", err, body.closed)
			}
		})
	}
	r := newRig(t, bearer(), func(w http.ResponseWriter, in *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, in.Header.Get("Authorization"))
	})
	if got := ask(t, r.client(t, true), http.MethodGet, "https://"+apiHost+"/", nil, nil); got.reason != egress.ReasonUpstream || strings.Contains(got.body, token) {
		t.Errorf("K06: %d %q %s", got.status, got.reason, got.body)
	}
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// TestBodyErrors: a body that breaks off gives what came, then its error.
func TestBodyErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	resp := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(io.MultiReader(strings.NewReader("some "+token+" and "+token[:9]), failing{broken}))}
	if err := redactorFor(t, bearer()).Response(resp); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(resp.Body)
	if want := "some " + strings.Repeat("*", len(token)) + " and " + token[:9]; string(got) != want || !errors.Is(err, broken) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, broken) {
		t.Errorf("the next read: %v", err)
	}
	resp = &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(stuck{})}
	if err := redactorFor(t, bearer()).Response(resp); err != nil {
		t.Fatal(err)
	}
	if _, err := resp.Body.Read(make([]byte, 1)); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a body that gives nothing: %v", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

// TestEventsAreNotHeldBack: what is no beginning of a secret passes at once, or a
// stream of events would stand still.
func TestEventsAreNotHeldBack(t *testing.T) {
	t.Parallel()
	reader, writer := io.Pipe()
	defer func() { _ = writer.Close() }()
	resp := &http.Response{StatusCode: http.StatusOK, Body: reader}
	if err := redactorFor(t, bearer()).Response(resp); err != nil {
		t.Fatal(err)
	}
	for _, event := range []string{"data: one\n\n", "data: " + token + "\n\n", "data: three\n\n"} {
		go func() { _, _ = io.WriteString(writer, event) }()
		got := make([]byte, len(event))
		if _, err := io.ReadFull(resp.Body, got); err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(event, token, strings.Repeat("*", len(token))); string(got) != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// endless gives a body of any size without holding it.
type endless struct {
	block []byte
	left  int64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), e.left)], e.block)
	e.left -= int64(n)
	return n, nil
}

// TestQ06FlatMemory: the size of a body, and what a server sends to have much held
// back, do not show in memory.
func TestQ06FlatMemory(t *testing.T) {
	// Not parallel: what others allocate would count.
	size := int64(256 << 20)
	if testing.Short() {
		size = 16 << 20
	}
	redactor := redactorFor(t, bearer())
	for name, block := range map[string]string{
		"Q06/zeros":      strings.Repeat("\x00", 4096),
		"Q06/beginnings": strings.Repeat(token[:len(token)-1], 100),
		"Q06/escapes":    strings.Repeat("&#x000074;%6F", 100) + "&#",
	} {
		resp := &http.Response{StatusCode: http.StatusOK, ContentLength: -1, Body: io.NopCloser(&endless{[]byte(block), size / 4})}
		if err := redactor.Response(resp); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, make([]byte, 32<<10))
		runtime.ReadMemStats(&after)
		if err != nil || n != size/4 {
			t.Fatalf("%s: %d bytes, %v", name, n, err)
		}
		if grown := int64(after.TotalAlloc - before.TotalAlloc); grown > 1<<20 {
			t.Errorf("%s: %d bytes were allocated for a body of %d", name, grown, n)
		}
	}
}

func BenchmarkRedact(b *testing.B) {
	random := make([]byte, 1<<20)
	state := uint32(1)
	for i := range random {
		state = state*1664525 + 1013904223
		random[i] = byte(state >> 24)
	}
	for name, block := range map[string][]byte{
		"zeros": make([]byte, 1<<20), "random": random, "base64": []byte(base64.StdEncoding.EncodeToString(random)),
		"json": bytes.Repeat([]byte(`{"id": 17, "name": "tokio", "text": "a \"quoted\" text & more", "url": "https:\/\/x\/y"},`), 10000),
	} {
		b.Run(name, func(b *testing.B) {
			redactor := redactorFor(b, bearer())
			buffer := make([]byte, 32<<10)
			b.SetBytes(int64(len(block)))
			b.ReportAllocs()
			for b.Loop() {
				resp := &http.Response{StatusCode: http.StatusOK, ContentLength: -1, Body: io.NopCloser(bytes.NewReader(block))}
				if err := redactor.Response(resp); err != nil {
					b.Fatal(err)
				}
				if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{resp.Body}, buffer); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
