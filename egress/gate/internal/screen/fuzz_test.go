package screen_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/berm-dev/berm/egress/gate/internal/screen"
)

const fuzzID = 0x1234

// seeds are answers to a question for api.example.com, good and bad.
func seeds(f *testing.F) [][]byte {
	f.Helper()
	var out [][]byte
	for i, text := range []string{
		"api.example.com. 60 IN A 93.184.216.34",
		"API.example.com. 60 IN A 93.184.216.34\napi.EXAMPLE.com. 0 IN A 10.0.0.1",
		"api.example.com. 60 IN AAAA 2606:4700::1111",
		"api.example.com. 60 IN AAAA ::ffff:127.0.0.1",
		"api.example.com. 60 IN CNAME b.test.\nb.test. 60 IN A 93.184.216.34\nb.test. 60 IN AAAA ::1",
		"api.example.com. 60 IN CNAME api.example.com.",
		"api.example.com. 60 IN CNAME b.test.\nb.test. 60 IN CNAME api.example.com.",
		"api.example.com. 60 IN CNAME b.test.\napi.example.com. 60 IN CNAME c.test.",
		"evil.test. 60 IN A 6.6.6.6",
		"api.example.com. 60 CH A 6.6.6.6",
		`api.example.com. 60 IN TXT "x"`,
		"api.example.com. 60 IN HTTPS 1 . ipv4hint=6.6.6.6",
		"",
	} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
			m := new(dns.Msg)
			m.SetQuestion("api.example.com.", kind)
			m.Id, m.Response, m.Compress = fuzzID, true, i%2 == 0
			for z := dns.NewZoneParser(strings.NewReader(text), ".", ""); ; {
				rr, ok := z.Next()
				if !ok {
					break
				}
				m.Answer = append(m.Answer, rr)
			}
			b, err := m.Pack()
			if err != nil {
				f.Fatal(err)
			}
			out = append(out, b, b[:len(b)-3])
		}
	}
	return out
}

// FuzzAnswer: whatever comes back, only addresses of the name or of its aliases are
// taken, of the kind that was asked for, as another parser sees them too.
func FuzzAnswer(f *testing.F) {
	for i, b := range seeds(f) {
		f.Add(b, i%4 > 1)
	}
	f.Fuzz(func(t *testing.T, b []byte, v6 bool) {
		got, err := screen.ReadAnswer(b, fuzzID, "api.example.com.", v6)
		if len(got.Addrs) > screen.MaxAddrs || len(got.Chain) > screen.MaxChain || err != nil && len(got.Addrs) > 0 {
			t.Fatalf("%+v, %v", got, err)
		}
		if err != nil {
			return
		}
		owners := []string{"api.example.com"}
		for _, c := range got.Chain {
			owners = append(owners, c)
		}
		for _, a := range got.Addrs {
			if a.Is4In6() || !v6 && !a.Is4() {
				t.Fatalf("%s is not of the kind", a)
			}
		}
		want, ok := peer(b, owners[len(owners)-1], v6)
		if !ok {
			return
		}
		for _, a := range got.Addrs {
			if !slices.Contains(want, a) {
				t.Fatalf("%s is not an address of %s: %s", a, owners[len(owners)-1], want)
			}
		}
	})
}

// peer lists the addresses of a name in a message with the Go project's parser; not
// ok where it does not like the message, or names are written with escapes.
func peer(b []byte, name string, v6 bool) ([]netip.Addr, bool) {
	var p dnsmessage.Parser
	if _, err := p.Start(b); err != nil || p.SkipAllQuestions() != nil || strings.Contains(name, `\`) {
		return nil, false
	}
	var out []netip.Addr
	for {
		h, err := p.AnswerHeader()
		if err != nil {
			return out, err == dnsmessage.ErrSectionDone //nolint:errorlint // the parser returns it as it is
		}
		mine := strings.EqualFold(h.Name.String(), name+".") && h.Class == dnsmessage.ClassINET
		switch {
		case mine && h.Type == dnsmessage.TypeA && !v6:
			r, err := p.AResource()
			if err != nil {
				return nil, false
			}
			out = append(out, netip.AddrFrom4(r.A))
		case mine && h.Type == dnsmessage.TypeAAAA && v6:
			r, err := p.AAAAResource()
			if err != nil {
				return nil, false
			}
			out = append(out, netip.AddrFrom16(r.AAAA).Unmap())
		default:
			if p.SkipAnswer() != nil {
				return nil, false
			}
		}
	}
}
