package agentclient

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

// access sends the session's token with what goes to the data plane.
type access struct {
	rt http.RoundTripper

	mu    sync.Mutex
	token string // empty for none
}

// RoundTrip implements http.RoundTripper.
func (a *access) RoundTrip(req *http.Request) (*http.Response, error) {
	if token := a.current(); token != "" && req.URL.Host == link.DataHost {
		req = req.Clone(req.Context())
		req.Header.Set("X-Access-Token", token)
	}
	return a.rt.RoundTrip(req)
}

func (a *access) current() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token
}

func (a *access) set(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token = token
}

// Init is what a session settles. The zero value takes an access token away and
// leaves the rest.
type Init struct {
	// AccessToken is what the data plane asks for from now on; empty opens it.
	AccessToken string
	// EnvVars replace those of the session; nil leaves them.
	EnvVars map[string]string
	// DefaultUser and DefaultWorkdir are left as they are when empty.
	DefaultUser    string
	DefaultWorkdir string
	// Timestamp orders calls: one that is older than the last is passed over. The
	// zero value is always taken.
	Timestamp time.Time
}

// initBody is Init on the wire.
type initBody struct {
	AccessToken    string            `json:"accessToken,omitempty"`
	EnvVars        map[string]string `json:"envVars,omitzero"`
	DefaultUser    string            `json:"defaultUser,omitempty"`
	DefaultWorkdir string            `json:"defaultWorkdir,omitempty"`
	Timestamp      *time.Time        `json:"timestamp,omitempty"`
}

// Init settles the session, on the control plane. The client itself uses the
// token from then on. Errors: Denied for another token than the one that is set,
// which has to be taken away first; Invalid for what the agent does not take.
func (c *Client) Init(ctx context.Context, in Init) error {
	const op = "init"
	body := initBody{AccessToken: in.AccessToken, EnvVars: in.EnvVars, DefaultUser: in.DefaultUser, DefaultWorkdir: in.DefaultWorkdir}
	if !in.Timestamp.IsZero() {
		body.Timestamp = &in.Timestamp
	}
	data, err := json.Marshal(body)
	if err != nil {
		return errdefs.Wrap(errdefs.Invalid, op, err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+link.ControlHost+"/init", bytes.NewReader(data))
	if err != nil {
		return errdefs.Wrap(errdefs.Internal, op, err)
	}
	req.Header.Set("Content-Type", "application/json")
	// Calls that are made meanwhile arrive before or after: a token that is not
	// asked for yet does no harm, one that is missing does.
	if c.rt.current() == "" {
		c.rt.set(in.AccessToken)
	}
	res, err := c.rt.RoundTrip(req)
	if err != nil {
		return fault(ctx, op, err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusNoContent {
		return refusal(ctx, op, res)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxErrorBody))
	c.rt.set(in.AccessToken)
	return nil
}
