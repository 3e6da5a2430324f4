package screen_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/screen"
	"github.com/berm-dev/berm/errdefs"
)

// network stands for the internet: it notes what is dialled and answers with one
// end of a pipe, unless the address is one that hangs or fails.
type network struct {
	hang, fail []string
	late       []string // connects when nobody wants it any more

	mu      sync.Mutex
	dialled []string
	open    int
}

func (n *network) connect(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	n.mu.Lock()
	n.dialled = append(n.dialled, to.String())
	n.mu.Unlock()
	switch host := to.Addr().String(); {
	case slices.Contains(n.hang, host):
		<-ctx.Done()
		return nil, ctx.Err()
	case slices.Contains(n.late, host):
		<-ctx.Done()
	case slices.Contains(n.fail, host):
		return nil, errors.New("refused")
	}
	near, far := net.Pipe()
	n.mu.Lock()
	n.open++
	n.mu.Unlock()
	go func() {
		_, _ = io.Copy(io.Discard, far)
		_ = far.Close()
		n.mu.Lock()
		n.open--
		n.mu.Unlock()
	}()
	return near, nil
}

func (n *network) seen() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.dialled, " ")
}

// dialer dials n, as a machine with the public address 93.184.216.99.
func dialer(t *testing.T, n *network, s *server) *screen.Dialer {
	t.Helper()
	self := func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("93.184.216.99")}, nil }
	d := &screen.Dialer{Self: self, Connect: n.connect}
	if s != nil {
		d.Resolver = resolver(t, s)
	}
	return d
}

func dial(t *testing.T, d *screen.Dialer, v egress.Verdict) (screen.Trace, egress.Reason, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	conn, trace, reason, err := d.Dial(ctx, v)
	if (conn == nil) != (err != nil) || (reason == "") != (err == nil) || (trace.Dialled == "") != (err != nil) {
		t.Errorf("conn %v, trace %+v, reason %q, error %v", conn, trace, reason, err)
	}
	if conn != nil {
		_ = conn.Close()
	}
	return trace, reason, err
}

// TestRecords: the rows about what a name leads to. With exempt the name is in
// AllowInwardFor.
func TestRecords(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		id, zone string
		exempt   bool
		want     egress.Reason // empty for a connection
		dialled  string
	}{
		{"R01/public is allowed", "api.example.com. 60 IN A 93.184.216.34", false, "", "93.184.216.34:443"},
		{"R01/loopback", "api.example.com. 60 IN A 127.0.0.1", false, egress.ReasonInward, ""},
		{"R01/loopback6", "api.example.com. 60 IN AAAA ::1", false, egress.ReasonInward, ""},
		{"R01/private", "api.example.com. 60 IN A 10.0.0.1", false, egress.ReasonInward, ""},
		{"R01/unspecified", "api.example.com. 60 IN A 0.0.0.0", false, egress.ReasonInward, ""},
		{"R01/exempt", "api.example.com. 60 IN A 10.0.0.1", true, "", "10.0.0.1:443"},
		{"R02/metadata last", "api.example.com. 60 IN A 93.184.216.34\napi.example.com. 60 IN A 169.254.169.254", false, egress.ReasonMetadata, ""},
		{"R02/metadata first", "api.example.com. 60 IN A 169.254.169.254\napi.example.com. 60 IN A 93.184.216.34", false, egress.ReasonMetadata, ""},
		{"R02/inward and metadata", "api.example.com. 60 IN A 10.0.0.1\napi.example.com. 60 IN A 169.254.169.254", false, egress.ReasonMetadata, ""},
		{"R02/other family", "api.example.com. 60 IN A 93.184.216.34\napi.example.com. 60 IN AAAA fd00::1", false, egress.ReasonInward, ""},
		{"R02/exempt", "api.example.com. 60 IN A 10.0.0.1\napi.example.com. 60 IN A 169.254.169.254", true, egress.ReasonMetadata, ""},
		{"R04/CNAME to metadata", "api.example.com. 60 IN CNAME metadata.internal.\nmetadata.internal. 60 IN A 169.254.169.254", false, egress.ReasonMetadata, ""},
		{"R05/CNAME to public", "api.example.com. 60 IN CNAME evil.test.\nevil.test. 60 IN A 93.184.216.34", false, "", "93.184.216.34:443"},
		{"R07/nothing", "other.example.com. 60 IN A 93.184.216.34", false, egress.ReasonDNS, ""},
		{"R12/self", "api.example.com. 60 IN A 93.184.216.99", false, egress.ReasonSelf, ""},
		{"R12/self among others", "api.example.com. 60 IN A 93.184.216.34\napi.example.com. 60 IN A 93.184.216.99", false, egress.ReasonSelf, ""},
		{"R12/self mapped", "api.example.com. 60 IN AAAA ::ffff:93.184.216.99", false, egress.ReasonSelf, ""},
		{"R12/self exempt", "api.example.com. 60 IN A 93.184.216.99", true, "", "93.184.216.99:443"},
		{"I04/Azure", "api.example.com. 60 IN A 168.63.129.16", false, egress.ReasonMetadata, ""},
		{"I06/shared", "api.example.com. 60 IN A 100.64.0.1", false, egress.ReasonInward, ""},
		{"I08/mapped", "api.example.com. 60 IN AAAA ::ffff:127.0.0.1", false, egress.ReasonInward, ""},
		{"I10/NAT64", "api.example.com. 60 IN AAAA 64:ff9b::a9fe:a9fe", false, egress.ReasonMetadata, ""},
		{"I10/NAT64 not declared", "api.example.com. 60 IN AAAA 64:ff9b::5db8:d822", false, egress.ReasonInward, ""},
		{"I13/6to4", "api.example.com. 60 IN AAAA 2002:7f00:1::", false, egress.ReasonInward, ""},
		{"I14/Teredo", "api.example.com. 60 IN AAAA 2001:0:1::1", false, egress.ReasonInward, ""},
	} {
		t.Run(x.id, func(t *testing.T) {
			t.Parallel()
			n, s := &network{}, serve(t, zone(t, x.zone))
			var exempt []string
			if x.exempt {
				exempt = []string{"api.example.com"}
			}
			trace, reason, err := dial(t, dialer(t, n, s), allowed(t, "api.example.com", 443, exempt...))
			if reason != x.want || trace.Dialled != x.dialled || n.seen() != x.dialled {
				t.Errorf("%+v, %q, %v; dialled %s", trace, reason, err, n.seen())
			}
			if (reason == egress.ReasonDNS) != (len(trace.Addrs) == 0) || (len(trace.Chain) > 0) != strings.Contains(x.zone, "CNAME") {
				t.Errorf("trace %+v", trace)
			}
			if (x.want == egress.ReasonInward || x.want == egress.ReasonMetadata || x.want == egress.ReasonSelf) && !errors.Is(err, errdefs.Denied) {
				t.Errorf("the error is no denial: %v", err)
			}
		})
	}
}

