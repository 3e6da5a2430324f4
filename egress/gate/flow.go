package gate

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berm-dev/berm/egress"
)

// flow is one thing that was let through and goes on: a request with its
// response, or a tunnel.
type flow struct {
	query   egress.Query
	verdict egress.Verdict
	start   time.Time
	// carries is the request with a credential that this is; nil for all else. Only
	// its method and URL are looked at.
	carries *http.Request
	// cancel breaks it off; it may be called more than once and from any goroutine.
	cancel func()

	sent, received atomic.Int64
	moved          atomic.Int64 // when, in nanoseconds since start

	mu     sync.Mutex
	reason egress.Reason // why it was broken off; empty while it was not
}

func newFlow(q egress.Query, v egress.Verdict, cancel func()) *flow {
	return &flow{query: q, verdict: v, start: time.Now(), cancel: cancel}
}

// count notes n bytes in one direction and that the flow is alive.
func (f *flow) count(direction *atomic.Int64, n int) {
	if n > 0 {
		direction.Add(int64(n))
		f.touch()
	}
}

func (f *flow) touch() { f.moved.Store(int64(time.Since(f.start))) }

// idle is how long nothing moved.
func (f *flow) idle() time.Duration {
	return time.Since(f.start) - time.Duration(f.moved.Load())
}

// stop breaks the flow off; the first reason stays.
func (f *flow) stop(reason egress.Reason) {
	f.mu.Lock()
	if f.reason == "" {
		f.reason = reason
	}
	f.mu.Unlock()
	f.cancel()
}

// stopped gives the reason of stop, or otherwise.
func (f *flow) stopped(otherwise egress.Reason) egress.Reason {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reason != "" {
		return f.reason
	}
	return otherwise
}

// flows are all that are open in one gate.
type flows struct {
	mu     sync.Mutex
	open   map[*flow]struct{}
	closed bool
}

// add reports false after the end.
func (t *flows) add(f *flow) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.open[f] = struct{}{}
	return true
}

func (t *flows) remove(f *flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, f)
}

func (t *flows) number() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

// each calls do without the lock held, as do closes connections.
func (t *flows) each(do func(*flow)) {
	t.mu.Lock()
	all := make([]*flow, 0, len(t.open))
	for f := range t.open {
		all = append(all, f)
	}
	t.mu.Unlock()
	for _, f := range all {
		do(f)
	}
}

func (t *flows) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.each(func(f *flow) { f.stop(egress.ReasonClosed) })
}

// rejudge closes what the present rules do not allow as they did.
func (g *Gate) rejudge() {
	now := g.current.Load()
	g.flows.each(func(f *flow) {
		if !now.keeps(f) {
			f.stop(egress.ReasonGeneration)
		}
	})
}

// enter puts a flow into the table. It reports false where the rules changed
// meanwhile in a way that ends it, or the gate is closing; the reason is the
// flow's then.
func (g *Gate) enter(f *flow) bool {
	if !g.flows.add(f) {
		f.stop(egress.ReasonClosed)
		return false
	}
	// A change that came after the decision and before the flow was in the table
	// did not see it.
	// A request with a credential has not been sent, and would go with the old one.
	if now := g.current.Load(); now.generation() != f.verdict.Generation && (f.carries != nil || !now.keeps(f)) {
		f.stop(egress.ReasonGeneration)
		g.flows.remove(f)
		return false
	}
	return true
}
