package broker_test

import (
	"encoding/base64"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/berm-dev/berm/egress"
)

// cuts gives a text in pieces whose sizes a fuzzer chose.
type cuts struct {
	text  string
	sizes []byte
	next  int
}

func (c *cuts) Read(p []byte) (int, error) {
	if c.text == "" {
		return 0, io.EOF
	}
	n := min(len(p), len(c.text))
	if len(c.sizes) > 0 {
		n = min(n, 1+int(c.sizes[c.next%len(c.sizes)]))
		c.next++
	}
	copy(p, c.text[:n])
	c.text = c.text[n:]
	return n, nil
}

// FuzzRedactor: however a body is cut, the output is the same, as long as the
// input, changed only to masks, and it has the secret in no way that a second,
// plain reading finds.
func FuzzRedactor(f *testing.F) {
	for _, form := range spelled(token) {
		f.Add("a "+form+" b", []byte{0})
	}
	for _, body := range []string{
		"", token, token + token, token[:9] + token, strings.Repeat(token[:5], 4) + token, "%74ok+/en=0123456789&abc", "tok%2B%2fen%3d0123456789%26abc",
		"tok%252B%252fen%253d0123456789%2526abc", "tok+/en=0123456789&amp;abc", "tok+/en=0123456789&#38;abc", "tok&#x2b;/en=0123456789&#x26;abc",
		`tok\u002b\/en=0123456789\u0026abc`, "tok=2B/en=3D0123456789&abc", "&#00000116;ok+/en=0123456789&abc", "tok+/en=0123456789&ab", "*" + token + "*",
	} {
		f.Add(body, []byte{2, 0, 5})
	}
	redactor := redactorFor(f, bearer())
	f.Fuzz(func(t *testing.T, body string, sizes []byte) {
		if len(body) > 1<<16 {
			return
		}
		whole := redacted(t, redactor, strings.NewReader(body))
		if cut := redacted(t, redactor, &cuts{text: body, sizes: sizes}); cut != whole {
			t.Fatalf("cut: %q\nwhole: %q", cut, whole)
		}
		if len(whole) != len(body) {
			t.Fatalf("%d bytes became %d", len(body), len(whole))
		}
		for i := range len(body) {
			if whole[i] != body[i] && whole[i] != '*' {
				t.Fatalf("byte %d became %q", i, whole[i])
			}
		}
		if again := redacted(t, redactor, strings.NewReader(whole)); again != whole {
			t.Fatalf("a second pass finds more: %q", again)
		}
		for name, text := range map[string]string{"as it is": whole, "HTML": html.UnescapeString(whole), "a query": unescaped(whole), "JSON": fromJSON(whole)} {
			// A reference without a semicolon is one for html and not for us.
			if strings.Contains(text, token) && (name != "HTML" || !strings.Contains(whole, "&#")) {
				t.Fatalf("the secret is there, read as %s: %q", name, whole)
			}
		}
	})
}

// FuzzRenderings: whatever the secret is and wherever it stands, the encoders of
// the standard library give nothing that comes through.
func FuzzRenderings(f *testing.F) {
	for i, secret := range []string{
		token, "ghp_0123456789abcdefABCDEF", "sk-ant-api03-AAAA", "aaaaaaaaaaaaaaaa", "abababababab", "%41%42%43", "a%2bb%2bc%2b", "\\\\\\\\\\\\\\\\", "&amp;&lt;&gt;", "========",
		"++++++++", "00000000", "a b c d e", "\"quoted\"", "p/a/t/h/s", "0123456789abcdef0123456789abcdef", "====%3D====", `\u0041\u0042`, "&&&&&&&&#38;", "~`!@#$%^&()_-+=[]{}|",
	} {
		f.Add(secret, "before", "after", byte(i))
	}
	f.Fuzz(func(t *testing.T, secret, before, after string, shift byte) {
		if len(secret) > 200 || len(before)+len(after) > 4000 || strings.Contains(secret, "*") {
			return
		}
		for i := range len(secret) {
			if secret[i] < ' ' || secret[i] > '~' {
				return
			}
		}
		if len(secret) < 8 || strings.TrimSpace(secret) != secret {
			return
		}
		redactor := redactorFor(t, egress.Credential{Host: apiHost, Value: secret})
		quoted, err := json.Marshal(secret)
		if err != nil {
			t.Fatal(err)
		}
		inside := string(quoted[1 : len(quoted)-1])
		pair := strings.Repeat("u", int(shift%3)) + secret
		for name, form := range map[string]string{
			"raw": secret, "query": url.QueryEscape(secret), "path": url.PathEscape(secret), "HTML": html.EscapeString(secret), "JSON": inside,
		} {
			got := redacted(t, redactor, &cuts{text: before + form + after, sizes: []byte{shift}})
			// It may begin further left, where what stands before fits as well.
			if n := strings.Count(got, "*") - strings.Count(before+after, "*"); n < len(form) && strings.Contains(got, form) {
				t.Fatalf("%s: %q came through as %q", name, secret, got)
			}
		}
		encoded := base64.StdEncoding.EncodeToString([]byte(pair))
		if got := redacted(t, redactor, strings.NewReader(encoded)); visible(got) > 7 {
			t.Fatalf("base64: %q came through as %q", encoded, got)
		}
	})
}

// visible counts the bytes of a text that are no masks.
func visible(s string) int { return len(s) - strings.Count(s, "*") }

func unescaped(s string) string {
	if out, err := url.PathUnescape(s); err == nil {
		return out
	}
	return s
}

func fromJSON(s string) string {
	var out string
	if json.Unmarshal([]byte(`"`+s+`"`), &out) == nil {
		return out
	}
	return s
}

