package egress_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

// TestY03: nothing said is nothing allowed.
func TestY03(t *testing.T) {
	t.Parallel()
	var none *egress.Rules
	for name, r := range map[string]*egress.Rules{"nil rules": none, "nil policy": compile(t, nil), "zero policy": compile(t, &egress.Policy{})} {
		for _, host := range []string{"api.example.com", "93.184.216.34", "localhost", "api..com"} {
			if v := r.Decide(egress.Query{Host: host, Port: 443}); v.Allow || v.Reason == "" {
				t.Errorf("%s: %q: %+v", name, host, v)
			}
		}
		if _, ok := r.Credential("api.example.com"); ok || len(r.Credentials()) > 0 || r.Resolver() != nil {
			t.Errorf("%s has something", name)
		}
		if e := r.Explain(egress.Query{Host: "api.example.com", Port: 443}); e.Verdict.Allow || e.Hint == "" {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// TestY02: a faulty policy is no policy, and every fault is in the error.
func TestY02(t *testing.T) {
	t.Parallel()
	p := &egress.Policy{
		Allow:          []string{"api.example.com", ".com", "10.0.0.1:80", "a b"},
		AllowInwardFor: []string{"169.254.169.254"},
		Credentials:    []egress.Credential{{Host: "api.example.com"}},
	}
	r, err := egress.Compile(p, 1)
	if r != nil || !errors.Is(err, errdefs.Invalid) {
		t.Fatalf("%v, %v", r, err)
	}
	for _, want := range []string{`".com"`, `"10.0.0.1:80"`, `"a b"`, `"169.254.169.254"`, `"api.example.com": exactly one`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in %v", want, err)
		}
	}
}

// TestRefusedRules: what would allow more than it says, or says it in two ways.
func TestRefusedRules(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"":                       "empty",
		"tcp://":                 "empty",
		"*":                      "star",
		".":                      "empty",
		"*.":                     "empty",
		".com":                   "public suffix",
		"*.com":                  "public suffix",
		".co.uk":                 "public suffix",
		"*.co.uk":                "public suffix",
		".github.io":             "public suffix",
		"*.s3.amazonaws.com":     "public suffix",
		".corp":                  "public suffix",
		"tcp://.com:443":         "public suffix",
		"API.example.com":        "write api.example.com",
		"api.example.com.":       "write api.example.com",
		"a*.example.com":         "star",
		"*.*.example.com":        "star",
		"api.*.com":              "star",
		"..example.com":          "label is empty",
		"http://example.com":     "scheme",
		"https://example.com":    "scheme",
		"tcp://tcp://a.com:1":    "scheme",
		"tcp://db.example.com":   "lacks a port",
		"example.com/path":       "block",
		"example.com:0":          "port",
		"example.com:":           "port",
		"example.com:443:443":    "brackets",
		"example.com:080":        "port",
		"user@example.com":       "byte",
		"example.com ":           "byte",
		"exa\u00admple.com":      "IDNA",
		"BÜCHER.example":         "write xn--bcher-kva.example",
		"api。example。com":        "write api.example.com",
		"xn--a.example.com":      "A-label",
		"0x7f.1":                 "number",
		"127.1":                  "number",
		"0.0.0.0/0":              "too wide",
		"::/0":                   "too wide",
		"128.0.0.0/1":            "too wide",
		"2000::/3":               "too wide",
		"93.184.216.34/24":       "write 93.184.216.0/24",
		"93.184.216.0/024":       "block",
		"93.184.216.0/":          "block",
		"93.184.216.0/33":        "block",
		"::ffff:93.184.0.0/112":  "IPv4 block in IPv6",
		"[::ffff:1.1.1.1]:443":   "write 1.1.1.1",
		"2606:4700::1111":        "brackets",
		"[2606:4700::1111":       "brackets",
		"[1.1.1.1]":              "brackets",
		".1.1.1.1":               "address",
		"*.1.1.1.1":              "address",
		"127.0.0.1:80":           "Loopback",
		"10.0.0.0/8":             "Private-Use",
		"192.168.0.0/24":         "Private-Use",
		"100.64.0.0/10":          "Shared",
		"[::1]:80":               "Loopback",
		"[64:ff9b::7f00:1]":      "Translation",
		"2002::/16":              "6to4",
		"fc00::/16":              "Unique-Local",
		"8000::/16":              "not public",
		"169.254.169.254":        "metadata",
		"169.254.0.0/16":         "metadata",
		"168.63.129.16":          "metadata",
		"[fd00:ec2::254]":        "metadata",
		"[fe80::1]":              "metadata",
		"[64:ff9b::a9fe:a9fe]":   "metadata",
		"a.com\x00":              "byte",
		strings.Repeat("a", 2e3): "too long",
	} {
		t.Run(clip(rule), func(t *testing.T) {
			t.Parallel()
			_, err := egress.Compile(&egress.Policy{Allow: []string{rule}}, 1)
			if !errors.Is(err, errdefs.Invalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", clip(rule), err, want)
			}
		})
	}
}

// TestRules: each form, what it covers, and what lies beside it.
func TestRules(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ rule, yes, no string }{
		{"a.example.com", "a.example.com:80 A.EXAMPLE.com.:443", "b.example.com:80 a.a.example.com:80 a.example.com:8443"},
		{".example.com", "example.com:80 a.example.com:443 a.b.example.com:80", "aexample.com:80 example.com.evil.test:80 com:80"},
		{"*.example.com", "a.example.com:443 a.b.example.com:80", "example.com:80 aexample.com:80"},
		{"*.example.com:8443", "a.example.com:8443", "example.com:8443 a.example.com:443"},
		{"a.example.com:8443", "a.example.com:8443", "a.example.com:443 a.example.com:80"},
		{"tcp://db.example.com:5432", "db.example.com:5432", "db.example.com:443 x.db.example.com:5432"},
		{"tcp://.example.com:22", "example.com:22 a.example.com:22", "example.com:443"},
		{"bücher.example", "xn--bcher-kva.example:80", "bucher.example:80"},
		{"*.bücher.example", "a.xn--bcher-kva.example:80", "xn--bcher-kva.example:80"},
		{"a_b.example.com", "a_b.example.com:80", "ab.example.com:80"},
		{"github.io", "github.io:443", "a.github.io:443"},
		{"93.184.216.34:443", "93.184.216.34:443 [::ffff:93.184.216.34]:443", "93.184.216.34:80 93.184.216.35:443"},
		{"93.184.216.0/24", "93.184.216.1:80 93.184.216.255:443", "93.184.217.1:80 93.184.216.1:22"},
		{"93.184.216.0/24:22", "93.184.216.1:22", "93.184.216.1:80"},
		{"[2606:4700::1111]:443", "[2606:4700::1111]:443 [2606:4700:0:0::1111]:443", "[2606:4700::1112]:443 [2606:4700::1111]:80"},
		{"2606:4700::/32", "[2606:4700:1::1]:80", "[2606:4701::1]:80"},
		{"[2606:4700::/32]:22", "[2606:4700:1::1]:22", "[2606:4700:1::1]:80"},
		{"tcp://93.184.216.34:22", "93.184.216.34:22", "93.184.216.34:80"},
		// Wider than what is public in it: the rest stays shut.
		{"100.0.0.0/8", "100.1.1.1:80", "100.64.0.1:80 100.100.100.200:80"},
		{"168.0.0.0/8", "168.1.1.1:80", "168.63.129.16:80"},
		{"2001::/16", "[2001:4860:4860::8888]:80", "[2001::1]:80 [2001:db8::1]:80"},
	} {
		r := compile(t, &egress.Policy{Allow: []string{x.rule}})
		for authority := range strings.FieldsSeq(x.yes) {
			if got, v := judge(r, authority); got != "A" || v.Rule != x.rule || v.Opaque != strings.HasPrefix(x.rule, "tcp:") {
				t.Errorf("%s does not allow %s: %s %+v", x.rule, authority, got, v)
			}
		}
		for authority := range strings.FieldsSeq(x.no) {
			if got, v := judge(r, authority); got == "A" {
				t.Errorf("%s allows %s: %+v", x.rule, authority, v)
			}
		}
	}
}

