package broker

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"time"
)

// Forge is a certificate that somebody with the authority's key could make: for
// any names and addresses.
func (a *Authority) Forge(names []string, addresses []net.IP) (tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"forged"}}, DNSNames: names, IPAddresses: addresses,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.leafKey.Public(), a.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey}, err
}

// Certificate is the authority's own.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }
