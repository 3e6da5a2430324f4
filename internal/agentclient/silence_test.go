package agentclient_test

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berm-dev/berm/internal/agentclient"
)

// paced is a link whose agent answers as slowly as it likes. Time is synctest's,
// so that hours pass at once.
type paced struct {
	kind   string
	header time.Duration // before the answer begins
	parts  [][]byte
	pause  time.Duration // before each part
	length int64
	got    bytes.Buffer // what was uploaded
}

// RoundTrip implements http.RoundTripper.
func (p *paced) RoundTrip(req *http.Request) (*http.Response, error) {
	// The body is read to its end first, as our link does with an upload.
	if req.Body != nil {
		if _, err := io.Copy(&p.got, req.Body); err != nil {
			return nil, err
		}
	}
	time.Sleep(p.header)
	body, out := io.Pipe()
	go func() {
		for _, part := range p.parts {
			time.Sleep(p.pause)
			if _, err := out.Write(part); err != nil {
				return
			}
		}
		_ = out.Close()
	}()
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: p.length, Request: req,
		Header: http.Header{"Content-Type": {p.kind}}, Body: body,
	}, nil
}

// TestSilentCommandIsWaitedFor: hours of silence between the events of a command
// are no fault of anybody's.
func TestSilentCommandIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		link := &paced{
			kind: "application/connect+proto", length: -1, pause: 3 * time.Hour,
			parts: [][]byte{startOf(7), stdout("late"), exited(), envelope(2, []byte("{}"))},
		}
		begin := time.Now()
		s, err := agentclient.New(link).Start(t.Context(), agentclient.StartRequest{Args: []string{"x"}})
		if err != nil {
			t.Fatal(err)
		}
		out, _, end := collect(t, s)
		if out != "late" || end.Reason != agentclient.EndExited || time.Since(begin) < 9*time.Hour {
			t.Errorf("%q, %+v after %v", out, end, time.Since(begin))
		}
		_ = s.Close()
		synctest.Wait()
	})
}

// drip is a source that has a little now and then.
type drip struct {
	parts int
	pause time.Duration
}

// Read implements io.Reader.
func (s *drip) Read(p []byte) (int, error) {
	if s.parts == 0 {
		return 0, io.EOF
	}
	time.Sleep(s.pause)
	s.parts--
	return copy(p, "a part\n"), nil
}

// TestSlowTransfersAreNotCut: no deadline counts for a transfer as a whole, in
// either direction.
func TestSlowTransfersAreNotCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		up := &paced{kind: "application/json", length: -1}
		begin := time.Now()
		if err := agentclient.New(up).Create(t.Context(), "/f", 0o644, &drip{parts: 100, pause: 5 * time.Minute}); err != nil {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if want := bytes.Repeat([]byte("a part\n"), 100); !bytes.Equal(up.got.Bytes(), want) {
			t.Errorf("%d bytes arrived of %d", up.got.Len(), len(want))
		}
		down := &paced{kind: "application/octet-stream", length: 1000, pause: 20 * time.Second, parts: slices.Repeat([][]byte{[]byte("0123456789")}, 100)}
		body, size, err := agentclient.New(down).Open(t.Context(), "/f", 0)
		if err != nil || size != 1000 {
			t.Fatal(size, err)
		}
		got, err := io.ReadAll(body)
		if err != nil || len(got) != 1000 {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		// The caller may take its time too.
		time.Sleep(time.Hour)
		if err := body.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}
