package berm_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/fake"
	"github.com/berm-dev/berm/backend/passthrough"
	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/drivertest"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/posture"
)

func probed(t *testing.T, backend driver.Backend, cfg berm.Config) *berm.Diagnosis {
	t.Helper()
	cfg.Agent = berm.AgentProgram{Path: drivertest.AgentBinary(t)}
	cfg.StateDir = filepath.Join(t.TempDir(), "state")
	found, err := berm.Probe(t.Context(), backend, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(cfg.StateDir); err == nil {
		for _, entry := range left {
			inner, _ := os.ReadDir(filepath.Join(cfg.StateDir, entry.Name()))
			if len(inner) > 0 {
				t.Errorf("left in %s: %v", entry.Name(), inner)
			}
		}
	}
	return found
}

// selfTests are the checks beyond the posture's claims.
var selfTests = []string{
	"write-outside", "write-sysctl", "refused-calls", "connect-loopback", "trace-agent", "see-outside-processes",
	"exceed-memory", "exceed-processes", "exceed-disk",
}

func check(t *testing.T, found *berm.Diagnosis, name string) berm.Check {
	t.Helper()
	i := slices.IndexFunc(found.Checks, func(c berm.Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no check %s", name)
	}
	return found.Checks[i]
}

// TestProbeMeasuresTheWall: on a host where sandboxes work every claim and every
// check of what is promised there has passed.
func TestProbeMeasuresTheWall(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("bubblewrap is not installed")
	}
	found := probed(t, process.Config{}, berm.Config{})
	if !found.Available || found.Capabilities == nil || len(found.Facts) == 0 {
		t.Fatalf("%+v", found)
	}
	if found.Achieved != found.Capabilities.Isolation || !found.Achieved.Filesystem || !found.Achieved.Network || !found.Achieved.Processes {
		t.Errorf("achieved %+v of %+v", found.Achieved, found.Capabilities.Isolation)
	}
	for _, rule := range posture.TableFor("process") {
		if found.Achieved.Has(rule.Dimension) && check(t, found, string(rule.Claim)).Outcome != berm.CheckPassed {
			t.Errorf("%s", check(t, found, string(rule.Claim)))
		}
	}
	for _, name := range selfTests {
		c := check(t, found, name)
		want := berm.CheckPassed
		if name == "exceed-memory" && found.Capabilities.Memory != driver.Enforced {
			want = berm.CheckNotApplicable
		}
		if c.Outcome != want || c.Detail == "" {
			t.Errorf("%s", c)
		}
	}
}

// TestProbeHoldsTheConfiguration: what Open would refuse is a fatal problem.
func TestProbeHoldsTheConfiguration(t *testing.T) {
	t.Parallel()
	open := passthrough.Config{Allow: true}
	for name, c := range map[string]struct {
		backend driver.Backend
		cfg     berm.Config
		want    string // in a fatal problem; empty for none
	}{
		"nothing asked":        {open, berm.Config{}, ""},
		"not allowed":          {passthrough.Config{}, berm.Config{}, "has to be allowed by name"},
		"a required isolation": {open, berm.Config{Require: berm.Isolation{Network: true}}, "required isolation network"},
		"a limit":              {open, berm.Config{Limits: berm.Limits{Processes: 10}}, "limit on processes"},
		"a limit, best effort": {open, berm.Config{Limits: berm.Limits{Processes: 10, BestEffort: true}}, ""},
		"a network it has not": {open, berm.Config{Network: driver.NetworkNone}, "network none"},
		"limits that are none": {fake.Config{Faults: fake.Faults{OverDeclare: true}}, berm.Config{}, "exceed-"},
	} {
		found := probed(t, c.backend, c.cfg)
		var fatal []string
		for _, p := range found.Problems {
			if p.Fatal {
				fatal = append(fatal, p.Reason)
			}
		}
		if found.Available != (c.want == "") || c.want != "" && !strings.Contains(strings.Join(fatal, "\n"), c.want) || found.Available != (len(fatal) == 0) {
			t.Errorf("%s: available %t, %q, want %q", name, found.Available, fatal, c.want)
		}
		if found.Achieved != (berm.Isolation{}) {
			t.Errorf("%s: achieved %+v", name, found.Achieved)
		}
	}
}

// unwalled is passthrough that promises a whole wall, in a tier without a posture
// table: only the self-test is left to find it out.
type unwalled struct{ passthrough.Config }

func promiseAll(caps driver.Capabilities) driver.Capabilities {
	caps.Tier, caps.Networks = driver.TierContainer, []driver.Network{driver.NetworkHost, driver.NetworkNone}
	caps.Isolation = berm.Isolation{Filesystem: true, Network: true, Processes: true, Limits: true}
	caps.Memory, caps.Processes, caps.Disk = driver.Enforced, driver.Enforced, driver.Enforced
	return caps
}

func (u unwalled) Declare() driver.Capabilities { return promiseAll(u.Config.Declare()) }

func (u unwalled) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	d, err := u.Config.Open(ctx, host)
	return unwalledDriver{d}, err
}

