package drivertest

import (
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

func capabilitiesGroup() group {
	return group{name: "capabilities", behaviours: []behaviour{
		{"bound", capabilitiesBound},
		{"networks", capabilitiesNetworks},
		{"host-dirs", capabilitiesHostDirs},
		{"contained-paths", capabilitiesContainedPaths},
		{"driver-refuses", capabilitiesDriverRefuses},
	}}
}

// capabilitiesBound: what the host gives is within what is declared, and the
// declaration says what it is.
func capabilitiesBound(t *testing.T, s *suite) {
	bound := s.harness.Backend(t).Declare()
	have := s.declared(t)
	if over := have.Exceeds(bound); len(over) > 0 {
		t.Errorf("the driver claims more than is declared: %v", over)
	}
	if have.Backend == "" || have.Tier == "" || len(have.Networks) == 0 {
		t.Errorf("backend %q, tier %q, networks %v", have.Backend, have.Tier, have.Networks)
	}
	if have.Tier == driver.TierPassthrough && have.Isolation != (berm.Isolation{}) {
		t.Errorf("passthrough promises %v", have.Isolation.Names())
	}
	if len(have.Isolation.Names()) > 0 && len(tableFor(have)) == 0 {
		t.Errorf("%v is promised, and nothing measures it", have.Isolation.Names())
	}
}

// capabilitiesNetworks: a network that is declared works, and says so truly; one
// that is not is refused.
func capabilitiesNetworks(t *testing.T, s *suite) {
	caps := s.declared(t)
	for _, network := range []driver.Network{driver.NetworkNone, driver.NetworkGated, driver.NetworkHost} {
		p, err := s.tryOpen(t, func(c *berm.Config) { c.Network = network })
		if !slices.Contains(caps.Networks, network) {
			wantKind(t, err, errdefs.Unsupported)
			continue
		}
		if err != nil {
			t.Errorf("network %s is declared: %v", network, err)
			continue
		}
		sb := create(t, p, berm.CreateOptions{})
		if isolated := sb.Posture().Achieved.Network; isolated != (caps.Isolation.Network && network != driver.NetworkHost) {
			t.Errorf("network %s is said to be isolated: %v", network, isolated)
		}
		if network == driver.NetworkHost && sb.Posture().Achieved.Network {
			t.Error("the host's network is said to be isolated")
		}
		s.checkReach(t, sb, network)
	}
	_, err := s.tryOpen(t, func(c *berm.Config) { c.Network = "unheard-of" })
	wantKind(t, err, errdefs.Invalid)
	if slices.Contains(caps.Networks, driver.NetworkHost) {
		_, err := s.tryOpen(t, func(c *berm.Config) { c.Network, c.Require.Network = driver.NetworkHost, true })
		wantKind(t, err, errdefs.Unsupported)
	}
}

// checkReach looks whether a listener of the host is reached from inside.
func (s *suite) checkReach(t *testing.T, sb *berm.Sandbox, network driver.Network) {
	t.Helper()
	address, stop := listenOnHost(t)
	defer stop()
	payload := s.install(t, sb)
	res, err := sb.Exec(bounded(t), berm.Command{Args: []string{payload, "dial", "tcp", address}})
	if err != nil {
		t.Fatal(err)
	}
	// Where nothing is isolated, a gate is an offer and no wall.
	open := network == driver.NetworkHost || network == driver.NetworkGated && !s.declared(t).Isolation.Network
	if reached := res.Success(); reached != open {
		t.Errorf("network %s: a port of the host is reached: %v; %s", network, reached, clip(res.Stderr))
	}
}

// capabilitiesHostDirs: declared works, undeclared is refused.
func capabilitiesHostDirs(t *testing.T, s *suite) {
	dir := hostDir(t)
	writeHost(t, dir+"/file", "from the host")
	layout := berm.Layout{Outputs: berm.HostVolume(dir)}
	sb, err := s.provider(t).Create(bounded(t), berm.CreateOptions{Layout: &layout})
	if !s.declared(t).HostDirs {
		wantKind(t, err, errdefs.Unsupported, errdefs.Invalid)
		return
	}
	if err != nil {
		t.Fatalf("host directories are declared: %v", err)
	}
	defer destroyNow(t, sb)
	if got := sh(t, sb, "cat file"); got != "from the host" {
		t.Errorf("inside: %q", got)
	}
}

// capabilitiesContainedPaths: whether paths are the machine's own or the host's
// is as declared.
func capabilitiesContainedPaths(t *testing.T, s *suite) {
	dir := hostDir(t)
	writeHost(t, dir+"/file", "from the host")
	res, err := s.sandbox(t).Exec(bounded(t), berm.Command{Args: []string{"cat", dir + "/file"}})
	if err != nil {
		t.Fatal(err)
	}
	if seen := string(res.Stdout) == "from the host"; seen == s.declared(t).ContainedPaths {
		t.Errorf("contained paths are declared as %v, and a file of the host is seen: %v", s.declared(t).ContainedPaths, seen)
	}
}

// capabilitiesDriverRefuses: the driver itself refuses what it cannot do, for
// callers that are not package berm.
func capabilitiesDriverRefuses(t *testing.T, s *suite) {
	caps := s.declared(t)
	opened := s.openDriver(t)
	for _, network := range []driver.Network{driver.NetworkNone, driver.NetworkGated, driver.NetworkHost} {
		if slices.Contains(caps.Networks, network) {
			continue
		}
		m, err := opened.Create(bounded(t), &driver.Spec{
			ID: specID(), Network: network, WorkRoot: driver.OutputsPath,
			Mounts: []driver.Mount{{Name: "outputs", Dest: driver.OutputsPath, Writable: true}},
		})
		if err == nil {
			t.Errorf("the driver made a machine with network %s", network)
			_ = m.Destroy(bounded(t))
			continue
		}
		wantKind(t, err, errdefs.Unsupported)
	}
}
