package agentclient_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// envelope frames one stream message; flags 2 ends the stream.
func envelope(flags byte, data []byte) []byte {
	out := append([]byte{flags}, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(out[1:], uint32(len(data)))
	return append(out, data...)
}

func event(e *agentv1.ProcessEvent) []byte {
	data, err := proto.Marshal(&agentv1.StartResponse{Event: e})
	if err != nil {
		return nil
	}
	return envelope(0, data)
}

func startOf(pid uint32) []byte {
	return event(&agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Start{Start: &agentv1.ProcessEvent_StartEvent{Pid: pid}}})
}

func stdout(data string) []byte {
	return event(&agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Data{Data: &agentv1.ProcessEvent_DataEvent{
		Output: &agentv1.ProcessEvent_DataEvent_Stdout{Stdout: []byte(data)},
	}}})
}

func endOf(e *agentv1.ProcessEvent_EndEvent) []byte {
	return event(&agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_End{End: e}})
}

func exited() []byte {
	return endOf(&agentv1.ProcessEvent_EndEvent{Exited: true, Reason: agentv1.EndReason_END_REASON_EXITED})
}

// streaming answers every request with the same stream.
func streaming(parts ...[]byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/connect+proto")
		for _, part := range parts {
			_, _ = w.Write(part)
		}
	})
}

// unary answers every request with the same message.
func unary(message proto.Message) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		data, _ := proto.Marshal(message)
		w.Header().Set("Content-Type", "application/proto")
		_, _ = w.Write(data)
	})
}

func TestBrokenStreams(t *testing.T) {
	t.Parallel()
	bye := envelope(2, []byte("{}"))
	for name, test := range map[string]struct {
		parts [][]byte
		kind  errdefs.Kind
	}{
		"nothing":             {nil, errdefs.TransportLost},
		"no end event":        {[][]byte{startOf(1), bye}, errdefs.Protocol},
		"cut":                 {[][]byte{startOf(1), stdout("x")}, errdefs.TransportLost},
		"cut in a message":    {[][]byte{startOf(1), stdout("xyz")[:7]}, errdefs.TransportLost},
		"data first":          {[][]byte{stdout("x"), bye}, errdefs.Protocol},
		"end first":           {[][]byte{exited(), bye}, errdefs.Protocol},
		"two starts":          {[][]byte{startOf(1), startOf(1)}, errdefs.Protocol},
		"pid 0":               {[][]byte{startOf(0)}, errdefs.Protocol},
		"pid too large":       {[][]byte{startOf(1 << 31)}, errdefs.Protocol},
		"two ends":            {[][]byte{startOf(1), exited(), exited(), bye}, errdefs.Protocol},
		"data after the end":  {[][]byte{startOf(1), exited(), stdout("x"), bye}, errdefs.Protocol},
		"no event":            {[][]byte{startOf(1), envelope(0, nil)}, errdefs.Protocol},
		"garbage":             {[][]byte{envelope(0, []byte("\xff\xff\xff"))}, errdefs.Protocol},
		"compressed":          {[][]byte{envelope(1, []byte("x"))}, errdefs.Protocol},
		"too large":           {[][]byte{startOf(1), stdout(strings.Repeat("x", 600<<10))}, errdefs.Protocol},
		"exit code":           {[][]byte{startOf(1), endOf(&agentv1.ProcessEvent_EndEvent{ExitCode: 256, Reason: 1})}, errdefs.Protocol},
		"signal":              {[][]byte{startOf(1), endOf(&agentv1.ProcessEvent_EndEvent{Signal: 65, Reason: 2})}, errdefs.Protocol},
		"no signal":           {[][]byte{startOf(1), endOf(&agentv1.ProcessEvent_EndEvent{Reason: 2})}, errdefs.Protocol},
		"reason":              {[][]byte{startOf(1), endOf(&agentv1.ProcessEvent_EndEvent{Reason: 77})}, errdefs.Protocol},
		"duration":            {[][]byte{startOf(1), endOf(&agentv1.ProcessEvent_EndEvent{Reason: 1, DurationUs: 1 << 63})}, errdefs.Protocol},
		"lingering":           {[][]byte{startOf(1), endOf(&agentv1.ProcessEvent_EndEvent{Reason: 1, Lingering: make([]uint32, 5000)})}, errdefs.Protocol},
		"not started, late":   {[][]byte{startOf(1), endOf(&agentv1.ProcessEvent_EndEvent{Reason: 4})}, errdefs.Protocol},
		"a refusal":           {[][]byte{envelope(2, []byte(`{"error":{"code":"resource_exhausted","message":"a\u001b[31m\u202eb"}}`))}, errdefs.Exhausted},
		"an unknown code":     {[][]byte{envelope(2, []byte(`{"error":{"code":"nonsense"}}`))}, errdefs.Internal},
		"an end frame of 1 M": {[][]byte{envelope(2, make([]byte, 1<<20))}, errdefs.Protocol},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := hostile(t, streaming(test.parts...))
			s, err := c.Start(t.Context(), agentclient.StartRequest{Args: []string{"x"}})
			for err == nil {
				_, err = s.Recv()
			}
			wantKind(t, err, test.kind)
			if _, again := s.Recv(); !errors.Is(again, err) {
				t.Errorf("a second error: %v", again)
			}
			_ = s.Close()
		})
	}
}

func TestEndSurvivesAStreamThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	c := hostile(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/connect+proto")
		_, _ = w.Write(append(startOf(1), exited()...))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	s, err := c.Start(ctx, agentclient.StartRequest{Args: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, end := collect(t, s); end.Reason != agentclient.EndExited || ctx.Err() != nil {
		t.Errorf("%+v, %v", end, ctx.Err())
	}
}

func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	entry := func(e *agentv1.EntryInfo) proto.Message { return &agentv1.StatResponse{Entry: e} }
	good := &agentv1.Lstat{Mode: 0o100644}
	for name, message := range map[string]proto.Message{
		"no entry": entry(nil),
		"size":     entry(&agentv1.EntryInfo{Lstat: &agentv1.Lstat{Mode: 0o100644, Size: -1}}),
		"mode":     entry(&agentv1.EntryInfo{Lstat: &agentv1.Lstat{Mode: 0o644}}),
		"bits":     entry(&agentv1.EntryInfo{Lstat: &agentv1.Lstat{Mode: 1<<20 | 0o100644}}),
		"type":     entry(&agentv1.EntryInfo{Type: 9}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := hostile(t, unary(message)).Lstat(t.Context(), "/x")
			wantKind(t, err, errdefs.Protocol)
		})
	}
	for _, name := range []string{"", ".", "..", "a/b", "a\x00", strings.Repeat("n", 1000), "../x", "\x1b/"} {
		t.Run(fmt.Sprintf("name %.10q", name), func(t *testing.T) {
			t.Parallel()
			_, err := hostile(t, unary(&agentv1.ListDirResponse{Entries: []*agentv1.EntryInfo{{Name: name, Path: "/d/" + name, Lstat: good}}})).ReadDir(t.Context(), "/d")
			wantKind(t, err, errdefs.Protocol)
		})
	}
	_, err := hostile(t, unary(&agentv1.ListDirResponse{Entries: []*agentv1.EntryInfo{{Name: "a", Path: "/etc/a", Lstat: good}}})).ReadDir(t.Context(), "/d")
	wantKind(t, err, errdefs.Protocol)
	_, err = hostile(t, unary(&agentv1.ListResponse{Processes: []*agentv1.ProcessInfo{{}}})).List(t.Context())
	wantKind(t, err, errdefs.Protocol)
	_, err = hostile(t, unary(&agentv1.ProbeResponse{})).Probe(t.Context(), nil)
	wantKind(t, err, errdefs.Protocol)
}

func TestBrokenTransfers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		offset int64
		kind   errdefs.Kind
		serve  http.HandlerFunc
	}{
		"redirect": {0, errdefs.Protocol, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}},
		"no length": {0, errdefs.Protocol, func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "x")
		}},
		"compressed": {0, errdefs.Protocol, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "gzip") }},
		"whole":      {4, errdefs.Protocol, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "0123456789") }},
		"other range": {4, errdefs.Protocol, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 3-9/10")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, "3456789")
		}},
		"no range": {4, errdefs.Protocol, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestedRangeNotSatisfiable) }},
		"refusal": {0, errdefs.NotFound, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":404,"message":"\u001b]0;x\u0007\u202e`+strings.Repeat("m", 30000)+`"}`)
		}},
		"endless refusal": {0, errdefs.Internal, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := hostile(t, test.serve).Open(t.Context(), "/f", test.offset)
			if text := wantKind(t, err, test.kind); len(text) > 5000 {
				t.Errorf("an error of %d bytes", len(text))
			}
		})
	}
}

