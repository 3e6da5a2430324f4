package agent

import (
	"context"
	"encoding/binary"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
)

// gateKey is the context key of a request's gate.
type gateKey struct{}

// gate is a response whose flushes the streaming handlers time themselves, so
// that a command that starts, writes and ends at once costs the host one wake-up
// instead of four. It belongs to the request's goroutine.
type gate struct {
	http.ResponseWriter
	held bool
	// framed: the answer is a stream of binary messages, as output can write them.
	framed bool
}

// withGate gives every request a gate.
func withGate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := &gate{ResponseWriter: w, framed: r.Header.Get("Content-Type") == "application/connect+proto"}
		next.ServeHTTP(g, r.WithContext(context.WithValue(r.Context(), gateKey{}, g)))
	})
}

// gateOf returns the request's gate. Outside of a request it is one that does
// nothing.
func gateOf(ctx context.Context) *gate {
	if g, ok := ctx.Value(gateKey{}).(*gate); ok {
		return g
	}
	return &gate{}
}

// hold makes Flush do nothing from now on.
func (g *gate) hold() { g.held = true }

// Flush implements http.Flusher for the RPC library, which flushes after every
// message.
func (g *gate) Flush() {
	if !g.held {
		g.flush()
	}
}

// flush sends what was written, held or not.
func (g *gate) flush() {
	if g.ResponseWriter != nil {
		_ = http.NewResponseController(g.ResponseWriter).Flush()
	}
}

// output writes a chunk as the RPC library would, but without the copy that its
// message would be: to a stream that is framed, and after its first message.
func (g *gate) output(c chunk) error {
	// ConnectResponse and StartResponse: event{data{stdout or stderr}}.
	const event, data = 1, 2
	piece := protowire.Number(c.stream)
	inner := protowire.SizeTag(piece) + protowire.SizeBytes(len(c.data))
	outer := protowire.SizeTag(data) + protowire.SizeBytes(inner)
	size := protowire.SizeTag(event) + protowire.SizeBytes(outer)
	// Flags, of which there are none, and the length.
	head := binary.BigEndian.AppendUint32(append(make([]byte, 0, 32), 0), uint32(size))
	head = protowire.AppendVarint(protowire.AppendTag(head, event, protowire.BytesType), uint64(outer))
	head = protowire.AppendVarint(protowire.AppendTag(head, data, protowire.BytesType), uint64(inner))
	head = protowire.AppendVarint(protowire.AppendTag(head, piece, protowire.BytesType), uint64(len(c.data)))
	_, err := g.Write(head)
	if err == nil {
		_, err = g.Write(c.data)
	}
	return err
}

// Unwrap lets http.ResponseController reach the connection.
func (g *gate) Unwrap() http.ResponseWriter { return g.ResponseWriter }
