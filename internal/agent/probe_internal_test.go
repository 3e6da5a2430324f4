package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/berm-dev/berm/internal/agent/probe"
	"github.com/berm-dev/berm/internal/boot"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// countedSelf is an agent's program that numbers its answers. With hang set it
// answers only when its context ends.
type countedSelf struct {
	runs atomic.Uint64
	hang bool
}

func (c *countedSelf) runSelf(ctx context.Context, _ []string, _ []byte) ([]byte, error) {
	n := c.runs.Add(1)
	if c.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return (&probe.Report{ProcessLimit: n}).Encode(), nil
}

func TestEarlyProbe(t *testing.T) {
	t.Parallel()
	self := &countedSelf{}
	c := newControl(Config{Boot: boot.Config{Probe: &boot.Probe{WritePaths: []string{"/usr"}}}}, self, newSession(Config{}))
	defer c.close()
	<-c.early.done
	// Another request is measured when it is made, and so is each after the one
	// that the early probe was for.
	for i, ask := range []struct {
		path string
		want uint64
	}{{"/etc", 2}, {"/usr", 1}, {"/usr", 3}} {
		answer, err := c.Probe(t.Context(), &agentv1.ProbeRequest{WritePaths: []string{ask.path}})
		if err != nil || answer.GetProcessLimit() != ask.want {
			t.Errorf("request %d was answered by run %d, %v; want %d", i, answer.GetProcessLimit(), err, ask.want)
		}
	}
}

func TestEarlyProbeHangs(t *testing.T) {
	t.Parallel()
	c := newControl(Config{Boot: boot.Config{Probe: &boot.Probe{}}}, &countedSelf{hang: true}, newSession(Config{}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Probe(ctx, &agentv1.ProbeRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	c.close()
}
