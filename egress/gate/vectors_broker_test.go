package gate_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berm-dev/berm/egress"
)

// echConfigs is what a server with that public name would publish for ECH.
func echConfigs(t *testing.T, public string) []byte {
	t.Helper()
	key, err := hex.DecodeString("204bed0a11fc0dde595a9b78d966b0011128eb83f65d3c91c1cc5ac786cd246f")
	if err != nil {
		t.Fatal(err)
	}
	config := append([]byte{1, 0, 0x20, 0, 0x20}, key...)
	config = append(config, 0, 4, 0, 1, 0, 1, 0xff, byte(len(public)))
	config = append(append(config, public...), 0, 0)
	list := binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(config)))
	list = append(list, config...)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...)
}

// inside opens a tunnel to the credential's host and makes TLS with the gate.
func (w *world) inside(t *testing.T, protocols ...string) *tls.Conn {
	t.Helper()
	c, got := w.connectTo(t, "api.example.com:443")
	if got.status != http.StatusOK {
		t.Fatalf("CONNECT: %d %s", got.status, got.body)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(w.gate.CA()) {
		t.Fatal("the gate has no authority")
	}
	conn, err := c.tls(w.pki, &tls.Config{ServerName: "api.example.com", RootCAs: roots, NextProtos: protocols})
	if err != nil {
		t.Fatalf("TLS with the gate: %v", err)
	}
	return conn
}

// h2 is an HTTP/2 client over one such tunnel.
func (w *world) h2(t *testing.T) *http.Client {
	t.Helper()
	conn := w.inside(t, "h2")
	if conn.ConnectionState().NegotiatedProtocol != "h2" {
		t.Fatal("no HTTP/2")
	}
	var two http.Protocols
	two.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &two}
	transport.DialContext = func(context.Context, string, string) (netConn, error) { return conn, nil }
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = conn.Close()
	})
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// terminatedVectors are the rows C about tunnels that are looked into.
func terminatedVectors(p *pki) []vector {
	brokered := setup{brokered: true}
	return []vector{
		{id: "C16", spelling: "another Host", setup: brokered, run: func(t *testing.T, w *world) {
			conn := w.inside(t)
			if got := get(t, conn, "evil.test", "/"); got.status != http.StatusMisdirectedRequest || got.reason != egress.ReasonHost {
				t.Errorf("answer %d %q", got.status, got.reason)
			}
			if got := get(t, conn, "api.example.com", "/"); got.status != http.StatusOK {
				t.Errorf("then %d", got.status)
			}
			insideDecisions(t, w, egress.ReasonHost, egress.ReasonRule)
		}},
		{id: "C16", spelling: "another allowed Host", setup: brokered, run: func(t *testing.T, w *world) {
			if got := get(t, w.inside(t), "pkg.example.org", "/"); got.status != http.StatusMisdirectedRequest {
				t.Errorf("answer %d", got.status)
			}
			insideDecisions(t, w, egress.ReasonHost)
		}},
		{id: "C17", spelling: "one stream of three", setup: brokered, run: func(t *testing.T, w *world) {
			client := w.h2(t)
			for i, host := range []string{"api.example.com", "evil.test", "api.example.com"} {
				want := []int{200, 421, 200}[i]
				if got := h2Get(t, client, host, nil); got.status != want {
					t.Errorf("stream %d: %d, want %d: %s", i, got.status, want, got.body)
				}
			}
			insideDecisions(t, w, egress.ReasonRule, egress.ReasonHost, egress.ReasonRule)
		}},
		{id: "C18", spelling: "host header beside authority", setup: brokered, run: func(t *testing.T, w *world) {
			rawH2(t, w.inside(t, "h2"), [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "api.example.com"}, {":path", "/"}, {"host", "evil.test"}}, "400")
			insideDecisions(t, w, egress.ReasonMalformed)
		}},
		{id: "C19", spelling: "wrong name", setup: setup{brokered: true, cert: "wrong"}, run: badUpstream},
		{id: "C19", spelling: "expired", setup: setup{brokered: true, cert: "expired"}, run: badUpstream},
		{id: "C20", spelling: "pinning", setup: brokered, run: func(t *testing.T, w *world) {
			c, _ := w.connectTo(t, "api.example.com:443")
			if _, err := c.tls(p, &tls.Config{ServerName: "api.example.com"}); err == nil {
				t.Error("the client took the gate's certificate for another's")
			}
			c.closed()
			if r := w.finish(t, 1)[0]; r.Allow || r.Reason != egress.ReasonClientCA {
				t.Errorf("decision %+v", r)
			}
		}},
		{id: "C21", spelling: "no TLS to end", setup: brokered, run: func(t *testing.T, w *world) {
			c, _ := w.connectTo(t, "api.example.com:443")
			c.send("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
			if rest := c.closed(); rest != "" {
				t.Errorf("the tunnel answers %q", rest)
			}
			vector{want: outcome{reason: egress.ReasonNotTLS, asks: true}}.check(t, w, w.finish(t, 1)[0])
		}},
		{id: "C21", spelling: "no authority", setup: brokered, run: func(t *testing.T, w *world) {
			w.gate.LoseAuthority()
			vector{host: "api.example.com", by: []egress.Protocol{egress.Connect, egress.SOCKS}, want: outcomeOf(egress.ReasonUnterminated)}.everyWay(t, w)
		}},
		{id: "C21", spelling: "rule says tcp", run: func(t *testing.T, w *world) {
			invalidPolicy(egress.Policy{Allow: []string{"tcp://api.example.com:443"}, Credentials: []egress.Credential{credential()}})(t, w)
		}},
		{id: "C15", spelling: "terminated", setup: brokered, run: func(t *testing.T, w *world) {
			conn := w.inside(t)
			if _, err := io.WriteString(conn, "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			answer, _ := io.ReadAll(conn)
			if !bytes.HasPrefix(answer, []byte("HTTP/1.1 400 ")) {
				t.Errorf("answer %q", answer)
			}
			insideDecisions(t, w, egress.ReasonMalformed)
		}},
	}
}

// insideDecisions wants the tunnel's decision and those of the requests in it.
func insideDecisions(t *testing.T, w *world, reasons ...egress.Reason) {
	t.Helper()
	records := w.finish(t, 1+len(reasons))
	if !records[0].Allow || records[0].Protocol != egress.Connect || records[0].Credential != "api" {
		t.Errorf("the tunnel's decision %+v", records[0])
	}
	for i, reason := range reasons {
		if r := records[1+i]; r.Reason != reason || r.Protocol != egress.Terminated || r.Flow != records[0].Flow {
			t.Errorf("decision %d %+v, want %q", i, r, reason)
		}
	}
	for _, s := range w.secure.requests() {
		if s.host != "api.example.com" || s.sni != "api.example.com" || s.header.Get("Authorization") != "Bearer "+secretValue {
			t.Errorf("the upstream saw %+v", s)
		}
	}
	noSecretInAudit(t, w)
}

func badUpstream(t *testing.T, w *world) {
	if _, got := w.connectTo(t, "api.example.com:443"); got.status != http.StatusBadGateway || got.reason != egress.ReasonTLSVerify {
		t.Errorf("CONNECT: %d %q", got.status, got.reason)
	}
	c := w.dial(t)
	c.send(getAllowed + "\r\n")
	if got := c.answer(http.MethodGet); got.status != http.StatusBadGateway || got.reason != egress.ReasonTLSVerify {
		t.Errorf("HTTP: %d %q", got.status, got.reason)
	}
	if _, code := w.socksTo(t, "api.example.com", 443); code != 1 {
		t.Errorf("SOCKS: %#x", code)
	}
	w.finish(t, 3)
	if n := len(w.secure.requests()) + len(w.plain.requests()); n != 0 {
		t.Errorf("%d requests upstream", n)
	}
}

func h2Get(t *testing.T, client *http.Client, host string, header http.Header) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/h2", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(body), reason: reasonIn(string(body)), err: err}
}

