package berm

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/agentclient"
	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/link"
)

// Init is what a sandbox's session settles, for berm's own calls and for clients
// that come through DataPlane.
type Init struct {
	// AccessToken is what clients of the data plane have to send from now on, up to
	// 4096 bytes of printable ASCII; empty opens it to whoever can reach it. berm's
	// own calls go on as before.
	AccessToken string
	// EnvVars are given to every command, over the environment that the sandbox was
	// made with and under a command's own. They replace those of the Init before;
	// nil leaves these.
	EnvVars map[string]string
	// DefaultUser is the user of clients that name none; empty leaves it. A sandbox
	// has one user, and every other is Invalid.
	DefaultUser string
	// DefaultWorkdir is where commands start that name no directory, absolute; empty
	// leaves it. It becomes WorkDir.
	DefaultWorkdir string
	// Timestamp orders calls: one that is older than the last is passed over, with a
	// nil error. The zero value is always taken.
	Timestamp time.Time
}

// settled is what Init has settled.
type settled struct {
	// calls lets one Init at a time go on.
	calls sync.Mutex
	last  time.Time
	// created is the environment that the sandbox was made with, vars Init's.
	created, vars map[string]string

	mu  sync.Mutex
	env map[string]string // both together; it is replaced and not changed
	dir string
}

// get gives the environment, which must not be changed, and the working
// directory.
func (s *settled) get() (env map[string]string, dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.env, s.dir
}

func (s *settled) set(env map[string]string, dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.env, s.dir = env, dir
}

// faults lists what is wrong with an Init by itself.
func (in Init) faults() []string {
	out := envFaults("env var", in.EnvVars)
	if strings.ContainsFunc(in.AccessToken, func(r rune) bool { return r < ' ' || r > '~' }) || len(in.AccessToken) > 4096 {
		out = append(out, "the access token is not printable ASCII of at most 4096 bytes")
	}
	if dir := in.DefaultWorkdir; dir != "" {
		switch reason := pathFault(dir); {
		case reason != "":
			out = append(out, "the default working directory "+reason)
		case !path.IsAbs(dir):
			out = append(out, "the default working directory is not absolute")
		}
	}
	return out
}

// Init settles the sandbox's session. Only the holder of the Sandbox can: it goes
// over a path that DataPlane does not have. Errors: Invalid, with all reasons;
// Denied for another token while one is set, which has to be taken away first;
// what every call may give. Nothing is changed then.
func (s *Sandbox) Init(ctx context.Context, in Init) error {
	const op = "init"
	if reasons := in.faults(); len(reasons) > 0 {
		return &errdefs.Error{Kind: errdefs.Invalid, Op: op, Backend: s.provider.caps.Backend, Reasons: reasons}
	}
	if s.isGone() {
		return s.failed(ctx, op, nil)
	}
	state := &s.settled
	state.calls.Lock()
	defer state.calls.Unlock()
	if !in.Timestamp.IsZero() && in.Timestamp.Before(state.last) {
		return nil
	}
	_, dir := state.get()
	vars := state.vars
	if in.EnvVars != nil {
		vars = maps.Clone(in.EnvVars)
	}
	// The agent gets all of it, for clients that know nothing of this Sandbox.
	env := maps.Clone(state.created)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, vars)
	if err := s.client.Init(ctx, agentclient.Init{
		AccessToken: in.AccessToken, EnvVars: env, DefaultUser: in.DefaultUser, DefaultWorkdir: in.DefaultWorkdir, Timestamp: in.Timestamp,
	}); err != nil {
		return s.failed(ctx, op, err)
	}
	if !in.Timestamp.IsZero() {
		state.last = in.Timestamp
	}
	if in.DefaultWorkdir != "" {
		dir = path.Clean(in.DefaultWorkdir)
	}
	state.vars = vars
	state.set(env, dir)
	return nil
}

// DataPlane carries HTTP requests of others to the sandbox's data plane: the
// routes of E2B's envd for processes, files, health, metrics and variables. It is
// for servers and bridges, as a transport of httputil.ReverseProxy for one. Of a
// request's URL only the path and the query count. Any other path, and so
// everything of the control plane, is answered with 404, and any other method
// than GET, HEAD, POST and OPTIONS with 405, before anything reaches the sandbox.
//
// Nothing is added to a request: where a session has an access token, the client
// sends it. Without one whoever can reach the forwarder can run commands, web
// pages among them, since the sandbox lets every origin in. Answers are the
// sandbox's and not to be trusted; they are bounded in what precedes the body.
// Requests have no deadline but their context's. Errors are those of other calls,
// Closed after Destroy.
func (s *Sandbox) DataPlane() http.RoundTripper {
	return &dataPlane{sandbox: s, paths: dataPaths()}
}

// dataPaths are the paths of the data plane that others may use.
func dataPaths() []string {
	out := []string{"/files", "/files/compose", "/health", "/metrics", "/envs"}
	for _, services := range []protoreflect.ServiceDescriptors{
		agentv1.File_berm_agent_v1_process_proto.Services(), agentv1.File_berm_agent_v1_filesystem_proto.Services(),
	} {
		for i := range services.Len() {
			service := services.Get(i)
			name := string(service.Name())
			for j := range service.Methods().Len() {
				out = append(out, "/"+strings.ToLower(name)+"."+name+"/"+string(service.Methods().Get(j).Name()))
			}
		}
	}
	return out
}

// dataPlane is one sandbox's.
type dataPlane struct {
	sandbox *Sandbox
	paths   []string
}

// RoundTrip implements http.RoundTripper.
func (d *dataPlane) RoundTrip(req *http.Request) (*http.Response, error) {
	status := d.judge(req)
	switch {
	case status != 0:
		closeBody(req)
		return refusal(req, status), nil
	case d.sandbox.isGone():
		closeBody(req)
		return nil, d.sandbox.failed(req.Context(), "data plane", nil)
	}
	out := req.Clone(req.Context())
	// The path is one of ours, letter by letter; nothing else of the URL gets in.
	out.URL = &url.URL{Scheme: "http", Host: link.DataHost, Path: req.URL.Path, RawQuery: req.URL.RawQuery}
	out.Host, out.RequestURI = "", ""
	for _, name := range []string{"Connection", "Upgrade", "Expect"} {
		out.Header.Del(name)
	}
	res, err := d.sandbox.link.RoundTrip(out)
	if err != nil {
		return nil, d.sandbox.failed(req.Context(), "data plane", err)
	}
	res.Request = req
	return res, nil
}

// judge gives the status that a request is refused with, 0 for none.
func (d *dataPlane) judge(req *http.Request) int {
	switch {
	case req.URL == nil || !slices.Contains(d.paths, req.URL.Path) && !defence.DataPlanePaths.Off():
		return http.StatusNotFound
	case !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodOptions}, req.Method):
		return http.StatusMethodNotAllowed
	}
	return 0
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// refusal is an answer that no agent gave.
func refusal(req *http.Request, status int) *http.Response {
	body := `{"code":404,"message":"no such route"}`
	if status == http.StatusMethodNotAllowed {
		body = `{"code":405,"message":"no such method"}`
	}
	return &http.Response{
		Status: strconv.Itoa(status) + " " + http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        http.Header{"Content-Type": {"application/json"}, "X-Content-Type-Options": {"nosniff"}},
		ContentLength: int64(len(body)), Body: io.NopCloser(strings.NewReader(body)), Request: req,
	}
}
