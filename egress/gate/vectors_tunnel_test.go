package gate_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate"
)

// tunnelVectors are the rows C about tunnels that are not looked into.
func tunnelVectors(p *pki) []vector {
	bad := outcomeOf(egress.ReasonMalformed)
	raw := func(id, name, target, fields string) vector {
		return vector{id: id, spelling: name, raw: "CONNECT " + target + " HTTP/1.1\r\n" + fields + "\r\n", want: bad}
	}
	host := "Host: api.example.com\r\n"
	return []vector{
		{id: "C01", spelling: "same name", host: "api.example.com", by: []egress.Protocol{egress.Connect, egress.SOCKS}, want: outcome{reason: egress.ReasonRule, seen: "api.example.com"}},
		{id: "C01", spelling: "name in upper case", run: firstBytes(sni("API.EXAMPLE.COM"), egress.ReasonRule, nil)},
		{id: "C01", spelling: "hello in pieces", run: pieces},
		raw("C02", "no port", "api.example.com", host),
		raw("C02", "no port in IPv6", "[2606:4700::1]", host),
		{id: "C03", spelling: "another Host", run: hostOfConnect("Host: evil.test\r\n", "api.example.com:443", http.StatusOK)},
		{id: "C03", spelling: "no Host", run: hostOfConnect("", "api.example.com:443", http.StatusOK)},
		{id: "C03", spelling: "allowed Host for a denied target", run: hostOfConnect("Host: api.example.com\r\n", "evil.test:443", http.StatusForbidden)},
		raw("C05", "absolute URL", "http://api.example.com:443/", host),
		raw("C05", "two authorities", "a:443@evil:443", host),
		raw("C05", "path", "api.example.com:443/", host),
		raw("C05", "query", "api.example.com:443?x", host),
		raw("C05", "origin-form", "/", host),
		raw("C05", "userinfo", "user@api.example.com:443", host),
		{id: "C06", spelling: "another name", run: firstBytes(sni("evil.test"), egress.ReasonSNI, nil)},
		{id: "C06", spelling: "another allowed name", run: firstBytes(sni("pkg.example.org"), egress.ReasonSNI, nil)},
		{id: "C06", spelling: "a name below", run: firstBytes(sni("x.api.example.com"), egress.ReasonSNI, nil)},
		{id: "C07", spelling: "no name", run: firstBytes(sni(""), egress.ReasonSNI, nil)},
		{id: "C09", spelling: "outer name", run: firstBytes(ech("cloudflare-ech.com"), egress.ReasonECH, func(t *testing.T, r egress.Record) {
			if !r.ECH || r.SNI != "cloudflare-ech.com" {
				t.Errorf("decision %+v", r)
			}
		})},
		{id: "C10", spelling: "outer name is the target", run: firstBytes(ech("api.example.com"), egress.ReasonRule, func(t *testing.T, r egress.Record) {
			if !r.ECH {
				t.Errorf("decision %+v", r)
			}
		})},
		{id: "C11", spelling: "SSH", run: firstBytes(text("SSH-2.0-OpenSSH_9.2\r\n"), egress.ReasonNotTLS, nil)},
		{id: "C11", spelling: "HTTP", run: firstBytes(text("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"), egress.ReasonNotTLS, nil)},
		{id: "C11", spelling: "TLS record that is no hello", run: firstBytes(text("\x16\x03\x01\x00\x04\x02\x00\x00\x00"), egress.ReasonNotTLS, nil)},
		{id: "C11", spelling: "SSLv2", run: firstBytes(text("\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10"), egress.ReasonNotTLS, nil)},
		{id: "C11", spelling: "application data", run: firstBytes(text("\x17\x03\x03\x00\x05hello"), egress.ReasonNotTLS, nil)},
		{id: "C11", spelling: "rule says tcp", setup: setup{policy: &egress.Policy{Allow: []string{"tcp://api.example.com:443", ".pkg.example.org"}}}, run: rawTunnel},
		{id: "C12", spelling: "silent", setup: setup{config: func(c *gate.Config) { c.Timeouts.Hello = 100 * time.Millisecond }}, run: firstBytes(text(""), egress.ReasonTLSTimeout, nil)},
		{id: "C12", spelling: "half a hello", setup: setup{config: func(c *gate.Config) { c.Timeouts.Hello = 100 * time.Millisecond }}, run: firstBytes(func(t *testing.T) []byte {
			whole := sni("api.example.com")(t)
			return whole[:len(whole)/2]
		}, egress.ReasonTLSTimeout, nil)},
		raw("C14", "length", "api.example.com:443", host+"Content-Length: 10\r\n"),
		raw("C14", "chunked", "api.example.com:443", host+"Transfer-Encoding: chunked\r\n"),
		{id: "C15", spelling: "opaque", run: nestedConnect},
	}
}