// plainGet asks for the credential's host without TLS, which the gate upgrades.
func plainGet(t *testing.T, w *world, target, fields, body string) reply {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
		fields += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	c := w.dial(t)
	c.send(method + " " + target + " HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n" + body)
	return c.answer(method)
}

// credentialVectors are the rows K about the value, and M08.
func credentialVectors(*pki) []vector {
	const target = "http://api.example.com/v1"
	brokered := setup{brokered: true}
	overrides := "X-Forwarded-Host: evil.test\r\nX-Original-URL: /evil\r\nX-Rewrite-URL: /evil\r\nForwarded: host=evil.test\r\nX-Host: evil.test\r\nX-HTTP-Method-Override: DELETE\r\n"
	rows := []vector{
		{id: "M08", spelling: "host of a credential", setup: brokered, run: func(t *testing.T, w *world) {
			if got := plainGet(t, w, target, overrides, ""); got.status != http.StatusOK {
				t.Fatalf("status %d %s", got.status, got.body)
			}
			w.finish(t, 1)
			for _, name := range []string{"X-Forwarded-Host", "X-Original-Url", "X-Rewrite-Url", "Forwarded", "X-Host", "X-Http-Method-Override"} {
				if v := w.secure.requests()[0].header.Get(name); v != "" {
					t.Errorf("%s: %s went upstream", name, v)
				}
			}
		}},
		{id: "K09", spelling: "upgraded", setup: brokered, run: func(t *testing.T, w *world) {
			if got := plainGet(t, w, target, "", ""); got.status != http.StatusOK {
				t.Fatalf("status %d %s", got.status, got.body)
			}
			r := w.finish(t, 1)[0]
			if r.Port != 443 || r.Credential != "api" || r.Dialled != "93.184.216.34:443" {
				t.Errorf("decision %+v", r)
			}
			if len(w.plain.requests()) != 0 || w.secure.requests()[0].header.Get("Authorization") != "Bearer "+secretValue {
				t.Error("it did not go out by TLS with the credential")
			}
		}},
		{id: "K09", spelling: "upgraded inside SOCKS to port 80", setup: brokered, run: func(t *testing.T, w *world) {
			c, code := w.socksTo(t, "api.example.com", 80)
			if code != 0 {
				t.Fatalf("reply %#x", code)
			}
			if got := get(t, c, "api.example.com", "/"); got.status != http.StatusOK {
				t.Errorf("status %d %s", got.status, got.body)
			}
			w.finish(t, 2)
			if len(w.plain.requests()) != 0 || len(w.secure.requests()) != 1 {
				t.Error("it did not go out by TLS")
			}
		}},
		{id: "K10", spelling: "inward", setup: setup{policy: sourced(func(context.Context) (string, error) {
			return "", errors.New("the source was asked")
		}), zone: map[string]answer{"api.example.com": {addrs: []string{"10.0.0.1"}}}}, host: "api.example.com", want: outcome{reason: egress.ReasonInward, asks: true}},
		{id: "K11", spelling: "source fails", setup: setup{policy: sourced(func(context.Context) (string, error) {
			return "", errors.New("vault says " + secretValue)
		})}, run: func(t *testing.T, w *world) {
			if got := plainGet(t, w, target, "", ""); got.status != http.StatusServiceUnavailable || got.reason != egress.ReasonCredentialLost || strings.Contains(got.body, secretValue) {
				t.Errorf("answer %d %s", got.status, got.body)
			}
			w.finish(t, 1)
			noSecretInAudit(t, w)
			if n := len(w.secure.requests()); n != 0 {
				t.Errorf("%d requests upstream", n)
			}
		}},
		{id: "K11", spelling: "rotates", setup: setup{policy: rotating()}, run: func(t *testing.T, w *world) {
			for range 2 {
				plainGet(t, w, target, "", "")
			}
			w.finish(t, 2)
			for i, s := range w.secure.requests() {
				if want := fmt.Sprintf("turn-%d-of-the-key", i+1); s.header.Get("Authorization") != want {
					t.Errorf("request %d has %q", i, s.header.Get("Authorization"))
				}
			}
		}},
		{id: "K12", spelling: "audit and answers", setup: setup{brokered: true, handler: echoHeaders}, run: func(t *testing.T, w *world) {
			got := plainGet(t, w, target, "", "")
			inner := get(t, w.inside(t), "api.example.com", "/echo")
			w.finish(t, 3)
			noSecretInAudit(t, w)
			if strings.Contains(got.body+inner.body, secretValue) {
				t.Error("the secret came back")
			}
		}},
		{id: "K13", spelling: "denied host", run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send("POST http://evil.test/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n")
			if got := c.answer(http.MethodPost); got.status != http.StatusForbidden || got.reason != egress.ReasonNoRule {
				t.Errorf("answer %d %q", got.status, got.reason)
			}
			vector{want: outcomeOf(egress.ReasonNoRule)}.check(t, w, w.finish(t, 1)[0])
		}},
		{id: "K13", spelling: "allowed host", run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send("POST http://api.example.com/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
			if got := c.answer(http.MethodPost); got.status != http.StatusContinue {
				t.Fatalf("answer %d", got.status)
			}
			c.send("hello")
			if got := c.answer(http.MethodPost); got.status != http.StatusOK {
				t.Errorf("answer %d", got.status)
			}
			w.finish(t, 1)
		}},
	}
	for name, fields := range map[string]string{
		"own": "Authorization: Bearer mine\r\n", "twice": "Authorization: a\r\nAuthorization: b\r\n", "mixed case": "aUTHORIZATION: a\r\nAuthorization: b\r\n",
		"named by Connection": "Connection: authorization\r\nAuthorization: a\r\n", "underscore": "Authorization: a\r\nX_Y: 1\r\n",
	} {
		id := "K02"
		if name == "own" {
			id = "K01"
		}
		rows = append(rows, vector{id: id, spelling: name, setup: brokered, run: func(t *testing.T, w *world) {
			if got := plainGet(t, w, target, fields, ""); got.status != http.StatusOK {
				t.Fatalf("status %d %s", got.status, got.body)
			}
			w.finish(t, 1)
			if got := w.secure.requests()[0].header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+secretValue {
				t.Errorf("the upstream saw %q", got)
			}
		}})
	}
	rows = append(rows, vector{id: "K02", spelling: "space after the name", setup: brokered, raw: "GET http://api.example.com/ HTTP/1.1\r\nHost: a\r\nAuthorization : x\r\n\r\n", want: outcomeOf(egress.ReasonMalformed)})
	return append(rows, echoVectors()...)
}

