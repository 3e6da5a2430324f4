package gate_test

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate"
)

const getAllowed = "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n"

// requestVectors are the rows M.
func requestVectors() []vector {
	bad, denied := outcomeOf(egress.ReasonMalformed), outcomeOf(egress.ReasonNoRule)
	allow := outcome{reason: egress.ReasonRule, seen: "api.example.com"}
	rows := []vector{
		{id: "M01", spelling: "allowed URI and another Host", run: func(t *testing.T, w *world) {
			v := vector{raw: "GET http://api.example.com/x?y HTTP/1.1\r\nHost: evil.test\r\nX-Kept: 1\r\n\r\n", want: allow}
			v.request(t, w)
			for _, s := range w.plain.requests() {
				if s.target != "/x?y" || s.header.Get("Host") != "" || s.header.Get("X-Kept") != "1" {
					t.Errorf("the upstream saw %+v", s)
				}
			}
		}},
		{id: "M02", spelling: "denied URI and allowed Host", raw: "GET http://evil.test/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: denied},
		{id: "M03", spelling: "two", raw: "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nHost: api.example.com\r\n\r\n", want: bad},
		{id: "M03", spelling: "two in different case", raw: "GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nhOST: evil.test\r\n\r\n", want: bad},
		{id: "M03", spelling: "none", raw: "GET http://api.example.com/ HTTP/1.1\r\nAccept: */*\r\n\r\n", want: bad},
		{id: "M03", spelling: "empty", raw: "GET http://api.example.com/ HTTP/1.1\r\nHost:\r\n\r\n", want: bad},
		{id: "M05", spelling: "origin-form", raw: "GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad},
		{id: "M05", spelling: "two slashes", raw: "GET //api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad},
		{id: "M05", spelling: "asterisk", raw: "OPTIONS * HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad},
		{id: "M05", spelling: "authority alone", raw: "GET api.example.com:80 HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad},
		{id: "M07", spelling: "fragment", raw: "GET http://api.example.com/#x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad},
		{id: "M10", spelling: "empty", raw: " http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad},
		{id: "M10", spelling: "version", raw: "GET http://api.example.com/ HTTP/2.0\r\nHost: api.example.com\r\n\r\n", want: bad},
		{id: "M10", spelling: "HTTP 0.9", raw: "GET http://api.example.com/\r\n\r\n", want: bad},
		{id: "M10", spelling: "WebDAV is no odd method", raw: "VERSION-CONTROL http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 0\r\n\r\n", want: allow},
	}
	for name, host := range map[string]string{"space": "api.example.com evil", "list": "a, b", "at": "a@b", "slash": "a/b", "percent": "a%2eb", "query": "a?b"} {
		rows = append(rows, vector{id: "M04", spelling: name, raw: "GET http://api.example.com/ HTTP/1.1\r\nHost: " + host + "\r\n\r\n", want: bad})
	}
	for _, target := range []string{"ftp://api.example.com/", "file:///etc/passwd", "http:api.example.com/", "ws://api.example.com/", "https://api.example.com/", "http:/api.example.com/", "gopher://api.example.com/"} {
		rows = append(rows, vector{id: "M07", spelling: target, raw: "GET " + target + " HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad})
	}
	for name, method := range map[string]string{"at": "G@T", "lower case": "get", "colon": "GET:", "long": strings.Repeat("A", 100), "slash": "GE/T", "UTF-8": "G\u00cbT", "quote": "G\"T"} {
		rows = append(rows, vector{id: "M10", spelling: name, raw: method + " http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad})
	}
	return rows
}

// framingVectors are the rows S about one request's form.
func framingVectors() []vector {
	bad := outcomeOf(egress.ReasonMalformed)
	allow := outcome{reason: egress.ReasonRule, seen: "api.example.com"}
	post := "POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n"
	rows := []vector{
		{id: "S05", spelling: "same twice", run: func(t *testing.T, w *world) {
			vector{raw: post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", want: allow}.request(t, w)
			if got := w.plain.requests(); len(got) != 1 || got[0].length != 5 || got[0].body != "hello" {
				t.Errorf("the upstream saw %+v", got)
			}
		}},
		{id: "S14", spelling: "of a chunked body", run: func(t *testing.T, w *world) {
			trailers := "Authorization: evil\r\nHost: evil.test\r\nContent-Length: 1\r\nX-Other: 1\r\n"
			vector{raw: post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n" + trailers + "\r\n", want: allow}.request(t, w)
			s := w.plain.requests()[0]
			if len(s.trailer) > 0 || s.body != "hello" || s.header.Get("Authorization") != "" {
				t.Errorf("the upstream saw %+v", s)
			}
		}},
		{id: "S14", spelling: "announced", run: func(t *testing.T, w *world) {
			vector{raw: post + "Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n5\r\nhello\r\n0\r\nAuthorization: evil\r\n\r\n", want: allow}.request(t, w)
			if s := w.plain.requests()[0]; len(s.trailer) > 0 || s.header.Get("Trailer") != "" {
				t.Errorf("the upstream saw %+v", s)
			}
		}},
		{id: "S14", spelling: "announced Content-Length", raw: post + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\n\r\n", want: bad},
	}
	add := func(id string, spellings map[string]string) {
		for name, fields := range spellings {
			rows = append(rows, vector{id: id, spelling: name, raw: post + fields, want: bad})
		}
	}
	chunks := "\r\n0\r\n\r\n"
	add("S01", map[string]string{
		"length first":   "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" + chunks,
		"encoding first": "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n" + chunks,
		"zero length":    "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n" + chunks,
	})
	add("S02", map[string]string{
		"list": "Transfer-Encoding: gzip, chunked\r\n" + chunks, "two lines": "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n" + chunks,
		"identity": "Transfer-Encoding: identity\r\n\r\n", "unknown": "Transfer-Encoding: xchunked\r\n" + chunks, "quoted": "Transfer-Encoding: \"chunked\"\r\n" + chunks,
		"empty": "Transfer-Encoding:\r\n\r\n", "semicolon": "Transfer-Encoding: chunked;q=1\r\n" + chunks,
	})
	add("S03", map[string]string{
		"space before the colon": "Transfer-Encoding : chunked\r\n" + chunks, "vertical tab": "Transfer-Encoding: \x0bchunked\r\n" + chunks,
		"tab before the colon": "Transfer-Encoding\t: chunked\r\n" + chunks, "NUL in the name": "Transfer-\x00Encoding: chunked\r\n" + chunks,
		"leading space": " Transfer-Encoding: chunked\r\n" + chunks,
	})
	add("S04", map[string]string{
		"different": "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "plus": "Content-Length: +5\r\n\r\nhello", "list": "Content-Length: 5, 5\r\n\r\nhello",
		"minus": "Content-Length: -5\r\n\r\nhello", "hexadecimal": "Content-Length: 0x5\r\n\r\nhello", "empty": "Content-Length:\r\n\r\n", "huge": "Content-Length: 99999999999999999999\r\n\r\n",
		"space inside": "Content-Length: 5 5\r\n\r\nhello", "underscore": "Content-Length: 1_0\r\n\r\n",
	})
	add("S07", map[string]string{
		"folded": "X-A: b\r\n c\r\n\r\n", "folded by tab": "X-A: b\r\n\tTransfer-Encoding: chunked\r\n\r\n",
		"bare LF": "X-A: b\n\r\n", "bare LF at the end": "X-A: b\r\n\n",
	})
	add("S08", map[string]string{
		"CR": "X-A: b\rc\r\n\r\n", "NUL": "X-A: b\x00c\r\n\r\n", "ESC": "X-A: \x1b[31m\r\n\r\n", "DEL": "X-A: \x7f\r\n\r\n",
		"no colon": "X-A\r\n\r\n", "no name": ": x\r\n\r\n",
	})
	return rows
}

// sequenceVectors are the rows S about what follows on a connection, from either
// side.
func sequenceVectors() []vector {
	return []vector{
		{id: "S10", spelling: "after a short length", run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send("POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 2\r\n\r\nokGET http://evil.test/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
			twoAnswers(t, w, c, http.MethodPost)
		}},
		{id: "S10", spelling: "after the last chunk", run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send("POST http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://evil.test/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
			twoAnswers(t, w, c, http.MethodPost)
		}},
		{id: "S11", spelling: "second to another host", run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send(getAllowed + "\r\n")
			first := c.answer(http.MethodGet)
			c.send("GET http://evil.test/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
			second := c.answer(http.MethodGet)
			if first.status != 200 || second.status != 403 || second.reason != egress.ReasonNoRule {
				t.Errorf("answers %d and %d %q", first.status, second.status, second.reason)
			}
			w.finish(t, 2)
		}},
		{id: "S12", spelling: "ten in one write", run: pipelined},
		{id: "S12", spelling: "a broken one in the middle", run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send(getAllowed + "\r\nGET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n" + getAllowed + "\r\n")
			if got := c.answer(http.MethodGet); got.status != 200 {
				t.Errorf("first: %d", got.status)
			}
			if got := c.answer(http.MethodGet); got.status != 400 || got.reason != egress.ReasonMalformed {
				t.Errorf("second: %d %q", got.status, got.reason)
			}
			if rest := c.closed(); rest != "" {
				t.Errorf("after the broken request came %q", rest)
			}
			w.finish(t, 2)
		}},
		splitting("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokx", 502),
		splitting("same length twice", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", 502),
		splitting("length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 502),
		splitting("early extra bytes", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", 200),
		splitting("bare LF", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 502),
		splitting("no HTTP", "SSH-2.0-OpenSSH_9.2\r\n\r\n", 502),
		splitting("a second answer after no content", "HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", 204),
	}
}

// twoAnswers reads an answer of the upstream's and then a refusal.
func twoAnswers(t *testing.T, w *world, c *wireConn, method string) {
	first, second := c.answer(method), c.answer(http.MethodGet)
	if first.status != 200 || second.status != 403 || second.reason != egress.ReasonNoRule {
		t.Errorf("answers %d and %d %q", first.status, second.status, second.reason)
	}
	records := w.finish(t, 2)
	if records[1].Asked != "evil.test" || records[1].Flow != records[0].Flow {
		t.Errorf("second decision %+v", records[1])
	}
	if names := w.dns.names(); len(names) != 1 {
		t.Errorf("DNS was asked for %q", names)
	}
}

func pipelined(t *testing.T, w *world) {
	hosts := []string{"api.example.com", "evil.test"}
	var all strings.Builder
	for i := range 10 {
		host := hosts[i%2]
		all.WriteString("GET http://" + host + "/" + strconv.Itoa(i) + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
	}
	c := w.dial(t)
	c.send(all.String())
	for i := range 10 {
		if got, want := c.answer(http.MethodGet), 200+i%2*203; got.status != want {
			t.Errorf("answer %d: %d, want %d", i, got.status, want)
		}
	}
	for i, r := range w.finish(t, 10) {
		if r.Asked != hosts[i%2] || r.Allow != (i%2 == 0) {
			t.Errorf("decision %d: %+v", i, r)
		}
	}
	for i, s := range w.plain.requests() {
		if s.target != "/"+strconv.Itoa(2*i) {
			t.Errorf("the upstream's request %d is %q", i, s.target)
		}
	}
}

// splitting is a row S13: an upstream that answers in a broken way on its first
// connection, twice asked. The second answer is never what came unasked.
func splitting(name, answer string, status int) vector {
	wild := func(conn net.Conn) {
		buffer := make([]byte, 4096)
		for {
			if _, err := conn.Read(buffer); err != nil {
				return
			}
			if _, err := io.WriteString(conn, answer); err != nil {
				return
			}
		}
	}
	return vector{id: "S13", spelling: name, setup: setup{wild: wild}, run: func(t *testing.T, w *world) {
		c := w.dial(t)
		for range 2 {
			c.send(getAllowed + "\r\n")
			got := c.answer(http.MethodGet)
			if got.status != status || strings.Contains(got.body, "evil") {
				t.Errorf("answer %d %q, want %d", got.status, got.body, status)
			}
		}
		w.finish(t, 2)
		w.wild.mu.Lock()
		defer w.wild.mu.Unlock()
		if w.wild.conns != 2 {
			t.Errorf("%d connections to the upstream, want one for each request", w.wild.conns)
		}
	}}
}

// upgradeVectors are the rows U.
func upgradeVectors() []vector {
	allow := outcome{reason: egress.ReasonRule, seen: "api.example.com"}
	stripped := func(id, name, fields string, body ...string) vector {
		return vector{id: id, spelling: name, run: func(t *testing.T, w *world) {
			vector{raw: getAllowed + fields + "\r\n" + strings.Join(body, ""), want: allow}.request(t, w)
			s := w.plain.requests()[0]
			if s.header.Get("Upgrade") != "" || s.header.Get("Http2-Settings") != "" || s.header.Get("Connection") != "" {
				t.Errorf("the upstream saw %v", s.header)
			}
		}}
	}
	unasked := func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 4096))
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: evil\r\n\r\n")
	}
	return []vector{
		stripped("U01", "h2c", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"),
		stripped("U01", "h2c without Connection", "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"),
		stripped("U04", "TLS", "Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n"),
		stripped("U04", "unknown", "Connection: Upgrade\r\nUpgrade: gopher\r\n"),
		stripped("U04", "two at once", "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n"),
		stripped("U04", "WebSocket with a body", "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n", "ok"),
		{id: "U02", spelling: "echo", setup: setup{wild: echoSocket}, run: webSocket},
		{id: "U02", spelling: "not granted", run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send(getAllowed + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			if got := c.answer(http.MethodGet); got.status != 200 {
				t.Errorf("status %d", got.status)
			}
			// What follows was not checked as a request, so nothing may follow.
			c.send("GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")
			if rest := c.closed(); rest != "" {
				t.Errorf("then came %q", rest)
			}
			w.finish(t, 1)
		}},
		{id: "U02", spelling: "denied host", raw: "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", want: outcomeOf(egress.ReasonNoRule)},
		{id: "U05", spelling: "none asked", setup: setup{wild: unasked}, run: badSwitch("")},
		{id: "U05", spelling: "another asked", setup: setup{wild: unasked}, run: badSwitch("Connection: Upgrade\r\nUpgrade: websocket\r\n")},
	}
}

func badSwitch(fields string) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		c := w.dial(t)
		c.send(getAllowed + fields + "\r\n")
		if got := c.answer(http.MethodGet); got.status != 502 || got.reason != egress.ReasonUpstream {
			t.Errorf("answer %d %q", got.status, got.body)
		}
		if end := w.sink.ends(t, 1)[0]; end.Reason != egress.ReasonUpstream {
			t.Errorf("end %+v", end)
		}
		w.finish(t, 1)
	}
}

// echoSocket grants a switch and sends back what it gets.
func echoSocket(conn net.Conn) {
	buffer := make([]byte, 4096)
	n, err := conn.Read(buffer)
	if err != nil || !strings.Contains(strings.ToLower(string(buffer[:n])), "upgrade: websocket") {
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_, _ = io.Copy(conn, conn)
}

func webSocket(t *testing.T, w *world) {
	c := w.dial(t)
	// A client may be quick: its first frame comes with the request.
	c.send(getAllowed + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly")
	if got := c.answer(http.MethodGet); got.status != http.StatusSwitchingProtocols || got.header.Get("Upgrade") != "websocket" {
		t.Fatalf("answer %d %v", got.status, got.header)
	}
	c.send("GET http://evil.test/ HTTP/1.1\r\n\r\n") // only bytes by now
	back := make([]byte, len("early")+len("GET http://evil.test/ HTTP/1.1\r\n\r\n"))
	if _, err := io.ReadFull(c.r, back); err != nil || string(back) != "earlyGET http://evil.test/ HTTP/1.1\r\n\r\n" {
		t.Fatalf("echo %q, %v", back, err)
	}
	_ = c.Close()
	end := w.sink.ends(t, 1)[0]
	if !end.WebSocket || end.Sent != int64(len(back)) || end.Received != int64(len(back)) {
		t.Errorf("end %+v", end)
	}
	if r := w.finish(t, 1)[0]; !r.Allow || !r.WebSocket {
		t.Errorf("decision %+v", r)
	}
}

// redirectVectors are the rows X.
func redirectVectors() []vector {
	leads := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }
	}
	follow := func(to string, reason egress.Reason) vector {
		return vector{id: "X01", spelling: to, setup: setup{handler: leads(to)}, run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send(getAllowed + "\r\n")
			if got := c.answer(http.MethodGet); got.status != http.StatusFound || got.header.Get("Location") != to {
				t.Errorf("answer %d %v", got.status, got.header)
			}
			c.send("GET " + to + " HTTP/1.1\r\nHost: x\r\n\r\n")
			if got := c.answer(http.MethodGet); got.status != http.StatusForbidden || got.reason != reason {
				t.Errorf("followed: %d %q", got.status, got.reason)
			}
			w.finish(t, 2)
			if n := len(w.plain.requests()); n != 1 {
				t.Errorf("%d requests upstream", n)
			}
		}}
	}
	return []vector{
		follow("http://169.254.169.254/latest", egress.ReasonLiteral),
		follow("http://evil.test/", egress.ReasonNoRule),
		{id: "X02", spelling: "to another allowed host", setup: setup{brokered: true, handler: leads("http://pkg.example.org/")}, run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send(getAllowed + "\r\n")
			if got := c.answer(http.MethodGet); got.status != http.StatusFound {
				t.Fatalf("answer %d %s", got.status, got.body)
			}
			c.send("GET http://pkg.example.org/ HTTP/1.1\r\nHost: pkg.example.org\r\n\r\n")
			c.answer(http.MethodGet)
			w.finish(t, 2)
			if s := w.plain.requests(); len(s) != 1 || s[0].header.Get("Authorization") != "" {
				t.Errorf("the other host saw %+v", s)
			}
			if s := w.secure.requests(); len(s) != 1 || s[0].header.Get("Authorization") != "Bearer "+secretValue {
				t.Errorf("the credential's host saw %+v", s)
			}
		}},
	}
}

// limitVectors are the rows Q.
func limitVectors() []vector {
	many := strings.Repeat("X-A: b\r\n", 10_000)
	large := outcome{reason: egress.ReasonLimit, status: http.StatusRequestHeaderFieldsTooLarge}
	return []vector{
		{id: "Q01", spelling: "2 MiB header", raw: getAllowed + "X-A: " + strings.Repeat("b", 2<<20) + "\r\n\r\n", want: large},
		{id: "Q01", spelling: "10000 headers", raw: getAllowed + many + "\r\n", want: large},
		{id: "Q01", spelling: "300 short headers", raw: getAllowed + strings.Repeat("A: b\r\n", 300) + "\r\n", want: large},
		{id: "Q01", spelling: "1 MiB URI", raw: "GET http://api.example.com/" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\nHost: a\r\n\r\n", want: large},
		{id: "Q02", spelling: "header in drops", setup: setup{config: func(c *gate.Config) { c.Timeouts.Header = 300 * time.Millisecond }}, run: slowHeader},
		{id: "Q02", spelling: "body that stops", setup: setup{config: func(c *gate.Config) { c.Timeouts.Body = 200 * time.Millisecond }}, run: slowBody},
		{id: "Q02", spelling: "SOCKS in drops", setup: setup{config: func(c *gate.Config) { c.Timeouts.Header = 200 * time.Millisecond }}, run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send("\x05\x01")
			if rest := c.closed(); rest != "" {
				t.Errorf("got %q", rest)
			}
			if r := w.finish(t, 1)[0]; r.Reason != egress.ReasonTimeout {
				t.Errorf("decision %+v", r)
			}
		}},
		{id: "Q03", spelling: "idle connections", setup: setup{config: func(c *gate.Config) { c.Limits.Connections = 8 }}, run: manyConnections},
		{id: "Q03", spelling: "idle tunnels", setup: setup{config: func(c *gate.Config) { c.Limits.Tunnels = 2 }}, run: manyTunnels},
		{id: "Q05", spelling: "reset in a tunnel", run: resetTunnel},
		{id: "Q06", spelling: "endless response", setup: setup{handler: endless}, run: endlessResponse},
		{id: "Q06", spelling: "gzip is not looked into", setup: setup{handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "\x1f\x8b not gzip at all")
		}}, run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send(getAllowed + "Accept-Encoding: gzip\r\n\r\n")
			if got := c.answer(http.MethodGet); got.status != 200 || got.body != "\x1f\x8b not gzip at all" || got.header.Get("Content-Encoding") != "gzip" {
				t.Errorf("answer %+v", got)
			}
			w.finish(t, 1)
		}},
		{id: "Q07", spelling: "sink", setup: setup{sink: &breaking{}}, run: breakDown},
	}
}
