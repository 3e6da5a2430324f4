package agentclient_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// canned is a link whose agent sends the same bytes whatever it is asked, in
// pieces of a few bytes, and remembers what it was sent.
type canned struct {
	body  []byte
	piece int
	asked []byte
}

// RoundTrip implements http.RoundTripper.
func (c *canned) RoundTrip(req *http.Request) (*http.Response, error) {
	asked, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	c.asked = asked
	return &http.Response{
		StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Request: req,
		Header: http.Header{"Content-Type": {"application/connect+proto"}},
		Body:   io.NopCloser(&pieces{rest: c.body, size: c.piece}),
	}, nil
}

// pieces reads at most size bytes at once.
type pieces struct {
	rest []byte
	size int
}

// Read implements io.Reader.
func (p *pieces) Read(to []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(to[:min(len(to), p.size)], p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// heard is what a client makes of a stream: one line for each event, and how it
// ended.
type heard struct {
	events []string
	end    *agentclient.End
	kind   errdefs.Kind
}

// listen plays a stream to a client.
func listen(t *testing.T, body []byte, piece int) heard {
	t.Helper()
	var out heard
	s, err := agentclient.New(&canned{body: body, piece: piece}).Start(t.Context(), agentclient.StartRequest{Args: []string{"x"}})
	for err == nil {
		var e agentclient.Event
		e, err = s.Recv()
		switch {
		case err != nil:
		case e.End != nil:
			out.end = e.End
		case e.Started:
			out.events = append(out.events, fmt.Sprintf("start %d", e.PID))
		default:
			out.events = append(out.events, fmt.Sprintf("out %q err %q", e.Stdout, e.Stderr))
		}
	}
	if s != nil {
		_ = s.Close()
	}
	if err != io.EOF { //nolint:errorlint // the contract is io.EOF itself
		out.kind = errdefs.KindOf(err)
	}
	return out
}

// frames cuts a stream into its envelopes without looking into them, up to the
// first that is not whole; whole tells that nothing was left over.
func frames(body []byte) (out [][]byte, whole bool) {
	for len(body) >= 5 {
		size := int64(binary.BigEndian.Uint32(body[1:5]))
		if size > int64(len(body)-5) {
			return out, false
		}
		out = append(out, body[:5+size])
		body = body[5+size:]
	}
	return out, len(body) == 0
}

// expect reads a stream in the plainest way: what may be heard of it, and which
// kind of error it may end with. What an event may say is FuzzEvents'.
func expect(body []byte) (events []string, ended bool, kinds []errdefs.Kind) {
	const protocol, lost = errdefs.Protocol, errdefs.TransportLost
	list, whole := frames(body)
	started := false
	for i, frame := range list {
		var message agentv1.StartResponse
		options := proto.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: 16}
		bad := frame[0] != 0 || len(frame)-5 > 516<<10 || options.Unmarshal(frame[5:], &message) != nil
		switch event := message.GetEvent(); {
		case ended && !bad:
			return events, false, []errdefs.Kind{protocol} // there is something after the end
		case ended:
			return events, true, nil
		case frame[0]&1 == 0 && frame[0]&2 != 0 && i == len(list)-1 && whole:
			return events, false, nil // its own error, or none
		case bad:
			return events, false, []errdefs.Kind{protocol}
		case (event.GetStart() != nil) == started && (event.GetStart() != nil || event.GetData() != nil):
			return events, false, []errdefs.Kind{protocol} // a second start, or data before the first
		case event.GetStart() != nil:
			started = true
			events = append(events, fmt.Sprintf("start %d", event.GetStart().GetPid()))
		case event.GetEnd() != nil:
			ended = true
		case len(event.GetData().GetStdout())+len(event.GetData().GetStderr()) > 0:
			events = append(events, fmt.Sprintf("out %q err %q", event.GetData().GetStdout(), event.GetData().GetStderr()))
		}
	}
	if ended {
		return events, true, nil
	}
	return events, false, []errdefs.Kind{lost, protocol}
}

// FuzzEnvelopes plays any bytes as the stream of a command. What is heard is
// what a plain reading finds, however the bytes are cut; a command has ended
// only where an end event stands; and what was heard, sent again in fresh
// envelopes, is heard again.
func FuzzEnvelopes(f *testing.F) {
	for _, seed := range envelopeSeeds() {
		f.Add(seed, uint16(7))
	}
	f.Fuzz(func(t *testing.T, body []byte, piece uint16) {
		got := listen(t, body, int(piece)+1)
		if again := listen(t, body, len(body)+1); !same(got, again) {
			t.Fatalf("cut into %d bytes: %+v\nin one piece: %+v", int(piece)+1, got, again)
		}
		events, ended, kinds := expect(body)
		switch {
		case (got.end == nil) == (got.kind == ""):
			t.Fatalf("an end and an error, or neither: %+v", got)
		case got.end != nil && !(ended && slices.Equal(got.events, events)):
			t.Fatalf("a command ended that had not: %+v, the stream says %q, ended=%t", got, events, ended)
		case len(got.events) > len(events) || !slices.Equal(got.events, events[:len(got.events)]):
			t.Fatalf("heard %q, the stream says %q", got.events, events)
		case got.end == nil && len(kinds) > 0 && got.kind != errdefs.Protocol && !slices.Contains(kinds, got.kind):
			t.Fatalf("error %s, want one of %v", got.kind, kinds)
		case got.kind == errdefs.Cancelled || got.kind == errdefs.Timeout || got.kind == errdefs.Closed:
			t.Fatalf("the agent decides that its caller gave up: %s", got.kind)
		}
		if got.end == nil {
			return
		}
		list, _ := frames(body)
		var fresh []byte
		for _, frame := range list {
			fresh = append(fresh, envelope(0, frame[5:])...)
			if _, ended, _ := expect(fresh); ended {
				break
			}
		}
		if again := listen(t, append(fresh, envelope(2, []byte("{}"))...), 1<<20); !same(got, again) {
			t.Fatalf("sent again: %+v\nbecame %+v", got, again)
		}
	})
}

func same(a, b heard) bool {
	return a.kind == b.kind && slices.Equal(a.events, b.events) && fmt.Sprintf("%+v", a.end) == fmt.Sprintf("%+v", b.end)
}

// envelopeSeeds are streams, from right to wrong in every way.
func envelopeSeeds() [][]byte {
	bye := envelope(2, []byte("{}"))
	refusal := envelope(2, []byte(`{"error":{"code":"canceled","message":"m"},"metadata":{"a":["b"]}}`))
	keepalive := event(&agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Keepalive{Keepalive: &agentv1.ProcessEvent_KeepAlive{}}})
	stderr := event(&agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Data{Data: &agentv1.ProcessEvent_DataEvent{
		Output: &agentv1.ProcessEvent_DataEvent_Stderr{Stderr: []byte("\xff\x00")},
	}}})
	timedOut := endOf(&agentv1.ProcessEvent_EndEvent{Reason: agentv1.EndReason_END_REASON_TIMED_OUT, Signal: 9, DurationUs: 12, Lingering: []uint32{4, 5}})
	unknown := envelope(0, protowire.AppendVarint(protowire.AppendTag(nil, 77, protowire.VarintType), 1))
	var seeds [][]byte
	for _, parts := range [][][]byte{
		{}, {bye}, {startOf(1)}, {startOf(1), bye},
		{startOf(7), stdout("a"), stderr, exited(), bye},
		{startOf(7), keepalive, stdout("a"), keepalive, exited(), bye},
		{startOf(7), exited()}, {startOf(7), exited(), exited()}, {startOf(7), exited(), bye, bye}, {startOf(7), timedOut, bye},
		{startOf(7), stdout("cut")[:9]}, {startOf(7)[:3]}, {startOf(7), exited(), []byte{0, 0}},
		{startOf(7), exited(), envelope(1, []byte("x"))}, {startOf(7), exited(), envelope(0, []byte("\xff"))},
		{envelope(1, startOf(7)[5:])}, {envelope(3, []byte("{}"))}, {envelope(4, nil)}, {envelope(0x80, startOf(7)[5:])}, {envelope(0xff, nil)},
		{envelope(0, nil)}, {envelope(0, []byte("\x0a"))}, {envelope(2, []byte("{"))}, {envelope(2, nil)}, {refusal}, {startOf(7), refusal},
		{startOf(7), envelope(2, []byte(`{"error":{"code":"nonsense"}}`))}, {startOf(7), unknown, exited(), bye},
		{startOf(7), {0, 0xff, 0xff, 0xff, 0xff}}, {startOf(7), {0, 0, 0x20, 0, 0}, bytes.Repeat([]byte("x"), 99)},
		{stdout("early"), startOf(7)}, {startOf(1), startOf(2), exited(), bye}, {exited(), bye}, {startOf(1), stdout("")},
		{endOf(&agentv1.ProcessEvent_EndEvent{Reason: agentv1.EndReason_END_REASON_NOT_FOUND}), bye},
	} {
		seeds = append(seeds, slices.Concat(parts...))
	}
	return seeds
}