// TestR03: a name that changes its address between looks has none, because there
// is one look.
func TestR03(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := map[uint16]int{}
	s := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		mu.Lock()
		asked[r.Question[0].Qtype]++
		first := asked[dns.TypeA] == 1
		mu.Unlock()
		rr := record("api.example.com.", "127.0.0.1")
		if first {
			rr = record("api.example.com.", "93.184.216.34")
		}
		rr.Header().Ttl = 0
		_ = w.WriteMsg(answer(r, []dns.RR{rr}))
	})
	n := &network{}
	d := dialer(t, n, s)
	v := allowed(t, "api.example.com", 443)
	if _, reason, err := dial(t, d, v); err != nil {
		t.Fatalf("%s %v", reason, err)
	}
	if q := s.questions(); len(q) != 2 {
		t.Errorf("one dial asked %q", q)
	}
	for range 3 {
		if _, reason, _ := dial(t, d, v); reason != egress.ReasonInward {
			t.Errorf("after the change: %q", reason)
		}
	}
	if n.seen() != "93.184.216.34:443" {
		t.Errorf("dialled %s", n.seen())
	}
}

// TestR11: what is not allowed is not asked for.
func TestR11(t *testing.T) {
	t.Parallel()
	n, s := &network{}, serve(t, zone(t, "secret.evil.test. 60 IN A 93.184.216.34"))
	d := dialer(t, n, s)
	rules, err := egress.Compile(&egress.Policy{Allow: []string{"api.example.com"}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []egress.Verdict{{}, rules.Decide(egress.Query{Host: "secret.evil.test", Port: 443}), {Allow: true}, {Allow: true, Host: "secret.evil.test"}} {
		if _, reason, _ := dial(t, d, v); reason != egress.ReasonInternal {
			t.Errorf("%+v: %q", v, reason)
		}
	}
	if len(s.questions()) > 0 || n.seen() != "" {
		t.Errorf("asked %q, dialled %q", s.questions(), n.seen())
	}
}

// TestLiteral: an address is dialled as it is, without DNS.
func TestLiteral(t *testing.T) {
	t.Parallel()
	n, s := &network{}, serve(t, zone(t, ". 60 IN A 127.0.0.1"))
	trace, _, err := dial(t, dialer(t, n, s), allowed(t, "93.184.216.34", 80))
	if err != nil || trace.Dialled != "93.184.216.34:80" || len(s.questions()) > 0 {
		t.Errorf("%+v, %v, asked %q", trace, err, s.questions())
	}
	// A verdict that is broken does not get past the screen.
	v := allowed(t, "93.184.216.34", 80)
	v.Addr = netip.MustParseAddr("10.0.0.1")
	if _, reason, _ := dial(t, dialer(t, n, s), v); reason != egress.ReasonInward {
		t.Errorf("%q", reason)
	}
}

// TestI11: behind DNS64 an address is what it is translated to.
func TestI11(t *testing.T) {
	t.Parallel()
	s := serve(t, zone(t, "api.example.com. 60 IN AAAA 64:ff9b::5db8:d822"))
	inward := serve(t, zone(t, "api.example.com. 60 IN AAAA 64:ff9b::a00:1"))
	for _, x := range []struct {
		s    *server
		want egress.Reason
	}{{s, ""}, {inward, egress.ReasonInward}} {
		d := dialer(t, &network{}, x.s)
		d.DNS64 = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")}
		if _, reason, err := dial(t, d, allowed(t, "api.example.com", 443)); reason != x.want {
			t.Errorf("%q, %v, want %q", reason, err, x.want)
		}
	}
}

// TestSelfBehindDNS64: this machine's own address is that also where DNS64 has
// dressed it up.
func TestSelfBehindDNS64(t *testing.T) {
	t.Parallel()
	n := &network{}
	d := dialer(t, n, serve(t, zone(t, "api.example.com. 60 IN AAAA 64:ff9b::5db8:d822")))
	d.DNS64 = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")}
	d.Self = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil }
	if _, reason, _ := dial(t, d, allowed(t, "api.example.com", 443)); reason != egress.ReasonSelf || n.seen() != "" {
		t.Errorf("%q, dialled %q", reason, n.seen())
	}
}

// TestSelfUnknown: who does not know its own addresses does not dial.
func TestSelfUnknown(t *testing.T) {
	t.Parallel()
	n := &network{}
	d := dialer(t, n, nil)
	d.Self = func() ([]netip.Addr, error) { return nil, errors.New("no list") }
	if _, reason, _ := dial(t, d, allowed(t, "93.184.216.34", 80)); reason != egress.ReasonSelf || n.seen() != "" {
		t.Errorf("%q, dialled %q", reason, n.seen())
	}
}

// TestNoResolver: names fail without one.
func TestNoResolver(t *testing.T) {
	t.Parallel()
	if _, reason, _ := dial(t, dialer(t, &network{}, nil), allowed(t, "api.example.com", 443)); reason != egress.ReasonDNS {
		t.Errorf("%q", reason)
	}
}

const four = `
	api.example.com. 60 IN A 93.184.216.1
	api.example.com. 60 IN A 93.184.216.2
	api.example.com. 60 IN AAAA 2606:4700::1
	api.example.com. 60 IN AAAA 2606:4700::2
`

// TestRace: addresses take turns, a failure or a delay brings the next, the first
// connection wins, and the others are closed.
func TestRace(t *testing.T) {
	t.Parallel()
	all := []string{"93.184.216.1", "93.184.216.2", "2606:4700::1", "2606:4700::2"}
	for name, x := range map[string]struct {
		n       *network
		dialled string // the winner; empty for none
		tried   string
	}{
		"first":      {&network{}, "[2606:4700::1]:443", "[2606:4700::1]:443"},
		"one fails":  {&network{fail: all[2:3]}, "93.184.216.1:443", "[2606:4700::1]:443 93.184.216.1:443"},
		"one hangs":  {&network{hang: all[2:3]}, "93.184.216.1:443", "[2606:4700::1]:443 93.184.216.1:443"},
		"three fail": {&network{fail: []string{all[0], all[2], all[3]}}, "93.184.216.2:443", "[2606:4700::1]:443 93.184.216.1:443 [2606:4700::2]:443 93.184.216.2:443"},
		"all fail":   {&network{fail: all}, "", "[2606:4700::1]:443 93.184.216.1:443 [2606:4700::2]:443 93.184.216.2:443"},
		// Whoever comes late is closed, or its other end outlives the test.
		"one is late": {&network{late: all[2:3]}, "93.184.216.1:443", "[2606:4700::1]:443 93.184.216.1:443"},
		"mixed":       {&network{hang: all[2:3], fail: all[:1]}, "[2606:4700::2]:443", "[2606:4700::1]:443 93.184.216.1:443 [2606:4700::2]:443"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trace, reason, err := dial(t, dialer(t, x.n, serve(t, zone(t, four))), allowed(t, "api.example.com", 443))
			if trace.Dialled != x.dialled || x.n.seen() != x.tried || x.dialled == "" && reason != egress.ReasonDial {
				t.Errorf("%+v, %q, %v; tried %s", trace, reason, err, x.n.seen())
			}
			if len(trace.Addrs) != 4 {
				t.Errorf("trace %+v", trace)
			}
		})
	}
}

