package gate_test

import (
	"crypto/tls"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm/egress"
)

// vector is one spelling of one row of testdata/vectors.md.
type vector struct {
	id, spelling string
	setup        setup

	// A row about a host asks for it by HTTP, CONNECT and SOCKS5, and the three
	// verdicts have to be the same. port 0 stands for the usual one of each way.
	// by names the ways, all when empty.
	host string
	port int
	by   []egress.Protocol

	// A row about a request sends raw as it is.
	raw string

	// A row that is neither does what it needs.
	run func(t *testing.T, w *world)

	want outcome
}

// outcome is what has to come of a vector.
type outcome struct {
	reason egress.Reason // of the decision; rule or credential where it is allowed
	status int           // by HTTP; 0 for the reason's own
	seen   string        // Host as the upstream saw it, of what was allowed
	asks   bool          // DNS may be asked although it is denied
	more   int           // decisions beyond the first
}

func (o outcome) allowed() bool {
	return o.reason == egress.ReasonRule || o.reason == egress.ReasonCredential || o.reason == egress.ReasonAny
}

// code is the HTTP status of an outcome.
func (o outcome) code() int {
	switch {
	case o.status != 0:
		return o.status
	case o.allowed():
		return http.StatusOK
	case o.reason == egress.ReasonMalformed:
		return http.StatusBadRequest
	}
	return http.StatusForbidden
}

// vectors is the whole table.
func vectors(p *pki) []vector {
	return slices.Concat(
		hostVectors(), literalVectors(), portVectors(), addressVectors(),
		requestVectors(), framingVectors(), sequenceVectors(), upgradeVectors(), redirectVectors(),
		tunnelVectors(p), terminatedVectors(p), socksVectors(), loopVectors(),
		credentialVectors(p), placeholderVectors(), limitVectors(), policyVectors(),
	)
}

func TestVectors(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	for _, v := range vectors(p) {
		t.Run(v.id+" "+v.spelling, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, p, v.setup)
			switch {
			case v.run != nil:
				v.run(t, w)
			case v.raw != "":
				v.request(t, w)
			default:
				v.everyWay(t, w)
			}
			if !w.finished {
				t.Error("the row did not look at the audit and the gate afterwards")
			}
		})
	}
}

// TestEveryRowHasACase reads the ids out of the table.
func TestEveryRowHasACase(t *testing.T) {
	t.Parallel()
	table, err := os.ReadFile("testdata/vectors.md")
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]bool{}
	for _, v := range vectors(newPKI(t)) {
		if cases[v.id+" "+v.spelling] {
			t.Errorf("%s %s: twice", v.id, v.spelling)
		}
		cases[v.id], cases[v.id+" "+v.spelling] = true, true
	}
	rows := regexp.MustCompile(`(?m)^\| ([A-Z]\d\d) \|`).FindAllStringSubmatch(string(table), -1)
	if len(rows) < 120 {
		t.Fatalf("the table has %d rows only", len(rows))
	}
	known := map[string]bool{}
	for _, row := range rows {
		known[row[1]] = true
		if !cases[row[1]] && !strings.HasPrefix(row[1], "T") {
			t.Errorf("row %s has no case", row[1])
		}
	}
	for _, v := range vectors(newPKI(t)) {
		if !known[v.id] {
			t.Errorf("case %s %s is of no row", v.id, v.spelling)
		}
	}
}

// request sends the raw bytes and looks at the first answer.
func (v vector) request(t *testing.T, w *world) {
	c := w.dial(t)
	c.send(v.raw)
	method, _, _ := strings.Cut(v.raw, " ")
	got := c.answer(method)
	if got.status != v.want.code() {
		t.Errorf("status %d, want %d: %s", got.status, v.want.code(), got.body)
	}
	if got.status == http.StatusBadRequest {
		c.closed()
	}
	records := w.finish(t, 1+v.want.more)
	v.check(t, w, records[0])
	if !v.want.allowed() && got.reason != v.want.reason {
		t.Errorf("the answer says %q, want %q", got.reason, v.want.reason)
	}
}

