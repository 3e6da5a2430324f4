package linktest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/berm-dev/berm/errdefs"
)

const burst = 8 << 20

// testUpgradeHalfCloseByHost: the host ends its direction first; the peer reads
// to the end and only then answers.
func testUpgradeHalfCloseByHost(t *testing.T, open Opener) {
	s := start(t, open, nil, hijack(func(conn halfCloser, r io.Reader) {
		got, err := io.ReadAll(r)
		if err != nil {
			return
		}
		_, _ = conn.Write(got)
	}))
	body, conn := s.upgrade("/up")
	sent := pattern(burst)
	if _, err := body.Write(sent); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var got []byte
	var err error
	within(t, patience, "reading the answer", func() { got, err = io.ReadAll(body) })
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes came back, %v", len(got), len(sent), err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
	s.works()
}

// testUpgradeHalfCloseByPeer: the peer ends its direction first; the host reads
// the end and goes on writing.
func testUpgradeHalfCloseByPeer(t *testing.T, open Opener) {
	received := make(chan []byte, 1)
	s := start(t, open, nil, hijack(func(conn halfCloser, r io.Reader) {
		if _, err := io.WriteString(conn, "hello"); err != nil || conn.CloseWrite() != nil {
			return
		}
		got, err := io.ReadAll(r)
		if err == nil {
			received <- got
		}
	}))
	body, conn := s.upgrade("/up")
	var got []byte
	var err error
	within(t, patience, "reading to the end", func() { got, err = io.ReadAll(body) })
	if err != nil || string(got) != "hello" {
		t.Fatalf("read %q, %v", got, err)
	}
	sent := pattern(burst)
	if _, err := body.Write(sent); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := await(t, "end of the host's direction", received); !bytes.Equal(got, sent) {
		t.Errorf("the peer got %d of %d bytes", len(got), len(sent))
	}
}

// testUpgradeDeadlines: deadlines wake a reader, and a writer that the peer does
// not read from, and leave the stream to the other direction.
func testUpgradeDeadlines(t *testing.T, open Opener) {
	end := make(chan struct{})
	s := start(t, open, nil, hijack(func(halfCloser, io.Reader) { <-end }))
	defer close(end)
	_, conn := s.upgrade("/up")
	soon := time.Now().Add(50 * time.Millisecond)
	if err := conn.SetDeadline(soon); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
	})
	group.Go(func() {
		_, err := io.Copy(onlyWriter{conn}, zeros(1<<30))
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %v", err)
		}
	})
	within(t, patience, "waking by the deadline", group.Wait)
}

// testUnaskedUpgrade: a peer cannot turn a plain request into a raw stream.
func testUnaskedUpgrade(t *testing.T, open Opener) {
	s := start(t, open, hijack(func(halfCloser, io.Reader) {}), nil)
	resp, err := s.RoundTrip(s.request(t.Context(), http.MethodGet, "/up", nil))
	if err == nil {
		_ = resp.Body.Close()
		t.Fatalf("status %s", resp.Status)
	}
	isKind(t, "unasked upgrade", err, errdefs.Protocol)
	s.works()
}
