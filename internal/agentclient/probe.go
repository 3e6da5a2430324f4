package agentclient

import (
	"context"
	"slices"
	"strconv"

	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// Bounds of a probe's answer.
const (
	maxRoutes      = 64
	maxSeccompMode = 2
)

// Probe runs the measuring child and gives its answer, whose texts are escaped
// and whose lists hold nothing that was not asked for. It counts only before the
// first command. A nil request asks for nothing extra.
func (c *Client) Probe(ctx context.Context, req *agentv1.ProbeRequest) (*agentv1.ProbeResponse, error) {
	const op = "probe"
	if req == nil {
		req = &agentv1.ProbeRequest{}
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	res, err := c.control.Probe(ctx, req)
	if err != nil {
		return nil, fault(ctx, op, err)
	}
	for _, set := range []string{
		res.GetCapInheritable(), res.GetCapPermitted(), res.GetCapEffective(),
		res.GetCapBounding(), res.GetCapAmbient(), res.GetSignalsIgnored(),
	} {
		if _, err := strconv.ParseUint(set, 16, 64); err != nil && !defence.ClientProbeSets.Off() {
			return nil, broken(op, "%q is no hexadecimal set", set)
		}
	}
	if res.GetSeccompMode() > maxSeccompMode && !defence.ClientProbeSets.Off() {
		return nil, broken(op, "seccomp mode %d", res.GetSeccompMode())
	}
	if err := answersOnly(op, res, req); err != nil {
		return nil, err
	}
	res.UidMap = clean(res.GetUidMap())
	for i, route := range res.GetRoutes() {
		res.Routes[i] = clean(route)
	}
	for _, outcome := range res.GetOutcomes() {
		outcome.Detail = clean(outcome.GetDetail())
	}
	return res, nil
}

// answersOnly refuses an answer to what was not asked.
func answersOnly(op string, res *agentv1.ProbeResponse, req *agentv1.ProbeRequest) error {
	if defence.ClientProbeAnswers.Off() {
		return nil
	}
	if len(res.GetRoutes()) > maxRoutes {
		return broken(op, "%d routes", len(res.GetRoutes()))
	}
	if len(res.GetSizes()) != len(req.GetSizePaths()) {
		return broken(op, "%d sizes for %d paths", len(res.GetSizes()), len(req.GetSizePaths()))
	}
	if len(res.GetOutcomes()) != len(req.GetTrials()) {
		return broken(op, "%d outcomes for %d trials", len(res.GetOutcomes()), len(req.GetTrials()))
	}
	if !among(res.GetWritable(), req.GetWritePaths()) {
		return broken(op, "a writable path that was not asked for")
	}
	if !among(res.GetConnected(), req.GetAbstractSockets()) {
		return broken(op, "a socket that was not asked for")
	}
	return nil
}

// among reports whether every item of some is one of all, and none comes more
// often than all is long.
func among(some, all []string) bool {
	return len(some) <= len(all) && !slices.ContainsFunc(some, func(item string) bool { return !slices.Contains(all, item) })
}
