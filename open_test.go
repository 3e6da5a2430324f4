package berm_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

// refusing is a backend whose opening is a test failure.
type refusing struct {
	t    *testing.T
	caps driver.Capabilities
}

func (r refusing) Declare() driver.Capabilities { return r.caps }

func (r refusing) Open(context.Context, driver.Host) (driver.Driver, error) {
	r.t.Error("the backend was opened although the configuration is wrong")
	return nil, errdefs.New(errdefs.Internal, "open")
}

var contained = driver.Capabilities{
	Backend: "stub", Tier: driver.TierProcess, Networks: []driver.Network{driver.NetworkNone, driver.NetworkHost},
	Memory: driver.Partial, Processes: driver.Enforced, Disk: driver.Enforced, HostDirs: true,
	Isolation: berm.Isolation{Filesystem: true, Network: true, Processes: true},
}

func TestOpenRefusesBeforeItTouchesAnything(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg     berm.Config
		kind    errdefs.Kind
		reasons []string
	}{
		"all faults at once": {
			berm.Config{
				Env:          map[string]string{"A;touch x": "1", "OK": "a\x00b"},
				Layout:       berm.Layout{Outputs: berm.HostVolume("relative")},
				Limits:       berm.Limits{MemoryBytes: 1, Processes: -1, CPUs: -1, DiskBytes: 1},
				Timeout:      -2,
				ReadyTimeout: -1,
				Network:      "mesh",
			},
			errdefs.Invalid,
			[]string{"A;touch x", "NUL", "outputs", "memory limit", "process limit", "cpu limit", "disk limit", "timeout", "ready timeout", `"mesh"`},
		},
		"a gate that is not there": {berm.Config{Network: driver.NetworkGated}, errdefs.Unsupported, []string{"network gated is not supported"}},
		"a policy without a gate":  {berm.Config{Egress: &berm.Egress{}}, errdefs.Unsupported, []string{"network gated is not supported"}},
		"a policy that is wrong": {
			berm.Config{
				Network:     driver.NetworkHost,
				Egress:      &berm.Egress{Allow: []string{"*.com", "10.0.0.1"}, Credentials: []berm.Credential{{Host: "api.example.com"}}},
				Nameservers: []string{"192.0.2.1", "192.0.2.1:5353", "[2001:db8::1]:53", "dns.example.com", ""},
			},
			errdefs.Invalid,
			[]string{"contradicts network host", `"*.com"`, `"10.0.0.1"`, "api.example.com", `"dns.example.com"`, `name server ""`},
		},
		"network promised on the host's": {
			berm.Config{Network: driver.NetworkHost, Require: berm.Isolation{Network: true, Limits: true}},
			errdefs.Unsupported,
			[]string{"required isolation network", "required isolation limits"},
		},
		"limits that cannot be kept": {
			berm.Config{Limits: berm.Limits{MemoryBytes: 1 << 30, CPUs: 1}},
			errdefs.Unsupported,
			[]string{"limit on memory", "limit on cpus"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.cfg.StateDir = filepath.Join(t.TempDir(), "state")
			_, err := berm.Open(t.Context(), refusing{t, contained}, c.cfg)
			var known *errdefs.Error
			if !errors.As(err, &known) || known.Kind != c.kind || len(known.Reasons) != len(c.reasons) {
				t.Fatalf("got %v, want %s with %d reasons", err, c.kind, len(c.reasons))
			}
			for _, want := range c.reasons {
				if !strings.Contains(strings.Join(known.Reasons, "\n"), want) {
					t.Errorf("no reason with %q in %q", want, known.Reasons)
				}
			}
			if _, err := os.Stat(c.cfg.StateDir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the state directory was made: %v", err)
			}
		})
	}
	if _, err := berm.Open(t.Context(), nil, berm.Config{}); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("no backend: %v", err)
	}
}

func TestAgentProgramIsChecked(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	dynamic, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	for want, agent := range map[string]berm.AgentProgram{
		"not an ELF":         {Path: script},
		"not an absolute":    {Path: "agent"},
		"no such file":       {Path: script + "-none"},
		"not a regular file": {Path: t.TempDir()},
		"dynamically linked": {Image: dynamic},
	} {
		_, err := berm.Open(t.Context(), refusing{t, contained}, berm.Config{Agent: agent, StateDir: filepath.Join(t.TempDir(), "state"), Timeout: time.Second})
		if !errors.Is(err, errdefs.Unavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want Unavailable with %q", err, want)
		}
	}
}
