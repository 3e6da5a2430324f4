package agent

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"sync/atomic"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/berm-dev/berm/internal/agent/probe"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/internal/gen/agentv1/agentv1connect"
)

// Bounds of a probe.
const (
	maxProbeItems  = 256     // of each list in a request
	maxProbeOutput = 1 << 20 // bytes of the child's answer
)

// selfRunner starts the agent's own program in one of its modes by the same path
// as a command and gives what it wrote to its standard output. It fails when the
// program did not end with status 0; its tree is gone when it returns.
type selfRunner interface {
	runSelf(ctx context.Context, args []string, stdin []byte) ([]byte, error)
}

// control is the control plane: probe, tunnels and the session.
type control struct {
	mux     *http.ServeMux
	self    selfRunner
	tunnels tunnels
	// early is the probe of the boot message, nil without one.
	early *earlyProbe
}

// newControl makes the control plane's handler, and begins the probe that the
// boot message announces. close has to be called.
func newControl(config Config, self selfRunner, sess *session) *control {
	c := &control{mux: http.NewServeMux(), self: self}
	if want := config.Boot.Probe; want != nil {
		c.early = beginProbe(self, probe.Order{
			AgentPID: os.Getpid(), WritePaths: want.WritePaths, AbstractSockets: want.AbstractSockets, SizePaths: want.SizePaths,
		})
	}
	rpc := connect.NewServer()
	agentv1connect.RegisterControlHandler(rpc, c)
	connecthttp.Mount(c.mux, rpc, connecthttp.WithCompressors(), connecthttp.WithReadMaxBytes(maxProbeOutput))
	c.mux.HandleFunc("GET /tunnel", c.tunnels.serve)
	c.mux.HandleFunc("POST /init", sess.serveInit)
	c.mux.HandleFunc("POST /trust", sess.around.trust.serve)
	return c
}

// ServeHTTP serves the control plane.
func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.mux.ServeHTTP(w, r) }

// close ends every tunnel and the early probe, and waits for their goroutines.
func (c *control) close() {
	if c.early != nil {
		c.early.cancel()
		<-c.early.done
	}
	c.tunnels.close()
}

// earlyProbe is a probe that was begun before it was asked for.
type earlyProbe struct {
	order  []byte
	cancel context.CancelFunc
	taken  atomic.Bool
	// done is closed when out and err do not change any more.
	done chan struct{}
	out  []byte
	err  error
}

func beginProbe(self selfRunner, order probe.Order) *earlyProbe {
	ctx, cancel := context.WithCancel(context.Background())
	e := &earlyProbe{order: order.Encode(), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		e.out, e.err = self.runSelf(ctx, []string{"probe"}, e.order)
	}()
	// Now, not when this goroutine first waits for something: what the host waits
	// for in a create is this child.
	runtime.Gosched()
	return e
}

// measure runs a probe. The early one answers the first request that is the same
// as it; every other is measured when it is made.
func (c *control) measure(ctx context.Context, order []byte) ([]byte, error) {
	e := c.early
	if e == nil || !bytes.Equal(e.order, order) || !e.taken.CompareAndSwap(false, true) {
		return c.self.runSelf(ctx, []string{"probe"}, order)
	}
	select {
	case <-e.done:
		return e.out, e.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Probe runs the measuring child and passes on what it saw.
func (c *control) Probe(ctx context.Context, req *agentv1.ProbeRequest) (*agentv1.ProbeResponse, error) {
	for _, list := range [][]string{req.GetWritePaths(), req.GetAbstractSockets(), req.GetSizePaths()} {
		if len(list) > maxProbeItems && !defence.ProbeItems.Off() {
			return nil, faultf(connect.CodeInvalidArgument, "probe: a list has %d items, more than %d", len(list), maxProbeItems).rpc()
		}
	}
	if n := len(req.GetTrials()); n > maxProbeItems {
		return nil, faultf(connect.CodeInvalidArgument, "probe: %d trials, more than %d", n, maxProbeItems).rpc()
	}
	order := probe.Order{
		AgentPID:        os.Getpid(),
		WritePaths:      req.GetWritePaths(),
		AbstractSockets: req.GetAbstractSockets(),
		SizePaths:       req.GetSizePaths(),
	}
	for _, t := range req.GetTrials() {
		order.Trials = append(order.Trials, probe.Trial{Kind: t.GetKind(), Argument: t.GetArgument()})
	}
	out, err := c.measure(ctx, order.Encode())
	if err != nil {
		return nil, probeFault(err)
	}
	seen, err := probe.DecodeReport(out)
	if err != nil {
		return nil, probeFault(fmt.Errorf("decode the probe's answer: %w", err))
	}
	return probeMessage(seen), nil
}

// probeFault tells the host why there is no measurement.
func probeFault(err error) error {
	code := codeOf(err)
	if code != connect.CodeCanceled && code != connect.CodeDeadlineExceeded {
		code = connect.CodeInternal
	}
	return connect.NewError(code, "probe: "+err.Error()).WithCause(err)
}

// probeMessage gives the report in the host's form.
func probeMessage(r *probe.Report) *agentv1.ProbeResponse {
	var outcomes []*agentv1.Outcome
	for _, o := range r.Outcomes {
		outcomes = append(outcomes, &agentv1.Outcome{Reached: o.Reached, Amount: o.Amount, Detail: o.Detail})
	}
	return &agentv1.ProbeResponse{
		Outcomes:        outcomes,
		CapInheritable:  r.CapInheritable,
		CapPermitted:    r.CapPermitted,
		CapEffective:    r.CapEffective,
		CapBounding:     r.CapBounding,
		CapAmbient:      r.CapAmbient,
		SignalsIgnored:  r.SignalsIgnored,
		NoNewPrivileges: r.NoNewPrivileges,
		SeccompMode:     r.SeccompMode,
		UidMap:          r.UIDMap,
		Uid:             r.UID,
		Writable:        r.Writable,
		Routes:          r.Routes,
		Connected:       r.Connected,
		Sizes:           r.Sizes,
		ProcessLimit:    r.ProcessLimit,
		AgentReadable:   r.AgentReadable,
	}
}
