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
	reset := make(chan struct{})
	early := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return
		}
		defer close(reset)
		answer := http.NewResponseController(w)
		if err := answer.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusOK)
		_ = answer.Flush()
		_, _ = io.Copy(io.Discard, r.Body)
	})
	l, stop := open(t, early, http.NotFoundHandler(), nil)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
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
	<-reset // the context's end has closed the stream
	again, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+link.DataHost+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := l.RoundTrip(again); err != nil || other.Body.Close() != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Close()
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the link does not end")
	}
	_ = resp.Body.Close()
	<-ended
}
