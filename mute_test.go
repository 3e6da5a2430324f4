package berm_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/fake"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/drivertest"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/link"
)

// muteBackend's agents never answer a Start, not even with a header.
type muteBackend struct{ fake.Config }

func (b muteBackend) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	d, err := b.Config.Open(ctx, host)
	return muteDriver{d}, err
}

type muteDriver struct{ driver.Driver }

func (d muteDriver) Create(ctx context.Context, spec *driver.Spec) (driver.Machine, error) {
	m, err := d.Driver.Create(ctx, spec)
	return muteMachine{m}, err
}

type muteMachine struct{ driver.Machine }

func (m muteMachine) Unwrap() driver.Machine { return m.Machine }

func (m muteMachine) Link(ctx context.Context) (link.Link, error) {
	l, err := m.Machine.Link(ctx)
	return muteLink{l}, err
}

type muteLink struct{ link.Link }

func (l muteLink) RoundTrip(req *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(req.URL.Path, "/Start") {
		return l.Link.RoundTrip(req)
	}
	if req.Body != nil {
		_ = req.Body.Close()
	}
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// anyProgram is a static program: the fake never runs it.
func anyProgram(t *testing.T) []byte {
	t.Helper()
	image, err := os.ReadFile(drivertest.AgentBinary(t))
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// TestTimeoutHoldsAgainstAMuteAgent: the host ends an Exec whose agent does not
// even begin to answer.
func TestTimeoutHoldsAgainstAMuteAgent(t *testing.T) {
	t.Parallel()
	p, err := berm.Open(t.Context(), muteBackend{}, berm.Config{Agent: berm.AgentProgram{Image: anyProgram(t)}, StateDir: t.TempDir() + "/s"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	res, err := sb.Exec(ctx, berm.Command{Args: []string{"true"}, Timeout: 10 * time.Millisecond})
	if !errors.Is(err, errdefs.TransportLost) || res == nil || res.Reason != berm.TransportLost || ctx.Err() != nil {
		t.Fatalf("Exec = %+v, %v", res, err)
	}
}

// denyingBackend's agents start a command and then say that there was no room for
// it.
type denyingBackend struct{ fake.Config }

func (b denyingBackend) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	d, err := b.Config.Open(ctx, host)
	return denyingDriver{d}, err
}

type denyingDriver struct{ driver.Driver }

func (d denyingDriver) Create(ctx context.Context, spec *driver.Spec) (driver.Machine, error) {
	m, err := d.Driver.Create(ctx, spec)
	return denyingMachine{m}, err
}

type denyingMachine struct{ driver.Machine }

func (m denyingMachine) Unwrap() driver.Machine { return m.Machine }

func (m denyingMachine) Link(ctx context.Context) (link.Link, error) {
	l, err := m.Machine.Link(ctx)
	return denyingLink{l}, err
}

type denyingLink struct{ link.Link }

func (l denyingLink) RoundTrip(req *http.Request) (*http.Response, error) {
	if !strings.HasSuffix(req.URL.Path, "/Start") {
		return l.Link.RoundTrip(req)
	}
	if req.Body != nil {
		_ = req.Body.Close()
	}
	started, err := proto.Marshal(&agentv1.StartResponse{Event: &agentv1.ProcessEvent{
		Event: &agentv1.ProcessEvent_Start{Start: &agentv1.ProcessEvent_StartEvent{Pid: 7}},
	}})
	if err != nil {
		return nil, err
	}
	body := bytes.NewReader(append(frame(0, started), frame(2, []byte(`{"error":{"code":"resource_exhausted"}}`))...))
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Request: req,
		Header: http.Header{"Content-Type": {"application/connect+proto"}}, Body: io.NopCloser(body),
	}, nil
}

// frame is one message of a stream.
func frame(flags byte, data []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(data))), data...)
}

// TestARunningCommandCannotBeDenied: of a command that was said to run nobody is
// told later that it never did.
func TestARunningCommandCannotBeDenied(t *testing.T) {
	t.Parallel()
	p, err := berm.Open(t.Context(), denyingBackend{}, berm.Config{Agent: berm.AgentProgram{Image: anyProgram(t)}, StateDir: t.TempDir() + "/s"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := sb.Exec(t.Context(), berm.Command{Args: []string{"true"}})
	if !errors.Is(err, errdefs.Protocol) || res == nil || res.Reason == berm.NotStarted {
		t.Fatalf("Exec = %+v, %v", res, err)
	}
}

// modestBackend declares less than its driver claims.
type modestBackend struct{ fake.Config }

func (b modestBackend) Declare() driver.Capabilities {
	caps := b.Config.Declare()
	caps.TreeKill = ""
	return caps
}

func TestADriverDoesNotExceedItsDeclaration(t *testing.T) {
	t.Parallel()
	p, err := berm.Open(t.Context(), modestBackend{}, berm.Config{Agent: berm.AgentProgram{Image: anyProgram(t)}, StateDir: t.TempDir() + "/s"})
	if err == nil {
		_ = p.Close()
	}
	if !errors.Is(err, errdefs.Internal) {
		t.Errorf("error %v", err)
	}
}
