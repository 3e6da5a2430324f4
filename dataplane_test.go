package berm_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/fake"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

// watchedBackend notes what is sent to its agents.
type watchedBackend struct {
	fake.Config
	seen func(*http.Request)
}

func (b watchedBackend) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	d, err := b.Config.Open(ctx, host)
	return watchedDriver{d, b.seen}, err
}

type watchedDriver struct {
	driver.Driver
	seen func(*http.Request)
}

func (d watchedDriver) Create(ctx context.Context, spec *driver.Spec) (driver.Machine, error) {
	m, err := d.Driver.Create(ctx, spec)
	return watchedMachine{m, d.seen}, err
}

type watchedMachine struct {
	driver.Machine
	seen func(*http.Request)
}

func (m watchedMachine) Unwrap() driver.Machine { return m.Machine }

func (m watchedMachine) Link(ctx context.Context) (link.Link, error) {
	l, err := m.Machine.Link(ctx)
	return watchedLink{l, m.seen}, err
}

type watchedLink struct {
	link.Link
	seen func(*http.Request)
}

func (l watchedLink) RoundTrip(req *http.Request) (*http.Response, error) {
	l.seen(req)
	return l.Link.RoundTrip(req)
}

// faked gives a sandbox that isolates nothing, whose requests seen is told.
func faked(t *testing.T, env map[string]string, seen func(*http.Request)) *berm.Sandbox {
	t.Helper()
	if seen == nil {
		seen = func(*http.Request) {}
	}
	p, err := berm.Open(t.Context(), watchedBackend{seen: seen}, berm.Config{Agent: berm.AgentProgram{Image: anyProgram(t)}, StateDir: t.TempDir() + "/s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	sb, err := p.Create(t.Context(), berm.CreateOptions{Env: env})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// shown is what a command prints.
func shown(t *testing.T, sb *berm.Sandbox, script string, env map[string]string) string {
	t.Helper()
	res, err := sb.Exec(t.Context(), berm.Command{Args: []string{"sh", "-c", script}, Env: env, Timeout: time.Minute})
	if err != nil || !res.Success() {
		t.Fatalf("%v %v", res, err)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// forwarded sends a request through DataPlane as a server would.
func forwarded(t *testing.T, sb *berm.Sandbox, method, target, body string, headers ...string) (int, string) {
	t.Helper()
	proxy := &httputil.ReverseProxy{Transport: sb.DataPlane(), Rewrite: func(*httputil.ProxyRequest) {}}
	req := httptest.NewRequestWithContext(t.Context(), method, "http://anything.example"+target, strings.NewReader(body))
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	rec := httptest.NewRecorder()
	proxy.ServeHTTP(rec, req)
	return rec.Code, rec.Body.String()
}

func TestInit(t *testing.T) {
	t.Parallel()
	sb := faked(t, map[string]string{"MADE": "made", "BOTH": "made"}, nil)
	plain := sb.WorkDir()
	dir := plain + "/sub"
	if err := sb.Files().WriteFile(t.Context(), "sub/here", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	print := `echo $MADE $BOTH $SET $OWN; pwd`
	newest := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i, step := range []struct {
		init berm.Init
		want string
	}{
		{berm.Init{}, "made made\n" + plain},
		{berm.Init{EnvVars: map[string]string{"SET": "set", "BOTH": "set", "OWN": "set"}, AccessToken: "secret"}, "made set set own\n" + plain},
		{berm.Init{DefaultWorkdir: dir, DefaultUser: "user", AccessToken: "secret", Timestamp: newest}, "made set set own\n" + dir},
		{berm.Init{EnvVars: map[string]string{}, Timestamp: newest.Add(-1)}, "made set set own\n" + dir},
		{berm.Init{EnvVars: map[string]string{}, Timestamp: newest.Add(1)}, "made made own\n" + dir},
	} {
		if err := sb.Init(t.Context(), step.init); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		own := map[string]string{"OWN": "own"}
		if i == 0 {
			own = nil
		}
		if got := shown(t, sb, print, own); got != step.want {
			t.Errorf("%d: %q", i, got)
		}
		// What others get is the same, but for a variable of one's own.
		_, envs := forwarded(t, sb, "GET", "/envs", "", "X-Access-Token: secret")
		if strings.Contains(envs, "made") != (i >= 0) || strings.Contains(envs, "set") != (i >= 1 && i <= 3) {
			t.Errorf("%d: %s", i, envs)
		}
	}
	if data, err := sb.Files().ReadFile(t.Context(), "here"); err != nil || string(data) != "x" {
		t.Errorf("a relative name: %q %v", data, err)
	}
	if env := sb.Env(); !maps.Equal(env, map[string]string{"MADE": "made", "BOTH": "made"}) {
		t.Errorf("%v", env)
	}
}

// berm's own calls go on with a token; others need it, and it cannot be exchanged
// for another while it stands.
func TestInitTokens(t *testing.T) {
	t.Parallel()
	sb := faked(t, nil, nil)
	works := func() {
		t.Helper()
		if got := shown(t, sb, "echo x", nil); got != "x" {
			t.Error(got)
		}
		if err := sb.Files().WriteFile(t.Context(), "f", []byte("1"), 0o644); err != nil {
			t.Error(err)
		}
		if data, err := sb.Files().ReadFile(t.Context(), "f"); err != nil || string(data) != "1" {
			t.Errorf("%q %v", data, err)
		}
		if _, err := sb.Files().Stat(t.Context(), "f"); err != nil {
			t.Error(err)
		}
	}
	status := func(headers ...string) int {
		code, _ := forwarded(t, sb, "GET", "/envs", "", headers...)
		return code
	}
	if err := sb.Init(t.Context(), berm.Init{AccessToken: "one"}); err != nil {
		t.Fatal(err)
	}
	works()
	if status() != 401 || status("X-Access-Token: two") != 401 || status("X-Access-Token: one") != 200 {
		t.Error("the token is not what counts")
	}
	if err := sb.Init(t.Context(), berm.Init{AccessToken: "two", EnvVars: map[string]string{"A": "1"}, DefaultWorkdir: "/"}); !errors.Is(err, errdefs.Denied) {
		t.Errorf("another token: %v", err)
	}
	if sb.Env()["A"] != "" || sb.WorkDir() == "/" {
		t.Error("a refused Init changed something")
	}
	works()
	if err := errors.Join(sb.Init(t.Context(), berm.Init{}), sb.Init(t.Context(), berm.Init{AccessToken: "two"})); err != nil {
		t.Error(err)
	}
	works()
	if status("X-Access-Token: one") != 401 || status("X-Access-Token: two") != 200 {
		t.Error("the second token is not what counts")
	}
	for name, in := range map[string]berm.Init{
		"token": {AccessToken: "\n"}, "variable": {EnvVars: map[string]string{"A=": "1"}}, "value": {EnvVars: map[string]string{"A": "\x00"}},
		"relative": {DefaultWorkdir: "x"}, "parent": {DefaultWorkdir: "/a/../b"}, "user": {DefaultUser: "nobody-else", AccessToken: "two"},
	} {
		if err := sb.Init(t.Context(), in); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	works()
	if err := sb.Close(); err != nil {
		t.Fatal(err)
	}
	if err := sb.Init(t.Context(), berm.Init{}); !errors.Is(err, errdefs.Closed) {
		t.Errorf("after Destroy: %v", err)
	}
	if _, err := sb.DataPlane().RoundTrip(httptest.NewRequestWithContext(t.Context(), "GET", "/health", nil)); !errors.Is(err, errdefs.Closed) {
		t.Errorf("after Destroy: %v", err)
	}
}

// Whatever a request looks like, only paths of the data plane reach the sandbox,
// and those on the data plane.
func TestDataPlaneIsAnAllowlist(t *testing.T) {
	t.Parallel()
	reached := make(chan *http.Request, 1000)
	sb := faked(t, nil, func(r *http.Request) { reached <- r })
	drain := func() (out []*http.Request) {
		for len(reached) > 0 {
			out = append(out, <-reached)
		}
		return out
	}
	drain()
	send := func(method string, where *url.URL, headers http.Header) (*http.Response, error) {
		req := &http.Request{Method: method, URL: where, Host: link.ControlHost, Header: headers, Body: io.NopCloser(strings.NewReader("{}"))}
		return sb.DataPlane().RoundTrip(req.WithContext(t.Context()))
	}
	upgrade := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"berm-tunnel"}}
	for _, where := range []url.URL{
		{Path: "/init"}, {Path: "/tunnel", RawQuery: "port=1"}, {Path: "/berm.agent.v1.Control/Probe"}, {Path: "/berm.agent.v1.Process/List"},
		{Path: ""}, {Path: "/"}, {Path: "files"}, {Path: "/files/"}, {Path: "//files"}, {Path: "/files/../init"}, {Path: "/./files"},
		{Path: "/FILES"}, {Path: "/files\x00"}, {Path: "/files?path=x"}, {Path: "/process.Process/"}, {Path: "/process.Process/None"}, {Path: "/process.process/List"},
		{Path: "/filesystem.Filesystem/../berm.agent.v1.Control/Probe"}, {Path: "/debug/pprof"}, {Path: "/freeze"},
		{Scheme: "http", Host: link.ControlHost, Path: "/init"}, {Opaque: "//" + link.ControlHost + "/init"},
	} {
		for _, headers := range []http.Header{nil, upgrade} {
			for _, method := range []string{"GET", "POST"} {
				res, err := send(method, &where, headers)
				if err != nil || res.StatusCode != 404 {
					t.Errorf("%s %+v: %v %v", method, where, res, err)
					continue
				}
				if data, err := io.ReadAll(res.Body); err != nil || !strings.HasPrefix(string(data), `{"code":404,`) || res.Body.Close() != nil {
					t.Errorf("%q %v", data, err)
				}
			}
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH", "CONNECT", "TRACE", "", "get"} {
		if res, err := send(method, &url.URL{Path: "/files"}, nil); err != nil || res.StatusCode != 405 {
			t.Errorf("%q: %v %v", method, res, err)
		}
	}
	if got := drain(); len(got) != 0 {
		t.Errorf("%d refused requests reached the sandbox: %v", len(got), got[0].URL)
	}
	for path, method := range map[string]string{
		"/health": "GET", "/envs": "GET", "/metrics": "GET", "/files": "POST", "/files/compose": "POST",
		"/process.Process/List": "POST", "/process.Process/Start": "POST", "/filesystem.Filesystem/ListDir": "POST",
	} {
		res, err := send(method, &url.URL{Scheme: "https", Host: link.ControlHost, User: url.User("x"), Path: path, RawQuery: "a=b", Fragment: "f", Opaque: ""}, upgrade.Clone())
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.Body.Close() != nil {
			t.Error(err)
		}
		got := drain()
		if len(got) != 1 || got[0].URL.String() != "http://"+link.DataHost+path+"?a=b" || got[0].Host != "" || got[0].Header.Get("Upgrade") != "" {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

func TestDataPlaneCarriesFiles(t *testing.T) {
	t.Parallel()
	sb := faked(t, nil, nil)
	content := strings.Repeat("x", 1<<20)
	if code, body := forwarded(t, sb, "POST", "/files?path="+url.QueryEscape(sb.WorkDir()+"/f"), content, "Content-Type: application/octet-stream"); code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	if data, err := sb.Files().ReadFile(t.Context(), "f"); err != nil || string(data) != content {
		t.Errorf("%d bytes %v", len(data), err)
	}
	if code, body := forwarded(t, sb, "GET", "/files?path="+url.QueryEscape(sb.WorkDir()+"/f"), "", "Accept-Encoding: identity"); code != 200 || body != content {
		t.Errorf("%d, %d bytes", code, len(body))
	}
	if _, err := os.Stat(sb.WorkDir()); err != nil {
		t.Error(err)
	}
}
