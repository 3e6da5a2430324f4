//go:build linux

package egress_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate"
)

// row is one spelling of a row of the vector table, on the whole path: a sandbox
// asks by HTTP, CONNECT and SOCKS5.
type row struct {
	id, host string
	// reason is the refusal's; empty for what is allowed.
	reason egress.Reason
	// at are the addresses one of which the server was reached at, and chain the
	// names on the way there, of what is allowed.
	at    []string
	chain []string
	// malformed: it has no canonical form, which is 400.
	malformed bool
}

func rows() []row {
	const below = ".pkg.example.org"
	web := []string{webAddr, webAddr6}
	return []row{
		{id: "H01", host: "base" + below, at: web},
		{id: "H01/v4", host: "four" + below, at: web[:1]},
		{id: "H01/v6", host: "six" + below, at: web[1:]},
		{id: "R01/loopback", host: "loop" + below, reason: egress.ReasonInward},
		{id: "R01/loopback6", host: "loop6" + below, reason: egress.ReasonInward},
		{id: "R01/unspecified", host: "zero" + below, reason: egress.ReasonInward},
		{id: "R01/private", host: "private" + below, reason: egress.ReasonInward},
		{id: "R02/mixed", host: "mixed" + below, reason: egress.ReasonMetadata},
		{id: "R02/mixed6", host: "mixed6" + below, reason: egress.ReasonMetadata},
		{id: "R04/alias", host: "alias" + below, reason: egress.ReasonMetadata, chain: []string{"metadata.internal"}},
		{id: "R05/alias", host: "alias2" + below, at: []string{otherAddr}, chain: []string{"target.evil.test"}},
		{id: "R07/servfail", host: "servfail" + below, reason: egress.ReasonDNS},
		{id: "R07/timeout", host: "silent" + below, reason: egress.ReasonDNS},
		{id: "R07/no records", host: "empty" + below, reason: egress.ReasonDNS},
		{id: "R08/search list", host: "api", reason: egress.ReasonNoRule},
		{id: "R09/hosts file", host: "hosted" + below, at: web},
		{id: "R09/localhost", host: "localhost", reason: egress.ReasonNoRule},
		{id: "R11/denied", host: "secret.evil.test", reason: egress.ReasonNoRule},
		{id: "R11/a long name", host: strings.Repeat("stolen.", 20) + "evil.test", reason: egress.ReasonNoRule},
		{id: "R12/self", host: "self" + below, reason: egress.ReasonSelf},
		{id: "R12/self6", host: "self6" + below, reason: egress.ReasonSelf},
		{id: "R12/among others", host: "selfmixed" + below, reason: egress.ReasonSelf},
		{id: "I11/not declared", host: "undeclared" + below, reason: egress.ReasonInward},
		{id: "L01/localhost", host: "localhost.", reason: egress.ReasonNoRule},
		{id: "L01/literal", host: "127.0.0.1", reason: egress.ReasonLiteral},
		{id: "L01/literal6", host: "[::1]", reason: egress.ReasonLiteral},
		{id: "I04/name", host: "meta" + below, reason: egress.ReasonMetadata},
		{id: "I04/Azure", host: "azure" + below, reason: egress.ReasonMetadata},
		{id: "I04/literal", host: "169.254.169.254", reason: egress.ReasonLiteral},
		{id: "I04/v6", host: "[fd00:ec2::254]", reason: egress.ReasonLiteral},
		{id: "I04/mapped", host: "[::ffff:169.254.169.254]", reason: egress.ReasonLiteral},
		{id: "I04/mapped hex", host: "[::ffff:a9fe:a9fe]", reason: egress.ReasonLiteral},
		{id: "I04/NAT64", host: "[64:ff9b::a9fe:a9fe]", reason: egress.ReasonLiteral},
		{id: "I04/6to4", host: "[2002:a9fe:a9fe::]", reason: egress.ReasonLiteral},
		{id: "I04/decimal", host: "2852039166", malformed: true},
		{id: "I04/hexadecimal", host: "0xa9fea9fe", malformed: true},
		{id: "I04/dotted hexadecimal", host: "0xa9.0xfe.0xa9.0xfe", malformed: true},
		{id: "I04/octal", host: "0251.0376.0251.0376", malformed: true},
		{id: "I04/short", host: "169.254.43518", malformed: true},
		{id: "I04/name of Google's", host: "metadata.google.internal", reason: egress.ReasonNoRule},
		{id: "I16/public literal", host: webAddr, reason: egress.ReasonLiteral},
		{id: "I16/public literal6", host: "[" + webAddr6 + "]", reason: egress.ReasonLiteral},
	}
}

