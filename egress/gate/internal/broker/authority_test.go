package broker_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/egress/gate/internal/broker"
	"github.com/berm-dev/berm/errdefs"
)

func silent() *log.Logger { return log.New(io.Discard, "", 0) }

func newAuthority(t *testing.T, hosts ...string) *broker.Authority {
	t.Helper()
	authority, err := broker.NewAuthority(hosts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return authority
}

// handshake lets a client and a server meet over a pipe of the kernel's.
func handshake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	result := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			result <- err
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		session := tls.Server(conn, server)
		if err = session.Handshake(); err == nil {
			// TLS 1.3: what the client thinks of the certificate comes afterwards.
			_, err = session.Write([]byte("x"))
			_, _ = io.Copy(io.Discard, session)
		}
		result <- err
	}()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	session := tls.Client(conn, client)
	if clientErr = session.Handshake(); clientErr == nil {
		_, _ = session.Read(make([]byte, 1))
		state = session.ConnectionState()
		_ = session.CloseWrite()
	}
	_ = conn.Close()
	return state, <-result, clientErr
}

func trust(t *testing.T, authority *broker.Authority) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority.PEM()) {
		t.Fatal("no certificate in the PEM")
	}
	return pool
}

func TestAuthorityServesItsHosts(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, apiHost, "other.example.com")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, host := range []string{apiHost, "other.example.com"} {
			config, err := authority.ServerConfig(host)
			if err != nil {
				t.Fatal(err)
			}
			client := &tls.Config{RootCAs: trust(t, authority), ServerName: host, NextProtos: []string{"h2"}, MaxVersion: version}
			state, serverErr, clientErr := handshake(t, config, client)
			if serverErr != nil || clientErr != nil {
				t.Fatalf("%s, TLS %x: %v, %v", host, version, serverErr, clientErr)
			}
			if state.Version != version || state.NegotiatedProtocol != "h2" || len(state.VerifiedChains) != 1 {
				t.Errorf("%s: TLS %x, %q, %d chains", host, state.Version, state.NegotiatedProtocol, len(state.VerifiedChains))
			}
		}
	}
}

// TestAuthorityRefusesOtherNames: a tunnel for one host answers for no other, not
// even for another host of the authority.
func TestAuthorityRefusesOtherNames(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, apiHost, "other.example.com")
	config, err := authority.ServerConfig(apiHost)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"other.example.com", "evil.test", "sub." + apiHost, ""} {
		_, serverErr, clientErr := handshake(t, config, &tls.Config{InsecureSkipVerify: true, ServerName: name})
		if serverErr == nil || clientErr == nil {
			t.Errorf("a client that asks for %q was served (%v, %v)", name, serverErr, clientErr)
		}
	}
	if _, serverErr, clientErr := handshake(t, config, &tls.Config{RootCAs: trust(t, authority), ServerName: "API.Example.COM"}); serverErr != nil || clientErr != nil {
		t.Errorf("the same name in capitals: %v, %v", serverErr, clientErr)
	}
}

func TestC20ClientRejectsAuthority(t *testing.T) {
	t.Parallel()
	config, err := newAuthority(t, apiHost).ServerConfig(apiHost)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(fmt.Sprintf("C20/TLS %x", version), func(t *testing.T) {
			t.Parallel()
			_, serverErr, clientErr := handshake(t, config, &tls.Config{RootCAs: x509.NewCertPool(), ServerName: apiHost, MaxVersion: version})
			if clientErr == nil || !broker.RejectedByClient(serverErr) {
				t.Errorf("%v (client: %v) is not known as a rejection", serverErr, clientErr)
			}
		})
	}
	for _, other := range []error{nil, io.EOF, errors.New("tls: unknown certificate authority"), &net.OpError{Op: "read", Err: io.EOF}, &net.OpError{Op: "remote error"}} {
		if broker.RejectedByClient(other) {
			t.Errorf("%v was taken for a rejection", other)
		}
	}
	_, serverErr, _ := handshake(t, config, &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "evil.test"})
	if serverErr == nil || broker.RejectedByClient(serverErr) {
		t.Errorf("our own refusal (%v) was taken for the client's", serverErr)
	}
}