// TestDialEnds: with the time-out, and with the context.
func TestDialEnds(t *testing.T) {
	t.Parallel()
	n := &network{hang: []string{"93.184.216.34"}}
	d := dialer(t, n, nil)
	d.Timeout = 50 * time.Millisecond
	if _, reason, err := dial(t, d, allowed(t, "93.184.216.34", 80)); reason != egress.ReasonDial || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%q, %v", reason, err)
	}
	d.Timeout = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan egress.Reason, 1)
	go func() {
		_, _, reason, _ := d.Dial(ctx, allowed(t, "93.184.216.34", 80))
		ended <- reason
	}()
	cancel()
	select {
	case reason := <-ended:
		if reason != egress.ReasonDial {
			t.Errorf("%q", reason)
		}
	case <-time.After(soon):
		t.Fatal("the dial outlives its context")
	}
}

// TestMaxDialled: a name with many addresses does not make many connections.
func TestMaxDialled(t *testing.T) {
	t.Parallel()
	var records []dns.RR
	n := &network{}
	for i := range 100 {
		rr := record("api.example.com.", netip.AddrFrom4([4]byte{93, 184, 1, byte(i)}).String())
		records = append(records, rr)
		n.fail = append(n.fail, rr.(*dns.A).A.String())
	}
	s := serve(t, func(w dns.ResponseWriter, r *dns.Msg) {
		m := answer(r, records)
		m.Truncate(65535)
		_ = w.WriteMsg(m)
	})
	trace, reason, _ := dial(t, dialer(t, n, s), allowed(t, "api.example.com", 443))
	if tried := len(strings.Fields(n.seen())); tried != screen.MaxDialled || reason != egress.ReasonDial || len(trace.Addrs) != 100 {
		t.Errorf("%d tried, %q, %d addresses", tried, reason, len(trace.Addrs))
	}
}