// TestPrecedence: of several rules the most specific one says what goes through.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		allow, authority, rule string
		opaque                 bool
	}{
		{"tcp://.example.com:443 a.example.com", "a.example.com:443", "a.example.com", false},
		{"a.example.com tcp://a.example.com:443", "a.example.com:443", "tcp://a.example.com:443", true},
		{"tcp://a.example.com:443 a.example.com:443", "a.example.com:443", "a.example.com:443", false},
		{".example.com tcp://.b.example.com:443", "a.b.example.com:443", "tcp://.b.example.com:443", true},
		{"tcp://.example.com:443 .b.example.com", "a.b.example.com:443", ".b.example.com", false},
		{"tcp://*.b.example.com:443 .b.example.com:443", "a.b.example.com:443", "tcp://*.b.example.com:443", true},
		{"a.example.com tcp://.example.com:22", "a.example.com:22", "tcp://.example.com:22", true},
		{"93.0.0.0/8 tcp://93.184.0.0/16:443", "93.184.1.1:443", "tcp://93.184.0.0/16:443", true},
	} {
		r := compile(t, &egress.Policy{Allow: strings.Fields(x.allow)})
		if got, v := judge(r, x.authority); got != "A" || v.Rule != x.rule || v.Opaque != x.opaque {
			t.Errorf("%s: %s: %s %+v", x.allow, x.authority, got, v)
		}
	}
}

