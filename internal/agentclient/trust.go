package agentclient

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

// Trust says, on the control plane, which authorities' certificates (PEM) the
// sandbox's commands are to trust from now on, besides the system's; none takes
// the last ones away. Commands that were started before keep what their
// environment says. Errors: Invalid for what is no certificate, or where the
// sandbox has no place for it; Exhausted where that is full.
func (c *Client) Trust(ctx context.Context, bundle []byte) error {
	const op = "trust"
	data, err := json.Marshal(struct {
		CABundle string `json:"caBundle"`
	}{string(bundle)})
	if err != nil {
		return errdefs.Wrap(errdefs.Invalid, op, err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+link.ControlHost+"/trust", bytes.NewReader(data))
	if err != nil {
		return errdefs.Wrap(errdefs.Internal, op, err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := c.rt.RoundTrip(req)
	if err != nil {
		return fault(ctx, op, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusNoContent {
		return refusal(ctx, op, res)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxErrorBody))
	return nil
}
