package broker_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"testing"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/broker"
)

const (
	apiHost = "api.example.com"
	token   = "tok+/en=0123456789&abc"
)

// pki is the public's certificate authority, as the gate sees it.
type pki struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "public"}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	p := &pki{cert: cert, key: key, pool: x509.NewCertPool()}
	p.pool.AddCert(cert)
	return p
}

func (p *pki) issue(t *testing.T, name string, until time.Time) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, p.key.Public(), p.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: p.key}
}

// upstream is a server of the public's on loopback, for HTTP/1.1 and HTTP/2.
func upstream(t *testing.T, cert tls.Certificate, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.Config.ErrorLog = silent()
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// refusal is an error with the reason that a gate would answer.
type refusal struct {
	reason egress.Reason
	err    error
}

func (r *refusal) Error() string { return string(r.reason) + ": " + r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// rig is a gate's way of using a broker, between a client that trusts the
// sandbox's authority and a server that the public's certifies.
type rig struct {
	authority *broker.Authority
	set       *broker.Set
	front     string
	transport *http.Transport
	// tune changes what goes out before the broker sees it; nil for nothing.
	tune func(*http.Request)
}

func newRig(t *testing.T, credential egress.Credential, handler http.HandlerFunc) *rig {
	t.Helper()
	public := newPKI(t)
	return newRigTo(t, credential, upstream(t, public.issue(t, apiHost, time.Now().Add(time.Hour)), handler), public.pool)
}

func newRigTo(t *testing.T, credential egress.Credential, address string, roots *x509.CertPool) *rig {
	t.Helper()
	set, err := broker.Compile([]egress.Credential{credential})
	if err != nil {
		t.Fatal(err)
	}
	authority, err := broker.NewAuthority(set.Hosts(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{authority: authority, set: set, transport: &http.Transport{
		TLSClientConfig: broker.ClientTLS(roots), ForceAttemptHTTP2: true, DisableCompression: true,
		DialContext: dialTo(address),
	}}
	t.Cleanup(r.transport.CloseIdleConnections)
	config, err := authority.ServerConfig(apiHost)
	if err != nil {
		t.Fatal(err)
	}
	r.front = serveTLS(t, config, r)
	return r
}

func dialTo(address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
}

// serveTLS serves h1 and h2 on loopback.
func serveTLS(t *testing.T, config *tls.Config, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, TLSConfig: config, ErrorLog: silent()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ServeTLS(listener, "", "")
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return listener.Addr().String()
}

// ServeHTTP is the terminated side of a tunnel to apiHost.
func (r *rig) ServeHTTP(w http.ResponseWriter, in *http.Request) {
	if reason, err := broker.CheckTarget(in, apiHost, 443); err != nil {
		refuse(w, in, &refusal{reason, err})
		return
	}
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "https", apiHost
			if r.tune != nil {
				r.tune(p.Out)
			}
		},
		Transport: r, ErrorHandler: refuse, ErrorLog: silent(),
	}
	proxy.ServeHTTP(w, in)
}

// RoundTrip puts the credential on.
func (r *rig) RoundTrip(in *http.Request) (*http.Response, error) {
	out := in.Clone(in.Context())
	redactor, reason, err := r.set.For(apiHost).Apply(out.Context(), out)
	if err != nil {
		return nil, &refusal{reason, err}
	}
	resp, err := r.transport.RoundTrip(out)
	if err != nil {
		return nil, &refusal{broker.UpstreamReason(err), err}
	}
	if err := redactor.Response(resp); err != nil {
		return nil, &refusal{egress.ReasonUpstream, err}
	}
	return resp, nil
}

func refuse(w http.ResponseWriter, _ *http.Request, err error) {
	var r *refusal
	if !errors.As(err, &r) {
		r = &refusal{egress.ReasonInternal, err}
	}
	w.Header().Set("Reason", string(r.reason))
	w.WriteHeader(http.StatusForbidden)
	_, _ = io.WriteString(w, r.Error())
}

// client speaks to the rig as a program in the sandbox does, by one version of
// HTTP.
func (r *rig) client(t *testing.T, h2 bool) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(r.authority.PEM()) {
		t.Fatal("the authority's PEM has no certificate")
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: h2, DialContext: dialTo(r.front), DisableCompression: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// answer is a response that was read whole.
type answer struct {
	status  int
	reason  egress.Reason
	proto   int
	header  http.Header
	trailer http.Header
	body    string
}

func ask(t *testing.T, client *http.Client, method, url string, body io.Reader, header http.Header) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, egress.Reason(resp.Header.Get("Reason")), resp.ProtoMajor, resp.Header, resp.Trailer, string(data)}
}

func bearer() egress.Credential {
	return egress.Credential{Host: apiHost, Prefix: "Bearer ", Value: token}
}

// outgoing is a request as a gate would hand it to a broker.
func outgoing(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = ""
	return req
}

func compile(t *testing.T, credentials ...egress.Credential) *broker.Set {
	t.Helper()
	set, err := broker.Compile(credentials)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func compileAll(credentials ...egress.Credential) (*broker.Set, error) {
	return broker.Compile(credentials)
}