// FuzzStartRequest sends a command and reads the envelope that the agent would
// get: a command arrives as it was given, or is refused before it is sent.
func FuzzStartRequest(f *testing.F) {
	for _, seed := range [][4]string{
		{"sh", "-c", "", ""}, {"sh", "-c\x00", "", ""}, {"", "", "", ""}, {"a b", "\n", "/tmp", "A=1"}, {"x", "", "", "A="}, {"x", "", "", "=1"},
		{"/bin/x", "--", "relative", "LANG=C"}, {"x", "\xff", "", ""}, {"\xff", "", "", ""}, {"x", "ü€", "/ü", "K=ü"}, {"x", "", "/\x00", ""},
		{"x", "", "\xfe", ""}, {"x", "", "", "K\x00=v"}, {"x", "", "", "K=\x00"}, {"x", "", "", "\xff=v"}, {"x", "", "", "K=\xff"}, {"~", "~", "~", "~=~"},
		{"x", strings.Repeat("a", 300), "", ""}, {"x", "\u202e\x1b[0m", "..", "PATH=/"}, {"-", "$(id)", "`id`", "A;B=c"}, {"\u2028", "\ufffd", "\ufeff", "\U0010ffff=1"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	f.Fuzz(func(t *testing.T, program, arg, dir, env string) {
		key, value, _ := strings.Cut(env, "=")
		req := agentclient.StartRequest{Args: []string{program, arg}, Dir: dir, Env: map[string]string{key: value}, Stdin: true, KillOnClose: true}
		link := &canned{piece: 1}
		s, err := agentclient.New(link).Start(t.Context(), req)
		if s != nil {
			_ = s.Close()
		}
		legal := program != "" && len(program)+len(arg)+len(dir)+len(env) < 8<<20
		for _, text := range []string{program, arg, dir, env} {
			legal = legal && utf8.ValidString(text) && !strings.Contains(text, "\x00")
		}
		if !legal {
			if errdefs.KindOf(err) != errdefs.Invalid || link.asked != nil {
				t.Fatalf("%q was not refused: %v, sent %q", req.Args, err, link.asked)
			}
			return
		}
		list, whole := frames(link.asked)
		var sent agentv1.StartRequest
		if len(list) != 1 || !whole || list[0][0] != 0 || proto.Unmarshal(list[0][5:], &sent) != nil {
			t.Fatalf("sent %q, %v", link.asked, err)
		}
		p := sent.GetProcess()
		if p.GetCmd() != program || !slices.Equal(p.GetArgs(), []string{arg}) || p.GetCwd() != dir || len(p.GetEnvs()) != 1 || p.GetEnvs()[key] != value ||
			!sent.GetStdin() || !sent.GetKillOnClose() {
			t.Fatalf("%+v arrives as %v", req, &sent)
		}
	})
}

// TestCutStreamsAreLost: a stream that is cut, at whatever byte, ends its command
// only if its end event was whole by then.
func TestCutStreamsAreLost(t *testing.T) {
	t.Parallel()
	whole := slices.Concat(startOf(7), stdout("a"), exited(), envelope(2, []byte("{}")))
	for cut := range whole {
		got := listen(t, whole[:cut], 1)
		after, _ := frames(whole[:cut])
		if (got.end != nil) != (len(after) >= 3) {
			t.Errorf("%d of %d bytes: %+v", cut, len(whole), got)
		}
		if got.end == nil && got.kind != errdefs.TransportLost {
			t.Errorf("%d of %d bytes: %s", cut, len(whole), got.kind)
		}
	}
}