type unwalledDriver struct{ driver.Driver }

func (d unwalledDriver) Capabilities() driver.Capabilities {
	return promiseAll(d.Driver.Capabilities())
}

func (d unwalledDriver) Create(ctx context.Context, spec *driver.Spec) (driver.Machine, error) {
	own := *spec
	own.Network, own.Limits = driver.NetworkHost, driver.Limits{}
	return d.Driver.Create(ctx, &own)
}

// TestProbeFindsEveryHole: where there is no wall at all, each check fails, and
// what it was about is neither available nor claimed any more.
func TestProbeFindsEveryHole(t *testing.T) {
	t.Parallel()
	found := probed(t, unwalled{passthrough.Config{Allow: true}}, berm.Config{})
	if found.Available || found.Capabilities == nil || found.Achieved != (berm.Isolation{}) {
		t.Fatalf("%+v", found)
	}
	caps := found.Capabilities
	if caps.Isolation != (berm.Isolation{}) || caps.Memory != driver.Unenforced || caps.Processes != driver.Unenforced || caps.Disk != driver.Unenforced {
		t.Errorf("capabilities: %+v", caps)
	}
	for _, name := range selfTests {
		c := check(t, found, name)
		if os.Geteuid() != 0 && (name == "write-sysctl" || name == "trace-agent") {
			continue // the kernel refuses that to every user without privileges
		}
		if c.Outcome != berm.CheckFailed {
			t.Errorf("%s", c)
			continue
		}
		if !slices.ContainsFunc(found.Problems, func(p driver.Problem) bool { return p.Fatal && strings.Contains(p.Reason, name) }) {
			t.Errorf("%s is no fatal problem: %+v", name, found.Problems)
		}
	}
}

// TestProbeShowsAFailedPosture: the claims are told also where they keep the
// sandbox from being handed over.
func TestProbeShowsAFailedPosture(t *testing.T) {
	t.Parallel()
	found := probed(t, honest{}, berm.Config{})
	if found.Available || found.Achieved != (berm.Isolation{}) || check(t, found, "network-namespace").Outcome != berm.CheckFailed {
		t.Errorf("%+v", found)
	}
}

// honest promises the process tier's wall, and measures what there is.
type honest struct{ unwalled }

func (h honest) Declare() driver.Capabilities {
	caps := h.unwalled.Declare()
	caps.Tier = driver.TierProcess
	return caps
}

func (honest) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	d, err := passthrough.Config{Allow: true}.Open(ctx, host)
	return honestDriver{unwalledDriver{d}}, err
}

type honestDriver struct{ unwalledDriver }

func (d honestDriver) Capabilities() driver.Capabilities {
	caps := d.unwalledDriver.Capabilities()
	caps.Tier = driver.TierProcess
	return caps
}

func TestProbeErrors(t *testing.T) {
	t.Parallel()
	if _, err := berm.Probe(t.Context(), nil, berm.Config{}); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("no backend: %v", err)
	}
	if _, err := berm.Probe(t.Context(), fake.Config{}, berm.Config{Network: "mesh"}); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("a wrong configuration: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cfg := berm.Config{Agent: berm.AgentProgram{Path: drivertest.AgentBinary(t)}, StateDir: filepath.Join(t.TempDir(), "state")}
	if found, err := berm.Probe(ctx, fake.Config{}, cfg); !errors.Is(err, errdefs.Cancelled) {
		t.Errorf("cancelled: %+v %v", found, err)
	}
}