func text(s string) func(*testing.T) []byte { return func(*testing.T) []byte { return []byte(s) } }

// sni makes a hello with a name.
func sni(name string) func(*testing.T) []byte {
	return func(t *testing.T) []byte {
		plain := bytes.ToLower([]byte(name))
		out := helloBytes(t, &tls.Config{ServerName: string(plain), InsecureSkipVerify: true})
		if name != string(plain) {
			out = bytes.ReplaceAll(out, plain, []byte(name))
		}
		return out
	}
}

// firstBytes opens a tunnel to api.example.com by both ways, sends these bytes
// and expects the same verdict. What is denied reaches the upstream with no byte.
func firstBytes(first func(*testing.T) []byte, reason egress.Reason, more func(*testing.T, egress.Record)) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		want := outcomeOf(reason)
		c, got := w.connectTo(t, "api.example.com:443")
		if got.status != http.StatusOK {
			t.Fatalf("CONNECT: %d %s", got.status, got.body)
		}
		s, code := w.socksTo(t, "api.example.com", 443)
		if code != 0 {
			t.Fatalf("SOCKS: %#x", code)
		}
		sent := first(t)
		for _, conn := range []*wireConn{c, s} {
			conn.send(string(sent))
			if want.allowed() {
				continue
			}
			if rest := conn.closed(); rest != "" {
				t.Errorf("the tunnel answers %q", rest)
			}
		}
		if want.allowed() {
			until(t, "the upstream has both", func() bool { return w.secure.received() == 2*len(sent) })
		} else if n := w.secure.received(); n != 0 {
			t.Errorf("the upstream got %d bytes", n)
		}
		records := w.finish(t, 2)
		for _, r := range records {
			if r.Reason != reason || r.Allow != want.allowed() {
				t.Errorf("decision %+v", r)
			}
			if more != nil {
				more(t, r)
			}
		}
	}
}

// pieces sends a hello byte by byte, over two TLS records.
func pieces(t *testing.T, w *world) {
	whole := sni("api.example.com")(t)
	body := whole[5:]
	var split []byte
	for _, part := range [][]byte{body[:40], body[40:]} {
		split = append(split, 0x16, 3, 1, byte(len(part)>>8), byte(len(part)))
		split = append(split, part...)
	}
	c, _ := w.connectTo(t, "api.example.com:443")
	for _, b := range split {
		c.send(string([]byte{b}))
	}
	until(t, "the upstream has all", func() bool { return w.secure.received() == len(split) })
	if r := w.finish(t, 1)[0]; !r.Allow || r.SNI != "api.example.com" {
		t.Errorf("decision %+v", r)
	}
}

func hostOfConnect(fields, target string, status int) func(*testing.T, *world) {
	return func(t *testing.T, w *world) {
		c := w.dial(t)
		c.send("CONNECT " + target + " HTTP/1.1\r\n" + fields + "\r\n")
		got := c.answer(http.MethodConnect)
		if got.status != status {
			t.Fatalf("status %d, want %d", got.status, status)
		}
		if status == http.StatusOK {
			vector{want: outcome{seen: "api.example.com"}}.through(t, w, c, true)
		}
		if r := w.finish(t, 1)[0]; r.Asked+":443" != target {
			t.Errorf("asked %q", r.Asked)
		}
	}
}

