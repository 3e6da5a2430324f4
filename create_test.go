package berm_test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/fake"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// failingBackend's Create ends as its function says.
type failingBackend struct {
	fake.Config
	create func(ctx context.Context) error
}

func (b failingBackend) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	d, err := b.Config.Open(ctx, host)
	return failingDriver{d, b.create}, err
}

type failingDriver struct {
	driver.Driver
	create func(ctx context.Context) error
}

func (d failingDriver) Create(ctx context.Context, _ *driver.Spec) (driver.Machine, error) {
	return nil, d.create(ctx)
}

// TestCreateSaysWhy: a bound of berm's own is named as the reason, beside what
// failed because of it, and a host that has run out is told apart from one that
// lacks something.
func TestCreateSaysWhy(t *testing.T) {
	t.Parallel()
	agent := berm.AgentProgram{Image: anyProgram(t)}
	for name, c := range map[string]struct {
		create func(ctx context.Context) error
		kind   errdefs.Kind
		texts  []string
	}{
		"ready timeout": {
			func(ctx context.Context) error {
				<-ctx.Done()
				return errdefs.New(errdefs.Timeout, "start", "no hello")
			},
			errdefs.Timeout, []string{"not ready within 50ms", "no hello"},
		},
		"full disk": {
			func(context.Context) error { return syscall.ENOSPC },
			errdefs.Exhausted, []string{"no space left"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := berm.Open(t.Context(), failingBackend{create: c.create},
				berm.Config{Agent: agent, StateDir: t.TempDir() + "/s", ReadyTimeout: 50 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.Create(t.Context(), berm.CreateOptions{})
			if errdefs.KindOf(err) != c.kind {
				t.Errorf("kind %s of %v, want %s", errdefs.KindOf(err), err, c.kind)
			}
			for _, text := range c.texts {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("%v does not say %q", err, text)
				}
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
