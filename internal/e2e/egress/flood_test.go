//go:build linux

package egress_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/egress"
)

// testFlood: a sandbox that does its worst to its gate and to the link does not
// make another's commands and requests wait.
func (w *world) testFlood(t *testing.T) {
	number := 10_000
	if testing.Short() {
		number = 3_000
	}
	for _, f := range []struct {
		kind   string
		number int
	}{{"idle", number}, {"slow", number / 2}, {"tunnels", number / 10}, {"requests", 64}} {
		t.Run(f.kind, func(t *testing.T) { w.flooded(t, f.kind, f.number) })
	}
}

func (w *world) flooded(t *testing.T, kind string, number int) {
	other := w.box(t, policy(newToken()))
	b := w.box(t, policy(newToken()))
	said := &safeText{}
	const floods = 2 // one process may not have as many descriptors
	for range floods {
		flood, err := b.Start(bounded(t), berm.Command{Args: []string{b.payload, "flood", kind, fmt.Sprint(number / floods), "flood.pkg.example.org"}})
		if err != nil {
			t.Fatal(err)
		}
		follow(t, flood, said)
	}
	opening := 0
	w.responsive(t, other) // while they are opened
	for end := time.Now().Add(patience); strings.Count(said.String(), "ready:") < floods; opening++ {
		if time.Now().After(end) {
			t.Fatalf("the flood is not ready: %q", said.String())
		}
		w.responsive(t, other)
	}
	for range 5 {
		w.responsive(t, other) // while they are kept
	}
	if open := opened(said.String()); open < number {
		t.Errorf("%d of %d are open: %s", open, number, said.String())
	}
	t.Logf("%d looks while it grew; %s", opening, strings.TrimSpace(said.String()))
	if arrived := len(w.web.to("flood.pkg.example.org")); kind == "requests" && arrived < number {
		t.Errorf("%d requests arrived", arrived)
	}
	if limited := w.limited(b); kind == "idle" && limited == 0 {
		t.Error("no connection was refused for their number")
	}
	// The sandbox that floods still has its commands, and an end.
	if res := b.sh("echo here"); string(res.Stdout) != "here\n" {
		t.Errorf("the flooding sandbox: %v", res)
	}
	began := time.Now()
	if err := b.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if took := time.Since(began); took > 5*liveness {
		t.Errorf("the flooding sandbox took %v to close", took)
	}
	w.responsive(t, other)
}

// opened adds up what the floods say.
func opened(text string) (sum int) {
	for line := range strings.Lines(text) {
		var n int
		if _, err := fmt.Sscanf(line, "ready: %d open", &n); err == nil {
			sum += n
		}
	}
	return sum
}

// limited counts what was refused for a limit.
func (w *world) limited(b *box) (n int) {
	for _, r := range w.records.decisions(b.ID()) {
		if r.Reason == egress.ReasonLimit {
			n++
		}
	}
	return n
}

// others is how long another sandbox may take, on a machine that is busy with the
// flood and with other tests. Whoever waits for a flood's end waits longer.
const others = 5 * time.Second

// responsive runs a command in a sandbox, and a request through its gate.
func (w *world) responsive(t *testing.T, b *box) {
	t.Helper()
	began := time.Now()
	res := b.sh(`echo here`)
	if took := time.Since(began); took > others || string(res.Stdout) != "here\n" {
		t.Errorf("a command in another sandbox took %v: %v", took, res)
	}
	began = time.Now()
	got := b.run("raw-get", "GET http://other.pkg.example.org/page HTTP/1.1\nHost: other.pkg.example.org\n\n")
	if took := time.Since(began); took > others || got != "200\n" {
		t.Errorf("a request of another sandbox took %v: %q", took, got)
	}
}

// follow reads what a process writes, until the test's end.
func follow(t *testing.T, p *berm.Process, out *safeText) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := p.Follow(ctx, &berm.Offsets{}, out, out); ctx.Err() == nil {
			fmt.Fprintf(out, "ended: %v, %v\n", res, err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}
