package process

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func TestForkBombIsCountedAndTheSandboxLives(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	m := created(t, d, plainSpec(d))
	// The shell itself ends the bomb: it needs no process for that.
	run(t, m, "(i=0; while [ $i -lt 200 ]; do sleep 1000 & echo $!; i=$((i+1)); done) >bomb 2>/dev/null; while read p; do kill -9 $p; done <bomb")
	deadline := time.Now().Add(20 * time.Second)
	out, end := run(t, m, "echo alive")
	for out != "alive\n" && time.Now().Before(deadline) {
		out, end = run(t, m, "echo alive")
	}
	if out != "alive\n" {
		t.Errorf("%q %+v", out, end)
	}
	counters, err := m.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d.cgroups.Support().Processes && counters.ProcessRefusals == 0 {
		t.Error("no refusal was counted")
	}
}

func TestMemoryLimitKillsAndCounts(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	if d.caps.Memory != driver.Enforced {
		t.Skip("memory is not enforced on this host for this user")
	}
	spec := plainSpec(d)
	spec.Limits.MemoryBytes = 32 << 20
	m := created(t, d, spec)
	_, end := run(t, m, "head -c 200m /dev/zero | exec tail -c 200m >/dev/null")
	counters, err := m.Counters(t.Context())
	if err != nil || counters.MemoryKills == 0 {
		t.Errorf("%+v %v, the command ended with %+v", counters, err, end)
	}
	if out, _ := run(t, m, "echo alive"); out != "alive\n" {
		t.Errorf("after that: %q", out)
	}
}

func TestDiskLimitHolds(t *testing.T) {
	t.Parallel()
	d, _ := opened(t)
	m := created(t, d, plainSpec(d))
	out, _ := run(t, m, "for d in /tmp /dev/shm /home/user "+driver.OutputsPath+"; do head -c 100m /dev/zero > $d/f; done 2>/dev/null; "+
		"du -cb /tmp/f /dev/shm/f /home/user/f "+driver.OutputsPath+"/f | tail -1 | cut -f1; "+
		"for d in / /dev /run /etc /usr /proc/sys /mnt; do touch $d/x 2>/dev/null && echo wrote $d; done; true")
	var total int
	if n, err := parseInt(strings.TrimSpace(out)); err != nil {
		t.Errorf("%q: %v", out, err)
	} else {
		total = n
	}
	if total <= 0 || total > 64<<20 {
		t.Errorf("%d bytes were written under a limit of 64 MiB", total)
	}
}

func TestWhatCannotBeEnforcedIsRefused(t *testing.T) {
	t.Parallel()
	d := &bubble{caps: driver.Capabilities{
		Networks: []driver.Network{driver.NetworkNone}, Memory: driver.Partial, Processes: driver.Unenforced,
	}}
	spec := &driver.Spec{
		ID: randomID(), Network: driver.NetworkGated, Limits: driver.Limits{MemoryBytes: 1, Processes: 1, CPUs: 1},
	}
	if reasons := d.refusals(spec); len(reasons) != 4 {
		t.Fatalf("the refusals are %q", reasons)
	}
	_, err := d.Create(t.Context(), spec)
	var known *errdefs.Error
	if !errors.As(err, &known) || known.Kind != errdefs.Unsupported || len(known.Reasons) != 4 {
		t.Errorf("%v", err)
	}
	spec.Network, spec.Limits.BestEffort = driver.NetworkNone, true
	if reasons := d.refusals(spec); len(reasons) > 0 {
		t.Errorf("best effort: %v", reasons)
	}
}
