package agentclient

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

// tunnelProtocol is the name of the upgrade.
const tunnelProtocol = "berm-tunnel"

// Dial connects to a TCP port on the loopback inside. The connection has
// deadlines and CloseWrite; ctx bounds the dialling only. Errors: Invalid for a
// port out of range, Unavailable when nothing listens there, Exhausted when the
// agent has no room for another tunnel.
func (c *Client) Dial(ctx context.Context, port int) (net.Conn, error) {
	const op = "dial"
	if port < 1 || port > 65535 {
		return nil, errdefs.New(errdefs.Invalid, op, "port is not a number from 1 to 65535")
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	var raw net.Conn
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { raw = info.Conn },
	})
	target := "http://" + link.ControlHost + "/tunnel?port=" + strconv.Itoa(port)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, errdefs.Wrap(errdefs.Internal, op, err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", tunnelProtocol)
	res, err := c.rt.RoundTrip(req)
	if err != nil {
		return nil, fault(ctx, op, err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		defer func() { _ = res.Body.Close() }()
		return nil, dialRefusal(ctx, op, res)
	}
	body, ok := res.Body.(io.ReadWriteCloser)
	if !ok || raw == nil || !strings.EqualFold(res.Header.Get("Upgrade"), tunnelProtocol) {
		_ = res.Body.Close()
		return nil, broken(op, "the upgrade gave no tunnel")
	}
	return &tunnel{Conn: raw, body: body}, nil
}

// dialRefusal tells why there is no tunnel.
func dialRefusal(ctx context.Context, op string, res *http.Response) error {
	if res.StatusCode == http.StatusBadGateway {
		text, err := io.ReadAll(io.LimitReader(res.Body, maxErrorText))
		if err != nil {
			return errdefs.New(errdefs.TransportLost, op, clean(err.Error()))
		}
		return errdefs.New(errdefs.Unavailable, op, clean(strings.TrimSpace(string(text))))
	}
	return refusal(ctx, op, res)
}

// tunnel is the connection under an upgraded request. What the agent sent right
// behind its answer is in the body, which gives it first and then reads from the
// connection itself.
type tunnel struct {
	net.Conn
	body io.ReadWriteCloser
}

// Read implements net.Conn.
func (t *tunnel) Read(p []byte) (int, error) { return t.body.Read(p) }

// Close implements net.Conn.
func (t *tunnel) Close() error {
	err := t.body.Close()
	// The same connection again, unless the body is only a view of it.
	if rawErr := t.Conn.Close(); rawErr != nil && !errors.Is(rawErr, net.ErrClosed) {
		err = errors.Join(err, rawErr)
	}
	return err
}

// CloseWrite ends the data that goes in; what comes out can still be read.
func (t *tunnel) CloseWrite() error {
	half, ok := t.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errdefs.New(errdefs.Unsupported, "close write", "the link's streams cannot be half closed")
	}
	return half.CloseWrite()
}