// check holds one decision, and what the world saw, against the outcome.
func (v vector) check(t *testing.T, w *world, r egress.Record) {
	t.Helper()
	if r.Reason != v.want.reason || r.Allow != v.want.allowed() {
		t.Errorf("decision %v %q (%s), want %q", r.Allow, r.Reason, r.Error, v.want.reason)
	}
	requests := slices.Concat(w.plain.requests(), w.secure.requests())
	if v.want.allowed() {
		for _, s := range requests {
			if v.want.seen != "" && s.host != v.want.seen {
				t.Errorf("the upstream saw host %q, want %q", s.host, v.want.seen)
			}
		}
		if len(requests) == 0 {
			t.Error("the upstream saw nothing")
		}
		return
	}
	if len(requests) > 0 {
		t.Errorf("the upstream saw %+v", requests)
	}
	if names := w.dns.names(); len(names) > 0 && !v.want.asks {
		t.Errorf("DNS was asked for %q", names)
	}
}

// everyWay asks for the host by every way and compares the verdicts.
func (v vector) everyWay(t *testing.T, w *world) {
	ways := v.by
	if len(ways) == 0 {
		ways = []egress.Protocol{egress.HTTP, egress.Connect, egress.SOCKS}
	}
	for _, way := range ways {
		switch way {
		case egress.HTTP:
			v.byHTTP(t, w)
		case egress.Connect:
			v.byConnect(t, w)
		case egress.SOCKS:
			v.bySOCKS(t, w)
		case egress.Terminated:
		}
	}
	records := w.finish(t, len(ways))
	for i, r := range records {
		if r.Protocol != ways[i] {
			t.Errorf("decision %d is about %q, want %q", i, r.Protocol, ways[i])
		}
		if r.Allow != records[0].Allow || r.Reason != records[0].Reason || r.Host != records[0].Host {
			t.Errorf("by %s the verdict is %v %q %q, by %s %v %q %q", ways[0], records[0].Allow, records[0].Reason, records[0].Host, r.Protocol, r.Allow, r.Reason, r.Host)
		}
		v.check(t, w, r)
	}
}

func (v vector) byHTTP(t *testing.T, w *world) {
	target := v.host
	if v.port != 0 {
		target = v.authority(80)
	}
	c := w.dial(t)
	c.send("GET http://" + target + "/path?q=1 HTTP/1.1\r\nHost: host.invalid\r\n\r\n")
	got := c.answer(http.MethodGet)
	if got.status != v.want.code() {
		t.Errorf("HTTP: status %d, want %d: %s", got.status, v.want.code(), got.body)
	}
}

// authority is the host with a port.
func (v vector) authority(usual int) string {
	if v.port != 0 {
		usual = v.port
	}
	return v.host + ":" + itoa(usual)
}

func (v vector) byConnect(t *testing.T, w *world) {
	c, got := w.connectTo(t, v.authority(443))
	if got.status != v.want.code() {
		t.Errorf("CONNECT: status %d, want %d: %s", got.status, v.want.code(), got.body)
	}
	v.through(t, w, c, got.status == http.StatusOK)
}

func (v vector) bySOCKS(t *testing.T, w *world) {
	port := v.port
	if port == 0 {
		port = 443
	}
	c, code := w.socksTo(t, strings.Trim(v.host, "[]"), port)
	want := byte(0x02)
	switch {
	case v.want.allowed():
		want = 0
	case v.want.reason == egress.ReasonMalformed:
		want = 0x01
	case v.want.reason == egress.ReasonDNS:
		want = 0x04
	}
	if code != want {
		t.Errorf("SOCKS: reply %#x, want %#x", code, want)
	}
	v.through(t, w, c, code == 0)
}

// through uses an open tunnel, or sees the end of one that is not.
func (v vector) through(t *testing.T, w *world, c *wireConn, open bool) {
	if !open {
		if rest := c.closed(); rest != "" {
			t.Errorf("after the refusal came %q", rest)
		}
		return
	}
	host := v.want.seen
	conn, err := c.tls(w.pki, &tls.Config{ServerName: host})
	if err != nil {
		t.Errorf("TLS through the tunnel: %v", err)
		return
	}
	if got := get(t, conn, host, "/path"); got.status != http.StatusOK {
		t.Errorf("through the tunnel: %d", got.status)
	}
	_ = conn.Close()
}