func TestC21HostWithoutTermination(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, apiHost)
	for _, host := range []string{"evil.test", "sub." + apiHost, "", "API.EXAMPLE.COM"} {
		t.Run("C21/"+host, func(t *testing.T) {
			t.Parallel()
			if config, err := authority.ServerConfig(host); !errors.Is(err, errdefs.Unsupported) || config != nil {
				t.Errorf("ServerConfig(%q) = %v, %v", host, config, err)
			}
			if authority.Covers(host) {
				t.Errorf("the authority covers %q", host)
			}
		})
	}
	for _, hosts := range [][]string{nil, {""}, {"."}, {".example.com"}, {"example.com."}, {"192.0.2.1"}, {"::1"}, {apiHost, ""}} {
		if _, err := broker.NewAuthority(hosts, nil); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("an authority for %q: %v", hosts, err)
		}
	}
}

// TestNameConstraints: even with the authority's key nobody makes a certificate for
// another host, or for an address.
func TestNameConstraints(t *testing.T) {
	t.Parallel()
	authority := newAuthority(t, apiHost)
	roots := trust(t, authority)
	for name, c := range map[string]struct {
		names     []string
		addresses []net.IP
		asked     string
		good      bool
	}{
		"its host":            {names: []string{apiHost}, asked: apiHost, good: true},
		"another host":        {names: []string{"evil.test"}, asked: "evil.test"},
		"its parent":          {names: []string{"example.com"}, asked: "example.com"},
		"a sibling":           {names: []string{"www.example.com"}, asked: "www.example.com"},
		"its name within":     {names: []string{"xapi.example.com"}, asked: "xapi.example.com"},
		"a wildcard above":    {names: []string{"*.example.com"}, asked: apiHost},
		"its host and others": {names: []string{apiHost, "evil.test"}, asked: apiHost},
		"an address":          {addresses: []net.IP{net.IPv4(192, 0, 2, 7)}, asked: "192.0.2.7"},
		"an IPv6 address":     {addresses: []net.IP{net.ParseIP("2001:db8::7")}, asked: "2001:db8::7"},
		"host and address":    {names: []string{apiHost}, addresses: []net.IP{net.IPv4(127, 0, 0, 1)}, asked: apiHost},
	} {
		forged, err := authority.Forge(c.names, c.addresses)
		if err != nil {
			t.Fatal(err)
		}
		_, serverErr, clientErr := handshake(t, &tls.Config{Certificates: []tls.Certificate{forged}}, &tls.Config{RootCAs: roots, ServerName: c.asked})
		if good := clientErr == nil; good != c.good {
			t.Errorf("%s: %v, %v", name, clientErr, serverErr)
		}
	}
}

