package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/miekg/dns"
)

// world is what the rows of egress share: servers on loopback, a name server, and
// proxies before them, each proxy in a process of its own.
type world struct {
	http, https int
	roots       *x509.CertPool
	gates       gateReport
	gatePID     int
	peers       []peer
	ends        []func() error
}

// peer is a proxy of somebody else's.
type peer struct {
	name, address string
	pid           int
}

func (w *world) atEnd(f func() error) { w.ends = append(w.ends, f) }

// close ends everything, the last first.
func (w *world) close() error {
	var errs []error
	for _, end := range slices.Backward(w.ends) {
		errs = append(errs, end())
	}
	w.ends = nil
	return errors.Join(errs...)
}

// newWorld starts everything. With an error all that ran has ended.
func (b *bench) newWorld(ctx context.Context) (*world, error) {
	w := &world{}
	if err := w.start(ctx, b); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) start(ctx context.Context, b *bench) error {
	roots, err := w.startServers(ctx)
	if err != nil {
		return err
	}
	nameserver, err := w.startNames(ctx)
	if err != nil {
		return err
	}
	order := gateOrder{Nameserver: nameserver, HTTP: w.http, HTTPS: w.https, Roots: roots, Audit: filepath.Join(b.dir, "audit-"+strconv.FormatInt(time.Now().UnixNano(), 36))}
	if err := w.startGates(ctx, order); err != nil {
		return err
	}
	return w.startPeers(ctx, b.peers)
}

// startServers starts a server for HTTP and one for HTTPS, and returns the roots
// for the latter.
func (w *world) startServers(ctx context.Context) (roots []byte, err error) {
	cert, roots, err := selfSigned()
	if err != nil {
		return nil, err
	}
	w.roots = x509.NewCertPool()
	w.roots.AppendCertsFromPEM(roots)
	for _, one := range []struct {
		port *int
		tls  *tls.Config
	}{{&w.http, nil}, {&w.https, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}}} {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		*one.port = int(netip.MustParseAddrPort(listener.Addr().String()).Port())
		server := &http.Server{
			Handler: http.HandlerFunc(serveBytes), TLSConfig: one.tls, ReadHeaderTimeout: time.Minute,
			// Clients leave their connections at the end of a row.
			ErrorLog: log.New(io.Discard, "", 0),
		}
		done := make(chan error, 1)
		go func() {
			if one.tls != nil {
				done <- server.ServeTLS(listener, "", "")
				return
			}
			done <- server.Serve(listener)
		}()
		w.atEnd(func() error {
			err := server.Close()
			if served := <-done; !errors.Is(served, http.ErrServerClosed) {
				err = errors.Join(err, served)
			}
			return err
		})
	}
	return roots, nil
}

// serveBytes gives ?n= bytes, or takes a body and says how long it was.
func serveBytes(w http.ResponseWriter, r *http.Request) {
	n, _ := strconv.ParseInt(r.URL.Query().Get("n"), 10, 64)
	if r.Method == http.MethodPost {
		took, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, make([]byte, blockBytes))
		if err != nil {
			return // the client counts
		}
		n = int64(len(strconv.FormatInt(took, 10)))
		defer func() { _, _ = io.WriteString(w, strconv.FormatInt(took, 10)) }()
	}
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodPost {
		return
	}
	block := make([]byte, blockBytes)
	for ; n > 0; n -= blockBytes {
		if _, err := w.Write(block[:min(n, blockBytes)]); err != nil {
			return // the client counts
		}
	}
}

// selfSigned is a certificate for the servers, which is its own root.
func selfSigned() (cert tls.Certificate, roots []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "berm bench"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{upstreamHost}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return cert, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// startNames answers every question for an IPv4 address with loopback.
func (w *world) startNames(ctx context.Context) (address string, err error) {
	conn, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(out dns.ResponseWriter, question *dns.Msg) {
		answer := new(dns.Msg).SetReply(question)
		if q := question.Question; len(q) == 1 && q[0].Qtype == dns.TypeA {
			answer.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(127, 0, 0, 1)}}
		}
		// Who does not get it asks again.
		_ = out.WriteMsg(answer)
	})}
	started, done := make(chan struct{}), make(chan error, 1)
	server.NotifyStartedFunc = func() { close(started) }
	go func() { done <- server.ActivateAndServe() }()
	select {
	case <-started:
	case err := <-done:
		return "", errors.Join(err, conn.Close())
	}
	w.atEnd(func() error { return errors.Join(server.Shutdown(), <-done) })
	return conn.LocalAddr().String(), nil
}

// startPeers starts the proxies that scripts/egress-peers built; none without them.
func (w *world) startPeers(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	for _, name := range []string{"goproxy", "smokescreen"} {
		address, err := freeAddress(ctx)
		if err != nil {
			return err
		}
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			return err
		}
		args := []string{address}
		if name == "smokescreen" {
			// It writes a line for each decision as well; nobody reads it.
			args = []string{"--listen-ip", "127.0.0.1", "--listen-port", port, "--allow-range", "127.0.0.0/8"}
		}
		cmd := exec.CommandContext(ctx, filepath.Join(dir, name), args...)
		if err := cmd.Start(); err != nil {
			return err
		}
		w.atEnd(func() error {
			// It has no other way to end, and says so.
			err := cmd.Process.Kill()
			_ = cmd.Wait()
			return err
		})
		if err := reachable(ctx, address); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		w.peers = append(w.peers, peer{name: name, address: address, pid: cmd.Process.Pid})
	}
	return nil
}

// freeAddress is a port on loopback that was free a moment ago.
func freeAddress(ctx context.Context) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

// reachable waits until somebody listens.
func reachable(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// route is one way to the servers.
type route struct {
	name string
	// host is what the client asks for: our gate has rules on names, and the others
	// are spared the resolving.
	host string
	pid  int

	proxy     string
	roots     *x509.CertPool
	transport *http.Transport
}

// routes are: direct, ours, and the peers.
func (w *world) routes() []*route {
	out := []*route{{name: "direct", host: "127.0.0.1"}, {name: "berm", host: upstreamHost, proxy: w.gates.Opaque, pid: w.gatePID}}
	for _, p := range w.peers {
		out = append(out, &route{name: p.name, host: "127.0.0.1", proxy: p.address, pid: p.pid})
	}
	for _, r := range out {
		r.roots = w.roots
	}
	return w.connect(out)
}

// brokered is the way on which TLS is ended.
func (w *world) brokered() *route {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.gates.CA)
	return w.connect([]*route{{name: "berm, TLS ended, credential put on", host: upstreamHost, proxy: w.gates.Brokered, roots: roots, pid: w.gatePID}})[0]
}

// connect gives each route a transport of its own, for HTTP/1.1.
func (w *world) connect(routes []*route) []*route {
	for _, r := range routes {
		r.transport = &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: r.roots, MinVersion: tls.VersionTLS12}, DisableCompression: true,
			ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		}
		if r.proxy != "" {
			r.transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: r.proxy})
		}
		w.atEnd(func() error { r.transport.CloseIdleConnections(); return nil })
	}
	return routes
}
