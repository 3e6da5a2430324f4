package gate

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// NewBehind returns a gate whose connections, once their addresses are screened,
// are made by connect, and which takes self for its machine's addresses.
func NewBehind(c Config, connect func(context.Context, netip.AddrPort) (net.Conn, error), self func() ([]netip.Addr, error)) (*Gate, error) {
	return newGate(c, seams{connect: connect, self: self})
}

// AgeAnswer makes what the policy's Resolver gave run out.
func (g *Gate) AgeAnswer() {
	s := g.current.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil {
		<-s.last.done
		s.last.until = time.Time{}
	}
}

// LoseAuthority takes the means to end TLS away.
func (g *Gate) LoseAuthority() {
	now := g.current.Load()
	g.current.Store(&snapshot{rules: now.rules, credentials: now.credentials})
}
