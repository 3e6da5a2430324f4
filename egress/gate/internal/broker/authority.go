package broker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berm-dev/berm/errdefs"
)

const (
	// authorityLife is how long the authority's own certificate is good. It stands
	// in the sandbox's trust, where nobody renews it; its key goes with the gate,
	// whatever the certificate says.
	authorityLife = 365 * 24 * time.Hour
	// leafLife is how long a host's certificate is good. It is renewed at half.
	leafLife = 24 * time.Hour
	// skew is by how much the sandbox's clock may be behind.
	skew = time.Hour
)

// Authority is one sandbox's certificate authority. Its keys are in memory only,
// and its certificate is constrained to the hosts that it was made for, so that it
// is good for no other even if its key were lost. It is safe for concurrent use.
type Authority struct {
	now     func() time.Time
	key     *ecdsa.PrivateKey
	cert    *x509.Certificate
	leafKey *ecdsa.PrivateKey
	// configs is not changed after NewAuthority: the hosts are the limit of the
	// leaves too.
	configs map[string]*tls.Config

	mu     sync.Mutex
	leaves map[string]*leaf
}

// leaf is a host's certificate with the time from which it is made anew.
type leaf struct {
	cert  *tls.Certificate
	renew time.Time
}

// NewAuthority makes an authority for hosts, which are canonical names. At least
// one is needed (errdefs.Invalid). A nil now is time.Now.
func NewAuthority(hosts []string, now func() time.Time) (*Authority, error) {
	if now == nil {
		now = time.Now
	}
	if err := checkHosts(hosts); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key of the authority: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("key of the hosts: %w", err)
	}
	a := &Authority{now: now, key: key, leafKey: leafKey, configs: map[string]*tls.Config{}, leaves: map[string]*leaf{}}
	if a.cert, err = selfSigned(key, hosts, now()); err != nil {
		return nil, err
	}
	for _, host := range hosts {
		a.configs[host] = a.serverConfig(host)
	}
	return a, nil
}

func checkHosts(hosts []string) error {
	var faults []string
	if len(hosts) == 0 {
		faults = append(faults, "an authority without hosts would be one for all")
	}
	for _, host := range hosts {
		// An empty or a dotted constraint stands for more than one name.
		if host == "" || host != strings.Trim(host, ".") || net.ParseIP(host) != nil {
			faults = append(faults, fmt.Sprintf("%q is no name for a certificate", host))
		}
	}
	if len(faults) > 0 {
		return errdefs.New(errdefs.Invalid, "make authority", faults...)
	}
	return nil
}

// selfSigned is the authority's certificate. Names outside hosts, every address
// and every use but that of a server are outside its power.
func selfSigned(key *ecdsa.PrivateKey, hosts []string, now time.Time) (*x509.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		// Two sandboxes' authorities have different names: OpenSSL looks for an
		// issuer by name first.
		Subject:                     pkix.Name{Organization: []string{"berm"}, CommonName: fmt.Sprintf("berm sandbox %x", serial.Bytes()[:8])},
		NotBefore:                   now.Add(-skew),
		NotAfter:                    now.Add(authorityLife),
		KeyUsage:                    x509.KeyUsageCertSign,
		ExtKeyUsage:                 []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid:       true,
		IsCA:                        true,
		MaxPathLenZero:              true,
		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         slices.Clone(hosts),
		// A constraint on names says nothing about addresses.
		ExcludedIPRanges: []*net.IPNet{
			{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)},
			{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)},
		},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate of the authority: %w", err)
	}
	return x509.ParseCertificate(der)
}

// serialNumber is 127 random bits and never short.
func serialNumber() (*big.Int, error) {
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	raw[0] = raw[0]&0x7f | 0x40
	return new(big.Int).SetBytes(raw[:]), nil
}

// PEM is the authority's certificate, for the sandbox's trust.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Covers reports whether the authority was made for this very host.
func (a *Authority) Covers(host string) bool {
	_, ok := a.configs[host]
	return ok
}

// ServerConfig is what ends TLS for one host. It is the same for each call, so
// that sessions resume, and is not to be changed. A host that the authority was
// not made for is errdefs.Unsupported.
func (a *Authority) ServerConfig(host string) (*tls.Config, error) {
	config, ok := a.configs[host]
	if !ok {
		return nil, errdefs.New(errdefs.Unsupported, "end TLS", fmt.Sprintf("the sandbox's authority is not for %q", host))
	}
	return config, nil
}

func (a *Authority) serverConfig(host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		Time:       a.now,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			// The gate has looked at the name before; a tunnel for one host never
			// answers for another.
			if !strings.EqualFold(hello.ServerName, host) {
				return nil, fmt.Errorf("the client asks for %q in a tunnel to %q", hello.ServerName, host)
			}
			return a.leaf(host)
		},
	}
}

// leaf is the host's certificate, made or renewed when needed.
func (a *Authority) leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if have := a.leaves[host]; have != nil && now.Before(have.renew) {
		return have.cert, nil
	}
	cert, err := a.sign(host, now)
	if err != nil {
		return nil, err
	}
	a.leaves[host] = &leaf{cert: cert, renew: now.Add(leafLife / 2)}
	return cert, nil
}

func (a *Authority) sign(host string, now time.Time) (*tls.Certificate, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"berm"}},
		DNSNames:     []string{host},
		NotBefore:    now.Add(-skew),
		NotAfter:     now.Add(leafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %q: %w", host, err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate for %q: %w", host, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey, Leaf: parsed}, nil
}

// rejections are the alerts by which clients say that they do not trust a
// certificate (RFC 8446, 6.2).
func rejections() []tls.AlertError {
	const badCertificate, certificateUnknown, unknownCA = 42, 46, 48
	return []tls.AlertError{badCertificate, certificateUnknown, unknownCA}
}

// RejectedByClient reports whether an error of a handshake with the sandbox says
// that the client does not trust the authority: it pins another, or does not read
// the sandbox's trust.
func RejectedByClient(err error) bool {
	var remote *net.OpError
	if !errors.As(err, &remote) || remote.Op != "remote error" || remote.Err == nil {
		return false
	}
	// crypto/tls keeps the alert's type to itself; its text is that of AlertError.
	return slices.ContainsFunc(rejections(), func(a tls.AlertError) bool {
		return a.Error() == remote.Err.Error()
	})
}