// rawTunnel carries what is no TLS.
func rawTunnel(t *testing.T, w *world) {
	c, got := w.connectTo(t, "api.example.com:443")
	if got.status != http.StatusOK {
		t.Fatalf("status %d", got.status)
	}
	c.send("SSH-2.0-x\r\n")
	until(t, "the upstream has it", func() bool { return w.secure.received() == len("SSH-2.0-x\r\n") })
	_ = c.Close()
	if end := w.sink.ends(t, 1)[0]; end.Sent != int64(len("SSH-2.0-x\r\n")) {
		t.Errorf("end %+v", end)
	}
	w.finish(t, 1)
}

// nestedConnect asks a host that acts as a proxy: what is said inside is not the
// gate's to know.
func nestedConnect(t *testing.T, w *world) {
	c, _ := w.connectTo(t, "api.example.com:443")
	conn, err := c.tls(w.pki, &tls.Config{ServerName: "api.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	until(t, "the upstream has it", func() bool { return len(w.secure.requests()) == 1 })
	w.finish(t, 1)
}

// ech makes a hello with an encrypted one inside, for which a configuration with
// that outer name was published.
func ech(outer string) func(*testing.T) []byte {
	return func(t *testing.T) []byte {
		return helloBytes(t, &tls.Config{
			ServerName: "inner.invalid", MinVersion: tls.VersionTLS13, RootCAs: nil,
			EncryptedClientHelloConfigList: echConfigs(t, outer),
		})
	}
}

// socksVectors are the rows V.
func socksVectors() []vector {
	const greeting = "\x05\x01\x00"
	request := func(kind string) string { return "\x05" + kind + "\x00\x03\x0fapi.example.com\x01\xbb" }
	answered := func(id, name, sent string, code byte, reason egress.Reason) vector {
		return vector{id: id, spelling: name, run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send(greeting + sent)
			if got := c.closed(); len(got) != 12 || got[:2] != "\x05\x00" || got[3] != code {
				t.Errorf("answer %q, want reply %#x", got, code)
			}
			vector{want: outcomeOf(reason)}.check(t, w, w.finish(t, 1)[0])
		}}
	}
	closed := func(name, sent, answer string, reason egress.Reason) vector {
		return vector{id: "V05", spelling: name, run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send(sent)
			c.halfClose()
			if got := c.closed(); got != answer {
				t.Errorf("answer %q, want %q", got, answer)
			}
			vector{want: outcomeOf(reason)}.check(t, w, w.finish(t, 1)[0])
		}}
	}
	bad := egress.ReasonMalformed
	return []vector{
		{id: "V01", spelling: "name", host: "api.example.com", by: []egress.Protocol{egress.SOCKS}, want: outcome{reason: egress.ReasonRule, seen: "api.example.com"}},
		{id: "V01", spelling: "plain HTTP inside", run: plainInside},
		{id: "V01", spelling: "plain HTTP for another host inside", run: otherInside},
		answered("V02", "public IPv4", "\x05\x01\x00\x01\x5d\xb8\xd8\x22\x01\xbb", 2, egress.ReasonLiteral),
		answered("V02", "inward IPv4", "\x05\x01\x00\x01\x7f\x00\x00\x01\x01\xbb", 2, egress.ReasonLiteral),
		answered("V02", "IPv6", "\x05\x01\x00\x04"+string(netip.MustParseAddr("2606:4700::1").AsSlice())+"\x01\xbb", 2, egress.ReasonLiteral),
		answered("V02", "loopback IPv6", "\x05\x01\x00\x04"+strings.Repeat("\x00", 15)+"\x01\x01\xbb", 2, egress.ReasonLiteral),
		answered("V02", "address as a name", "\x05\x01\x00\x03\x0d93.184.216.34\x01\xbb", 2, egress.ReasonLiteral),
		answered("V04", "BIND", request("\x02"), 7, egress.ReasonCommand),
		answered("V04", "UDP ASSOCIATE", request("\x03"), 7, egress.ReasonCommand),
		answered("V04", "unknown command", request("\x09"), 7, egress.ReasonCommand),
		answered("V05", "unknown type of address", "\x05\x01\x00\x09\x01\x02", 8, bad),
		closed("SOCKS4", "\x04\x01\x01\xbb\x5d\xb8\xd8\x22\x00", "", bad),
		closed("SOCKS4a", "\x04\x01\x01\xbb\x00\x00\x00\x01\x00api.example.com\x00", "", bad),
		closed("no methods", "\x05\x00", "", bad),
		closed("unknown methods", "\x05\x02\x01\x80", "\x05\xff", egress.ReasonAuth),
		closed("greeting cut", "\x05\x03\x00", "", bad),
		closed("request cut", greeting+"\x05\x01\x00\x03\x0fapi.exa", "\x05\x00", bad),
		closed("port cut", greeting+"\x05\x01\x00\x03\x0fapi.example.com\x01", "\x05\x00", bad),
		closed("empty name", greeting+"\x05\x01\x00\x03\x00\x01\xbb", "\x05\x00", bad),
		closed("reserved byte", greeting+"\x05\x01\x01\x03\x0fapi.example.com\x01\xbb", "\x05\x00", bad),
		closed("version of the request", greeting+"\x04\x01\x00\x03\x0fapi.example.com\x01\xbb", "\x05\x00", bad),
		socksLogin("right", "\x05\x01\x02\x01\x04user\x04pass"+request("\x01"), "\x05\x02\x01\x00\x05\x00", ""),
		socksLogin("wrong", "\x05\x01\x02\x01\x04user\x04pasS", "\x05\x02\x01\x01", egress.ReasonAuth),
		socksLogin("none offered", greeting, "\x05\xff", egress.ReasonAuth),
		socksLogin("empty name", "\x05\x01\x02\x01\x00\x04pass", "\x05\x02", bad),
		socksLogin("empty password", "\x05\x01\x02\x01\x04user\x00", "\x05\x02", bad),
		socksLogin("longest", "\x05\x01\x02\x01\xff"+strings.Repeat("u", 255)+"\xff"+strings.Repeat("p", 255), "\x05\x02\x01\x01", egress.ReasonAuth),
		{id: "V06", spelling: "another name", run: firstBytes(sni("evil.test"), egress.ReasonSNI, nil)},
		{id: "V07", spelling: "one listener for both", run: func(t *testing.T, w *world) {
			vector{host: "api.example.com", want: outcome{reason: egress.ReasonRule, seen: "api.example.com"}}.everyWay(t, w)
		}},
		{id: "V07", spelling: "TLS to the gate itself", run: func(t *testing.T, w *world) {
			c := w.dial(t)
			c.send(string(sni("api.example.com")(t)))
			c.halfClose()
			if got := c.closed(); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
				t.Errorf("answer %q", got)
			}
			vector{want: outcomeOf(bad)}.check(t, w, w.finish(t, 1)[0])
		}},
	}
}