func TestShortTransferIsLost(t *testing.T) {
	t.Parallel()
	c := hostile(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "short")
	}))
	body, size, err := c.Open(t.Context(), "/f", 0)
	if err != nil || size != 100 {
		t.Fatal(size, err)
	}
	defer func() { _ = body.Close() }()
	_, err = io.ReadAll(body)
	wantKind(t, err, errdefs.TransportLost)
}

func TestSilentAgent(t *testing.T) {
	t.Parallel()
	// A request whose body is not read does not learn that its client is gone.
	over := make(chan struct{})
	c := hostile(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	t.Cleanup(func() { close(over) })
	for name, call := range map[string]func(context.Context) error{
		"stat":   func(ctx context.Context) error { _, err := c.Stat(ctx, "/x"); return err },
		"open":   func(ctx context.Context) error { _, _, err := c.Open(ctx, "/x", 0); return err },
		"create": func(ctx context.Context) error { return c.Create(ctx, "/x", 0, strings.NewReader("x")) },
		"dial":   func(ctx context.Context) error { _, err := c.Dial(ctx, 1); return err },
		"start": func(ctx context.Context) error {
			s, err := c.Start(ctx, agentclient.StartRequest{Args: []string{"x"}})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		"input": func(ctx context.Context) error { return c.Input(ctx, agentclient.Ref{PID: 1}, endless{}) },
		"probe": func(ctx context.Context) error { _, err := c.Probe(ctx, nil); return err },
		"init":  func(ctx context.Context) error { return c.Init(ctx, agentclient.Init{}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			wantKind(t, call(ctx), errdefs.Timeout)
		})
	}
}

func TestLinksOwnErrorsKeepTheirKind(t *testing.T) {
	t.Parallel()
	c := agentclient.New(refusing{})
	_, err := c.Stat(t.Context(), "/x")
	wantKind(t, err, errdefs.Closed)
	_, _, err = c.Open(t.Context(), "/x", 0)
	wantKind(t, err, errdefs.Closed)
	_, err = c.Dial(t.Context(), 1)
	wantKind(t, err, errdefs.Closed)
	wantKind(t, c.Create(t.Context(), "/x", 0, strings.NewReader("x")), errdefs.Closed)
	s, err := c.Start(t.Context(), agentclient.StartRequest{Args: []string{"x"}})
	if err == nil {
		_, err = s.Recv()
	}
	wantKind(t, err, errdefs.Closed)
}

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errdefs.New(errdefs.Closed, "open stream")
}

func TestNoRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	answer := unary(&agentv1.StatResponse{Entry: &agentv1.EntryInfo{Lstat: &agentv1.Lstat{Mode: 0o100644}}})
	c := hostile(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/elsewhere" {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return
		}
		answer.ServeHTTP(w, r)
	}))
	if e, err := c.Lstat(t.Context(), "/x"); err == nil {
		t.Errorf("the answer from elsewhere was taken: %+v", e)
	}
}

func TestProbeAnswersOnly(t *testing.T) {
	t.Parallel()
	good := func() *agentv1.ProbeResponse {
		const none = "0000000000000000"
		return &agentv1.ProbeResponse{
			CapInheritable: none, CapPermitted: none, CapEffective: none, CapBounding: none, CapAmbient: none, SignalsIgnored: none,
		}
	}
	if _, err := hostile(t, unary(good())).Probe(t.Context(), nil); err != nil {
		t.Fatalf("the control: %v", err)
	}
	for name, spoil := range map[string]func(*agentv1.ProbeResponse){
		"routes":    func(r *agentv1.ProbeResponse) { r.Routes = make([]string, 100) },
		"sizes":     func(r *agentv1.ProbeResponse) { r.Sizes = []uint64{1} },
		"writable":  func(r *agentv1.ProbeResponse) { r.Writable = []string{"/"} },
		"connected": func(r *agentv1.ProbeResponse) { r.Connected = []string{"x"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := good()
			spoil(answer)
			_, err := hostile(t, unary(answer)).Probe(t.Context(), nil)
			wantKind(t, err, errdefs.Protocol)
		})
	}
}
