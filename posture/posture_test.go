package posture_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/berm-dev/berm/posture"
)

var everything = posture.Isolation{Filesystem: true, Network: true, Processes: true, Limits: true}

// allHeld gives a held fact for every rule of a tier, by the right witness.
func allHeld(table posture.Table) []posture.Fact {
	var facts []posture.Fact
	for _, rule := range table {
		facts = append(facts, posture.Fact{Claim: rule.Claim, Witness: rule.Witness, Held: true})
	}
	return facts
}

func TestEveryClaimIsNeeded(t *testing.T) {
	t.Parallel()
	table := posture.TableFor("process")
	full := allHeld(table)
	if record := posture.Check(table, everything, full); record.Achieved != everything || len(record.Failures()) > 0 {
		t.Fatalf("all facts held, but: %+v", record)
	}
	for i, rule := range table {
		broken := map[string][]posture.Fact{
			"missing": slices.Delete(slices.Clone(full), i, i+1),
			"failed":  append(slices.Clone(full), posture.Fact{Claim: rule.Claim, Witness: rule.Witness}),
		}
		other := posture.Host
		if rule.Witness == posture.Host {
			other = posture.Probe
		}
		wrong := slices.Clone(full)
		wrong[i].Witness = other
		broken["told by the wrong witness"] = wrong
		for how, facts := range broken {
			record := posture.Check(table, everything, facts)
			if record.Achieved.Has(rule.Dimension) {
				t.Errorf("%s %s: %s still counts as achieved", rule.Claim, how, rule.Dimension)
			}
			if failures := record.Failures(); len(failures) != 1 || !strings.Contains(failures[0], string(rule.Claim)) {
				t.Errorf("%s %s: failures are %q", rule.Claim, how, failures)
			}
			for _, d := range posture.Dimensions {
				if d != rule.Dimension && !record.Achieved.Has(d) {
					t.Errorf("%s %s: took %s down too", rule.Claim, how, d)
				}
			}
		}
	}
}

func TestWhatIsNotPromisedIsNotAchieved(t *testing.T) {
	t.Parallel()
	table := posture.TableFor("process")
	record := posture.Check(table, posture.Isolation{Filesystem: true}, allHeld(table))
	if record.Achieved != (posture.Isolation{Filesystem: true}) {
		t.Errorf("achieved %+v", record.Achieved)
	}
	for _, finding := range record.Findings {
		if finding.Dimension != posture.Filesystem {
			t.Errorf("%s was judged without a promise", finding.Claim)
		}
	}
	// A tier without a table keeps no promise, whatever facts are told.
	if record := posture.Check(posture.TableFor("passthrough"), everything, allHeld(table)); record.Achieved != (posture.Isolation{}) {
		t.Errorf("without a table, achieved %+v", record.Achieved)
	}
}

func TestProbeReports(t *testing.T) {
	t.Parallel()
	good := func() (posture.ProbeReport, posture.ProbeWant) {
		zero := "0000000000000000"
		return posture.ProbeReport{
				Capabilities: [5]string{zero, zero, zero, zero, zero}, NoNewPrivileges: true, SeccompMode: 2,
				Writable: []string{"/tmp"}, Sizes: []uint64{100, 200},
			}, posture.ProbeWant{
				WritableControl: "/tmp", OutsideReachable: true, DiskBytes: 300, SizePaths: 2,
			}
	}
	report, want := good()
	for _, fact := range report.Judge(want) {
		if !fact.Held || fact.Witness != posture.Probe {
			t.Errorf("a good report fails: %+v", fact)
		}
	}
	for name, c := range map[string]struct {
		claim posture.Claim
		spoil func(*posture.ProbeReport, *posture.ProbeWant)
	}{
		"a capability":         {posture.NoCapabilities, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.Capabilities[3] = "0000000000000001" }},
		"a set not told":       {posture.NoCapabilities, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.Capabilities[4] = "" }},
		"new privileges":       {posture.NoNewPrivileges, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.NoNewPrivileges = false }},
		"no filter":            {posture.SyscallFilter, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.SeccompMode = 0 }},
		"a writable path":      {posture.ReadOnlySystem, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.Writable = append(r.Writable, "/etc") }},
		"no writable control":  {posture.ReadOnlySystem, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.Writable = nil }},
		"a readable agent":     {posture.AgentShielded, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.AgentReadable = true }},
		"a route":              {posture.NoRoutes, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.Routes = []string{"eth0"} }},
		"a socket outside":     {posture.NoOutsideSocket, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.Connected = []string{"x"} }},
		"no socket to compare": {posture.NoOutsideSocket, func(_ *posture.ProbeReport, w *posture.ProbeWant) { w.OutsideReachable = false }},
		"too much storage":     {posture.TmpfsLimit, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.Sizes[0]++ }},
		"unbounded storage":    {posture.TmpfsLimit, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.Sizes[1] = 0 }},
		"overflowing storage":  {posture.TmpfsLimit, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.Sizes[1] = 1<<64 - 100 }},
		"a size not told":      {posture.TmpfsLimit, func(r *posture.ProbeReport, _ *posture.ProbeWant) { r.Sizes = r.Sizes[:1] }},
	} {
		report, want := good()
		c.spoil(&report, &want)
		for _, fact := range report.Judge(want) {
			if fact.Held == (fact.Claim == c.claim) {
				t.Errorf("%s: %+v", name, fact)
			}
		}
	}
}

// TestWithGate: a gated sandbox proves the same as one without a network, and
// that the host holds its one way out.
func TestWithGate(t *testing.T) {
	t.Parallel()
	network := posture.Isolation{Network: true}
	var facts []posture.Fact
	for _, rule := range posture.TableFor("process") {
		facts = append(facts, posture.Fact{Claim: rule.Claim, Witness: rule.Witness, Held: true})
	}
	table := posture.TableFor("process").WithGate()
	if record := posture.Check(table, network, facts); record.Achieved.Network {
		t.Error("the network is isolated although nobody saw the gate")
	}
	gate := posture.Fact{Claim: posture.EgressGate, Witness: posture.Host, Held: true}
	if record := posture.Check(table, network, append(facts, gate)); !record.Achieved.Network {
		t.Errorf("with all facts: %q", record.Failures())
	}
	gate.Witness = posture.Probe
	if record := posture.Check(table, network, append(facts, gate)); record.Achieved.Network {
		t.Error("the inside's word about the gate counts")
	}
	if record := posture.Check(posture.TableFor("process"), network, facts); !record.Achieved.Network {
		t.Errorf("without a gate: %q", record.Failures())
	}
	if got := posture.TableFor("passthrough").WithGate(); len(got) > 0 {
		t.Errorf("a tier without claims has %v", got)
	}
}