func TestAllowAny(t *testing.T) {
	t.Parallel()
	r := compile(t, &egress.Policy{
		AllowAny: true, Allow: []string{"pinned.example.com", "93.184.216.34"},
		Credentials: []egress.Credential{{Host: "api.example.com", Value: "s3cr3t-token"}},
	})
	for _, x := range []struct {
		authority, want  string
		opaque, brokered bool
	}{
		{"anything.example.net:443", "any", true, false},
		{"anything.example.net:22", "any", true, false},
		{"pinned.example.com:443", "rule", false, false},
		{"pinned.example.com:22", "any", true, false},
		{"api.example.com:443", "credential", false, true},
		{"api.example.com:8443", "any", false, true},
		{"93.184.216.34:80", "rule", false, false},
		{"93.184.216.35:80", "literal", false, false},
		{"127.0.0.1:80", "literal", false, false},
		{"localhost:80", "no-rule", false, false},
		{"printer:80", "no-rule", false, false},
		{"a.localhost:80", "no-rule", false, false},
		{"printer.local:80", "no-rule", false, false},
		{"metadata.google.internal:80", "no-rule", false, false},
		{"router.home.arpa:80", "no-rule", false, false},
		{"api..example.com:80", "D400", false, false},
	} {
		got, v := judge(r, x.authority)
		if got == "A" {
			got = string(v.Reason)
		}
		if got != x.want || v.Opaque != x.opaque || v.Brokered != x.brokered {
			t.Errorf("%s: %s %+v", x.authority, got, v)
		}
	}
}

// TestAllowInwardFor: an exemption is for one host, allows nothing by itself, and
// is not given away by a rule.
func TestAllowInwardFor(t *testing.T) {
	t.Parallel()
	r := compile(t, &egress.Policy{
		Allow:          []string{"db.example.com:5432", "web.example.com", ".pkg.example.org", "127.0.0.1:8080", "10.1.0.0/16:80", "[fd00::1]:80"},
		AllowInwardFor: []string{"db.example.com:5432", "web.example.com:443", "pkg.example.org", "other.example.com", "127.0.0.1:8080", "10.1.0.0/16", "[fd00::1]"},
	})
	for _, x := range []struct {
		authority, want string
		inward          bool
	}{
		{"db.example.com:5432", "A", true},
		{"web.example.com:443", "A", true},
		{"web.example.com:80", "A", false},
		{"pkg.example.org:80", "A", true},
		{"a.pkg.example.org:80", "A", false},
		{"other.example.com:80", "no-rule", false},
		{"127.0.0.1:8080", "A", true},
		{"127.0.0.1:8081", "port", false},
		{"10.1.2.3:80", "A", true},
		{"10.2.2.3:80", "literal", false},
		{"[fd00::1]:80", "A", true},
	} {
		if got, v := judge(r, x.authority); got != x.want || v.Inward != x.inward {
			t.Errorf("%s: %s %+v", x.authority, got, v)
		}
	}
	for _, bad := range []string{".example.com", "*.example.com", "tcp://a.example.com:1", "169.254.169.254", "[fe80::1]:80", "169.254.0.0/16", "A.com", "", "0.0.0.0/0"} {
		if _, err := egress.Compile(&egress.Policy{AllowInwardFor: []string{bad}}, 1); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("exemption %q: %v", bad, err)
		}
	}
	for allow, exempt := range map[string]string{"10.0.0.0/8": "10.0.0.0/16", "127.0.0.1:80": "127.0.0.1:81", "10.0.0.0/16": "db.example.com"} {
		if _, err := egress.Compile(&egress.Policy{Allow: []string{allow}, AllowInwardFor: []string{exempt}}, 1); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("%s by the exemption %s: %v", allow, exempt, err)
		}
	}
	// A block that is exempt has cloud metadata in it, which is not.
	r = compile(t, &egress.Policy{Allow: []string{"100.64.0.0/10"}, AllowInwardFor: []string{"100.64.0.0/10"}})
	if got, v := judge(r, "100.100.100.200"); got != "metadata" || v.Inward {
		t.Errorf("metadata in an exempt block: %s %+v", got, v)
	}
}