// TestOpenSSLVerifies: other programs than Go's hold the constraints too.
func TestOpenSSLVerifies(t *testing.T) {
	t.Parallel()
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("no openssl on this machine")
	}
	authority := newAuthority(t, apiHost)
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	verify := func(name string, cert tls.Certificate, arguments ...string) (string, error) {
		file := filepath.Join(dir, name+".pem")
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), 0o600); err != nil {
			t.Fatal(err)
		}
		arguments = append([]string{"verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", ca}, append(arguments, file)...)
		out, err := exec.CommandContext(t.Context(), openssl, arguments...).CombinedOutput()
		return string(out), err
	}
	config, err := authority.ServerConfig(apiHost)
	if err != nil {
		t.Fatal(err)
	}
	own, err := config.GetCertificate(&tls.ClientHelloInfo{ServerName: apiHost})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := verify("own", *own, "-verify_hostname", apiHost); err != nil {
		t.Errorf("its own certificate: %v: %s", err, out)
	}
	for name, c := range map[string]struct {
		names     []string
		addresses []net.IP
		check     []string
	}{
		"other":   {[]string{"evil.test"}, nil, []string{"-verify_hostname", "evil.test"}},
		"sibling": {[]string{"www.example.com"}, nil, []string{"-verify_hostname", "www.example.com"}},
		"address": {nil, []net.IP{net.IPv4(192, 0, 2, 7)}, []string{"-verify_ip", "192.0.2.7"}},
	} {
		forged, err := authority.Forge(c.names, c.addresses)
		if err != nil {
			t.Fatal(err)
		}
		out, err := verify(name, forged, c.check...)
		if err == nil || !strings.Contains(out, "subtree violation") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

func TestCurlVerifies(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("no curl on this machine")
	}
	authority := newAuthority(t, apiHost)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s by %s", r.Host, r.Proto) })
	get := func(host, address, version string) (string, error) {
		out, err := exec.CommandContext(t.Context(), curl, "-q", "-sS", "--noproxy", "*", "--max-time", "20", version, "--cacert", ca,
			"--connect-to", host+":443:"+address, "https://"+host+"/").CombinedOutput()
		return string(out), err
	}
	config, err := authority.ServerConfig(apiHost)
	if err != nil {
		t.Fatal(err)
	}
	address := serveTLS(t, config, hello)
	for version, want := range map[string]string{"--http1.1": "HTTP/1.1", "--http2": "HTTP/2.0"} {
		if out, err := get(apiHost, address, version); err != nil || out != apiHost+" by "+want {
			t.Errorf("curl %s: %v: %s", version, err, out)
		}
	}
	forged, err := authority.Forge([]string{"evil.test"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	address = serveTLS(t, &tls.Config{Certificates: []tls.Certificate{forged}}, hello)
	const badCertificate = 60
	var exit *exec.ExitError
	if out, err := get("evil.test", address, "--http1.1"); !errors.As(err, &exit) || exit.ExitCode() != badCertificate {
		t.Errorf("curl with a forged certificate: %v: %s", err, out)
	}
}

// TestLeavesAreRenewed: a sandbox that lives longer than a leaf does not notice.
func TestLeavesAreRenewed(t *testing.T) {
	t.Parallel()
	now := time.Now()
	authority, err := broker.NewAuthority([]string{apiHost}, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	config, err := authority.ServerConfig(apiHost)
	if err != nil {
		t.Fatal(err)
	}
	leaf := func() *x509.Certificate {
		cert, err := config.GetCertificate(&tls.ClientHelloInfo{ServerName: apiHost})
		if err != nil {
			t.Fatal(err)
		}
		return cert.Leaf
	}
	first := leaf()
	if life := first.NotAfter.Sub(now); life > 24*time.Hour {
		t.Errorf("a leaf lives for %v", life)
	}
	now = now.Add(11 * time.Hour)
	if !leaf().Equal(first) {
		t.Error("the leaf was made anew before half of its life")
	}
	for range 20 {
		now = now.Add(13 * time.Hour)
		if _, err := leaf().Verify(x509.VerifyOptions{Roots: trust(t, authority), DNSName: apiHost, CurrentTime: now}); err != nil {
			t.Fatalf("after %v: %v", now.Sub(first.NotBefore), err)
		}
	}
	if leaf().Equal(first) {
		t.Error("the leaf was not renewed")
	}
}

// TestAuthoritiesAreApart: what one sandbox trusts is nothing to another.
func TestAuthoritiesAreApart(t *testing.T) {
	t.Parallel()
	one, two := newAuthority(t, apiHost), newAuthority(t, apiHost)
	config, err := one.ServerConfig(apiHost)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, clientErr := handshake(t, config, &tls.Config{RootCAs: trust(t, two), ServerName: apiHost}); clientErr == nil {
		t.Error("another sandbox's client was content")
	}
	if one.Certificate().Subject.String() == two.Certificate().Subject.String() {
		t.Error("both have the same name")
	}
	if text := string(one.PEM()); strings.Contains(text, "PRIVATE") || strings.Count(text, "BEGIN") != 1 {
		t.Errorf("the PEM is more than one certificate: %s", text)
	}
}