func sourced(s egress.Source) *egress.Policy {
	p := policy()
	p.Credentials = []egress.Credential{{ID: "api", Host: "api.example.com", Source: s}}
	return p
}

func rotating() *egress.Policy {
	var turns atomic.Int32
	return sourced(func(context.Context) (string, error) { return fmt.Sprintf("turn-%d-of-the-key", turns.Add(1)), nil })
}

// echoHeaders answers with what it was sent, in the ways that servers do.
func echoHeaders(w http.ResponseWriter, r *http.Request) {
	got := r.Header.Get("Authorization")
	token := strings.TrimPrefix(got, "Bearer ")
	h := w.Header()
	h.Set("Trailer", "X-Last")
	h.Set("X-Seen-Encoding", r.Header.Get("Accept-Encoding"))
	h.Set("Set-Cookie", "session="+url.QueryEscape(token))
	h.Set("Location", "https://api.example.com/?token="+url.QueryEscape(token))
	h.Set("X-Authorization", got)
	w.WriteHeader(http.StatusUnauthorized)
	encoded, _ := json.Marshal(map[string]string{"authorization": got})
	for _, part := range []string{got, base64.StdEncoding.EncodeToString([]byte(token)), base64.StdEncoding.EncodeToString([]byte("user:" + token)), url.QueryEscape(token), string(encoded)} {
		// In two pieces, so that the secret lies across them.
		half := len(part) / 2
		_, _ = io.WriteString(w, part[:half])
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, part[half:]+"\n")
	}
	h.Set("X-Last", token)
}

