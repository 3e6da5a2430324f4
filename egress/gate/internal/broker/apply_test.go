package broker_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/broker"
	"github.com/berm-dev/berm/errdefs"
)

// saw is what a server was asked.
type saw struct {
	header  http.Header
	trailer http.Header
	path    string
	host    string
	body    string
}

// recorder keeps each request it gets.
func recorder() (http.HandlerFunc, func() *saw) {
	var last atomic.Pointer[saw]
	return func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			last.Store(&saw{r.Header.Clone(), r.Trailer.Clone(), r.URL.RequestURI(), r.Host, string(body)})
			_, _ = io.WriteString(w, "done")
		}, func() *saw {
			return last.Swap(nil)
		}
}

func TestK01CredentialReplacesTheClients(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		for name, c := range map[string]struct {
			header http.Header
		}{
			"K01/none":                 {nil},
			"K01/own":                  {http.Header{"Authorization": {"Bearer mine"}}},
			"K02/twice":                {http.Header{"Authorization": {"Bearer mine", "Basic eDp5"}}},
			"K02/mixed case":           {http.Header{"aUTHORIZATION": {"Bearer mine"}, "Authorization": {"Bearer other"}}},
			"K01/nominated hop by hop": {http.Header{"Authorization": {"Bearer mine"}, "Connection": {"authorization, close"}}},
		} {
			if h2 && c.header.Get("Connection") != "" {
				continue // HTTP/2 has no such header, and the client does not send it
			}
			t.Run(fmt.Sprintf("%s/h2 %v", name, h2), func(t *testing.T) {
				t.Parallel()
				handler, last := recorder()
				r := newRig(t, bearer(), handler)
				got := ask(t, r.client(t, h2), http.MethodGet, "https://"+apiHost+"/v1/x?q=1", nil, c.header)
				request := last()
				if got.status != http.StatusOK || request == nil {
					t.Fatalf("%d %s", got.status, got.body)
				}
				if want := []string{"Bearer " + token}; !slices.Equal(request.header["Authorization"], want) {
					t.Errorf("the server saw %q", request.header["Authorization"])
				}
				if request.path != "/v1/x?q=1" || request.host != apiHost {
					t.Errorf("the server saw %s on %s", request.path, request.host)
				}
				if h2 && got.proto != 2 {
					t.Errorf("HTTP/%d", got.proto)
				}
			})
		}
	}
}

// TestK02Spellings: what a lax server reads as the credential's header goes too.
func TestK02Spellings(t *testing.T) {
	t.Parallel()
	set := compile(t, egress.Credential{Host: apiHost, Header: "X-Api-Key", Value: token})
	req := outgoing(t, http.MethodGet, "https://"+apiHost+"/", nil)
	for _, name := range []string{"X-Api-Key", "x-api-key", "X_API_KEY", "x_api-key", "X-API_Key"} {
		req.Header[name] = []string{"mine"}
	}
	if _, reason, err := set.For(apiHost).Apply(t.Context(), req); err != nil {
		t.Fatal(reason, err)
	}
	for name, values := range req.Header {
		if slices.Contains(values, "mine") {
			t.Errorf("K02: %s is still there", name)
		}
	}
	if got := req.Header["X-Api-Key"]; !slices.Equal(got, []string{token}) {
		t.Errorf("K02: %q", got)
	}
}

