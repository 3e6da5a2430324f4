package agent

import (
	"context"
	"net/http"
)

// gateKey is the context key of a request's gate.
type gateKey struct{}

// gate is a response whose flushes the streaming handlers time themselves, so
// that a command that starts, writes and ends at once costs the host one wake-up
// instead of four. It belongs to the request's goroutine.
type gate struct {
	http.ResponseWriter
	held bool
}

// withGate gives every request a gate.
func withGate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := &gate{ResponseWriter: w}
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

// Unwrap lets http.ResponseController reach the connection.
func (g *gate) Unwrap() http.ResponseWriter { return g.ResponseWriter }