// FuzzPathRules: an allowed path stays below the prefix for a server that decodes,
// for one that decodes twice, for one that cleans and for one that does not; and
// a plain one below is allowed.
func FuzzPathRules(f *testing.F) {
	for _, p := range []string{
		"/v1/chat", "/v1/chat/", "/v1/chat/x", "/v1/chatter", "/v1", "/", "", "/v1/chat/../x", "/v1/chat/%2e%2e/x", "/v1/chat/..%2fx", "/v1/chat/%252e%252e/x", "/v1/./chat",
		"//v1/chat", "/v1//chat", "/v1/chat//", "/v1/chat/..;/x", "/v1/chat;x/y", "/v1%2fchat", "/v1/ch%61t", `/v1/chat\..\x`, "/v1/chat/%5c..%5cx", "/v1/chat/%c0%ae%c0%ae/x",
		"/V1/chat", "/v1/chat/%00", "/v1/chat/%", "/v1/chat/%2", "/v1/chat/a b", "/v1/chat/ä", "/v1/chat/%e4", "/v1/chat/.../x", "/v1/chat/.x", "*",
	} {
		f.Add(p)
	}
	credential := bearer()
	credential.Paths = []string{"/v1/chat"}
	set := func() func(*http.Request) (egress.Reason, error) {
		c, err := compileAll(credential)
		if err != nil {
			f.Fatal(err)
		}
		return c.For(apiHost).Check
	}()
	f.Fuzz(func(t *testing.T, p string) {
		target, err := url.ParseRequestURI("https://" + apiHost + p)
		if err != nil || target.Host != apiHost {
			return
		}
		req := outgoing(t, http.MethodGet, "https://"+apiHost+"/", nil)
		req.URL = target
		_, err = set(req)
		sent, _, _ := strings.Cut(req.URL.RequestURI(), "?")
		if err != nil {
			if simple(sent) && (sent == "/v1/chat" || strings.HasPrefix(sent, "/v1/chat/")) {
				t.Fatalf("%q was refused: %v", sent, err)
			}
			return
		}
		once := unescaped(sent)
		for name, reading := range map[string]string{"sent": once, "twice": unescaped(once), "backslashes": strings.ReplaceAll(once, `\`, "/")} {
			for cleaned, text := range map[string]string{"as is": reading, "cleaned": path.Clean(reading), "without parameters": path.Clean(parameterless(reading))} {
				if text != "/v1/chat" && !strings.HasPrefix(text, "/v1/chat/") {
					t.Fatalf("%q was allowed, and is %q (%s, %s)", sent, text, name, cleaned)
				}
			}
		}
	})
}

// simple is a path that nobody can read in two ways.
func simple(p string) bool {
	for i := range len(p) {
		if c := p[i]; c != '/' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return !strings.Contains(p, "//")
}

func parameterless(p string) string {
	parts := strings.Split(p, "/")
	for i, part := range parts {
		parts[i], _, _ = strings.Cut(part, ";")
	}
	return strings.Join(parts, "/")
}

// FuzzPlaceholders: a request is sent exactly when the placeholder stands in its
// place, by a plain reading of it, and then nothing of it is sent.
func FuzzPlaceholders(f *testing.F) {
	for _, c := range [][4]string{
		{"Bearer " + placeholder, "", "", ""}, {placeholder, "", "", ""}, {"", "", "", ""}, {"Bearer " + placeholder, placeholder, "", ""}, {"Bearer " + placeholder, "", placeholder, ""},
		{"Bearer " + placeholder, "", "", placeholder}, {"bearer " + placeholder, "a=b", "x", "y"}, {"Bearer  " + placeholder, "", "", ""}, {placeholder + " ", "", "", ""},
		{"Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+placeholder)), "", "", ""}, {placeholder, url.QueryEscape(placeholder), "", ""}, {placeholder, "", base64.StdEncoding.EncodeToString([]byte(placeholder)), ""},
		{placeholder, "", "", `{"a":"` + placeholder}, {placeholder, "", "", placeholder[:15]}, {placeholder, "", placeholder[1:], ""}, {placeholder + placeholder, "", "", ""}, {"Bearer mine", "", "", ""},
		{placeholder, "a=%50LACEHOLDER%2B0001", "", ""}, {placeholder, "a=PLACEHOLDER+0001", "", ""}, {placeholder, "", "", strings.Repeat("x", 5000) + placeholder}, {"BEARER " + placeholder, "", foreign, ""},
	} {
		f.Add(c[0], c[1], c[2], c[3])
	}
	set, err := compileAll(withPlaceholders()...)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value, query, other, body string) {
		if len(body) > 1<<16 {
			return
		}
		req := outgoing(t, http.MethodPost, "https://"+apiHost+"/", strings.NewReader(body))
		req.URL.RawQuery = query
		req.Header["Authorization"], req.Header["X-Other"] = []string{value}, []string{other}
		_, reason, err := set.For(apiHost).Apply(t.Context(), req)
		inPlace := value == placeholder || strings.EqualFold(value, "Bearer "+placeholder) && strings.HasSuffix(value, placeholder)
		elsewhere := false
		for _, text := range []string{query, other, body} {
			elsewhere = elsewhere || strings.Contains(text, placeholder) || strings.Contains(text, foreign)
		}
		if err != nil {
			if reason != egress.ReasonPlaceholder || req.Header.Get("Authorization") != value {
				t.Fatalf("%q: %v", reason, err)
			}
			return
		}
		sent, err := io.ReadAll(req.Body)
		if err != nil || string(sent) != body {
			t.Fatalf("the body was changed: %v", err)
		}
		if !inPlace || elsewhere || req.Header.Get("Authorization") != "Bearer "+token {
			t.Fatalf("sent with %q, %q, %q, %q", value, query, other, body)
		}
	})
}
