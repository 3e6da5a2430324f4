package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

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

// control is the control plane: probe and tunnels.
type control struct {
	mux     *http.ServeMux
	self    selfRunner
	tunnels tunnels
}

// newControl makes the control plane's handler. close has to be called.
func newControl(_ Config, self selfRunner) *control {
	c := &control{mux: http.NewServeMux(), self: self}
	rpc := connect.NewServer()
	agentv1connect.RegisterControlHandler(rpc, c)
	connecthttp.Mount(c.mux, rpc, connecthttp.WithCompressors(), connecthttp.WithReadMaxBytes(maxProbeOutput))
	c.mux.HandleFunc("GET /tunnel", c.tunnels.serve)
	return c
}

// ServeHTTP serves the control plane.
func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.mux.ServeHTTP(w, r) }

// close ends every tunnel and waits for its goroutines.
func (c *control) close() { c.tunnels.close() }

// Probe runs the measuring child and passes on what it saw.
func (c *control) Probe(ctx context.Context, req *agentv1.ProbeRequest) (*agentv1.ProbeResponse, error) {
	for _, list := range [][]string{req.GetWritePaths(), req.GetAbstractSockets(), req.GetSizePaths()} {
		if len(list) > maxProbeItems {
			return nil, faultf(connect.CodeInvalidArgument, "probe: a list has %d items, more than %d", len(list), maxProbeItems).rpc()
		}
	}
	order, err := json.Marshal(probeOrder{
		AgentPID:        os.Getpid(),
		WritePaths:      req.GetWritePaths(),
		AbstractSockets: req.GetAbstractSockets(),
		SizePaths:       req.GetSizePaths(),
	})
	if err != nil {
		return nil, probeFault(err)
	}
	out, err := c.self.runSelf(ctx, []string{"probe"}, order)
	if err != nil {
		return nil, probeFault(err)
	}
	var seen probeReport
	if err := json.Unmarshal(out, &seen); err != nil {
		return nil, probeFault(fmt.Errorf("decode the probe's answer: %w", err))
	}
	return seen.message(), nil
}

// probeFault tells the host why there is no measurement.
func probeFault(err error) error {
	code := codeOf(err)
	if code != connect.CodeCanceled && code != connect.CodeDeadlineExceeded {
		code = connect.CodeInternal
	}
	return connect.NewError(code, "probe: "+err.Error()).WithCause(err)
}

// message gives the report in the host's form.
func (r *probeReport) message() *agentv1.ProbeResponse {
	return &agentv1.ProbeResponse{
		CapInheritable:  r.Status["CapInh"],
		CapPermitted:    r.Status["CapPrm"],
		CapEffective:    r.Status["CapEff"],
		CapBounding:     r.Status["CapBnd"],
		CapAmbient:      r.Status["CapAmb"],
		SignalsIgnored:  r.Status["SigIgn"],
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
