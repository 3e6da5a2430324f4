package audit_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/audit"
)

// full is a record with every field set.
func full() *egress.Record {
	return &egress.Record{
		Time: time.Date(2026, 11, 30, 1, 2, 3, 4, time.UTC), Sandbox: "sandbox", Flow: 7, Event: egress.EventEnd, Protocol: egress.Connect, Allow: true,
		Reason: egress.ReasonRule, Rule: ".example.com", Generation: 3, Asked: "API.example.com", Host: "api.example.com", Port: 443, Method: "CONNECT",
		SNI: "api.example.com", ECH: true, WebSocket: true, Chain: []string{"a.example.net", "b.example.net"},
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, Dialled: "192.0.2.1:443", Credential: "id", Error: "none",
		Sent: 1, Received: 2, Milliseconds: 3,
	}
}

// TestLineHasEveryField: a field that is added to Record is written down too.
func TestLineHasEveryField(t *testing.T) {
	t.Parallel()
	line, err := audit.Line(full())
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(line, &fields); err != nil {
		t.Fatal(err)
	}
	record := reflect.TypeFor[egress.Record]()
	value := reflect.ValueOf(full()).Elem()
	for i := range record.NumField() {
		name, _, _ := strings.Cut(record.Field(i).Tag.Get("json"), ",")
		if value.Field(i).IsZero() {
			t.Errorf("the test's record has no %s", name)
		}
		if _, ok := fields[name]; !ok {
			t.Errorf("%s is not in %s", name, line)
		}
	}
	var back egress.Record
	if err := json.Unmarshal(line, &back); err != nil || !reflect.DeepEqual(&back, full()) {
		t.Errorf("%+v, %v", back, err)
	}
}

func TestY06NothingForgesALine(t *testing.T) {
	t.Parallel()
	for name, host := range map[string]string{
		"Y06/CR LF":         "evil.test\r\n{\"allow\":true}",
		"Y06/terminal":      "\x1b[2J\x1b]0;title\x07evil.test",
		"Y06/C1":            "\u009b31mevil.test\u0085",
		"Y06/DEL":           "evil\x7f.test",
		"Y06/null":          "evil\x00.test",
		"Y06/bidi":          "\u202etset.live\u2066",
		"Y06/separators":    "evil\u2028test\u2029",
		"Y06/invisible":     "evil\u200b\ufeff.test",
		"Y06/quotes":        `evil","allow":true,"x":"`,
		"Y06/no text":       "evil\xff\xc0\xae.test",
		"Y06/beyond 16 bit": "evil\U0001f600\U000e0041.test",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &egress.Record{Asked: host, Error: host, Chain: []string{host}}
			line, err := audit.Line(r)
			if err != nil {
				t.Fatal(err)
			}
			checkLine(t, line, r)
		})
	}
}

// checkLine: one line, printable ASCII, and what a reader gets is what was there.
func checkLine(t *testing.T, line []byte, r *egress.Record) {
	t.Helper()
	text, whole := strings.CutSuffix(string(line), "\n")
	if !whole || strings.IndexFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) >= 0 {
		t.Errorf("it is not one printable line: %q", line)
	}
	var back egress.Record
	if err := json.Unmarshal(line, &back); err != nil {
		t.Fatal(err)
	}
	for i, pair := range [][2]string{{back.Asked, r.Asked}, {back.Error, r.Error}} {
		want := strings.ToValidUTF8(pair[1], "\ufffd")
		if utf8.ValidString(pair[1]) && len(pair[1]) <= audit.MaxText && pair[0] != want {
			t.Errorf("text %d: %q became %q", i, pair[1], pair[0])
		}
		// A byte that is no text becomes a character of three bytes.
		if len(pair[0]) > 3*audit.MaxText {
			t.Errorf("text %d has %d bytes", i, len(pair[0]))
		}
	}
	if back.Allow != r.Allow || back.Flow != r.Flow {
		t.Errorf("%+v", back)
	}
}

func TestCaps(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 2000)
	r := &egress.Record{Sandbox: long, Asked: long, Host: long, Rule: long, Method: long, SNI: long, Dialled: long, Credential: long, Error: "x" + long, Reason: egress.Reason(long)}
	for range 1000 {
		r.Chain = append(r.Chain, long)
		r.Addresses = append(r.Addresses, netip.MustParseAddr("2001:db8::1"))
	}
	line, err := audit.Line(r)
	if err != nil {
		t.Fatal(err)
	}
	var back egress.Record
	if err := json.Unmarshal(line, &back); err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{back.Sandbox, back.Asked, back.Host, back.Rule, back.Method, back.SNI, back.Dialled, back.Credential, back.Error, string(back.Reason), back.Chain[0]} {
		if len(text) > audit.MaxText || len(text) < audit.MaxText-1 || !utf8.ValidString(text) || strings.Contains(text, "\ufffd") {
			t.Errorf("text %d: %d bytes, %.20q", i, len(text), text[len(text)-8:])
		}
	}
	if len(back.Chain) != audit.MaxList || len(back.Addresses) != audit.MaxList {
		t.Errorf("%d names, %d addresses", len(back.Chain), len(back.Addresses))
	}
	if len(r.Chain) != 1000 || r.Chain[0] != long || r.Asked != long {
		t.Error("the caller's record was changed")
	}
}

// FuzzLine: whatever a client calls its host, a record is one line of printable
// ASCII from which a reader gets back what was there.
func FuzzLine(f *testing.F) {
	for i, text := range []string{
		"", "api.example.com", "\r\n", "\x1b[2J", "\u009b", "\x7f", "\x00", "\u202e", "\u2028", "\\", `\u000a`, `"`, "</script>", "\xff", "\xed\xa0\x80", "\U0001f600", "\ufffd", "ä", "\ufeff",
		strings.Repeat("x", 1023) + "ä", strings.Repeat("\xf0", 2000), "{}", "&<>",
	} {
		f.Add(text, "name", uint64(i), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, asked, name string, flow uint64, allow bool) {
		r := &egress.Record{Asked: asked, Error: name, Chain: []string{asked, name}, Flow: flow, Allow: allow}
		line, err := audit.Line(r)
		if err != nil {
			t.Fatal(err)
		}
		checkLine(t, line, r)
	})
}
