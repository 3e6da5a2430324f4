package drivertest

import (
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func limitsGroup() group {
	return group{name: "limits", behaviours: []behaviour{
		{"memory", limitsMemory},
		{"processes", limitsProcesses},
		{"disk", limitsDisk},
		{"disk-reason", limitsDiskReason},
		{"wall-clock", limitsWallClock},
		{"refused", limitsRefused},
		{"best-effort", limitsBestEffort},
		{"faults", limitsFaults},
	}}
}

// limitsMemory: a command that takes too much ends as out of memory, and the
// sandbox goes on.
func limitsMemory(t *testing.T, s *suite) {
	if s.declared(t).Memory != driver.Enforced {
		t.Skip("the backend does not declare an enforced memory limit")
	}
	p := s.open(t, func(c *berm.Config) { c.Limits = berm.Limits{MemoryBytes: 128 << 20} })
	sb := create(t, p, berm.CreateOptions{})
	payload := s.install(t, sb)
	res, err := sb.Exec(bounded(t), berm.Command{Args: []string{payload, "allocate", itoa(512 << 20)}})
	if err != nil || res.Reason != berm.OutOfMemory || res.ExitCode != nil {
		t.Errorf("512 MiB under a limit of 128 MiB: %v, exit code %s, %v", res, exitCode(res), err)
	}
	exited(t, sb, 0, berm.Command{Args: []string{payload, "allocate", itoa(16 << 20)}})
	if res := exited(t, sb, 1, shell("exit 1")); res.Reason != berm.Exited {
		t.Errorf("a plain failure afterwards is %v", res)
	}
}

// limitsProcesses: the limit holds for the sandbox as a whole; when it is
// reached the agent still works, and a command that cannot start says why.
func limitsProcesses(t *testing.T, s *suite) {
	if s.declared(t).Processes != driver.Enforced {
		t.Skip("the backend does not declare an enforced limit on processes")
	}
	const limit = 64
	p := s.open(t, func(c *berm.Config) { c.Limits = berm.Limits{Processes: limit} })
	sb := create(t, p, berm.CreateOptions{})
	res, err := sb.Exec(bounded(t), shell(`i=0; while [ $i -lt 200 ]; do sleep 1000 >/dev/null 2>&1 & i=$((i+1)); done; exit 1`))
	if err != nil {
		t.Fatalf("fork bomb: %v", err)
	}
	if res.Reason != berm.ProcessLimit {
		t.Errorf("200 processes under a limit of %d: %v, stderr %q", limit, res, clip(res.Stderr))
	}
	// Where the kernel counts by user, berm's own threads are in the count, and
	// the limit leaves room for them.
	const ownThreads = 16
	if len(res.Lingering) > limit+ownThreads {
		t.Errorf("%d processes are left under a limit of %d", len(res.Lingering), limit)
	}
	within(t, 10*time.Second, "a command at the limit", func() {
		res, err := sb.Exec(bounded(t), shell(`(:); (:); exit 0`))
		if err != nil {
			wantKind(t, err, errdefs.NotStarted, errdefs.Exhausted)
		} else if res.Reason != berm.ProcessLimit && !res.Success() {
			t.Errorf("a command at the limit: %v, stderr %q", res, clip(res.Stderr))
		}
	})
	if _, err := sb.Files().Stat(bounded(t), "."); err != nil {
		t.Errorf("the agent at the limit: %v", err)
	}
}

// limitsDisk: the sandbox's own file systems cannot be filled beyond the limit.
func limitsDisk(t *testing.T, s *suite) {
	if s.declared(t).Disk != driver.Enforced {
		t.Skip("the backend does not declare an enforced disk limit")
	}
	p := s.open(t, func(c *berm.Config) { c.Limits = berm.Limits{DiskBytes: 16 << 20} })
	sb := create(t, p, berm.CreateOptions{})
	res, err := sb.Exec(bounded(t), shell(`for d in . "$TMPDIR" "$HOME" /dev/shm /run /var/tmp; do head -c 64M /dev/zero > "$d/fill" 2>/dev/null; done; cat ./fill "$TMPDIR/fill" "$HOME/fill" /dev/shm/fill /run/fill /var/tmp/fill 2>/dev/null | wc -c
for d in . "$TMPDIR" "$HOME" /dev/shm /run /var/tmp; do rm -f "$d/fill"; done`))
	if err != nil {
		t.Fatal(err)
	}
	if written := len(strings.TrimSpace(string(res.Stdout))); written > len("16777216") || written == len("16777216") && strings.TrimSpace(string(res.Stdout)) > "16777216" {
		t.Errorf("%s bytes were written under a limit of 16 MiB", strings.TrimSpace(string(res.Stdout)))
	}
}

// limitsDiskReason: a command that fails, and has filled a file system of the
// sandbox's own, says so; one that fails with it full, or that succeeds, does not.
func limitsDiskReason(t *testing.T, s *suite) {
	if s.declared(t).Disk != driver.Enforced {
		t.Skip("the backend does not declare an enforced disk limit")
	}
	p := s.open(t, func(c *berm.Config) { c.Limits = berm.Limits{DiskBytes: 16 << 20} })
	sb := create(t, p, berm.CreateOptions{})
	reason := func(what string, want berm.Reason, script string) {
		t.Helper()
		res, err := sb.Exec(bounded(t), shell(script))
		if err != nil || res.Reason != want {
			t.Errorf("%s: %v, %v, want %s; stderr %q", what, res, err, want, clip(res.Stderr))
		}
	}
	const fill = `cat /dev/zero >"$d/fill" 2>/dev/null; `
	for _, dir := range []string{".", "$TMPDIR", "$HOME", "/dev/shm"} {
		d := `d=` + dir + `; `
		reason("a failure before "+dir+" is full", berm.Exited, `exit 1`)
		reason("a success that fills "+dir, berm.Exited, d+fill+`rm "$d/fill"`)
		reason("a failure that fills "+dir, berm.DiskLimit, d+fill+`exit 1`)
		reason("a failure while "+dir+" is full", berm.Exited, `exit 1`)
		reason("a failure that frees "+dir, berm.Exited, d+`rm "$d/fill"; exit 1`)
		reason("a signal after filling "+dir, berm.DiskLimit, d+fill+`kill -9 $$`)
		reason("a success that empties "+dir, berm.Exited, d+`rm "$d/fill"`)
		// Between two looks it would be missed.
		reason("a failure that filled and freed "+dir, berm.DiskLimit, d+`sleep 0.1; `+fill+`sleep 1; rm "$d/fill"; exit 1`)
	}
}

// limitsWallClock: a command that runs out of time has timed out, whatever limit
// it ran into before.
func limitsWallClock(t *testing.T, s *suite) {
	sb := create(t, s.open(t, func(c *berm.Config) {
		c.Limits = berm.Limits{DiskBytes: 16 << 20, Processes: 64, BestEffort: true}
	}), berm.CreateOptions{})
	script := ""
	if s.declared(t).Disk == driver.Enforced {
		script += `cat /dev/zero >fill 2>/dev/null; `
	}
	if s.declared(t).Processes == driver.Enforced {
		// A subshell ends when it is refused a process.
		script += `(i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done) >/dev/null 2>&1; `
	}
	script += `exec sleep 1000`
	command := shell(script)
	command.Timeout = 2 * time.Second
	res, err := sb.Exec(bounded(t), command)
	if err != nil || res.Reason != berm.TimedOut || res.ExitCode != nil {
		t.Errorf("a command that never ends: %v, exit code %s, %v", res, exitCode(res), err)
	}
}

// asked gives a limit of each kind, with the enforcement that is declared.
func asked(caps driver.Capabilities) map[string]struct {
	limits berm.Limits
	have   driver.Enforcement
} {
	type entry = struct {
		limits berm.Limits
		have   driver.Enforcement
	}
	return map[string]entry{
		"memory":    {berm.Limits{MemoryBytes: 256 << 20}, caps.Memory},
		"processes": {berm.Limits{Processes: 100}, caps.Processes},
		"cpus":      {berm.Limits{CPUs: 0.5}, caps.CPUs},
		"disk":      {berm.Limits{DiskBytes: 64 << 20}, caps.Disk},
	}
}

// limitsRefused: a limit that was asked for is kept or refused.
func limitsRefused(t *testing.T, s *suite) {
	for name, limit := range asked(s.declared(t)) {
		p, err := s.tryOpen(t, func(c *berm.Config) { c.Limits = limit.limits })
		if limit.have == driver.Enforced {
			if err != nil {
				t.Errorf("%s is declared as enforced: %v", name, err)
				continue
			}
			sh(t, create(t, p, berm.CreateOptions{}), "exit 0")
			continue
		}
		wantKind(t, err, errdefs.Unsupported)
		if err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	}
}

// limitsBestEffort: with best effort it is accepted, and the posture says what
// is missing.
func limitsBestEffort(t *testing.T, s *suite) {
	for name, limit := range asked(s.declared(t)) {
		limit.limits.BestEffort = true
		p, err := s.tryOpen(t, func(c *berm.Config) { c.Limits = limit.limits })
		if err != nil {
			t.Errorf("%s with best effort: %v", name, err)
			continue
		}
		sb := create(t, p, berm.CreateOptions{})
		sh(t, sb, "exit 0")
		notes := strings.Join(sb.Posture().Notes, "; ")
		if limit.have != driver.Enforced && !strings.Contains(notes, "limit on "+name) {
			t.Errorf("the posture does not say that %s is not enforced: %s", name, notes)
		}
	}
}

func limitsFaults(t *testing.T, s *suite) {
	for _, limits := range []berm.Limits{
		{MemoryBytes: -1}, {MemoryBytes: 1}, {Processes: -1}, {CPUs: -1}, {DiskBytes: -1}, {DiskBytes: 1},
	} {
		limits.BestEffort = true
		_, err := s.tryOpen(t, func(c *berm.Config) { c.Limits = limits })
		wantKind(t, err, errdefs.Invalid)
	}
}
