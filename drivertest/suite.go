// Package drivertest is the conformance suite of berm's backends. A backend
// passes it or it is not one: every behaviour here is a promise of package berm,
// whatever the wall is made of.
//
//	func TestConformance(t *testing.T) {
//		drivertest.Run(t, drivertest.Harness{
//			Backend: func(*testing.T) driver.Backend { return mine.Config{} },
//		})
//	}
//
// The suite works through the public API only. It asks of a backend what the
// backend declares, and of what is not declared that it is refused. It tests
// liveness, at the stated bound or two seconds, whichever is longer, and never
// speed.
package drivertest

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
)

// Harness says what to test.
type Harness struct {
	// Backend gives the backend's configuration; it is called for each opening.
	Backend func(t *testing.T) driver.Backend
	// Agent gives the path of the agent's program; nil builds it (AgentBinary).
	Agent func(t testing.TB) string
	// Config changes the configuration of each opening, before the behaviour's own
	// changes; nil changes nothing.
	Config func(t *testing.T, c *berm.Config)
	// Skips names behaviours ("timeout/daemon") that this backend cannot show, each
	// with its reason. A capability that is not declared needs no entry.
	Skips map[string]string
}

// group is the behaviours of one file.
type group struct {
	name string
	// alone: the behaviours look at the whole host process, so nothing may run
	// beside them.
	alone      bool
	behaviours []behaviour
}

// behaviour is one promise.
type behaviour struct {
	name string
	run  func(t *testing.T, s *suite)
}

// groups lists all there is, those that must run alone first.
func groups() []group {
	return []group{
		createCancelGroup(), orphanGroup(), secretsGroup(),
		execGroup(), cmdGroup(), streamsGroup(), stdinGroup(), timeoutGroup(), treeGroup(), cancelGroup(),
		envGroup(), workdirGroup(), filesGroup(), atomicGroup(), namesGroup(), fsysGroup(), dialGroup(),
		layoutGroup(), linksGroup(), limitsGroup(), postureGroup(), capabilitiesGroup(),
		destroyGroup(), transportGroup(), concurrencyGroup(), backgroundGroup(), archiveGroup(), watchGroup(), egressGroup(),
	}
}

// Run runs the suite. t must not be parallel: the suite gives the process a
// temporary directory of its own and, at the end, looks for what was left in
// it, in the state directory, among the processes, mounts, cgroups, descriptors
// and goroutines.
func Run(t *testing.T, h Harness) {
	if isOrphanMaker() {
		makeOrphan(t, h)
		return
	}
	s := newSuite(t, h)
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			if !g.alone {
				t.Parallel()
			}
			for _, b := range g.behaviours {
				t.Run(b.name, func(t *testing.T) {
					if reason, ok := h.Skips[g.name+"/"+b.name]; ok {
						t.Skip(reason)
					}
					if !g.alone {
						t.Parallel()
					}
					b.run(t, s)
				})
			}
		})
	}
}

// suite is one run.
type suite struct {
	harness  Harness
	agent    string
	payload  string
	stateDir string
	// mark is in the environment of every command, so that a process that is left
	// over can be told from all others on the host.
	mark string

	// shared is the provider of the behaviours that need nothing special.
	shared func() (*berm.Provider, error)

	mu       sync.Mutex
	machines map[string]driver.Machine // by sandbox ID
}

const (
	// liveness is the bound of what has to happen "at once".
	liveness = 2 * time.Second
	// patience bounds each operation whose duration is not the subject.
	patience = 60 * time.Second
	// markName is the variable that marks the suite's processes.
	markName = "BERM_CONFORMANCE_MARK"
)

func newSuite(t *testing.T, h Harness) *suite {
	t.Helper()
	agent := h.Agent
	if agent == nil {
		agent = AgentBinary
	}
	s := &suite{
		harness:  h,
		agent:    agent(t),
		payload:  payloadBinary(t),
		machines: map[string]driver.Machine{},
		mark:     unique(),
	}
	private := t.TempDir()
	temp := filepath.Join(private, "tmp")
	if err := os.Mkdir(temp, 0o755); err != nil {
		t.Fatal(err)
	}
	s.stateDir = filepath.Join(private, "state")
	t.Setenv("TMPDIR", temp)
	before := s.look(t)
	t.Cleanup(func() { s.checkLeftovers(t, before) })

	var provider *berm.Provider
	s.shared = sync.OnceValues(func() (*berm.Provider, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var err error
		provider, err = berm.Open(ctx, s.backend(t), s.config(t))
		return provider, err
	})
	t.Cleanup(func() {
		if provider == nil {
			return
		}
		if err := provider.Close(); err != nil {
			t.Errorf("close the shared provider: %v", err)
		}
	})
	return s
}

// backend is the backend under test with a decorator that remembers machines.
func (s *suite) backend(t *testing.T) driver.Backend {
	return s.changed(t, func(m driver.Machine) driver.Machine { return watchedMachine{m} })
}

// changed is backend with another decorator around each machine.
func (s *suite) changed(t *testing.T, change func(driver.Machine) driver.Machine) driver.Backend {
	return watched{Backend: s.harness.Backend(t), change: func(m driver.Machine) driver.Machine {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.machines[m.ID()] = m
		return change(m)
	}}
}

// machine finds the machine below a sandbox.
func (s *suite) machine(t *testing.T, sb *berm.Sandbox) driver.Machine {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.machines[sb.ID()]
	if !ok {
		t.Fatalf("the driver never made machine %s", sb.ID())
	}
	return m
}

// config is the harness's configuration.
func (s *suite) config(t *testing.T) berm.Config {
	cfg := berm.Config{
		Agent:    berm.AgentProgram{Path: s.agent},
		StateDir: s.stateDir,
		Env:      map[string]string{markName: s.mark},
	}
	if s.harness.Config != nil {
		s.harness.Config(t, &cfg)
	}
	return cfg
}

// open makes a provider with a configuration of its own, closed after the test.
func (s *suite) open(t *testing.T, change func(*berm.Config)) *berm.Provider {
	t.Helper()
	p, err := s.tryOpen(t, change)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return p
}

// tryOpen is open for configurations that may be refused.
func (s *suite) tryOpen(t *testing.T, change func(*berm.Config)) (*berm.Provider, error) {
	t.Helper()
	cfg := s.config(t)
	change(&cfg)
	p, err := berm.Open(bounded(t), s.backend(t), cfg)
	if p != nil {
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Errorf("close the provider: %v", err)
			}
		})
	}
	return p, err
}

// provider is the shared one.
func (s *suite) provider(t *testing.T) *berm.Provider {
	t.Helper()
	p, err := s.shared()
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return p
}

// declared is what the host can do with the backend.
func (s *suite) declared(t *testing.T) driver.Capabilities {
	t.Helper()
	return s.provider(t).Capabilities()
}

// sandbox makes a sandbox of the shared provider, destroyed after the test.
func (s *suite) sandbox(t *testing.T) *berm.Sandbox {
	t.Helper()
	return create(t, s.provider(t), berm.CreateOptions{})
}

// create makes a sandbox, destroyed after the test.
func create(t *testing.T, p *berm.Provider, opts berm.CreateOptions) *berm.Sandbox {
	t.Helper()
	sb, err := p.Create(bounded(t), opts)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := sb.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	return sb
}
