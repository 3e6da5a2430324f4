package broker_test

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/broker"
)

const (
	placeholder = "PLACEHOLDER+0001"
	foreign     = "PLACEHOLDER-other"
)

func withPlaceholders() []egress.Credential {
	mine := bearer()
	mine.Placeholder = placeholder
	return []egress.Credential{mine, {Host: "other.example.com", Header: "X-Key", Value: "other-0123456789", Placeholder: foreign}}
}

func TestK04Placeholders(t *testing.T) {
	t.Parallel()
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	good := http.Header{"Authorization": {"Bearer " + placeholder}}
	with := func(name, value string) http.Header {
		h := good.Clone()
		h.Add(name, value)
		return h
	}
	for name, c := range map[string]struct {
		target string
		header http.Header
		body   string
		good   bool
	}{
		"K04/its place":               {header: good, good: true},
		"K04/bare":                    {header: http.Header{"Authorization": {placeholder}}, good: true},
		"K04/scheme in small":         {header: http.Header{"Authorization": {"bearer " + placeholder}}, good: true},
		"K04/with a body":             {header: good, body: strings.Repeat("harmless ", 20000), good: true},
		"K04/absent":                  {header: http.Header{}},
		"K04/another value":           {header: http.Header{"Authorization": {"Bearer mine"}}},
		"K04/twice":                   {header: http.Header{"Authorization": {placeholder, placeholder}}},
		"K04/other scheme":            {header: http.Header{"Authorization": {"Token " + placeholder}}},
		"K04/more behind":             {header: http.Header{"Authorization": {"Bearer " + placeholder + "x"}}},
		"K04/Basic":                   {header: http.Header{"Authorization": {basic("user:" + placeholder)}}},
		"K04/in another header too":   {header: with("X-Key", placeholder)},
		"K04/Basic in another header": {header: with("X-Auth", basic("me:"+placeholder))},
		"K04/cookie":                  {header: with("Cookie", "a=b; token="+placeholder)},
		"K04/name of a header":        {header: with("X-"+placeholder, "x")},
		"K04/query":                   {header: good, target: "?t=" + placeholder},
		"K04/query escaped":           {header: good, target: "?t=" + url.QueryEscape(placeholder)},
		"K04/path":                    {header: good, target: "bot" + placeholder + "/send"},
		"K04/path escaped":            {header: good, target: url.PathEscape(placeholder)},
		"K04/path in base64":          {header: good, target: base64.RawURLEncoding.EncodeToString([]byte(placeholder))},
		"K04/body":                    {header: good, body: `{"key": "` + placeholder + `"}`},
		"K04/body escaped":            {header: good, body: `{"key": "` + strings.ReplaceAll(placeholder, "+", `\u002B`) + `"}`},
		"K04/body at the end":         {header: good, body: strings.Repeat("x", 50000) + placeholder},
		"K05/another's in a header":   {header: with("X-Key", foreign)},
		"K05/another's in the body":   {header: good, body: foreign},
		"K05/another's in its place":  {header: http.Header{"Authorization": {"Bearer " + foreign}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := outgoing(t, http.MethodPost, "https://"+apiHost+"/"+c.target, strings.NewReader(c.body))
			req.Header = c.header.Clone()
			_, reason, err := compile(t, withPlaceholders()...).For(apiHost).Apply(t.Context(), req)
			if !c.good {
				if reason != egress.ReasonPlaceholder || err == nil || req.Header.Get("Authorization") == "Bearer "+token {
					t.Errorf("%q, %v, %v", reason, err, req.Header)
				}
				return
			}
			if err != nil || req.Header.Get("Authorization") != "Bearer "+token {
				t.Fatalf("%q, %v, %v", reason, err, req.Header)
			}
			if data, err := io.ReadAll(req.Body); err != nil || string(data) != c.body {
				t.Errorf("the body has %d bytes of %d: %v", len(data), len(c.body), err)
			}
		})
	}
}

