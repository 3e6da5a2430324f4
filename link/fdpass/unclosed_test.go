package fdpass_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/berm-dev/berm/link"
)

// TestResponseThatNobodyCloses: a caller whose context ended may leave the response
// of a request that was still being sent; the link ends all the same.
func TestResponseThatNobodyCloses(t *testing.T) {
	t.Parallel()
	early := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	l, stop := open(t, early, http.NotFoundHandler(), nil)
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	body, writer := io.Pipe()
	defer writer.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+link.DataHost+"/", body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := l.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Write([]byte("some")); err != nil { // the body is being read
		t.Fatal(err)
	}
	cancel()
	// The end of the context closes the stream, and with it the caller's body.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = writer.Write([]byte("more"))
		_, _ = writer.Write([]byte("more"))
		_ = l.Close()
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the link does not end")
		_ = resp.Body.Close()
		<-ended
	}
	_ = resp.Body.Close()
}
