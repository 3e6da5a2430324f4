package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/berm-dev/berm/egress"
)

// ClientTLS is how the gate speaks to the host of a credential. Certificates are
// always verified, against roots, or the system's where that is nil. The caller
// (http.Transport does) sets the server's name on a clone.
func ClientTLS(roots *x509.CertPool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    roots,
		NextProtos: []string{"h2", "http/1.1"},
		// Resumed sessions come here as well, and a configuration that was changed
		// on its way not to verify.
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.VerifiedChains) == 0 || state.ServerName == "" {
				return &tls.CertificateVerificationError{
					UnverifiedCertificates: state.PeerCertificates,
					Err:                    fmt.Errorf("the certificate of %q was not verified", state.ServerName),
				}
			}
			return nil
		},
	}
}

// UpstreamReason names what the error of a request to the host of a credential
// means. It is empty for nil.
func UpstreamReason(err error) egress.Reason {
	var (
		unverified *tls.CertificateVerificationError
		dial       *net.OpError
		timeout    net.Error
	)
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errMisplaced):
		return egress.ReasonPlaceholder
	case errors.As(err, &unverified):
		return egress.ReasonTLSVerify
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return egress.ReasonTimeout
	case errors.As(err, &dial) && dial.Op == "dial":
		return egress.ReasonDial
	}
	return egress.ReasonUpstream
}
