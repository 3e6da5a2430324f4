package egress_test

import (
	"strings"
	"testing"

	"github.com/berm-dev/berm/egress"
)

// vector is one spelling of a row of the bypass corpus, judged as a front end does
// it: the authority is taken apart, and the port is 80 where none is written.
type vector struct {
	id, authority string
	want          string // "A", "D400", or the reason of a denial
}

// vectorRules is the corpus's policy.
func vectorRules(t *testing.T) *egress.Rules {
	t.Helper()
	return compile(t, &egress.Policy{
		Allow:       []string{"api.example.com", ".pkg.example.org"},
		Credentials: []egress.Credential{{Host: "api.example.com", Value: "s3cr3t-token"}},
	})
}

func compile(t *testing.T, p *egress.Policy) *egress.Rules {
	t.Helper()
	r, err := egress.Compile(p, 7)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// judge returns what a front end would answer, and the canonical host.
func judge(r *egress.Rules, authority string) (string, egress.Verdict) {
	host, port, err := egress.SplitAuthority(authority)
	if err != nil {
		return "D400", egress.Verdict{}
	}
	if port == 0 {
		port = 80
	}
	v := r.Decide(egress.Query{Protocol: egress.HTTP, Host: host, Port: port})
	switch {
	case v.Allow:
		return "A", v
	case v.Reason == egress.ReasonMalformed:
		return "D400", v
	}
	return string(v.Reason), v
}

func TestVectors(t *testing.T) {
	t.Parallel()
	rules := vectorRules(t)
	long := strings.Repeat("a", 63)
	for _, x := range []vector{
		{"H01", "api.example.com", "A"},
		{"H02", "API.Example.COM", "A"},
		{"H03", "api.example.com.", "A"},
		{"H03", "api.example.com.:443", "A"},
		{"H04", "api.example.com..", "D400"},
		{"H04", ".api.example.com", "D400"},
		{"H04", "api..example.com", "D400"},
		{"H04", ".", "D400"},
		{"H05", "pkg.example.org", "A"},
		{"H05", "a.b.pkg.example.org", "A"},
		{"H06", "notpkg.example.org", "no-rule"},
		{"H06", "pkg.example.org.evil.test", "no-rule"},
		{"H06", "api.example.com.evil.test", "no-rule"},
		{"H06", "xapi.example.com", "no-rule"},
		{"H06", "x.api.example.com", "no-rule"},
		{"H06", "example.com", "no-rule"},
		{"H06", "example.org", "no-rule"},
		{"H07", "api%2eexample.com", "D400"},
		{"H08", "evil.test%2f.pkg.example.org", "D400"},
		{"H08", "evil.test/.pkg.example.org", "D400"},
		{"H08", "evil.test?.pkg.example.org", "D400"},
		{"H08", "evil.test#.pkg.example.org", "D400"},
		{"H10", "evil.test\x00.pkg.example.org", "D400"},
		{"H11", "evil.test\r\n.pkg.example.org", "D400"},
		{"H11", "evil.test\n.pkg.example.org", "D400"},
		{"H11", "evil test.pkg.example.org", "D400"},
		{"H11", "evil.test:80/.pkg.example.org", "D400"},
		{"H11", "evil.test:80:.pkg.example.org", "D400"},
		{"H12", "api.example.com@evil.test", "D400"},
		{"H13", "evil.test@api.example.com", "D400"},
		{"H13", "user:443@api.example.com", "D400"},
		{"H15", `evil.test\@api.example.com`, "D400"},
		{"H15", `evil.test\.pkg.example.org`, "D400"},
		{"H16", "api.example.com\t", "D400"},
		{"H16", " api.example.com", "D400"},
		{"H16", "api.example.com :80", "D400"},
		{"H16", "api.example.com: 80", "D400"},
		{"H18", "[127.0.0.1]", "D400"},
		{"H18", "[::1", "D400"},
		{"H18", "::1]", "D400"},
		{"H18", "[::1]]", "D400"},
		{"H18", "[[::1]]", "D400"},
		{"H18", "[::1]443", "D400"},
		{"H18", "[]", "D400"},
		{"H18", "[api.example.com]", "D400"},
		{"H18", "[::1%25lo]", "D400"},
		{"H18", "[fe80::1%lo]", "D400"},
		{"H18", "::1:80", "D400"},
		{"H19", "api。example。com", "D400"},
		{"H19", "api.example．com", "D400"},
		{"H19", "api.exam\u00adple.com", "D400"},
		{"H20", "apі.example.com", "D400"},
		{"H20", "api.example.com\u212a", "D400"},
		{"H20", "\u212aapi.pkg.example.org", "D400"},
		{"H21", "xn--ap-ioc.example.com", "no-rule"},
		{"H22", "xn--a.example.com", "D400"},
		{"H22", "xn--.pkg.example.org", "D400"},
		{"H22", "xn--api-.pkg.example.org", "D400"},
		{"H22", "xn--a_b-kva.pkg.example.org", "D400"},
		{"H22", "-a.pkg.example.org", "D400"},
		{"H22", "a-.pkg.example.org", "D400"},
		{"H22", "a.-pkg.example.org", "D400"},
		{"H25", "a_b.pkg.example.org", "A"},
		{"H25", "_dmarc.pkg.example.org", "A"},
		{"H25", "r3---sn-a.pkg.example.org", "A"},
		{"H25", "xn--bcher-kva.pkg.example.org", "A"},
		{"H26", long + ".pkg.example.org", "A"},
		{"H26", long + "a.pkg.example.org", "D400"},
		{"H26", strings.Repeat("a.", 119) + "pkg.example.org", "A"},
		{"H26", strings.Repeat("a.", 119) + "pkg.example.org.", "A"},
		{"H26", strings.Repeat("a.", 119) + "xpkg.example.org", "D400"},
		{"H26", strings.Repeat("a.", 1<<16) + "pkg.example.org", "D400"},
		{"H27", "", "D400"},
		{"H27", ":80", "D400"},

		{"I01", "2130706433", "D400"},
		{"I01", "0x7f000001", "D400"},
		{"I01", "0X7F000001", "D400"},
		{"I01", "0177.0.0.1", "D400"},
		{"I01", "0x7f.0.0.1", "D400"},
		{"I01", "127.0.0.0x1", "D400"},
		{"I01", "127.1", "D400"},
		{"I01", "127.0.0.01", "D400"},
		{"I01", "127.0.0.1.", "D400"},
		{"I01", "127.0.0.1.1", "D400"},
		{"I01", "256.0.0.1", "D400"},
		{"I01", "0", "D400"},
		{"I01", "0x", "D400"},
		{"I01", "a.pkg.example.org.1", "D400"},
		{"I01", "a.0x1f", "D400"},
		{"I02", "127.0.0.1", "literal"},
		{"I02", "[::1]", "literal"},
		{"I02", "0.0.0.0", "literal"},
		{"I02", "0.1.2.3", "literal"},
		{"I02", "[::]", "literal"},
		{"I03", "10.1.2.3", "literal"},
		{"I03", "172.16.0.1", "literal"},
		{"I03", "192.168.1.1", "literal"},
		{"I03", "[fc00::1]", "literal"},
		{"I03", "[fd00:ec2::254]", "literal"},
		{"I04", "169.254.169.254", "literal"},
		{"I04", "[fe80::1]", "literal"},
		{"I04", "168.63.129.16", "literal"},
		{"I04", "100.100.100.200", "literal"},
		{"I04", "192.0.0.192", "literal"},
		{"I06", "100.64.0.1", "literal"},
		{"I06", "198.18.0.1", "literal"},
		{"I06", "255.255.255.255", "literal"},
		{"I07", "224.0.0.1", "literal"},
		{"I07", "[ff02::1]", "literal"},
		{"I08", "[::ffff:127.0.0.1]", "literal"},
		{"I08", "[::ffff:a9fe:a9fe]", "literal"},
		{"I10", "[64:ff9b::7f00:1]", "literal"},
		{"I10", "[64:ff9b:0:0:0:0:a9fe:a9fe]", "literal"},
		{"I13", "[2002:7f00:1::]", "literal"},
		{"I14", "[2001:0:1::1]", "literal"},
		{"I14", "[2001:db8::1]", "literal"},
		{"I16", "93.184.216.34", "literal"},
		{"I16", "[2606:2800:220:1::1]:443", "literal"},

		{"R08", "api", "no-rule"},
		{"R09", "localhost", "no-rule"},
		{"R09", "api.example.com.localhost", "no-rule"},
		{"R11", "secret.evil.test", "no-rule"},

		{"P01", "api.example.com:22", "port"},
		{"P01", "api.example.com:25", "port"},
		{"P01", "api.example.com:8443", "port"},
		{"P01", "a.pkg.example.org:8080", "port"},
		{"P01", "api.example.com:80", "A"},
		{"P01", "api.example.com:443", "A"},
		{"P02", "api.example.com:0", "D400"},
		{"P02", "api.example.com:99999", "D400"},
		{"P02", "api.example.com:65536", "D400"},
		{"P02", "api.example.com:", "D400"},
		{"P02", "api.example.com:+80", "D400"},
		{"P02", "api.example.com:-80", "D400"},
		{"P02", "api.example.com:080", "D400"},
		{"P02", "api.example.com:0x50", "D400"},
		{"P02", "api.example.com:http", "D400"},
		{"P02", "api.example.com:8 0", "D400"},
		{"P02", "api.example.com:٨٠", "D400"},

		{"C05", "http://api.example.com:443/", "D400"},
		{"C05", "a:443@evil:443", "D400"},
		{"L01", "localhost:8080", "no-rule"},
	} {
		t.Run(x.id+"/"+clip(x.authority), func(t *testing.T) {
			t.Parallel()
			got, v := judge(rules, x.authority)
			if got != x.want {
				t.Errorf("%q: %s, want %s (%+v)", clip(x.authority), got, x.want, v)
			}
			if v.Reason != "" && v.Generation != 7 {
				t.Errorf("generation %d", v.Generation)
			}
			if v.Allow != (v.Reason == egress.ReasonRule || v.Reason == egress.ReasonAny || v.Reason == egress.ReasonCredential) {
				t.Errorf("reason %s for allow %v", v.Reason, v.Allow)
			}
			// The same must hold for those who have the host alone (SOCKS).
			if x.want == "A" {
				checkAllowed(t, v)
			}
		})
	}
}

// checkAllowed wants a canonical verdict with the corpus's attributes.
func checkAllowed(t *testing.T, v egress.Verdict) {
	t.Helper()
	if v.Host != strings.ToLower(v.Host) || strings.HasSuffix(v.Host, ".") {
		t.Errorf("host %q is not canonical", v.Host)
	}
	if v.Brokered != (v.Host == "api.example.com") || v.Opaque || v.Inward || v.Rule == "" {
		t.Errorf("attributes: %+v", v)
	}
}

func clip(s string) string { return s[:min(len(s), 60)] }

// TestSOCKSNames: a SOCKS name comes with its length, so that any byte can be in
// it, and does not go through an authority.
func TestSOCKSNames(t *testing.T) {
	t.Parallel()
	rules := vectorRules(t)
	for _, x := range []vector{
		{"H10", "evil.test\x00.pkg.example.org", ""},
		{"H11", "evil.test\r\nHost: a.pkg.example.org", ""},
		{"H11", "a b.pkg.example.org", ""},
		{"H11", "a/b.pkg.example.org", ""},
		{"H11", "a@b.pkg.example.org", ""},
		{"H11", "a:b.pkg.example.org", ""},
		{"H11", "api.example.com:443", ""},
		{"H11", "a%b.pkg.example.org", ""},
		{"H11", "a\x1b[31m.pkg.example.org", ""},
		{"H18", "[::1]", ""},
		{"V05", "", ""},
		{"V05", strings.Repeat("a", 255), ""},
	} {
		t.Run(x.id+"/"+clip(x.authority), func(t *testing.T) {
			t.Parallel()
			v := rules.Decide(egress.Query{Protocol: egress.SOCKS, Host: x.authority, Port: 443})
			if v.Allow || v.Reason != egress.ReasonMalformed || v.Host != "" {
				t.Errorf("%q: %+v", x.authority, v)
			}
		})
	}
}

// TestC02: without a port nothing is allowed.
func TestC02(t *testing.T) {
	t.Parallel()
	for _, port := range []int{0, -1, 65536, 1 << 40} {
		v := vectorRules(t).Decide(egress.Query{Protocol: egress.Connect, Host: "api.example.com", Port: port})
		if v.Allow || v.Reason != egress.ReasonMalformed || v.Host != "api.example.com" {
			t.Errorf("port %d: %+v", port, v)
		}
	}
}
