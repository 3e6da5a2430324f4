package berm_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/fake"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/drivertest"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

// oddBackend is a fake whose links have something changed.
type oddBackend struct {
	fake.Config
	change func(link.Link) link.Link
}

func (b oddBackend) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	d, err := b.Config.Open(ctx, host)
	return oddDriver{d, b.change}, err
}

type oddDriver struct {
	driver.Driver
	change func(link.Link) link.Link
}

func (d oddDriver) Create(ctx context.Context, spec *driver.Spec) (driver.Machine, error) {
	m, err := d.Driver.Create(ctx, spec)
	return oddMachine{m, d.change}, err
}

type oddMachine struct {
	driver.Machine
	change func(link.Link) link.Link
}

func (m oddMachine) Unwrap() driver.Machine { return m.Machine }

func (m oddMachine) Link(ctx context.Context) (link.Link, error) {
	l, err := m.Machine.Link(ctx)
	return m.change(l), err
}

// noListener is a link whose agent handed over nothing.
type noListener struct{ link.Link }

func (noListener) Accept(context.Context) (net.Conn, error) {
	return nil, errdefs.New(errdefs.Unsupported, "accept")
}

// noRoom is a link whose agent cannot keep certificates.
type noRoom struct{ link.Link }

func (l noRoom) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Path != "/trust" {
		return l.Link.RoundTrip(req)
	}
	_ = req.Body.Close()
	return &http.Response{
		StatusCode: http.StatusInsufficientStorage, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(`{"code":507,"message":"no space"}`)), Request: req,
	}, nil
}

// gatedProvider opens a fake whose links are changed.
func gatedProvider(t *testing.T, policy *berm.Egress, change func(link.Link) link.Link) (*berm.Provider, string) {
	t.Helper()
	state := filepath.Join(t.TempDir(), "s")
	p, err := berm.Open(t.Context(), oddBackend{change: change}, berm.Config{
		Agent: berm.AgentProgram{Path: drivertest.AgentBinary(t)}, StateDir: state, Egress: policy,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, state
}

var brokered = &berm.Egress{Credentials: []berm.Credential{{Host: "api.example.com", Value: "hunter2hunter2"}}}

// TestCreateNeedsTheGatesWay: without a listener, or without the certificates
// that its clients need, a sandbox with a gate is not handed over, and nothing of
// it is left.
func TestCreateNeedsTheGatesWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy *berm.Egress
		change func(link.Link) link.Link
		kind   errdefs.Kind
	}{
		"no listener":                {&berm.Egress{}, func(l link.Link) link.Link { return noListener{l} }, errdefs.Unsupported},
		"no place for the authority": {brokered, func(l link.Link) link.Link { return noRoom{l} }, errdefs.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, state := gatedProvider(t, c.policy, c.change)
			_, err := p.Create(t.Context(), berm.CreateOptions{})
			if errdefs.KindOf(err) != c.kind || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %v, want %s", err, c.kind)
			}
			for _, dir := range []string{"sandboxes", "fake"} {
				if left, _ := filepath.Glob(filepath.Join(state, dir, "*")); len(left) > 0 {
					t.Errorf("left: %q", left)
				}
			}
			// Without a gate it is a sandbox like any other.
			if c.kind == errdefs.Exhausted {
				sb, err := p.Create(t.Context(), berm.CreateOptions{Egress: &berm.Egress{}})
				if err != nil {
					t.Fatal(err)
				}
				if err := sb.SetEgress(t.Context(), brokered); !errors.Is(err, errdefs.Exhausted) {
					t.Errorf("set egress: %v", err)
				}
				if err := sb.SetEgress(t.Context(), nil); err != nil {
					t.Errorf("back: %v", err)
				}
			}
		})
	}
}

// TestSetEgressBesideDestroy: changes that come from everywhere, and the end in
// the middle of them, leave neither a race nor a goroutine.
func TestSetEgressBesideDestroy(t *testing.T) {
	t.Parallel()
	p, state := gatedProvider(t, &berm.Egress{}, func(l link.Link) link.Link { return l })
	sb, err := p.Create(t.Context(), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var changing sync.WaitGroup
	begun := make(chan struct{}, 1)
	for i := range 4 {
		changing.Go(func() {
			for n := 0; ; n++ {
				policy := &berm.Egress{Allow: []string{"a.example.com"}}
				if (n+i)%2 == 0 {
					policy = brokered
				}
				err := sb.SetEgress(t.Context(), policy)
				select {
				case begun <- struct{}{}:
				default:
				}
				if err != nil {
					if kind := errdefs.KindOf(err); kind != errdefs.Closed && kind != errdefs.TransportLost {
						t.Errorf("set egress: %v", err)
					}
					return
				}
			}
		})
	}
	<-begun
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	changing.Wait()
	if err := sb.SetEgress(t.Context(), nil); !errors.Is(err, errdefs.Closed) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := os.Stat(filepath.Join(state, "sandboxes", sb.ID()+".json")); err == nil {
		t.Error("the sandbox's record is left")
	}
}

// TestGateEndsWithItsLink: a sandbox that dies by itself has no gate any more, and
// can be destroyed.
func TestGateEndsWithItsLink(t *testing.T) {
	t.Parallel()
	var inner link.Link
	p, _ := gatedProvider(t, &berm.Egress{}, func(l link.Link) link.Link {
		inner = l
		return l
	})
	sb, err := p.Create(t.Context(), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := inner.Close(); err != nil {
		t.Fatal(err)
	}
	<-sb.Done()
	if err := sb.SetEgress(t.Context(), brokered); err == nil {
		t.Error("a sandbox that is dead takes a policy with a credential")
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}