// socksLogin is a row of a gate with a credential of its own.
func socksLogin(name, sent, answer string, reason egress.Reason) vector {
	with := setup{config: func(c *gate.Config) { c.Username, c.Password = "user", "pass" }}
	return vector{id: "V05", spelling: "login " + name, setup: with, run: func(t *testing.T, w *world) {
		c := w.dial(t)
		c.send(sent)
		got := make([]byte, len(answer))
		if _, err := io.ReadFull(c.r, got); err != nil || string(got) != answer {
			t.Errorf("answer %q, %v, want %q", got, err, answer)
		}
		if reason == "" {
			_ = c.Close()
			reason = egress.ReasonNotTLS
		}
		w.sink.await(t, 1)
		if r := w.sink.decisions()[0]; r.Reason != reason || r.Allow {
			t.Errorf("decision %+v", r)
		}
		// The same by HTTP: without, with a wrong and with the right credential.
		for value, want := range map[string]int{"": 407, "Proxy-Authorization: Basic dXNlcjpwYXNT\r\n": 407, "Proxy-Authorization: Basic dXNlcjpwYXNz\r\n": 200} {
			h := w.dial(t)
			h.send(getAllowed + value + "\r\n")
			if got := h.answer(http.MethodGet); got.status != want {
				t.Errorf("HTTP with %q: %d", value, got.status)
			}
		}
		for _, s := range w.plain.requests() {
			if s.header.Get("Proxy-Authorization") != "" {
				t.Error("the credential went upstream")
			}
		}
		w.login = "Proxy-Authorization: Basic dXNlcjpwYXNz\r\n"
		w.finish(t, 4)
	}}
}

