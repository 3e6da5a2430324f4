//go:build linux

package egress_test

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
	"os"
	"path/filepath"
	"time"
)

// pki is the authority of all TLS servers out there. The machine's own roots have
// it in the test's mounts, and so have the sandboxes.
type pki struct {
	key     *ecdsa.PrivateKey
	root    *x509.Certificate
	rootPEM string
}

func newPKI() (*pki, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "berm test root", Organization: []string{"berm test"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return restore(key, der)
}

func restore(key *ecdsa.PrivateKey, der []byte) (*pki, error) {
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &pki{key: key, root: root, rootPEM: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}, nil
}

// save keeps the authority for the third stage.
func (p *pki) save(dir string) error {
	der, err := x509.MarshalECPrivateKey(p.key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "key"), der, 0o600),
		os.WriteFile(filepath.Join(dir, "root"), p.root.Raw, 0o600),
	)
}

func loadPKI(dir string) (*pki, error) {
	der, err := os.ReadFile(filepath.Join(dir, "key"))
	if err != nil {
		return nil, err
	}
	key, err := x509.ParseECPrivateKey(der)
	if err != nil {
		return nil, err
	}
	if der, err = os.ReadFile(filepath.Join(dir, "root")); err != nil {
		return nil, err
	}
	return restore(key, der)
}

// certificate is for one name, with a key of its own.
func (p *pki) certificate(name string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.root, &key.PublicKey, p.key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", name, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// config serves every name that is asked for.
func (p *pki) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if h.ServerName == "" {
				return nil, errors.New("no server name")
			}
			return p.certificate(h.ServerName)
		},
	}
}

func (p *pki) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(p.root)
	return pool
}
