package screen_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/berm-dev/berm/egress/gate/internal/screen"
	"github.com/berm-dev/berm/errdefs"
)

func lookup(t *testing.T, r *screen.Resolver, host string) (screen.Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	return r.Lookup(ctx, host)
}

func texts[T fmt.Stringer](list []T) string {
	var out []string
	for _, x := range list {
		out = append(out, x.String())
	}
	return strings.Join(out, " ")
}

func TestLookup(t *testing.T) {
	t.Parallel()
	s := serve(t, zone(t, `
		api.example.com. 60 IN A 93.184.216.34
		api.example.com. 60 IN A 93.184.216.35
		api.example.com. 60 IN A 93.184.216.34
		api.example.com. 60 IN AAAA 2606:4700::1111
		api.example.com. 60 IN AAAA ::ffff:93.184.216.36
		www.example.com. 60 IN CNAME Edge.Example.NET.
		edge.example.net. 60 IN CNAME node.example.net.
		node.example.net. 60 IN A 93.184.216.40
		a_b.example.com. 60 IN A 93.184.216.41
	`))
	r := resolver(t, s)
	for host, want := range map[string]string{
		"api.example.com": "93.184.216.34 93.184.216.35 2606:4700::1111 93.184.216.36",
		"www.example.com": "93.184.216.40",
		"a_b.example.com": "93.184.216.41",
	} {
		got, err := lookup(t, r, host)
		if err != nil || texts(got.Addrs) != want {
			t.Errorf("%s: %s, %v, want %s", host, texts(got.Addrs), err, want)
		}
		if host == "www.example.com" && !slices.Equal(got.Chain, []string{"edge.example.net", "node.example.net"}) {
			t.Errorf("chain %q", got.Chain)
		}
	}
}

// TestNotAName: what is no canonical name is not asked for.
func TestNotAName(t *testing.T) {
	t.Parallel()
	s := serve(t, zone(t, `. 60 IN A 93.184.216.34`))
	r := resolver(t, s)
	for _, host := range []string{"", ".", "127.0.0.1", "::1", "API.example.com", "api.example.com.", "a b", "127.1", "a..b"} {
		if _, err := lookup(t, r, host); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("%q: %v", host, err)
		}
	}
	if q := s.questions(); len(q) > 0 {
		t.Errorf("asked %q", q)
	}
}

// TestR07: each way of having no address has its kind, and none has addresses.
func TestR07(t *testing.T) {
	t.Parallel()
	code := func(rcode int) handler {
		return func(w dns.ResponseWriter, r *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetRcode(r, rcode)) }
	}
	for name, x := range map[string]struct {
		h    handler
		kind errdefs.Kind
	}{
		"SERVFAIL": {code(dns.RcodeServerFailure), errdefs.Unavailable},
		"REFUSED":  {code(dns.RcodeRefused), errdefs.Unavailable},
		"NOTIMP":   {code(dns.RcodeNotImplemented), errdefs.Unavailable},
		"NXDOMAIN": {code(dns.RcodeNameError), errdefs.NotFound},
		"NODATA":   {code(dns.RcodeSuccess), errdefs.NotFound},
		"silence":  {func(dns.ResponseWriter, *dns.Msg) {}, errdefs.Timeout},
		"SERVFAIL with addresses": {func(w dns.ResponseWriter, r *dns.Msg) {
			m := answer(r, []dns.RR{record("api.example.com.", "93.184.216.34")})
			m.Rcode = dns.RcodeServerFailure
			_ = w.WriteMsg(m)
		}, errdefs.Unavailable},
	} {
		t.Run("R07/"+name, func(t *testing.T) {
			t.Parallel()
			r := resolver(t, serve(t, x.h))
			r.Attempt = 50 * time.Millisecond
			got, err := lookup(t, r, "api.example.com")
			if !errors.Is(err, x.kind) || len(got.Addrs) > 0 {
				t.Errorf("%v, %v, want %s", got, err, x.kind)
			}
		})
	}
	t.Run("R07/nobody there", func(t *testing.T) {
		t.Parallel()
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		gone := &server{addr: conn.LocalAddr().String()}
		_ = conn.Close()
		if _, err := lookup(t, resolver(t, gone), "api.example.com"); !errors.Is(err, errdefs.Unavailable) && !errors.Is(err, errdefs.Timeout) {
			t.Error(err)
		}
		good := serve(t, zone(t, `api.example.com. 60 IN A 93.184.216.34`))
		if got, err := lookup(t, resolver(t, gone, good), "api.example.com"); err != nil || len(got.Addrs) != 1 {
			t.Errorf("the second server is not asked: %v, %v", got, err)
		}
	})
}

func record(name, addr string) dns.RR {
	head := dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}
	return &dns.A{Hdr: head, A: net.ParseIP(addr)}
}

// TestR08: names are asked for as they are, whatever resolv.conf would append.
func TestR08(t *testing.T) {
	t.Parallel()
	s := serve(t, zone(t, `api.example.com. 60 IN A 93.184.216.34`))
	if got, err := lookup(t, resolver(t, s), "api"); !errors.Is(err, errdefs.NotFound) {
		t.Errorf("%v, %v", got, err)
	}
	asked := s.questions()
	slices.Sort(asked)
	if !slices.Equal(asked, []string{"A api.", "AAAA api."}) {
		t.Errorf("asked %q", asked)
	}
}

// TestR09: localhost, and what else is in /etc/hosts, is asked for like any name.
func TestR09(t *testing.T) {
	t.Parallel()
	s := serve(t, zone(t, `other.example.com. 60 IN A 93.184.216.34`))
	r := resolver(t, s)
	hosts := []string{"localhost"}
	if b, err := os.ReadFile("/etc/hosts"); err == nil {
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && strings.Trim(f[1], "abcdefghijklmnopqrstuvwxyz0123456789") == "" {
				hosts = append(hosts, f[1])
			}
		}
	}
	for _, host := range hosts {
		if got, err := lookup(t, r, host); !errors.Is(err, errdefs.NotFound) {
			t.Errorf("%s: %v, %v", host, got, err)
		}
	}
}

// TestCut: an answer that did not fit is asked for over TCP, all of it.
func TestCut(t *testing.T) {
	t.Parallel()
	var many []dns.RR
	for i := range 200 {
		many = append(many, record("api.example.com.", fmt.Sprintf("93.184.216.%d", i)))
	}
	s := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		m := answer(r, many)
		if w.RemoteAddr().Network() == "udp" {
			m.Truncate(512)
		}
		_ = w.WriteMsg(m)
	})
	got, err := lookup(t, resolver(t, s), "api.example.com")
	if err != nil || len(got.Addrs) != 200 || !slices.Contains(s.questions(), "tcp A api.example.com.") {
		t.Errorf("%d addresses, %v, asked %q", len(got.Addrs), err, s.questions())
	}
	// Cut in the middle of a record, and cut again over TCP.
	s = serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		m := answer(r, many)
		m.Truncated = true
		b, _ := m.Pack()
		_, _ = w.Write(b[:min(300, len(b))])
	})
	if got, err := lookup(t, resolver(t, s), "api.example.com"); !errors.Is(err, errdefs.Protocol) || len(got.Addrs) > 0 {
		t.Errorf("%v, %v", got, err)
	}
	// TCP that ends early or says nothing.
	s = serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		m := answer(r, nil)
		m.Truncated = true
		if w.RemoteAddr().Network() == "tcp" {
			_ = w.Close()
			return
		}
		_ = w.WriteMsg(m)
	})
	if got, err := lookup(t, resolver(t, s), "api.example.com"); !errors.Is(err, errdefs.Unavailable) || len(got.Addrs) > 0 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestStray: what is no answer to the question neither counts nor ends the wait.
func TestStray(t *testing.T) {
	t.Parallel()
	forged := []dns.RR{record("api.example.com.", "6.6.6.6")}
	good := []dns.RR{record("api.example.com.", "93.184.216.34")}
	forge := func(w dns.ResponseWriter, r *dns.Msg, change func(*dns.Msg)) {
		m := answer(r, forged)
		change(m)
		if b, err := m.Pack(); err == nil {
			_, _ = w.Write(b)
		}
	}
	s := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		for _, junk := range [][]byte{{}, {1}, make([]byte, 12), []byte(strings.Repeat("\xff", 600)), []byte("HTTP/1.1 200 OK\r\n\r\n")} {
			_, _ = w.Write(junk)
		}
		forge(w, r, func(m *dns.Msg) { m.Id++ })
		forge(w, r, func(m *dns.Msg) { m.Response = false })
		forge(w, r, func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate })
		forge(w, r, func(m *dns.Msg) { m.Question[0].Name = "evil.test." })
		forge(w, r, func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeTXT })
		forge(w, r, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })
		forge(w, r, func(m *dns.Msg) { m.Question = nil })
		forge(w, r, func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) })
		_ = w.WriteMsg(answer(r, good))
	})
	if got, err := lookup(t, resolver(t, s), "api.example.com"); err != nil || texts(got.Addrs) != "93.184.216.34" {
		t.Errorf("%v, %v", got, err)
	}
	flood := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		for range screen.MaxStray {
			forge(w, r, func(m *dns.Msg) { m.Id++ })
		}
		_ = w.WriteMsg(answer(r, good))
	})
	if got, err := lookup(t, resolver(t, flood), "api.example.com"); err == nil || len(got.Addrs) > 0 {
		t.Errorf("a flood: %v, %v", got, err)
	}
}