// TestM08Overrides: what would direct the request elsewhere is not sent on.
func TestM08Overrides(t *testing.T) {
	t.Parallel()
	handler, last := recorder()
	r := newRig(t, bearer(), handler)
	names := []string{
		"X-Forwarded-Host", "X-Original-Url", "X-Rewrite-Url", "Forwarded", "X-Host", "X-Http-Method-Override", "X-Method-Override", "X-Http-Method",
		"X-Forwarded-Server", "X-Forwarded-Prefix", "X_Forwarded_Host", "X-Original-Host", "Proxy-Authorization", "Range", "If-Range", "Request-Range", "X-Ms-Range", "A-Im", "Accept-Charset",
	}
	r.tune = func(out *http.Request) {
		for _, name := range names {
			out.Header[name] = []string{"evil.test"}
		}
		out.Header.Set("Accept-Encoding", "gzip, br")
		out.Header.Set("Te", "trailers")
		out.Trailer = http.Header{"Authorization": {"Bearer mine"}, "Host": {"evil.test"}}
	}
	for _, h2 := range []bool{false, true} {
		if got := ask(t, r.client(t, h2), http.MethodPost, "https://"+apiHost+"/", strings.NewReader("body"), http.Header{"X-Kept": {"yes"}}); got.status != http.StatusOK {
			t.Fatal(got.status, got.body)
		}
		request := last()
		for _, name := range names {
			if len(request.header[name]) > 0 {
				t.Errorf("M08/%s came through: %q", name, request.header[name])
			}
		}
		if len(request.trailer) > 0 || request.header.Get("Trailer") != "" {
			t.Errorf("S14: trailers came through: %v", request.trailer)
		}
		if got := request.header["Accept-Encoding"]; !slices.Equal(got, []string{"identity"}) {
			t.Errorf("K06: the server was offered %q", got)
		}
		if request.header.Get("X-Kept") != "yes" || request.body != "body" {
			t.Errorf("what is the client's own was lost: %v %q", request.header, request.body)
		}
	}
}

func TestMethodsAndPaths(t *testing.T) {
	t.Parallel()
	any, some := bearer(), bearer()
	some.Methods, some.Paths = []string{"GET", "POST"}, []string{"/v1/chat", "/files/"}
	for name, c := range map[string]struct {
		credential     egress.Credential
		method, target string
		want           egress.Reason
	}{
		"K06/TRACE":                 {any, "TRACE", "/", egress.ReasonMethod},
		"K06/trace":                 {any, "trace", "/", egress.ReasonMethod},
		"K06/TRACK":                 {any, "TRACK", "/", egress.ReasonMethod},
		"C15/CONNECT":               {any, "CONNECT", "/", egress.ReasonMethod},
		"any method":                {any, "PURGE", "/", ""},
		"any path":                  {any, "GET", "/a/../b//c%2fd", ""},
		"method of the list":        {some, "POST", "/v1/chat", ""},
		"method outside":            {some, "DELETE", "/v1/chat", egress.ReasonMethod},
		"method in small":           {some, "get", "/v1/chat", egress.ReasonMethod},
		"path itself":               {some, "GET", "/v1/chat", ""},
		"path with slash":           {some, "GET", "/v1/chat/", ""},
		"path below":                {some, "GET", "/v1/chat/completions?x=/../..", ""},
		"path of another":           {some, "GET", "/files/1", ""},
		"path without slash":        {some, "GET", "/files", ""},
		"path escaped letters":      {some, "GET", "/v1/ch%61t", ""},
		"path escaped space":        {some, "GET", "/v1/chat/a%20b", ""},
		"path outside":              {some, "GET", "/v1/admin", egress.ReasonPath},
		"path of letters":           {some, "GET", "/v1/chatter", egress.ReasonPath},
		"path in capitals":          {some, "GET", "/V1/chat", egress.ReasonPath},
		"path above":                {some, "GET", "/v1", egress.ReasonPath},
		"path root":                 {some, "GET", "/", egress.ReasonPath},
		"path none":                 {some, "GET", "", egress.ReasonPath},
		"path dots":                 {some, "GET", "/v1/chat/../admin", egress.ReasonPath},
		"path dots at the end":      {some, "GET", "/v1/chat/..", egress.ReasonPath},
		"path one dot":              {some, "GET", "/v1/./chat", egress.ReasonPath},
		"path escaped dots":         {some, "GET", "/v1/chat/%2e%2e/admin", egress.ReasonPath},
		"path half escaped dots":    {some, "GET", "/v1/chat/.%2E/admin", egress.ReasonPath},
		"path escaped slash":        {some, "GET", "/v1/chat/..%2fadmin", egress.ReasonPath},
		"path slash that fits":      {some, "GET", "/v1%2fchat", egress.ReasonPath},
		"path backslash":            {some, "GET", "/v1/chat/..%5cadmin", egress.ReasonPath},
		"path twice escaped":        {some, "GET", "/v1/chat/%252e%252e/admin", egress.ReasonPath},
		"path parameter":            {some, "GET", "/v1/chat/..;x=1/admin", egress.ReasonPath},
		"path empty segment":        {some, "GET", "/v1//chat", egress.ReasonPath},
		"path empty segments first": {some, "GET", "//v1/chat", egress.ReasonPath},
		"path two slashes at end":   {some, "GET", "/v1/chat//", egress.ReasonPath},
		"path overlong dots":        {some, "GET", "/v1/chat/%c0%ae%c0%ae/admin", egress.ReasonPath},
		"path dots and a space":     {some, "GET", "/v1/chat/..%20/admin", egress.ReasonPath},
		"path dots of full width":   {some, "GET", "/v1/chat/%ef%bc%8e%ef%bc%8e/admin", egress.ReasonPath},
		"path slash of full width":  {some, "GET", "/v1/chat/..%ef%bc%8fadmin", egress.ReasonPath},
		"path null":                 {some, "GET", "/v1/chat%00/admin", egress.ReasonPath},
		"path line break":           {some, "GET", "/v1/chat/%0d%0a", egress.ReasonPath},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bound := compile(t, c.credential).For(apiHost)
			req := outgoing(t, http.MethodGet, "https://"+apiHost+c.target, nil)
			req.Method = c.method
			reason, err := bound.Check(req)
			if reason != c.want || (err == nil) != (c.want == "") {
				t.Errorf("Check: %q, %v; want %q", reason, err, c.want)
			}
			redactor, reason, err := bound.Apply(t.Context(), req)
			if reason != c.want || (err == nil) != (c.want == "") || (redactor == nil) != (c.want != "") {
				t.Errorf("Apply: %q, %v; want %q", reason, err, c.want)
			}
			if err != nil && (req.Header.Get("Authorization") != "" || strings.Contains(err.Error(), token)) {
				t.Errorf("the secret is on a request that was refused: %v, %v", req.Header, err)
			}
		})
	}
}

