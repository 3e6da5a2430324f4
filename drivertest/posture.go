package drivertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/posture"
)

func postureGroup() group {
	return group{name: "posture", behaviours: []behaviour{
		{"record", postureRecord},
		{"required", postureRequired},
		{"failed-fact", postureFailedFact},
		{"filesystem", postureFilesystem},
		{"processes", postureProcesses},
		{"privileges", posturePrivileges},
	}}
}

// postureRecord: the record says what was promised, and that it was seen.
func postureRecord(t *testing.T, s *suite) {
	caps := s.declared(t)
	record := s.sandbox(t).Posture()
	if record.Backend != caps.Backend || record.Tier != string(caps.Tier) || time.Since(record.MeasuredAt) > patience {
		t.Errorf("the record is of %s/%s at %v", record.Tier, record.Backend, record.MeasuredAt)
	}
	if failures := record.Failures(); len(failures) > 0 {
		t.Errorf("handed over with failures: %v", failures)
	}
	if record.Achieved != record.Promised {
		t.Errorf("achieved %v of the promised %v", record.Achieved.Names(), record.Promised.Names())
	}
	if extra := record.Promised.Missing(caps.Isolation); len(extra) > 0 {
		t.Errorf("promised beyond what is declared: %v", extra)
	}
	for _, d := range posture.Dimensions {
		measured := false
		for _, f := range record.Findings {
			measured = measured || f.Dimension == d
		}
		if record.Achieved.Has(d) && !measured {
			t.Errorf("%s is said to be achieved without any finding", d)
		}
	}
}

// postureRequired: each promise can be required where it is declared, and is
// refused, in Open, where it is not.
func postureRequired(t *testing.T, s *suite) {
	caps := s.declared(t)
	for _, d := range posture.Dimensions {
		require := berm.Isolation{}.With(d, true)
		p, err := s.tryOpen(t, func(c *berm.Config) { c.Require = require })
		if !caps.Isolation.Has(d) {
			wantKind(t, err, errdefs.Unsupported)
			continue
		}
		if err != nil {
			t.Errorf("require %s: %v", d, err)
			continue
		}
		if sb := create(t, p, berm.CreateOptions{}); !sb.Posture().Achieved.Has(d) {
			t.Errorf("%s is required, not achieved, and yet there is a sandbox", d)
		}
	}
}

// doubter is a machine whose host side saw one claim fail.
type doubter struct {
	watchedMachine
	claim posture.Claim
	// silent: the claim is not reported at all.
	silent bool
}

// Witness changes what the machine's own witness saw.
func (d doubter) Witness(ctx context.Context) ([]posture.Fact, error) {
	witness, ok := driver.As[driver.Witness](d.Machine)
	if !ok {
		return nil, nil
	}
	facts, err := witness.Witness(ctx)
	if err != nil {
		return nil, fmt.Errorf("the machine's own witness: %w", err)
	}
	var out []posture.Fact
	for _, f := range facts {
		switch {
		case f.Claim != d.claim:
			out = append(out, f)
		case !d.silent:
			f.Held = false
			out = append(out, f)
		}
	}
	return out, nil
}

// postureFailedFact: one fact of the host side that failed, or is missing, keeps
// the sandbox from being handed over, whatever the agent says.
func postureFailedFact(t *testing.T, s *suite) {
	caps := s.declared(t)
	for _, rule := range posture.TableFor(string(caps.Tier)) {
		if rule.Witness != posture.Host || !caps.Isolation.Has(rule.Dimension) {
			continue
		}
		for _, silent := range []bool{false, true} {
			backend := s.changed(t, func(m driver.Machine) driver.Machine {
				return doubter{watchedMachine: watchedMachine{m}, claim: rule.Claim, silent: silent}
			})
			p, err := berm.Open(bounded(t), backend, s.config(t))
			if err != nil {
				t.Fatal(err)
			}
			sb, err := p.Create(bounded(t), berm.CreateOptions{})
			// A claim of the network is not promised on the host's network.
			if rule.Dimension == posture.Network && p.Capabilities().Networks[0] == driver.NetworkHost {
				destroyNow(t, sb)
			} else {
				wantKind(t, err, errdefs.Unproven)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// postureFilesystem: a file of the host outside the layout can be neither read
// nor written, nor one made.
func postureFilesystem(t *testing.T, s *suite) {
	if !s.declared(t).Isolation.Filesystem {
		t.Skip("the backend declares no file system isolation")
	}
	dir := hostDir(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	writeHost(t, filepath.Join(dir, "secret"), "the host's own")
	sb := s.sandbox(t)
	res, err := sb.Exec(bounded(t), shell(`cat "$1/secret"; mkdir -p "$1"; echo planted > "$1/new"; echo planted > "$1/secret"; for f in /usr/bin /etc /; do echo x > "$f/berm-planted"; done; exit 0`, dir))
	if err != nil || len(res.Stdout) != 0 {
		t.Errorf("inside: %q, %v", res.Stdout, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "secret")); err != nil || string(got) != "the host's own" {
		t.Errorf("the host's file is %q, %v", got, err)
	}
	for _, name := range []string{filepath.Join(dir, "new"), "/usr/bin/berm-planted", "/etc/berm-planted", "/berm-planted"} {
		if _, err := os.Lstat(name); err == nil {
			t.Errorf("%s was made on the host", name)
		}
	}
}

// postureProcesses: a process of the host can be neither seen nor signalled.
func postureProcesses(t *testing.T, s *suite) {
	if !s.declared(t).Isolation.Processes {
		t.Skip("the backend declares no isolation of processes")
	}
	sb := s.sandbox(t)
	own := sh(t, sb, `for p in /proc/[0-9]*/cmdline; do tr '\0' ' ' < "$p"; echo; done 2>/dev/null`)
	for _, name := range []string{"drivertest", ".test "} {
		if contains(own, name) {
			t.Errorf("the caller's process is seen inside: %q", own)
		}
	}
	// The caller is still there to say so.
	res, err := sb.Exec(bounded(t), shell(`kill -KILL "$1" 2>/dev/null; kill -KILL -1; exit 0`, itoa(os.Getpid())))
	if err != nil {
		t.Errorf("kill everything: %v, %v", res, err)
	}
	sh(t, sb, "exit 0")
}

// posturePrivileges: a command of an isolated tier has no privilege to lose.
func posturePrivileges(t *testing.T, s *suite) {
	if !s.declared(t).Isolation.Filesystem {
		t.Skip("the backend declares no isolation")
	}
	sb := s.sandbox(t)
	status := sh(t, sb, "cat /proc/self/status")
	for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if s.declared(t).Tier == driver.TierProcess && !contains(status, want) {
			t.Errorf("/proc/self/status lacks %q", want)
		}
	}
	res, err := sb.Exec(bounded(t), shell(`{ echo 10 > /proc/sys/vm/swappiness; } 2>/dev/null && echo written; { echo h > /proc/sysrq-trigger; } 2>/dev/null && echo triggered; exit 0`))
	if err != nil || len(res.Stdout) != 0 {
		t.Errorf("the kernel's settings: %q, %v", res.Stdout, err)
	}
}
