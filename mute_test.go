package berm_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/fake"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
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
	out := filepath.Join(t.TempDir(), "berm-agent")
	cmd := exec.Command("go", "build", "-o", out, "github.com/berm-dev/berm/cmd/berm-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, text)
	}
	image, err := os.ReadFile(out)
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