// TestK04StreamedBody: a body whose length nobody knows is sent as it comes, and
// breaks off before the placeholder; the server never has the whole request.
func TestK04StreamedBody(t *testing.T) {
	t.Parallel()
	before := strings.Repeat("x", 200000)
	for name, c := range map[string]struct {
		parts []string
		want  egress.Reason
	}{
		"K04/streamed":       {[]string{before + placeholder[:5], placeholder[5:] + before}, egress.ReasonPlaceholder},
		"K04/streamed good":  {[]string{before + placeholder[:5], "x" + placeholder[5:]}, ""},
		"K04/streamed halts": {[]string{before + placeholder[:15]}, ""},
	} {
		for protocol, h2 := range map[string]bool{"h1": false, "h2": true} {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				t.Parallel()
				whole := make(chan int, 1)
				r := newRig(t, withPlaceholders()[0], func(_ http.ResponseWriter, req *http.Request) {
					if data, err := io.ReadAll(req.Body); err == nil {
						whole <- len(data)
					}
				})
				var body []io.Reader
				for _, part := range c.parts {
					body = append(body, strings.NewReader(part))
				}
				got := ask(t, r.client(t, h2), http.MethodPost, "https://"+apiHost+"/", io.MultiReader(body...), http.Header{"Authorization": {placeholder}})
				if got.reason != c.want {
					t.Errorf("%d %q: %s", got.status, got.reason, got.body)
				}
				select {
				case n := <-whole:
					if c.want != "" || n != len(strings.Join(c.parts, "")) {
						t.Errorf("the server has a whole request of %d bytes", n)
					}
				default:
					if c.want == "" {
						t.Error("the server has no whole request")
					}
				}
			})
		}
	}
}

func TestK05PlaceholderToAnotherHost(t *testing.T) {
	t.Parallel()
	set := compile(t, withPlaceholders()...)
	for name, c := range map[string]struct {
		target string
		header http.Header
		body   io.Reader
		want   egress.Reason
	}{
		"K05/nothing":       {"", http.Header{"Authorization": {"Bearer mine"}}, strings.NewReader("body"), ""},
		"K05/header":        {"", http.Header{"Authorization": {"Bearer " + placeholder}}, nil, egress.ReasonPlaceholder},
		"K05/query":         {"?q=" + foreign, nil, nil, egress.ReasonPlaceholder},
		"K05/path":          {foreign, nil, nil, egress.ReasonPlaceholder},
		"K05/small body":    {"", nil, strings.NewReader("x" + placeholder), egress.ReasonPlaceholder},
		"K05/streamed body": {"", nil, io.MultiReader(strings.NewReader("x"+placeholder[:3]), strings.NewReader(placeholder[3:])), "late"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := outgoing(t, http.MethodPost, "http://x.pkg.example.org/"+c.target, c.body)
			for name, values := range c.header {
				req.Header[name] = values
			}
			reason, err := set.Misplaced(req)
			if c.want == "late" {
				if err != nil {
					t.Fatal(reason, err)
				}
				_, err = io.Copy(io.Discard, req.Body)
				reason, c.want = broker.UpstreamReason(err), egress.ReasonPlaceholder
			}
			if reason != c.want || (err == nil) != (c.want == "") {
				t.Errorf("%q, %v", reason, err)
			}
		})
	}
	for _, none := range []*broker.Set{nil, compile(t), compile(t, bearer())} {
		req := outgoing(t, http.MethodPost, "http://x.pkg.example.org/", strings.NewReader(placeholder))
		before := req.Body
		if reason, err := none.Misplaced(req); err != nil || reason != "" || req.Body != before {
			t.Errorf("without placeholders: %q, %v", reason, err)
		}
	}
}

// TestBrokenBodies: a body that fails, or is not as long as it said, is the
// client's fault and told as such.
func TestBrokenBodies(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, body := range map[string]io.Reader{
		"fails":     io.MultiReader(strings.NewReader("half"), failing{broken}),
		"too short": strings.NewReader("half"),
	} {
		req := outgoing(t, http.MethodPost, "https://"+apiHost+"/", body)
		req.ContentLength = 8
		req.Header.Set("Authorization", placeholder)
		if _, reason, err := compile(t, withPlaceholders()...).For(apiHost).Apply(t.Context(), req); reason != egress.ReasonMalformed || err == nil {
			t.Errorf("%s: %q, %v", name, reason, err)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
