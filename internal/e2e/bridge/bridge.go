package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berm-dev/berm"
)

// agentPort is where the SDKs believe the agent to be inside a sandbox.
const agentPort = "49983"

// filesPath is where files are read and written whole.
const filesPath = "/files"

// home is where E2B's commands start, and what its relative paths are below.
const home = "/home/user"

// bridge routes requests. It may be used concurrently.
type bridge struct {
	ctx      context.Context //nolint:containedctx // of the sandboxes, which outlive the requests that make them
	provider *berm.Provider
	control  http.Handler
	key      string
	hosts    []string
	watchers sync.WaitGroup

	mu   sync.Mutex
	live map[string]*tenant
}

// newBridge makes a bridge for a listener at addr; what it starts ends with ctx.
func newBridge(ctx context.Context, provider *berm.Provider, addr string) *bridge {
	b := &bridge{ctx: ctx, provider: provider, key: "e2b_" + randomHex(20), live: map[string]*tenant{}}
	_, port, _ := net.SplitHostPort(addr)
	b.hosts = []string{addr, net.JoinHostPort("localhost", port)}
	b.control = b.controlPlane()
	return b
}

// wait ends when all that the bridge started has.
func (b *bridge) wait() { b.watchers.Wait() }

func randomHex(bytes int) string {
	out := make([]byte, bytes)
	_, _ = rand.Read(out) // never fails
	return hex.EncodeToString(out)
}

// ServeHTTP implements http.Handler.
func (b *bridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A page that a browser was led to by a name of its own is no client.
	if !slices.Contains(b.hosts, r.Host) {
		fail(w, http.StatusForbidden, fmt.Sprintf("host %q is not served", r.Host))
		return
	}
	id, port := r.Header.Get("E2b-Sandbox-Id"), r.Header.Get("E2b-Sandbox-Port")
	switch {
	case id != "" && port == agentPort:
		b.forward(w, r, id)
	case id != "":
		unreachable(w, id, "The sandbox is running but port is not open")
	case r.URL.Path == filesPath:
		// A signed URL names no sandbox.
		b.forward(w, r, b.only())
	default:
		b.control.ServeHTTP(w, r)
	}
}

// forward hands a request to its sandbox, and what comes back to the client, as
// it comes.
func (b *bridge) forward(w http.ResponseWriter, r *http.Request, id string) {
	t := b.tenant(id)
	if t == nil {
		unreachable(w, id, "The sandbox was not found")
		return
	}
	// A reply begins while the request is being read. Without this the server
	// would end the request's body, and with it the reply.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	t.proxy.ServeHTTP(w, r)
}

// newProxy makes a sandbox's proxy, which changes neither paths nor queries nor
// bodies.
func (b *bridge) newProxy(sb *berm.Sandbox) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     sb.DataPlane(),
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "sandbox", ""
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			if r.Out.Body != nil {
				r.Out.Body = &upload{body: r.Out.Body}
			}
		},
		ModifyResponse: settle,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.Header().Set("Connection", "close")
			message := "The sandbox was not found"
			if b.tenant(sb.ID()) != nil {
				message = "The connection to the sandbox was lost: " + err.Error()
			}
			unreachable(w, sb.ID(), message)
		},
	}
}

// settle sees to what a reply leaves unread of its request.
func settle(res *http.Response) error {
	body, ok := res.Request.Body.(*upload)
	if !ok {
		return nil
	}
	// Clients that are still sending a file may not hear that it is refused.
	if res.StatusCode >= http.StatusBadRequest && res.Request.URL.Path == filesPath {
		_, _ = io.CopyN(io.Discard, body, maxRest)
	}
	// A connection whose request was not read to its end cannot carry another
	// (net/http would panic), and who is not told sends it nevertheless.
	if !body.ended.Load() {
		res.Header.Set("Connection", "close")
	}
	return nil
}

// maxRest bounds what is read of a file that was refused, in bytes.
const maxRest = 64 << 20

// upload is a request's body that knows whether it was read to its end. The
// server closes it; until then it can be read by more than one.
type upload struct {
	body  io.Reader
	ended atomic.Bool
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	if errors.Is(err, io.EOF) {
		u.ended.Store(true)
	}
	return n, err
}

// Close implements io.Closer.
func (*upload) Close() error { return nil }

// unreachable is what E2B's proxy says for a sandbox that is gone. The SDKs tell
// by the status, and some by the words.
func unreachable(w http.ResponseWriter, id, message string) {
	reply(w, http.StatusBadGateway, map[string]any{"sandboxId": id, "message": message, "code": http.StatusBadGateway})
}

// fail answers with the control plane's form of an error.
func fail(w http.ResponseWriter, status int, message string) {
	reply(w, status, map[string]any{"code": status, "message": message})
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A failed write means that the client is gone.
	_ = json.NewEncoder(w).Encode(body)
}

// tenant is one sandbox.
type tenant struct {
	sandbox  *berm.Sandbox
	proxy    *httputil.ReverseProxy
	token    string
	template string
	metadata map[string]string
	started  time.Time
	// moved tells the watcher that end has changed.
	moved chan struct{}

	mu  sync.Mutex
	end time.Time
}

// extend sets the end of the sandbox's time; shorten says whether it may come
// earlier than it was.
func (t *tenant) extend(life time.Duration, shorten bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if end := time.Now().Add(life); shorten || end.After(t.end) {
		t.end = end
		select {
		case t.moved <- struct{}{}:
		default:
		}
	}
}

func (t *tenant) endsAt() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.end
}

// tenant finds a sandbox, nil when there is none.
func (b *bridge) tenant(id string) *tenant {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.live[id]
}

// only is the id of the one sandbox, empty unless there is exactly one.
func (b *bridge) only() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.live {
		if len(b.live) == 1 {
			return id
		}
	}
	return ""
}

// take removes a sandbox from the list; only who took it may destroy it.
func (b *bridge) take(id string) *tenant {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.live[id]
	delete(b.live, id)
	return t
}

// create makes a sandbox and its watcher.
func (b *bridge) create(ctx context.Context, want order) (*tenant, error) {
	sb, err := b.provider.Create(ctx, berm.CreateOptions{})
	if err != nil {
		return nil, err
	}
	t := &tenant{
		sandbox: sb, proxy: b.newProxy(sb), template: want.Template, metadata: want.Metadata,
		started: time.Now(), moved: make(chan struct{}, 1),
	}
	if want.secured() {
		t.token = randomHex(16)
	}
	if err := sb.Init(ctx, berm.Init{AccessToken: t.token, EnvVars: want.Env, DefaultWorkdir: home}); err != nil {
		return nil, errors.Join(err, sb.Close())
	}
	t.extend(want.life(), true)
	b.mu.Lock()
	b.live[sb.ID()] = t
	b.mu.Unlock()
	b.watchers.Go(func() { b.watch(t) })
	return t, nil
}

// watch destroys a sandbox whose time is up, or which died.
func (b *bridge) watch(t *tenant) {
	for {
		timer := time.NewTimer(time.Until(t.endsAt()))
		select {
		case <-t.moved:
			timer.Stop()
			continue
		case <-b.ctx.Done():
		case <-t.sandbox.Done():
		case <-timer.C:
		}
		timer.Stop()
		if b.take(t.sandbox.ID()) != nil {
			// The provider's Close tries again, and tells.
			_ = t.sandbox.Close()
		}
		return
	}
}