func TestK09NeverInCleartext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url, host string
		want      egress.Reason
	}{
		"K09/http":              {"http://" + apiHost + "/", "", egress.ReasonInternal},
		"K09/other scheme":      {"ftp://" + apiHost + "/", "", egress.ReasonInternal},
		"K09/https":             {"https://" + apiHost + "/", "", ""},
		"X02/other host":        {"https://other.example.com/", "", egress.ReasonHost},
		"X02/other Host header": {"https://" + apiHost + "/", "evil.test", egress.ReasonHost},
		"X02/userinfo":          {"https://x:y@" + apiHost + "/", "", egress.ReasonMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := outgoing(t, http.MethodGet, c.url, nil)
			req.Host = c.host
			_, reason, err := compile(t, bearer()).For(apiHost).Apply(t.Context(), req)
			if reason != c.want || (err == nil) != (c.want == "") || (req.Header.Get("Authorization") != "") != (c.want == "") {
				t.Errorf("%q, %v, %v", reason, err, req.Header)
			}
		})
	}
}

// TestX02RedirectLosesTheCredential: what the first host redirects to is another
// request, to a host without the credential.
func TestX02RedirectLosesTheCredential(t *testing.T) {
	t.Parallel()
	r := newRig(t, bearer(), func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://other.example.com/", http.StatusFound)
	})
	got := ask(t, r.client(t, false), http.MethodGet, "https://"+apiHost+"/", nil, nil)
	if got.status != http.StatusFound || got.header.Get("Location") != "https://other.example.com/" {
		t.Errorf("X01: the redirect did not pass: %d %v", got.status, got.header)
	}
	set := compile(t, bearer())
	for _, host := range []string{"other.example.com", "sub." + apiHost, "example.com", "", "API.example.com"} {
		if set.For(host) != nil {
			t.Errorf("X02: %q has a credential", host)
		}
	}
	var none *broker.Set
	if none.For(apiHost) != nil || none.Hosts() != nil {
		t.Error("an empty set has a credential")
	}
}

