//go:build linux

package egress_test

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
)

// nat64Addr is webAddr behind a translator.
const nat64Addr = "64:ff9b::5db8:d822"

// nameserver is the only one that the gate knows.
type nameserver struct {
	mu        sync.Mutex
	questions []string
	rebinds   int
}

func serveDNS(t *testing.T) *nameserver {
	t.Helper()
	s := &nameserver{}
	udp, err := inherited("dns-udp")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FilePacketConn(udp)
	if err != nil {
		t.Fatal(err)
	}
	_ = udp.Close()
	for _, server := range []*dns.Server{
		{PacketConn: conn, Handler: s}, {Listener: inheritedListener(t, "dns"), Handler: s},
	} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		ended := make(chan error, 1)
		go func() { ended <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := server.Shutdown(); err != nil {
				t.Error(err)
			}
			<-ended
		})
	}
	return s
}

// ServeDNS implements dns.Handler.
func (s *nameserver) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	if len(r.Question) != 1 {
		return
	}
	q := r.Question[0]
	name := strings.ToLower(q.Name)
	s.mu.Lock()
	s.questions = append(s.questions, name)
	s.mu.Unlock()
	m := new(dns.Msg)
	m.SetReply(r)
	switch records, known := s.records(name, q.Qtype); {
	case name == "silent.pkg.example.org.":
		return
	case name == "servfail.pkg.example.org.":
		m.Rcode = dns.RcodeServerFailure
	case !known:
		m.Rcode = dns.RcodeNameError
	default:
		m.Answer = records
	}
	_ = w.WriteMsg(m)
}

// records gives what there is of one type, or that there is no such name.
func (s *nameserver) records(name string, kind uint16) (out []dns.RR, known bool) {
	values, known := zone()[strings.TrimSuffix(name, ".")]
	switch {
	case known:
	case strings.HasSuffix(name, ".pkg.example.org."):
		values = []string{webAddr, webAddr6}
	default:
		return nil, false
	}
	if name == "rebind.pkg.example.org." && kind == dns.TypeA {
		s.mu.Lock()
		if s.rebinds++; s.rebinds%2 == 0 {
			values = []string{"127.0.0.1"}
		}
		s.mu.Unlock()
	}
	owner := name
	for _, value := range values {
		if target, isAlias := strings.CutPrefix(value, "CNAME "); isAlias {
			out = append(out, &dns.CNAME{Hdr: header(owner, dns.TypeCNAME), Target: target})
			owner = target
			continue
		}
		ip := net.ParseIP(value)
		switch four := ip.To4(); {
		case four != nil && kind == dns.TypeA:
			out = append(out, &dns.A{Hdr: header(owner, dns.TypeA), A: four})
		case four == nil && kind == dns.TypeAAAA:
			out = append(out, &dns.AAAA{Hdr: header(owner, dns.TypeAAAA), AAAA: ip})
		}
	}
	return out, true
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET}
}

// zone is what there is besides all names below pkg.example.org, which are the web
// server's.
func zone() map[string][]string {
	return map[string][]string{
		"api.example.com":            {webAddr, webAddr6},
		"pkg.example.org":            {webAddr, webAddr6},
		"four.pkg.example.org":       {webAddr},
		"six.pkg.example.org":        {webAddr6},
		"localhost":                  {"127.0.0.1", "::1"},
		"metadata.internal":          {"169.254.169.254"},
		"loop.pkg.example.org":       {"127.0.0.1"},
		"loop6.pkg.example.org":      {"::1"},
		"zero.pkg.example.org":       {"0.0.0.0"},
		"private.pkg.example.org":    {"10.0.0.1"},
		"mixed.pkg.example.org":      {webAddr, "169.254.169.254"},
		"mixed6.pkg.example.org":     {webAddr, "fd00:ec2::254"},
		"rebind.pkg.example.org":     {webAddr},
		"meta.pkg.example.org":       {"169.254.169.254"},
		"azure.pkg.example.org":      {"168.63.129.16"},
		"alias.pkg.example.org":      {"CNAME metadata.internal.", "169.254.169.254"},
		"alias2.pkg.example.org":     {"CNAME target.evil.test.", otherAddr},
		"empty.pkg.example.org":      {},
		"hosted.pkg.example.org":     {webAddr, webAddr6},
		"self.pkg.example.org":       {bermAddr},
		"self6.pkg.example.org":      {bermAddr6},
		"selfmixed.pkg.example.org":  {webAddr, bermAddr},
		"nat64.pkg.example.org":      {nat64Addr},
		"undeclared.pkg.example.org": {nat64Addr},
		"nat64loop.pkg.example.org":  {"64:ff9b::7f00:1"},
	}
}

// asked counts the questions about names with a text in them.
func (s *nameserver) asked(part string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.questions {
		if strings.Contains(name, part) {
			n++
		}
	}
	return n
}

func inheritedListener(t *testing.T, name string) net.Listener {
	t.Helper()
	file, err := inherited(name)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	return l
}
