//go:build linux

package attack_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"runtime"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
)

// forward sends a request through the data plane as a server would.
func forward(t *testing.T, sb *berm.Sandbox, method, target string, body io.Reader, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(bounded(t), method, "http://x"+target, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	res, err := sb.DataPlane().RoundTrip(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return res.StatusCode, string(data)
}

// attacks 12 and its test "Data plane asks for control methods, /init, reseed: 404".
func TestDataPlaneHasNoControl(t *testing.T) {
	t.Parallel()
	b := shared(t)
	for _, target := range []string{"/init", "/tunnel?port=1", "/berm.agent.v1.Control/Probe", "/reseed", "/freeze", "/upgrade", "/process.Process/../berm.agent.v1.Control/Probe"} {
		for _, method := range []string{"GET", "POST"} {
			code, body := forward(t, b.Sandbox, method, target, strings.NewReader("{}"), "Content-Type: application/json", "Connection: Upgrade", "Upgrade: berm-tunnel")
			if code != http.StatusNotFound || !strings.HasPrefix(body, `{"code":404,`) {
				t.Errorf("%s %s: %d %s", method, target, code, body)
			}
		}
	}
	if code, body := forward(t, b.Sandbox, "POST", "/process.Process/List", strings.NewReader("{}"), "Content-Type: application/json"); code != 200 {
		t.Errorf("the control: %d %s", code, body)
	}
	alive(t, b)
}

// A compressed upload that turns out to be more than the sandbox may have ends at
// its file system's size, leaves nothing, and costs nobody else anything.
func TestBombEndsAtTheFileSystem(t *testing.T) {
	t.Parallel()
	p := opened(t, func(c *berm.Config) { c.Limits.DiskBytes = 8 << 20 })
	small, err := p.Create(bounded(t), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { destroyed(t, small) })
	var bomb bytes.Buffer
	zip, err := gzip.NewWriterLevel(&bomb, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.CopyN(zip, blank{}, 64<<20)
	if err := errors.Join(err, zip.Close()); err != nil {
		t.Fatal(err)
	}
	target := "/files?path=" + url.QueryEscape(path.Join(small.WorkDir(), "sub/bomb"))
	code, body := forward(t, small, "POST", target, &bomb, "Content-Type: application/octet-stream", "Content-Encoding: gzip")
	if code != http.StatusInsufficientStorage || !strings.HasPrefix(body, `{"code":507,`) {
		t.Errorf("%d %s", code, body)
	}
	if entries, err := small.Files().ReadDir(bounded(t), "."); err != nil || len(entries) != 0 {
		t.Errorf("left: %v %v", entries, err)
	}
	alive(t, &box{Sandbox: small})
}

type blank struct{}

func (blank) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// The sandbox's metrics are its own, and name its limits.
func TestMetricsAreTheSandboxesOwn(t *testing.T) {
	t.Parallel()
	const limit = 96 << 20
	p := opened(t, func(c *berm.Config) {
		c.Limits = berm.Limits{MemoryBytes: limit, CPUs: 0.5, DiskBytes: 8 << 20, BestEffort: true}
	})
	small, err := p.Create(bounded(t), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { destroyed(t, small) })
	var m struct {
		CPUs     int    `json:"cpu_count"`
		MemTotal uint64 `json:"mem_total"`
		MemUsed  uint64 `json:"mem_used"`
		Disk     uint64 `json:"disk_total"`
	}
	code, body := forward(t, small, "GET", "/metrics", nil)
	if code != 200 || json.Unmarshal([]byte(body), &m) != nil {
		t.Fatalf("%d %s", code, body)
	}
	caps := p.Capabilities()
	cpus := 1
	if caps.CPUs == driver.Unenforced {
		cpus = runtime.NumCPU() // a limit that is not kept is not told
	}
	if m.CPUs != cpus || caps.Memory != driver.Unenforced && (m.MemTotal != limit || m.MemUsed > limit) || m.Disk == 0 || m.Disk > 8<<20 {
		t.Errorf("%+v", m)
	}
}

// What is noted beside a file by an upload is told where the file is described.
func TestMetadataInTheSandbox(t *testing.T) {
	t.Parallel()
	b := fresh(t, defaults())
	target := url.QueryEscape(path.Join(b.WorkDir(), "noted"))
	code, body := forward(t, b.Sandbox, "POST", "/files?path="+target, strings.NewReader("x"), "Content-Type: application/octet-stream", "X-Metadata-Author: me")
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	kept := strings.Contains(body, `"metadata":{"author":"me"}`)
	t.Logf("the file system has attributes: %t", kept)
	code, seen := forward(t, b.Sandbox, "POST", "/filesystem.Filesystem/Stat", strings.NewReader(`{"path":"`+path.Join(b.WorkDir(), "noted")+`"}`), "Content-Type: application/json")
	if code != 200 || kept != strings.Contains(strings.ReplaceAll(seen, " ", ""), `"metadata":{"author":"me"}`) {
		t.Errorf("%d %s after %s", code, seen, body)
	}
}