// echoVectors are the rows about what comes back.
func echoVectors() []vector {
	look := func(id, name string, ask func(*testing.T, *world) string) vector {
		return vector{id: id, spelling: name, setup: setup{brokered: true, handler: echoHeaders}, run: func(t *testing.T, w *world) {
			got := ask(t, w)
			if got == "" {
				t.Error("nothing came back")
			}
			for _, form := range []string{secretValue, url.QueryEscape(secretValue), base64.StdEncoding.EncodeToString([]byte(secretValue)), base64.StdEncoding.EncodeToString([]byte("user:" + secretValue))} {
				if strings.Contains(got, form) {
					t.Errorf("%q came back in %s", form, got)
				}
			}
		}}
	}
	whole := func(t *testing.T, w *world) reply {
		got := plainGet(t, w, "http://api.example.com/echo", "Accept-Encoding: gzip, br\r\n", "")
		w.finish(t, 1)
		if got.status != http.StatusUnauthorized || got.header.Get("X-Seen-Encoding") != "identity" {
			t.Errorf("answer %d %v", got.status, got.header)
		}
		return got
	}
	return []vector{
		look("K06", "body", func(t *testing.T, w *world) string { return whole(t, w).body }),
		look("K06", "header", func(t *testing.T, w *world) string { return whole(t, w).header.Get("X-Authorization") }),
		look("K06", "HTTP/2", func(t *testing.T, w *world) string {
			got := h2Get(t, w.h2(t), "api.example.com", nil)
			w.finish(t, 2)
			return got.body + fmt.Sprint(got.header)
		}),
		{id: "K06", spelling: "TRACE", setup: setup{brokered: true}, raw: "TRACE http://api.example.com/ HTTP/1.1\r\nHost: a\r\n\r\n", want: outcomeOf(egress.ReasonMethod)},
		look("K08", "Set-Cookie", func(t *testing.T, w *world) string { return whole(t, w).header.Get("Set-Cookie") }),
		look("K08", "Location", func(t *testing.T, w *world) string { return whole(t, w).header.Get("Location") }),
		look("K08", "trailer", func(t *testing.T, w *world) string {
			c := w.dial(t)
			c.send("GET http://api.example.com/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			all := c.closed()
			w.finish(t, 1)
			return all
		}),
	}
}

// placeholderVectors are the rows K about the placeholder.
func placeholderVectors() []vector {
	const mark = "berm-placeholder-0123456789"
	p := policy()
	c := credential()
	c.Placeholder = mark
	p.Credentials = []egress.Credential{c}
	with := setup{policy: p}
	misplaced := func(id, name, target, fields, body string) vector {
		// A body to the credential's host is looked at once the host was reached.
		asks := body != "" && fields != ""
		return vector{id: id, spelling: name, setup: with, run: func(t *testing.T, w *world) {
			if got := plainGet(t, w, target, fields, body); got.status != http.StatusForbidden || got.reason != egress.ReasonPlaceholder {
				t.Errorf("answer %d %s", got.status, got.body)
			}
			vector{want: outcome{reason: egress.ReasonPlaceholder, asks: asks}}.check(t, w, w.finish(t, 1)[0])
		}}
	}
	const target, place = "http://api.example.com/", "Authorization: Bearer " + mark + "\r\n"
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+mark))
	return []vector{
		{id: "K04", spelling: "declared place", setup: with, run: func(t *testing.T, w *world) {
			if got := plainGet(t, w, target, place, ""); got.status != http.StatusOK {
				t.Fatalf("status %d %s", got.status, got.body)
			}
			w.finish(t, 1)
			if got := w.secure.requests()[0].header.Get("Authorization"); got != "Bearer "+secretValue {
				t.Errorf("the upstream saw %q", got)
			}
		}},
		misplaced("K04", "another header", target, place+"X-Token: "+mark+"\r\n", ""),
		misplaced("K04", "query", target+"?t="+mark, place, ""),
		misplaced("K04", "path", target+mark, place, ""),
		misplaced("K04", "Basic", target, "Authorization: "+basic+"\r\n", ""),
		misplaced("K04", "Basic in another header", target, place+"Proxy-Token: "+basic+"\r\n", ""),
		misplaced("K04", "body", target, place, `{"token":"`+mark+`"}`),
		misplaced("K04", "absent", target, "", ""),
		misplaced("K05", "header to another host", "http://x.pkg.example.org/", place, ""),
		misplaced("K05", "body to another host", "http://x.pkg.example.org/", "", mark),
		misplaced("K05", "query to another host", "http://x.pkg.example.org/?"+mark, "", ""),
	}
}

func noSecretInAudit(t *testing.T, w *world) {
	t.Helper()
	w.sink.mu.Lock()
	defer w.sink.mu.Unlock()
	for _, r := range w.sink.records {
		line, err := json.Marshal(r)
		if err != nil || bytes.Contains(line, []byte(secretValue)) {
			t.Errorf("record %s, %v", line, err)
		}
	}
}
