package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRefusals: what no sandbox has to be asked about. What sandboxes answer is
// what scripts/e2e-sdk looks at.
func TestRefusals(t *testing.T) {
	t.Parallel()
	b := newBridge(t.Context(), nil, "127.0.0.1:4711")
	agent := http.Header{"E2b-Sandbox-Id": {"nosuchsandbox"}, "E2b-Sandbox-Port": {agentPort}}
	other := http.Header{"E2b-Sandbox-Id": {"nosuchsandbox"}, "E2b-Sandbox-Port": {"8080"}}
	key := http.Header{"X-Api-Key": {b.key}}
	for name, c := range map[string]struct {
		host, method, path, body string
		header                   http.Header
		status                   int
		message                  string
	}{
		"a name of somebody's own":      {host: "rebound.example:4711", path: "/health", header: agent, status: 403},
		"another port of the host":      {host: "127.0.0.1:80", path: "/health", header: agent, status: 403},
		"an unknown sandbox":            {path: "/health", header: agent, status: 502, message: "was not found"},
		"a call of an unknown sandbox":  {method: "POST", path: "/process.Process/List", header: agent, status: 502, message: "was not found"},
		"a port without a server":       {path: "/", header: other, status: 502, message: "port is not open"},
		"a signed URL without sandbox":  {path: "/files?path=x&signature=v1_x", status: 502, message: "was not found"},
		"no key":                        {method: "POST", path: "/v2/sandboxes", body: `{"templateID":"base"}`, status: 401},
		"a template that there is not":  {method: "POST", path: "/v2/sandboxes", body: `{"templateID":"none"}`, header: key, status: 404},
		"no time":                       {method: "POST", path: "/sandboxes", body: `{"templateID":"base","timeout":0}`, header: key, status: 400},
		"a body that is none":           {method: "POST", path: "/sandboxes", body: `{"templateID":`, header: key, status: 400},
		"connect to an unknown sandbox": {method: "POST", path: "/v2/sandboxes/x/connect", header: key, status: 404},
		"timeout of an unknown sandbox": {method: "POST", path: "/sandboxes/x/timeout", body: `{"timeout":1}`, header: key, status: 404},
		"info of an unknown sandbox":    {path: "/sandboxes/x", header: key, status: 404},
		"kill of an unknown sandbox":    {method: "DELETE", path: "/sandboxes/x", header: key, status: 404},
		"what is not served":            {method: "POST", path: "/sandboxes/x/pause", header: key, status: 404},
		"a data plane without a name":   {method: "POST", path: "/process.Process/List", header: key, status: 404},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			method := c.method
			if method == "" {
				method = http.MethodGet
			}
			r := httptest.NewRequestWithContext(t.Context(), method, c.path, strings.NewReader(c.body))
			r.Host, r.Header = c.host, c.header.Clone()
			if c.host == "" {
				r.Host = "localhost:4711"
			}
			w := httptest.NewRecorder()
			b.ServeHTTP(w, r)
			var got struct {
				Code    int
				Message string
			}
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatalf("%q: %v", w.Body, err)
			}
			if w.Code != c.status || got.Code != c.status || got.Message == "" || !strings.Contains(got.Message, c.message) {
				t.Errorf("status %d, body %q; want %d and %q", w.Code, w.Body, c.status, c.message)
			}
		})
	}
}
