package gate_test

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate"
)

func itoa(n int) string { return strconv.Itoa(n) }

func outcomeOf(r egress.Reason) outcome { return outcome{reason: r} }

// hostVectors are the rows H about names that every way can carry.
func hostVectors() []vector {
	allow := func(seen string) outcome { return outcome{reason: egress.ReasonRule, seen: seen} }
	bad, denied := outcomeOf(egress.ReasonMalformed), outcomeOf(egress.ReasonNoRule)
	long := strings.Repeat("a", 64) + ".pkg.example.org"
	longest := strings.Repeat("a.", 120) + "pkg.example.org"
	rows := []vector{
		{id: "H01", spelling: "base", host: "api.example.com", want: allow("api.example.com")},
		{id: "H02", spelling: "upper case", host: "API.Example.COM", want: allow("api.example.com")},
		{id: "H03", spelling: "root dot", host: "api.example.com.", want: allow("api.example.com")},
		{id: "H04", spelling: "two dots", host: "api.example.com..", want: bad},
		{id: "H04", spelling: "inner dots", host: "api..example.com", want: bad},
		{id: "H04", spelling: "leading dot", host: ".api.example.com", want: bad},
		{id: "H05", spelling: "apex", host: "pkg.example.org", want: allow("pkg.example.org")},
		{id: "H05", spelling: "below", host: "a.pkg.example.org", want: allow("a.pkg.example.org")},
		{id: "H06", spelling: "no dot before the suffix", host: "notpkg.example.org", want: denied},
		{id: "H06", spelling: "suffix in the middle", host: "pkg.example.org.evil.test", want: denied},
		{id: "H06", spelling: "name in the front", host: "api.example.com.evil.test", want: denied},
		{id: "H06", spelling: "name at the end", host: "xapi.example.com", want: denied},
		{id: "H07", spelling: "percent", host: "api%2eexample.com", want: bad},
		{id: "H08", spelling: "encoded slash", host: "evil.test%2f.pkg.example.org", want: bad},
		{id: "H12", spelling: "userinfo of the allowed name", host: "api.example.com@evil.test", want: bad},
		{id: "H13", spelling: "userinfo before the allowed name", host: "evil.test@api.example.com", want: bad},
		{id: "H15", spelling: "backslash", host: `evil.test\@api.example.com`, want: bad},
		{id: "H15", spelling: "backslash alone", host: `evil.test\.pkg.example.org`, want: bad},
		{id: "H18", spelling: "IPv4 in brackets", host: "[127.0.0.1]", by: byHTTP(), want: bad},
		{id: "H18", spelling: "unclosed", host: "[::1", by: byHTTP(), want: bad},
		{id: "H18", spelling: "closed only", host: "::1]", by: byHTTP(), want: bad},
		{id: "H18", spelling: "zone", host: "[fe80::1%25eth0]", by: byHTTP(), want: bad},
		{id: "H18", spelling: "zone as a name", host: "fe80::1%eth0", by: []egress.Protocol{egress.SOCKS}, want: bad},
		{id: "H19", spelling: "ideographic full stop", host: "api\u3002example\u3002com", want: bad},
		{id: "H20", spelling: "Cyrillic i", host: "ap\u0456.example.com", want: bad},
		{id: "H21", spelling: "A-label of the homograph", host: "xn--ap-ioc.example.com", want: denied},
		{id: "H22", spelling: "A-label that is none", host: "xn--a.example.com", want: bad},
		{id: "H22", spelling: "leading hyphen", host: "-a.pkg.example.org", want: bad},
		{id: "H22", spelling: "trailing hyphen", host: "a-.pkg.example.org", want: bad},
		{id: "H25", spelling: "underscore", host: "a_b.pkg.example.org", want: allow("a_b.pkg.example.org")},
		{id: "H26", spelling: "long label", host: long, want: bad},
		{id: "H26", spelling: "long name", host: longest, want: bad},
		{id: "H27", spelling: "empty with a port", host: "", port: 80, by: byHTTP(), want: bad},
	}
	for name, text := range map[string]string{
		"CR LF": "api.example.com\r\nx: y", "LF": "api.example.com\nx", "space": "api.example.com evil.test", "slash": "evil.test/.pkg.example.org",
		"at": "evil@api.example.com", "colon": "api.example.com:443", "percent": "api%2eexample.com", "tab": "api\t.example.com", "DEL": "api\x7f.example.com",
	} {
		rows = append(rows, vector{id: "H11", spelling: name, host: text, port: 443, by: []egress.Protocol{egress.SOCKS}, want: bad})
	}
	return append(rows, []vector{
		{id: "H10", spelling: "NUL before the suffix", host: "evil.test\x00.pkg.example.org", port: 443, by: []egress.Protocol{egress.SOCKS}, want: bad},
		{id: "H16", spelling: "tab in the host", raw: "GET http://api\t.example.com/ HTTP/1.1\r\nHost: x\r\n\r\n", want: bad},
		{id: "H16", spelling: "space in the host", raw: "GET http://api .example.com/ HTTP/1.1\r\nHost: x\r\n\r\n", want: bad},
		{id: "H16", spelling: "space in the path", raw: "GET http://api.example.com/a b HTTP/1.1\r\nHost: x\r\n\r\n", want: bad},
		{id: "H16", spelling: "tab between", raw: "GET\thttp://api.example.com/ HTTP/1.1\r\nHost: x\r\n\r\n", want: bad},
		{id: "H16", spelling: "two spaces", raw: "GET  http://api.example.com/ HTTP/1.1\r\nHost: x\r\n\r\n", want: bad},
		{id: "H27", spelling: "empty", raw: "GET http:///x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad},
		{id: "H27", spelling: "no authority", raw: "GET http:// HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad},
	}...)
}

func byHTTP() []egress.Protocol { return []egress.Protocol{egress.HTTP, egress.Connect} }

// literalVectors are the rows I.
func literalVectors() []vector {
	var rows []vector
	add := func(id string, want egress.Reason, hosts ...string) {
		for _, host := range hosts {
			rows = append(rows, vector{id: id, spelling: strings.Trim(host, "[]"), host: host, want: outcomeOf(want)})
		}
	}
	add("I01", egress.ReasonMalformed, "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "0x7f.1", "1.2.3.4.5", "127.0.0.1.")
	lit := egress.ReasonLiteral
	add("I02", lit, "127.0.0.1", "[::1]", "0.0.0.0", "0.1.2.3", "[::]")
	add("I03", lit, "10.0.0.1", "172.16.0.1", "172.31.255.254", "192.168.1.1", "[fc00::1]", "[fd00:ec2::254]")
	add("I04", lit, "169.254.169.254", "[fe80::1]", "168.63.129.16", "100.100.100.200", "192.0.0.192")
	add("I06", lit, "100.64.0.1", "198.18.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "240.0.0.1", "255.255.255.255")
	add("I07", lit, "224.0.0.1", "[ff02::1]")
	add("I08", lit, "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]")
	add("I10", lit, "[64:ff9b::7f00:1]", "[64:ff9b:0:0:0:0:a9fe:a9fe]")
	add("I13", lit, "[2002:7f00:1::]")
	add("I14", lit, "[2001:0:4136:e378:8000:63bf:3fff:fdd2]", "[2001:db8::1]", "[3fff::1]", "[100::1]", "[2001:20::1]", "[5f00::1]", "[fec0::1]")
	add("I16", lit, "93.184.216.34")
	// The same addresses behind an allowed name: the screen's word.
	for _, row := range rows {
		addr, err := netip.ParseAddr(row.spelling)
		if err != nil || row.id == "I16" {
			continue
		}
		want := outcome{reason: egress.ReasonInward, asks: true}
		if row.id == "I04" || row.spelling == "fd00:ec2::254" || strings.HasSuffix(row.spelling, "a9fe:a9fe") {
			want.reason = egress.ReasonMetadata
		}
		rows = append(rows, vector{id: row.id, spelling: "name to " + addr.String() + " as " + row.spelling, host: "api.example.com", want: want,
			setup: setup{zone: map[string]answer{"api.example.com": {addrs: []string{row.spelling}}}}})
	}
	// An IPv4 address in the block for DNS64, which is decoded and screened.
	for name, prefix := range map[string]string{"well-known prefix": "64:ff9b::", "other prefix": "2001:67c:2b0:db32::"} {
		declared := func(c *gate.Config) { c.DNS64 = netip.MustParsePrefix(prefix + "/96") }
		zone := func(last string) map[string]answer {
			return map[string]answer{"api.example.com": {addrs: []string{prefix + last}}}
		}
		inward := outcome{reason: egress.ReasonInward, asks: true}
		rows = append(rows,
			vector{id: "I11", spelling: name + ", public", host: "api.example.com", setup: setup{config: declared, zone: zone("5db8:d822")}, want: outcome{reason: egress.ReasonRule, seen: "api.example.com"}},
			vector{id: "I11", spelling: name + ", inward", host: "api.example.com", setup: setup{config: declared, zone: zone("7f00:1")}, want: inward})
	}
	rows = append(rows, vector{id: "I11", spelling: "not declared", host: "api.example.com", setup: setup{zone: map[string]answer{"api.example.com": {addrs: []string{"64:ff9b::5db8:d822"}}}}, want: outcome{reason: egress.ReasonInward, asks: true}})
	return rows
}

// portVectors are the rows P.
func portVectors() []vector {
	var rows []vector
	for _, port := range []int{22, 25, 8443} {
		rows = append(rows, vector{id: "P01", spelling: itoa(port), host: "api.example.com", port: port, want: outcomeOf(egress.ReasonPort)})
	}
	bad := outcomeOf(egress.ReasonMalformed)
	for name, port := range map[string]string{"zero": "0", "too large": "99999", "empty": "", "sign": "+80", "leading zeros": "0080", "letters": "http", "negative": "-1", "two": "80:80"} {
		rows = append(rows,
			vector{id: "P02", spelling: name + " by HTTP", raw: "GET http://api.example.com:" + port + "/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad},
			vector{id: "P02", spelling: name + " by CONNECT", raw: "CONNECT api.example.com:" + port + " HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: bad})
	}
	return append(rows,
		vector{id: "P02", spelling: "zero by SOCKS", run: func(t *testing.T, w *world) {
			if _, code := w.socksTo(t, "api.example.com", 0); code != 1 {
				t.Errorf("reply %#x", code)
			}
			vector{want: bad}.check(t, w, w.finish(t, 1)[0])
		}},
		vector{id: "P01", spelling: "plain request to the port of TLS", raw: "GET http://api.example.com:443/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", want: outcomeOf(egress.ReasonNotTLS)},
	)
}

// addressVectors are the rows R.
func addressVectors() []vector {
	zone := func(a answer) map[string]answer { return map[string]answer{"api.example.com": a} }
	denied := func(r egress.Reason) outcome { return outcome{reason: r, asks: true} }
	allow := outcome{reason: egress.ReasonRule, seen: "api.example.com"}
	return []vector{
		{id: "R01", spelling: "loopback", host: "api.example.com", setup: setup{zone: zone(answer{addrs: []string{"127.0.0.1"}})}, want: denied(egress.ReasonInward)},
		{id: "R02", spelling: "public and metadata", host: "api.example.com", setup: setup{zone: zone(answer{addrs: []string{"93.184.216.34", "169.254.169.254"}})}, want: denied(egress.ReasonMetadata)},
		{id: "R02", spelling: "public and private IPv6", host: "api.example.com", setup: setup{zone: zone(answer{addrs: []string{"93.184.216.34", "fc00::1"}})}, want: denied(egress.ReasonInward)},
		{id: "R03", spelling: "rebinding", setup: setup{zone: zone(answer{turns: [][]string{{"93.184.216.34"}, {"127.0.0.1"}}})}, run: rebinding},
		{id: "R04", spelling: "CNAME to metadata", host: "api.example.com", setup: setup{zone: map[string]answer{
			"api.example.com": {cname: "metadata.internal"}, "metadata.internal": {addrs: []string{"169.254.169.254"}},
		}}, want: denied(egress.ReasonMetadata)},
		{id: "R05", spelling: "CNAME to a name that is not allowed", setup: setup{zone: zone(answer{cname: "evil.test"})}, run: func(t *testing.T, w *world) {
			v := vector{host: "api.example.com", want: allow}
			v.byHTTP(t, w)
			r := w.finish(t, 1)[0]
			v.check(t, w, r)
			if len(r.Chain) != 1 || r.Chain[0] != "evil.test" || len(r.Addresses) != 1 || r.Addresses[0] != publicAddr || r.Dialled != "93.184.216.34:80" {
				t.Errorf("chain %q, addresses %v, dialled %q", r.Chain, r.Addresses, r.Dialled)
			}
		}},
		{id: "R07", spelling: "SERVFAIL", host: "api.example.com", setup: setup{zone: zone(answer{code: dns.RcodeServerFailure})}, want: denied(egress.ReasonDNS)},
		{id: "R07", spelling: "NXDOMAIN", host: "api.example.com", setup: setup{zone: zone(answer{code: dns.RcodeNameError})}, want: denied(egress.ReasonDNS)},
		{id: "R07", spelling: "no records", host: "api.example.com", setup: setup{zone: zone(answer{})}, want: denied(egress.ReasonDNS)},
		{id: "R07", spelling: "no answer", host: "api.example.com", by: []egress.Protocol{egress.HTTP}, setup: setup{
			zone:   zone(answer{mute: true}),
			config: func(c *gate.Config) { c.Timeouts.Dial = 200e6 },
		}, want: denied(egress.ReasonDNS)},
		{id: "R08", spelling: "search list", host: "api", want: outcomeOf(egress.ReasonNoRule)},
		{id: "R09", spelling: "localhost", host: "localhost", want: outcomeOf(egress.ReasonNoRule)},
		{id: "R09", spelling: "name of this machine's hosts file", host: "localhost", setup: setup{policy: &egress.Policy{Allow: []string{"localhost", ".pkg.example.org"}}}, want: denied(egress.ReasonDNS)},
		{id: "R11", spelling: "data in a denied name", host: "c2VjcmV0.evil.test", want: outcomeOf(egress.ReasonNoRule)},
		{id: "R12", spelling: "this machine's public address", host: "api.example.com", setup: setup{self: []netip.Addr{publicAddr}}, want: denied(egress.ReasonSelf)},
	}
}

// rebinding asks twice: the second answer may be the first's, or a denial, and
// nothing goes to the address that came second.
func rebinding(t *testing.T, w *world) {
	v := vector{host: "api.example.com", want: outcome{reason: egress.ReasonRule, seen: "api.example.com"}}
	v.byHTTP(t, w)
	if err := w.gate.SetPolicy(t.Context(), policy()); err != nil { // forgets open connections
		t.Fatal(err)
	}
	v.want = outcome{reason: egress.ReasonInward, asks: true}
	v.byHTTP(t, w)
	records := w.finish(t, 2)
	if !records[0].Allow || records[1].Allow || records[1].Reason != egress.ReasonInward {
		t.Errorf("decisions %+v", records)
	}
	for _, to := range w.dials() {
		if to.Addr() != publicAddr && to.Addr() != otherAddr {
			t.Errorf("dialled %v", to)
		}
	}
}