// TestOtherSender: a perfect forgery from another port does not arrive.
func TestOtherSender(t *testing.T) {
	t.Parallel()
	other, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() })
	s := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		b, _ := answer(r, []dns.RR{record("api.example.com.", "6.6.6.6")}).Pack()
		_, _ = other.WriteTo(b, w.RemoteAddr())
		_ = w.WriteMsg(answer(r, []dns.RR{record("api.example.com.", "93.184.216.34")}))
	})
	if got, err := lookup(t, resolver(t, s), "api.example.com"); err != nil || texts(got.Addrs) != "93.184.216.34" {
		t.Errorf("%v, %v", got, err)
	}
}

// TestGuessing: neither id nor port repeats.
func TestGuessing(t *testing.T) {
	t.Parallel()
	ids, ports := make(chan uint16, 64), make(chan string, 64)
	s := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		ids <- r.Id
		ports <- w.RemoteAddr().String()
		_ = w.WriteMsg(answer(r, nil))
	})
	r := resolver(t, s)
	for range 16 {
		_, _ = lookup(t, r, "api.example.com")
	}
	id, port := map[uint16]bool{}, map[string]bool{}
	for range 32 {
		id[<-ids], port[<-ports] = true, true
	}
	if len(id) < 28 || len(port) < 16 {
		t.Errorf("%d ids and %d ports in 32 questions", len(id), len(port))
	}
}

// TestAliases: chains end, and addresses of others do not count.
func TestAliases(t *testing.T) {
	t.Parallel()
	chain := func(n int) string {
		var b strings.Builder
		b.WriteString("api.example.com. 60 IN CNAME c0.example.net.\n")
		for i := range n - 1 {
			fmt.Fprintf(&b, "c%d.example.net. 60 IN CNAME c%d.example.net.\n", i, i+1)
		}
		fmt.Fprintf(&b, "c%d.example.net. 60 IN A 93.184.216.34\n", n-1)
		return b.String()
	}
	raw := func(text string) handler {
		records := parseZone(t, text)
		return func(w dns.ResponseWriter, r *dns.Msg) {
			m := new(dns.Msg).SetReply(r)
			m.Answer = records
			_ = w.WriteMsg(m)
		}
	}
	for name, x := range map[string]struct {
		h     handler
		kind  errdefs.Kind // empty for one address
		chain int
	}{
		"longest":     {zone(t, chain(screen.MaxChain)), "", screen.MaxChain},
		"too long":    {zone(t, chain(screen.MaxChain+1)), errdefs.Protocol, screen.MaxChain},
		"itself":      {raw("api.example.com. 60 IN CNAME api.example.com."), errdefs.Protocol, screen.MaxChain},
		"loop":        {raw("api.example.com. 60 IN CNAME b.test.\nb.test. 60 IN CNAME API.example.com."), errdefs.Protocol, screen.MaxChain},
		"two":         {raw("api.example.com. 60 IN CNAME b.test.\napi.example.com. 60 IN CNAME c.test.\nb.test. 60 IN A 93.184.216.34"), errdefs.Protocol, 0},
		"twice":       {raw("api.example.com. 60 IN CNAME b.test.\napi.example.com. 60 IN CNAME B.test.\nb.test. 60 IN A 93.184.216.34"), "", 1},
		"other name":  {raw("evil.test. 60 IN A 6.6.6.6"), errdefs.NotFound, 0},
		"beside":      {raw("evil.test. 60 IN A 6.6.6.6\napi.example.com. 60 IN A 93.184.216.34"), "", 0},
		"before":      {raw("api.example.com. 60 IN A 6.6.6.6\napi.example.com. 60 IN CNAME b.test.\nb.test. 60 IN A 93.184.216.34"), "", 1},
		"open end":    {raw("api.example.com. 60 IN CNAME b.test."), errdefs.NotFound, 1},
		"other class": {raw("api.example.com. 60 CH A 6.6.6.6"), errdefs.NotFound, 0},
		"other kind":  {raw(`api.example.com. 60 IN TXT "6.6.6.6"`), errdefs.NotFound, 0},
		"root":        {raw("api.example.com. 60 IN CNAME ."), errdefs.NotFound, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := lookup(t, resolver(t, serve(t, x.h)), "api.example.com")
			switch {
			case x.kind == "" && (err != nil || texts(got.Addrs) != "93.184.216.34"):
				t.Errorf("%v, %v", got, err)
			case x.kind != "" && (!errors.Is(err, x.kind) || len(got.Addrs) > 0):
				t.Errorf("%v, %v, want %s", got, err, x.kind)
			case len(got.Chain) != x.chain:
				t.Errorf("chain %q, want %d", got.Chain, x.chain)
			}
		})
	}
}

