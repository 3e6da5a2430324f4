package broker_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/gate/internal/broker"
)

func TestC19UpstreamCertificate(t *testing.T) {
	t.Parallel()
	public, stranger := newPKI(t), newPKI(t)
	good := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		cert tls.Certificate
		want egress.Reason
	}{
		"C19/good":          {public.issue(t, apiHost, good), ""},
		"C19/wrong host":    {public.issue(t, "evil.test", good), egress.ReasonTLSVerify},
		"C19/expired":       {public.issue(t, apiHost, time.Now().Add(-time.Hour)), egress.ReasonTLSVerify},
		"C19/unknown root":  {stranger.issue(t, apiHost, good), egress.ReasonTLSVerify},
		"C19/other on host": {public.issue(t, "*.api.example.com", good), egress.ReasonTLSVerify},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			address := upstream(t, c.cert, func(w http.ResponseWriter, r *http.Request) { asked.Add(1) })
			r := newRigTo(t, bearer(), address, public.pool)
			for _, h2 := range []bool{false, true} {
				got := ask(t, r.client(t, h2), http.MethodGet, "https://"+apiHost+"/", nil, nil)
				if got.reason != c.want {
					t.Errorf("h2 %v: reason %q, want %q", h2, got.reason, c.want)
				}
			}
			if n := asked.Load(); (n > 0) != (c.want == "") {
				t.Errorf("the server saw %d requests", n)
			}
		})
	}
}

// TestVerificationCannotBeLost: a configuration that was told on its way not to
// verify still does.
func TestVerificationCannotBeLost(t *testing.T) {
	t.Parallel()
	public := newPKI(t)
	server := &tls.Config{Certificates: []tls.Certificate{public.issue(t, apiHost, time.Now().Add(time.Hour))}}
	client := broker.ClientTLS(public.pool)
	client.ServerName = apiHost
	if _, serverErr, clientErr := handshake(t, server, client); clientErr != nil {
		t.Fatal(clientErr, serverErr)
	}
	client.InsecureSkipVerify = true
	if _, _, clientErr := handshake(t, server, client); broker.UpstreamReason(clientErr) != egress.ReasonTLSVerify {
		t.Errorf("without verification: %v", clientErr)
	}
}

func TestUpstreamReason(t *testing.T) {
	t.Parallel()
	for want, errs := range map[egress.Reason][]error{
		"":                     {nil},
		egress.ReasonTimeout:   {context.DeadlineExceeded, fmt.Errorf("read: %w", os.ErrDeadlineExceeded), &net.DNSError{IsTimeout: true}},
		egress.ReasonDial:      {&net.OpError{Op: "dial", Err: errors.New("refused")}},
		egress.ReasonUpstream:  {io.ErrUnexpectedEOF, &net.OpError{Op: "read", Err: errors.New("reset")}, context.Canceled},
		egress.ReasonTLSVerify: {fmt.Errorf("round trip: %w", &tls.CertificateVerificationError{Err: errors.New("bad")})},
	} {
		for _, err := range errs {
			if got := broker.UpstreamReason(err); got != want {
				t.Errorf("%v: %q, want %q", err, got, want)
			}
		}
	}
}