func TestUpgradesAreRefused(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]http.Header{
		"U01/h2c":        {"Connection": {"Upgrade, HTTP2-Settings"}, "Upgrade": {"h2c"}, "Http2-Settings": {"AAMAAABkAAQAAP__"}},
		"U02/websocket":  {"Connection": {"Upgrade"}, "Upgrade": {"websocket"}},
		"U04/TLS":        {"Connection": {"keep-alive, UPGRADE"}},
		"U04/no by-line": {"Upgrade": {"something"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := outgoing(t, http.MethodGet, "https://"+apiHost+"/", nil)
			req.Header = header
			if _, reason, err := compile(t, bearer()).For(apiHost).Apply(t.Context(), req); reason != egress.ReasonUpgrade || err == nil {
				t.Errorf("%q, %v", reason, err)
			}
		})
	}
}

func TestK11Sources(t *testing.T) {
	t.Parallel()
	handler, last := recorder()
	var value atomic.Value
	value.Store(token)
	leak := errors.New("cannot decrypt " + token)
	credential := egress.Credential{Host: apiHost, Prefix: "Bearer ", Source: func(ctx context.Context) (string, error) {
		if _, bounded := ctx.Deadline(); !bounded {
			return "", errors.New("without an end")
		}
		switch v := value.Load().(string); v {
		case "fails":
			return token, leak
		case "panics":
			panic("at " + token) //nolint:forbid // what a host's function may do
		default:
			return v, ctx.Err()
		}
	}}
	r := newRig(t, credential, handler)
	client := r.client(t, true)
	for _, secret := range []string{token, "rotated-0123456789", token} {
		value.Store(secret)
		got := ask(t, client, http.MethodGet, "https://"+apiHost+"/", nil, nil)
		if request := last(); request == nil || request.header.Get("Authorization") != "Bearer "+secret {
			t.Errorf("K11/rotates: %d %s: %v", got.status, got.body, request)
		}
	}
	for _, bad := range []string{"fails", "panics", "", "short", "two\r\nlines-0123456789", "end-of-line-0123456789\n", strings.Repeat("x", 9000)} {
		value.Store(bad)
		got := ask(t, client, http.MethodGet, "https://"+apiHost+"/", nil, nil)
		if got.reason != egress.ReasonCredentialLost || last() != nil {
			t.Errorf("K11/%.20q: %d %q", bad, got.status, got.reason)
		}
		if strings.Contains(got.body, token) || bad != "" && len(bad) > 8 && strings.Contains(got.body, bad) {
			t.Errorf("K12/%.20q: the error tells the secret: %s", bad, got.body)
		}
	}
}

// TestK10NothingIsRenderedEarly: Check, which comes before the screen, asks for no
// secret, and a request that is refused does not either.
func TestK10NothingIsRenderedEarly(t *testing.T) {
	t.Parallel()
	asked := 0
	credential := egress.Credential{Host: apiHost, Methods: []string{"GET"}, Placeholder: "PLACEHOLDER-1", Source: func(context.Context) (string, error) {
		asked++
		return token, nil
	}}
	bound := compile(t, credential).For(apiHost)
	req := outgoing(t, http.MethodGet, "https://"+apiHost+"/", nil)
	req.Header.Set("Authorization", "PLACEHOLDER-1")
	if reason, err := bound.Check(req); err != nil || asked != 0 {
		t.Errorf("K10/check: %q, %v, %d", reason, err, asked)
	}
	bad := req.Clone(t.Context())
	bad.Header.Set("Authorization", "mine")
	if _, reason, err := bound.Apply(t.Context(), bad); err == nil || reason != egress.ReasonPlaceholder || asked != 0 {
		t.Errorf("K10/refused: %q, %v, %d", reason, err, asked)
	}
	if _, reason, err := bound.Apply(t.Context(), req); err != nil || asked != 1 || req.Header.Get("Authorization") != token {
		t.Errorf("K10/apply: %q, %v, %d, %v", reason, err, asked, req.Header)
	}
}

