package fake

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// isCall reports whether a request is for an RPC of the agent's.
func isCall(req *http.Request, method string) bool {
	return strings.HasSuffix(req.URL.Path, "."+method)
}

// countedBody ends the link when enough has come through it.
type countedBody struct {
	io.ReadCloser

	link *faultyLink
}

// Read counts.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.link.received.Add(int64(n)) > b.link.faults.DropLinkAfter {
		go func() { _ = b.link.Link.Close() }() // Close waits for this Read's request
	}
	return n, err
}

// Connect's envelope: one byte of flags, four of length, the message.
const (
	envelopeHead = 5
	flagEnd      = 2
	maxEnvelope  = 64 << 20
)

// rewriter changes the messages of a stream.
type rewriter struct {
	// edit gives the replacement of one message.
	edit func(message []byte) ([]byte, error)
	// broken gives what is said instead of a stream that breaks; nil passes the
	// error on.
	broken func() ([]byte, error)
}

// rewrittenBody is a stream of envelopes on its way through a rewriter.
type rewrittenBody struct {
	rewriter

	from    io.ReadCloser
	pending []byte
	err     error
}

func rewrite(from io.ReadCloser, how rewriter) io.ReadCloser {
	return &rewrittenBody{rewriter: how, from: from}
}

// Read gives the changed stream.
func (b *rewrittenBody) Read(p []byte) (int, error) {
	for len(b.pending) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.pending, b.err = b.next()
	}
	n := copy(p, b.pending)
	b.pending = b.pending[n:]
	return n, nil
}

// Close closes the stream below.
func (b *rewrittenBody) Close() error { return b.from.Close() }

// next changes one envelope.
func (b *rewrittenBody) next() ([]byte, error) {
	head := make([]byte, envelopeHead)
	if _, err := io.ReadFull(b.from, head); err != nil {
		if errors.Is(err, io.EOF) || b.broken == nil {
			return nil, err
		}
		instead, invented := b.broken()
		if invented != nil {
			return nil, invented
		}
		return instead, io.EOF
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxEnvelope {
		return nil, fmt.Errorf("an envelope of %d bytes", size)
	}
	message := make([]byte, size)
	if _, err := io.ReadFull(b.from, message); err != nil {
		return nil, err
	}
	if head[0]&flagEnd != 0 {
		return append(head, message...), nil
	}
	message, err := b.edit(message)
	if err != nil {
		return nil, err
	}
	return envelope(head[0], message), nil
}

func envelope(flags byte, message []byte) []byte {
	out := binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message))) //nolint:gosec // below maxEnvelope
	return append(out, message...)
}

// edited decodes, changes and encodes one message.
func edited[M proto.Message](empty M, change func(M)) func([]byte) ([]byte, error) {
	return func(data []byte) ([]byte, error) {
		m := proto.CloneOf(empty)
		if err := proto.Unmarshal(data, m); err != nil {
			return nil, fmt.Errorf("decode a message: %w", err)
		}
		change(m)
		return proto.Marshal(m)
	}
}

// deafen takes from a start all that would end the command.
func deafen(data []byte) ([]byte, error) {
	return edited(&agentv1.StartRequest{}, func(m *agentv1.StartRequest) {
		m.KillOnClose, m.TimeoutMs = false, 0
	})(data)
}

// loseOutput drops a byte of each piece.
func loseOutput(data []byte) ([]byte, error) {
	return edited(&agentv1.StartResponse{}, func(m *agentv1.StartResponse) {
		switch out := m.GetEvent().GetData().GetOutput().(type) {
		case *agentv1.ProcessEvent_DataEvent_Stdout:
			out.Stdout = out.Stdout[:max(0, len(out.Stdout)-1)]
		case *agentv1.ProcessEvent_DataEvent_Stderr:
			out.Stderr = out.Stderr[:max(0, len(out.Stderr)-1)]
		}
	})(data)
}

// inventExit makes every end a success.
func inventExit(data []byte) ([]byte, error) {
	return edited(&agentv1.StartResponse{}, func(m *agentv1.StartResponse) {
		if m.GetEvent().GetEnd() != nil {
			m.Event = success()
		}
	})(data)
}

func success() *agentv1.ProcessEvent {
	return &agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_End{End: &agentv1.ProcessEvent_EndEvent{
		Exited: true, Status: "exit status 0", Reason: agentv1.EndReason_END_REASON_EXITED,
	}}}
}

// inventedEnd is what is said of a command whose transport was lost.
func inventedEnd() ([]byte, error) {
	message, err := proto.Marshal(&agentv1.StartResponse{Event: success()})
	if err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	return append(envelope(0, message), envelope(flagEnd, []byte("{}"))...), nil
}

// lyingProbe answers for the probe child.
func lyingProbe(req *http.Request) (*http.Response, error) {
	data, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, fmt.Errorf("read the probe's request: %w", err)
	}
	asked := &agentv1.ProbeRequest{}
	if err := proto.Unmarshal(data, asked); err != nil {
		return nil, fmt.Errorf("decode the probe's request: %w", err)
	}
	const none = "0000000000000000"
	answer := &agentv1.ProbeResponse{
		CapInheritable: none, CapPermitted: none, CapEffective: none, CapBounding: none, CapAmbient: none,
		NoNewPrivileges: true, SeccompMode: 2, Writable: []string{"/tmp"},
	}
	for range asked.GetSizePaths() {
		answer.Sizes = append(answer.Sizes, 1)
	}
	body, err := proto.Marshal(answer)
	if err != nil {
		return nil, fmt.Errorf("encode the probe's answer: %w", err)
	}
	return &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
		Header:        http.Header{"Content-Type": {req.Header.Get("Content-Type")}},
		ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
	}, nil
}