func TestWith(t *testing.T) {
	t.Parallel()
	calls := egress.Resolver(func(context.Context) ([]string, error) { return nil, nil })
	r := compile(t, &egress.Policy{Allow: []string{"a.example.com"}, Resolver: calls, Credentials: []egress.Credential{{Host: "api.example.com", Value: "s3cr3t-token"}}})
	denied := r.Decide(egress.Query{Host: "b.example.com", Port: 443})
	if !r.AskResolver(denied) || r.AskResolver(r.Decide(egress.Query{Host: "a.example.com", Port: 443})) || r.AskResolver(r.Decide(egress.Query{Host: "a..b", Port: 443})) {
		t.Error("AskResolver is not about denials that rules could change")
	}
	more, err := r.With([]string{"b.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	v := more.Decide(egress.Query{Host: "b.example.com", Port: 443})
	if !v.Allow || v.Generation != 7 || r.Decide(egress.Query{Host: "b.example.com", Port: 443}).Allow {
		t.Errorf("with: %+v", v)
	}
	if _, ok := more.Credential("api.example.com"); !ok {
		t.Error("the credential is lost")
	}
	for _, bad := range []string{".com", "10.0.0.1", "tcp://api.example.com:443"} {
		if got, err := r.With([]string{bad}); got != nil || !errors.Is(err, errdefs.Invalid) {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}

// TestPolicyIsCopied: what the caller does to its policy afterwards is its own.
func TestPolicyIsCopied(t *testing.T) {
	t.Parallel()
	p := &egress.Policy{Allow: []string{"a.example.com"}, Credentials: []egress.Credential{{Host: "api.example.com", Value: "s3cr3t-token", Paths: []string{"/v1"}}}}
	r := compile(t, p)
	p.Allow[0], p.Credentials[0].Host, p.Credentials[0].Paths[0] = "b.example.com", "c.example.com", "/"
	more, err := r.With(nil)
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := r.Credential("api.example.com"); !ok || c.Paths[0] != "/v1" || more.Decide(egress.Query{Host: "b.example.com", Port: 80}).Allow {
		t.Errorf("the rules changed: %+v", c)
	}
}

func TestHostAllowed(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		host, rules string
		want        bool
	}{
		{"a.example.com", ".example.com", true},
		{"A.example.com.", "b.test *.example.com", true},
		{"a.example.com", "tcp://a.example.com:22", true},
		{"example.com", "*.example.com", false},
		{"a..example.com", ".example.com", false},
		{"a.example.com", ".example.com .com", false},
		{"a.example.com", "", false},
		{"93.184.216.34", "93.184.0.0/16", true},
		{"127.0.0.1", "127.0.0.0/8", false},
		{"127.0.0.1", ".example.com", false},
		{"100.64.0.1", "100.0.0.0/8", false},
	} {
		if got := egress.HostAllowed(x.host, strings.Fields(x.rules)...); got != x.want {
			t.Errorf("%s by %s: %v", x.host, x.rules, got)
		}
	}
}

// TestExplain: every rule has its line, and the hint is a rule that works.
func TestExplain(t *testing.T) {
	t.Parallel()
	p := &egress.Policy{
		Allow:       []string{"b.example.com", "*.example.com", "93.184.216.0/24", "example.com:8443"},
		AllowAny:    false,
		Credentials: []egress.Credential{{ID: "key", Host: "api.example.com", Value: "s3cr3t-token"}},
	}
	r := compile(t, p)
	for _, authority := range []string{"example.com:443", "other.test:443", "api.example.com:22", "8.8.8.8:80", "[2606:4700::1111]:80", "a.example.com:443", "93.184.216.1:80", "xexample.com:443"} {
		host, port, err := egress.SplitAuthority(authority)
		if err != nil {
			t.Fatal(err)
		}
		e := r.Explain(egress.Query{Host: host, Port: port})
		if len(e.Steps) != 5 || e.Verdict.Allow == (e.Hint != "") {
			t.Errorf("%s: %+v", authority, e)
		}
		matched := false
		for i, s := range e.Steps {
			if s.Rule == "" || s.Why == "" || i < 4 && s.Rule != p.Allow[i] {
				t.Errorf("%s: step %d: %+v", authority, i, s)
			}
			matched = matched || s.Matched
		}
		if matched != e.Verdict.Allow {
			t.Errorf("%s: allow %v with steps %+v", authority, e.Verdict.Allow, e.Steps)
		}
		if e.Verdict.Allow {
			continue
		}
		_, rest, _ := strings.Cut(e.Hint, `"`)
		rule, _, _ := strings.Cut(rest, `"`)
		more, err := r.With([]string{rule})
		if err != nil {
			t.Fatalf("%s: the hint %q has rule %q: %v", authority, e.Hint, rule, err)
		}
		if v := more.Decide(egress.Query{Host: host, Port: port}); !v.Allow {
			t.Errorf("%s: the hint's rule %q does not allow it", authority, rule)
		}
	}
	if e := r.Explain(egress.Query{Host: "a..b", Port: 1}); e.Verdict.Reason != egress.ReasonMalformed || e.Hint == "" || len(e.Steps) > 0 {
		t.Errorf("malformed: %+v", e)
	}
}