// TestManyAddresses: a thousand are more than a name has that somebody means.
func TestManyAddresses(t *testing.T) {
	t.Parallel()
	for _, n := range []int{screen.MaxAddrs, screen.MaxAddrs + 1, 1000} {
		var many []dns.RR
		for i := range n {
			many = append(many, record("api.example.com.", fmt.Sprintf("93.184.%d.%d", i>>8, i&255)))
		}
		s := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
			m := answer(r, many)
			m.Compress = true
			if w.RemoteAddr().Network() == "udp" {
				m.Truncate(1232)
			}
			_ = w.WriteMsg(m)
		})
		got, err := lookup(t, resolver(t, s), "api.example.com")
		if n <= screen.MaxAddrs && (err != nil || len(got.Addrs) != n) || n > screen.MaxAddrs && (!errors.Is(err, errdefs.Protocol) || len(got.Addrs) > 0) {
			t.Errorf("%d addresses: %d, %v", n, len(got.Addrs), err)
		}
	}
}

// TestSlowServer: the caller's context ends a look-up, and a server that is slow
// has the next one asked.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 16)
	slow := serve(t, func(dns.ResponseWriter, *dns.Msg) { arrived <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := resolver(t, slow).Lookup(ctx, "api.example.com")
		ended <- err
	}()
	<-arrived
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, errdefs.Timeout) {
			t.Error(err)
		}
	case <-time.After(soon):
		t.Fatal("the look-up outlives its context")
	}
	good := serve(t, zone(t, `api.example.com. 60 IN A 93.184.216.34`))
	r := resolver(t, slow, good)
	r.Attempt = 50 * time.Millisecond
	if got, err := lookup(t, r, "api.example.com"); err != nil || len(got.Addrs) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestOneFamily: a network that swallows questions for AAAA has the other addresses
// all the same, and the half answer is not kept.
func TestOneFamily(t *testing.T) {
	t.Parallel()
	whole := zone(t, `api.example.com. 300 IN A 93.184.216.34`)
	s := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if r.Question[0].Qtype == dns.TypeA {
			whole(w, r)
		}
	})
	r := resolver(t, s)
	r.Attempt = time.Hour
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		got, err := r.Lookup(ctx, "api.example.com")
		if err != nil || texts(got.Addrs) != "93.184.216.34" || ctx.Err() != nil {
			t.Errorf("%v, %v, %v", got, err, ctx.Err())
		}
		cancel()
	}
	if n := len(s.questions()); n != 4 {
		t.Errorf("%d questions: half an answer was kept", n)
	}
}

// TestCache: an answer is used for its time, and only a whole one.
func TestCache(t *testing.T) {
	t.Parallel()
	half := zone(t, `half.example.com. 300 IN A 93.184.216.34`)
	whole := zone(t, `
		kept.example.com. 300 IN A 93.184.216.34
		zero.example.com. 0 IN A 93.184.216.34
		alias.example.com. 0 IN CNAME kept.example.com.
	`)
	s := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if r.Question[0].Qtype == dns.TypeAAAA && r.Question[0].Name == "half.example.com." {
			_ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeServerFailure))
			return
		}
		if r.Question[0].Name == "half.example.com." {
			half(w, r)
			return
		}
		whole(w, r)
	})
	r := resolver(t, s)
	for host, again := range map[string]bool{"kept.example.com": false, "zero.example.com": true, "alias.example.com": true, "half.example.com": true, "none.example.com": true} {
		_, first := lookup(t, r, host)
		before := len(s.questions())
		_, second := lookup(t, r, host)
		if asked := len(s.questions()) > before; asked != again || (first == nil) != (second == nil) || (first == nil) != (host != "none.example.com") {
			t.Errorf("%s: asked again %v, errors %v and %v", host, asked, first, second)
		}
	}
}

func TestServers(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "dns.example.com", "127.0.0.1:0", "127.0.0.1:x", "127.1", "[::1", "1.1.1.1:53 "} {
		if _, err := screen.NewResolver([]string{bad}); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := screen.NewResolver(slices.Repeat([]string{"127.0.0.1"}, 100)); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("too many: %v", err)
	}
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	r, err := screen.NewResolver(nil)
	if err != nil {
		t.Fatal(err)
	}
	r.FromFile(conf)
	if _, err := lookup(t, r, "api.example.com"); !errors.Is(err, errdefs.Unavailable) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(conf, []byte("search example.com\nnameserver bad\noptions ndots:5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := lookup(t, r, "api.example.com"); !errors.Is(err, errdefs.Unavailable) {
		t.Errorf("no server: %v", err)
	}
	if err := os.WriteFile(conf, []byte("search example.com\nnameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%lo\nnameserver 1.1.1.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := r.From(); err != nil || texts(got) != "127.0.0.53:53 [::1]:53 [fe80::1%lo]:53" {
		t.Errorf("%v, %v", got, err)
	}
}
