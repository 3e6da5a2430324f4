package fdpass_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"

	"github.com/berm-dev/berm/errdefs"
)

// TestAcceptWithAnOverContext: who only wants to know whether there is a listener
// asks with a context that is over, and is not told that by chance.
func TestAcceptWithAnOverContext(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	without, stop := open(t, http.NotFoundHandler(), http.NotFoundHandler(), nil)
	defer stop()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	with, stopOther := open(t, http.NotFoundHandler(), http.NotFoundHandler(), listener)
	defer stopOther()
	if err := errors.Join(without.Ready(t.Context()), with.Ready(t.Context())); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if _, err := without.Accept(over); !errors.Is(err, errdefs.Unsupported) {
			t.Fatalf("without a listener: %v", err)
		}
		if _, err := with.Accept(over); !errors.Is(err, errdefs.Cancelled) {
			t.Fatalf("with a listener: %v", err)
		}
	}
}