// TestK12SecretsDoNotPrint: no way of printing what the broker holds shows it.
func TestK12SecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	set := compile(t, bearer())
	bound := set.For(apiHost)
	redactor, _, err := bound.Apply(t.Context(), outgoing(t, http.MethodGet, "https://"+apiHost+"/", nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{set, bound, *set, redactor} {
		encoded, _ := json.Marshal(v)
		for _, text := range []string{fmt.Sprintf("%v %+v %#v %s %q %x", v, v, v, v, v, v), string(encoded)} {
			for _, form := range []string{token, fmt.Sprintf("%x", token), base64.StdEncoding.EncodeToString([]byte(token))} {
				if strings.Contains(text, form) {
					t.Errorf("K12: %T prints it: %.200s", v, text)
				}
			}
		}
	}
}

func TestCompileFaults(t *testing.T) {
	t.Parallel()
	source := func(context.Context) (string, error) { return token, nil }
	for name, c := range map[string]egress.Credential{
		"no host":               {Value: token},
		"host with port":        {Host: apiHost + ":443", Value: token},
		"host in capitals":      {Host: "API.example.com", Value: token},
		"host with wildcard":    {Host: "*.example.com", Value: token},
		"address":               {Host: "192.0.2.1", Value: token},
		"no value":              {Host: apiHost},
		"value and source":      {Host: apiHost, Value: token, Source: source},
		"short value":           {Host: apiHost, Value: "short"},
		"long value":            {Host: apiHost, Value: strings.Repeat("x", 9000)},
		"value of two lines":    {Host: apiHost, Value: "one-line\r\ntwo-lines"},
		"value with space":      {Host: apiHost, Value: token + " "},
		"header of two words":   {Host: apiHost, Value: token, Header: "X Key"},
		"header host":           {Host: apiHost, Value: token, Header: "host"},
		"header of the frame":   {Host: apiHost, Value: token, Header: "Content_Length"},
		"header of a hop":       {Host: apiHost, Value: token, Header: "Proxy-Authorization"},
		"prefix of two lines":   {Host: apiHost, Value: token, Prefix: "Bearer\n"},
		"method TRACE":          {Host: apiHost, Value: token, Methods: []string{"GET", "TRACE"}},
		"method in small":       {Host: apiHost, Value: token, Methods: []string{"get"}},
		"relative path":         {Host: apiHost, Value: token, Paths: []string{"v1"}},
		"path with dots":        {Host: apiHost, Value: token, Paths: []string{"/v1/../x"}},
		"path with escape":      {Host: apiHost, Value: token, Paths: []string{"/v1%2fx"}},
		"path with query":       {Host: apiHost, Value: token, Paths: []string{"/v1?x"}},
		"short placeholder":     {Host: apiHost, Value: token, Placeholder: "x"},
		"placeholder in value":  {Host: apiHost, Value: token, Placeholder: token[:10]},
		"placeholder two lines": {Host: apiHost, Value: token, Placeholder: "PLACE\nHOLDER"},
	} {
		set, err := broker.Compile([]egress.Credential{c})
		if !errors.Is(err, errdefs.Invalid) || set != nil {
			t.Errorf("%s: %v", name, err)
		} else if c.Value != "" && strings.Contains(err.Error(), c.Value) {
			t.Errorf("K12/%s: the error tells the value: %v", name, err)
		}
	}
	_, err := broker.Compile([]egress.Credential{{Host: "one.example.com"}, bearer(), bearer(), {Host: "x y", Value: "short"}})
	for _, want := range []string{"credential 1 (one.example.com)", "credential 3 (api.example.com): another", "credential 4 (x y): the host", "credential 4 (x y): the value has less"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	set := compile(t, bearer(), egress.Credential{ID: "other", Host: "a.example.com", Source: source})
	if got := set.Hosts(); !slices.Equal(got, []string{"a.example.com", apiHost}) || set.For(apiHost).ID() != apiHost || set.For("a.example.com").ID() != "other" || set.For(apiHost).Host() != apiHost {
		t.Errorf("hosts %q", got)
	}
}