// plainInside speaks plain HTTP through a tunnel to port 80.
func plainInside(t *testing.T, w *world) {
	c, code := w.socksTo(t, "api.example.com", 80)
	if code != 0 {
		t.Fatalf("reply %#x", code)
	}
	for range 2 {
		if got := get(t, c, "api.example.com", "/inside"); got.status != http.StatusOK {
			t.Errorf("status %d %s", got.status, got.body)
		}
	}
	records := w.finish(t, 3) // the tunnel's and each request's
	if records[0].Protocol != egress.SOCKS || records[1].Protocol != egress.HTTP {
		t.Errorf("decisions %+v", records)
	}
	if s := w.plain.requests(); len(s) != 2 || s[0].host != "api.example.com" || s[0].target != "/inside" {
		t.Errorf("the upstream saw %+v", s)
	}
}

func otherInside(t *testing.T, w *world) {
	c, code := w.socksTo(t, "api.example.com", 80)
	if code != 0 {
		t.Fatalf("reply %#x", code)
	}
	if got := get(t, c, "evil.test", "/"); got.status != http.StatusMisdirectedRequest || got.reason != egress.ReasonHost {
		t.Errorf("answer %d %q", got.status, got.reason)
	}
	w.finish(t, 2)
	if s := w.plain.requests(); len(s) != 0 {
		t.Errorf("the upstream saw %+v", s)
	}
}

// loopVectors are the rows L.
func loopVectors() []vector {
	return []vector{
		{id: "L01", spelling: "loopback literal", host: "127.0.0.1", port: 3128, want: outcomeOf(egress.ReasonLiteral)},
		{id: "L01", spelling: "localhost", host: "localhost", port: 3128, want: outcomeOf(egress.ReasonNoRule)},
		{id: "L01", spelling: "name of this machine", host: "api.example.com", setup: setup{self: []netip.Addr{publicAddr}}, want: outcome{reason: egress.ReasonSelf, asks: true}},
		{id: "L02", spelling: "through itself", run: throughItself},
		{id: "L02", spelling: "too many hops", raw: getAllowed + egress.HopHeader + ": " + strings.Repeat("a,", 20) + "b\r\n\r\n", want: outcome{reason: egress.ReasonLoop, status: http.StatusLoopDetected}},
		{id: "L03", spelling: "paths of the usual pages", run: func(t *testing.T, w *world) {
			for _, path := range []string{"/debug/pprof/", "/metrics", "/stats", "/admin", "/config_dump"} {
				c := w.dial(t)
				c.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
				if got := c.answer(http.MethodGet); got.status != http.StatusBadRequest || got.reason != egress.ReasonMalformed {
					t.Errorf("%s: %d %q", path, got.status, got.body)
				}
			}
			w.finish(t, 5)
		}},
	}
}

// throughItself sends what the gate sent upstream to the gate again.
func throughItself(t *testing.T, w *world) {
	c := w.dial(t)
	c.send(getAllowed + egress.HopHeader + ": other-gate\r\nConnection: " + egress.HopHeader + "\r\n\r\n")
	if got := c.answer(http.MethodGet); got.status != http.StatusOK {
		t.Fatalf("status %d", got.status)
	}
	hops := w.plain.requests()[0].header.Get(egress.HopHeader)
	if !strings.HasPrefix(hops, "other-gate, ") {
		t.Fatalf("hops %q", hops)
	}
	c.send(getAllowed + egress.HopHeader + ": " + hops + "\r\n\r\n")
	if got := c.answer(http.MethodGet); got.status != http.StatusLoopDetected || got.reason != egress.ReasonLoop {
		t.Errorf("again: %d %q", got.status, got.reason)
	}
	w.finish(t, 2)
}

var _ net.Conn = (*wireConn)(nil)
