package agentclient_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
)

// tripper is a round trip as a function.
type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

// trickle gives its pieces, each after a pause, and then nothing until the
// request's end.
type trickle struct {
	req    *http.Request
	pause  time.Duration
	pieces []string
}

func (b *trickle) Read(p []byte) (int, error) {
	if len(b.pieces) == 0 {
		<-b.req.Context().Done()
		return 0, b.req.Context().Err()
	}
	time.Sleep(b.pause)
	n := copy(p, b.pieces[0])
	b.pieces = b.pieces[1:]
	return n, nil
}

func (*trickle) Close() error { return nil }

// A transfer may take for ever, and its caller may dawdle; an agent that stops in
// the middle ends it, without any deadline of the caller's.
func TestStalledTransfers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := agentclient.New(tripper(func(r *http.Request) (*http.Response, error) {
			body := &trickle{req: r, pause: 20 * time.Second, pieces: strings.Split("abcdef", "")}
			return &http.Response{StatusCode: http.StatusOK, ContentLength: 100, Body: body}, nil
		}))
		body, _, err := c.Open(t.Context(), "/f", 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = body.Close() }()
		first := make([]byte, 1)
		if _, err := body.Read(first); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // the caller's own pause
		rest, err := io.ReadAll(body)
		if string(rest) != "bcdef" {
			t.Errorf("read %q", rest)
		}
		wantKind(t, err, errdefs.TransportLost)
	})
}

// The same for an agent that takes nothing, and for one whose refusal never ends.
func TestStalledUploads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		taken := 0
		c := agentclient.New(tripper(func(r *http.Request) (*http.Response, error) {
			_, err := r.Body.(io.WriterTo).WriteTo(writer(func(p []byte) (int, error) {
				if taken += len(p); taken < 3 {
					return len(p), nil
				}
				<-r.Context().Done()
				return 0, r.Context().Err()
			}))
			return nil, err
		}))
		wantKind(t, c.Create(t.Context(), "/f", 0, &slow{}), errdefs.TransportLost)
		if taken != 3 {
			t.Errorf("the agent took %d bytes", taken)
		}
		c = agentclient.New(tripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusNotFound, Body: &trickle{req: r}}, nil
		}))
		_, _, err := c.Open(t.Context(), "/f", 0)
		wantKind(t, err, errdefs.TransportLost)
		wantKind(t, c.Create(t.Context(), "/f", 0, strings.NewReader("")), errdefs.TransportLost)
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// slow is a source that gives a byte an hour.
type slow struct{ given int }

func (s *slow) Read(p []byte) (int, error) {
	if s.given++; s.given > 10 {
		return 0, errors.New("read on after the agent had stopped")
	}
	time.Sleep(time.Hour)
	return copy(p, "x"), nil
}

// Whether a caller gave up is not the agent's to say.
func TestForgedEndsOfAContext(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"canceled", "deadline_exceeded"} {
		said := `{"error":{"code":"` + code + `","message":"you gave up"}}`
		s, err := hostile(t, streaming(startOf(3), envelope(2, []byte(said)))).Start(t.Context(), agentclient.StartRequest{Args: []string{"x"}})
		for err == nil {
			_, err = s.Recv()
		}
		wantKind(t, err, errdefs.Protocol)
		_, err = hostile(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusRequestTimeout)
			_, _ = io.WriteString(w, said[len(`{"error":`):len(said)-1])
		})).Stat(t.Context(), "/x")
		wantKind(t, err, errdefs.Protocol)
	}
}