// TestRealConnection: the kernel's own connection, which is a *net.TCPConn.
func TestRealConnection(t *testing.T) {
	t.Parallel()
	l := listen(t)
	to := netip.MustParseAddrPort(l.Addr().String())
	rules, err := egress.Compile(&egress.Policy{Allow: []string{to.String()}, AllowInwardFor: []string{to.String()}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	conn, trace, reason, err := (&screen.Dialer{}).Dial(ctx, rules.Decide(egress.Query{Host: to.Addr().String(), Port: int(to.Port())}))
	if err != nil {
		t.Fatalf("%q %v", reason, err)
	}
	defer func() { _ = conn.Close() }()
	if _, ok := conn.(*net.TCPConn); !ok || trace.Dialled != to.String() {
		t.Errorf("%T, %+v", conn, trace)
	}
}

// TestSecondLook: an address that got past the first look is stopped where the
// kernel is told it.
func TestSecondLook(t *testing.T) {
	t.Parallel()
	l := listen(t)
	to := netip.MustParseAddrPort(l.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if conn, err := (&screen.Dialer{}).Direct(ctx, to, false); conn != nil || !errors.Is(err, errdefs.Denied) {
		t.Errorf("%v, %v", conn, err)
	}
	// The same address, exempt: it was the screen that said no.
	conn, err := (&screen.Dialer{}).Direct(ctx, to, true)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	// Link-local stays shut then too, whether or not there is a route.
	if conn, err := (&screen.Dialer{}).Direct(ctx, netip.MustParseAddrPort("169.254.169.254:80"), true); conn != nil || !errors.Is(err, errdefs.Denied) {
		t.Errorf("metadata: %v, %v", conn, err)
	}
}

// TestOwnInterfaces: the addresses of this machine are seen without being told.
func TestOwnInterfaces(t *testing.T) {
	t.Parallel()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	n := &network{}
	d := &screen.Dialer{Connect: n.connect}
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.(*net.IPNet).IP)
		if !ok {
			t.Fatalf("%v", a)
		}
		v := egress.Verdict{Allow: true, Host: "api.example.com", Port: 443, Addr: addr.Unmap()}
		if _, reason, _ := dial(t, d, v); reason != egress.ReasonInward && reason != egress.ReasonSelf && reason != egress.ReasonMetadata {
			t.Errorf("%s: %q", addr, reason)
		}
	}
	if len(addrs) == 0 || n.seen() != "" {
		t.Errorf("%d addresses, dialled %q", len(addrs), n.seen())
	}
}

// listen opens a loopback listener that accepts and closes.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(wait.Wait)
	t.Cleanup(func() { _ = l.Close() })
	return l
}