// testRows: the rows that need name servers, or addresses that look public.
func (w *world) testRows(t *testing.T) {
	for _, r := range rows() {
		t.Run(r.id, func(t *testing.T) {
			t.Parallel()
			w.row(t, r)
		})
	}
	t.Run("R03/rebinding", func(t *testing.T) { t.Parallel(); w.rebinding(t) })
	t.Run("R08/asked as it is", func(t *testing.T) { t.Parallel(); w.searchList(t) })
	t.Run("R09/allowed by name", func(t *testing.T) { t.Parallel(); w.localhost(t) })
	t.Run("L01/the gate itself", func(t *testing.T) { t.Parallel(); w.ownAddress(t) })
	t.Run("I04/exempt", func(t *testing.T) { t.Parallel(); w.exemptMetadata(t) })
	t.Run("I11/declared", func(t *testing.T) { t.Parallel(); w.nat64(t) })
}

func (w *world) row(t *testing.T, r row) {
	t.Helper()
	b := w.box(t, policy(""))
	began := time.Now()
	got := b.probe(r.host)
	took := time.Since(began)
	want := probe{"403 " + string(r.reason), "403 " + string(r.reason), "2"}
	switch {
	case r.malformed:
		want = probe{"400 malformed", "400 malformed", "1"}
	case r.reason == egress.ReasonDNS:
		want.SOCKS = "4"
	case r.reason == "":
		want = probe{"200", "200", "0"}
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if bound := 3 * liveness; took > bound && r.host != "silent.pkg.example.org" {
		t.Errorf("it took %v", took)
	}
	w.onRecord(t, b, r)
	if alive := b.probe("alive.pkg.example.org"); alive != (probe{"200", "200", "0"}) {
		t.Errorf("afterwards the gate gives %+v", alive)
	}
}

// onRecord wants one decision for each of the three requests.
func (w *world) onRecord(t *testing.T, b *box, r row) {
	t.Helper()
	records := w.records.decisions(b.ID())
	if len(records) != 3 {
		t.Errorf("%d decisions are on record: %+v", len(records), records)
	}
	for _, rec := range records {
		want := r.reason
		switch {
		case r.malformed:
			want = egress.ReasonMalformed
		case want == "":
			want = egress.ReasonRule
		}
		if rec.Reason != want || rec.Allow != (r.reason == "" && !r.malformed) || !slices.Equal(rec.Chain, r.chain) {
			t.Errorf("on record: %+v", rec)
		}
		dialled, err := netip.ParseAddrPort(rec.Dialled)
		if (len(r.at) > 0) != (err == nil) || err == nil && !slices.Contains(r.at, dialled.Addr().String()) {
			t.Errorf("dialled %q, want one of %q", rec.Dialled, r.at)
		}
	}
	visits := w.web.to(strings.TrimSuffix(r.host, "."))
	if (len(r.at) > 0) != (len(visits) > 0) {
		t.Errorf("%d requests arrived", len(visits))
	}
	for _, v := range visits {
		if !slices.Contains(r.at, v.at) {
			t.Errorf("a request arrived at %s", v.at)
		}
	}
}

// rebinding: a name that is public at one look and the gate's own machine's at
// the next leads to the public address or nowhere.
func (w *world) rebinding(t *testing.T) {
	b := w.box(t, policy(""))
	allowed := 0
	for range 6 {
		p := b.probe("rebind.pkg.example.org")
		for _, got := range []string{p.HTTP, p.Connect} {
			switch got {
			case "200":
				allowed++
			case "403 inward":
			default:
				t.Errorf("%q", got)
			}
		}
	}
	for _, r := range w.records.decisions(b.ID()) {
		if r.Dialled != "" && !strings.HasPrefix(r.Dialled, webAddr+":") {
			t.Errorf("dialled %s", r.Dialled)
		}
	}
	if allowed == 0 || allowed == 12 {
		t.Errorf("the name has not changed: %d of 12", allowed)
	}
}

// searchList: a name that is allowed is asked for as it is, and not below the
// domains of the machine's search list.
func (w *world) searchList(t *testing.T) {
	b := w.box(t, &egress.Policy{Allow: []string{"api"}})
	if got := b.probe("api"); got.HTTP != "403 dns" || got.Connect != "403 dns" {
		t.Errorf("%+v", got)
	}
	for _, r := range w.records.decisions(b.ID()) {
		if r.Host != "api" || len(r.Addresses) > 0 {
			t.Errorf("%+v", r)
		}
	}
	w.dns.mu.Lock()
	defer w.dns.mu.Unlock()
	if !slices.Contains(w.dns.questions, "api.") || slices.Contains(w.dns.questions, "api.pkg.example.org.") {
		t.Error("the name was not asked for as it is")
	}
}

// localhost: a rule for the name does not lead to the gate's machine, whatever
// the hosts file or the name server says.
func (w *world) localhost(t *testing.T) {
	b := w.box(t, &egress.Policy{Allow: []string{"localhost", "pkg.example.org"}})
	if got := b.probe("localhost"); got.HTTP != "403 inward" || got.Connect != "403 inward" || got.SOCKS != "2" {
		t.Errorf("%+v", got)
	}
	// This one is in the hosts file as loopback, and at the name server as public.
	if got := b.probe("pkg.example.org"); got != (probe{"200", "200", "0"}) {
		t.Errorf("%+v", got)
	}
}

// ownAddress: the gate does not lead to itself, by whatever name.
func (w *world) ownAddress(t *testing.T) {
	b := w.box(t, &egress.Policy{AllowAny: true})
	for _, target := range []string{"127.0.0.1:3128", "[::1]:3128", "localhost:3128", "loop.pkg.example.org:3128", bermAddr + ":80", "self.pkg.example.org:80"} {
		for _, request := range []string{
			"CONNECT " + target + " HTTP/1.1\nHost: " + target + "\n\n",
			"GET http://" + target + "/ HTTP/1.1\nHost: " + target + "\n\n",
		} {
			if got := b.run("raw-get", request); !strings.HasPrefix(got, "403 ") {
				t.Errorf("%q: %q", request, got)
			}
		}
	}
	if got := b.run("raw-get", "GET / HTTP/1.1\nHost: 127.0.0.1:3128\n\n"); got != "400 malformed\n" {
		t.Errorf("to the gate itself: %q", got)
	}
}

// exemptMetadata: no exemption and no rule reaches a cloud's metadata.
func (w *world) exemptMetadata(t *testing.T) {
	b := w.box(t, &egress.Policy{
		Allow: []string{".pkg.example.org"}, AllowAny: true,
		AllowInwardFor: []string{"meta.pkg.example.org", "alias.pkg.example.org", "mixed.pkg.example.org", "azure.pkg.example.org"},
	})
	for _, host := range []string{"meta", "alias", "mixed", "azure"} {
		if got := b.probe(host + ".pkg.example.org"); got != (probe{"403 metadata", "403 metadata", "2"}) {
			t.Errorf("%s: %+v", host, got)
		}
	}
	if _, err := w.provider.Create(bounded(t), berm.CreateOptions{Egress: &egress.Policy{Allow: []string{"169.254.169.254"}}}); err == nil {
		t.Error("a rule for the metadata address was taken")
	}
}

// nat64: behind a translator that the gate knows, an address is what it is
// translated to. Only a gate by itself can be told.
func (w *world) nat64(t *testing.T) {
	l, err := gate.ListenLoopback(t.Context(), gate.Config{
		Sandbox: "nat64", Policy: policy(""), Sink: w.records, DNS64: netip.MustParsePrefix("64:ff9b::/96"), Nameservers: []string{dnsAddr},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	for host, want := range map[string]string{"nat64.pkg.example.org": "200", "nat64loop.pkg.example.org": "403"} {
		conn, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // it has a deadline
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		key := base64.StdEncoding.EncodeToString([]byte(l.Username() + ":" + l.Password()))
		fmt.Fprintf(conn, "GET http://%s/page HTTP/1.1\r\nHost: %s\r\nProxy-Authorization: Basic %s\r\n\r\n", host, host, key)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		_ = conn.Close()
		if got := fmt.Sprint(res.StatusCode); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
	if visits := w.web.to("nat64.pkg.example.org"); len(visits) != 1 || visits[0].at != nat64Addr {
		t.Errorf("arrived: %+v", visits)
	}
}
