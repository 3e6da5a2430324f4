package berm

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/internal/gen/agentv1"
	"github.com/berm-dev/berm/posture"
)

// The checks of the self-test beyond the posture's claims.
const (
	checkOutside   = "write-outside"
	checkSysctl    = "write-sysctl"
	checkCalls     = "refused-calls"
	checkLoopback  = "connect-loopback"
	checkTrace     = "trace-agent"
	checkStrangers = "see-outside-processes"
	checkMemory    = "exceed-memory"
	checkProcesses = "exceed-processes"
	checkDisk      = "exceed-disk"
)

// selfTest attempts in one sandbox what must not work.
type selfTest struct {
	sandbox  *Sandbox
	promised Isolation
}

// run carries out all checks, in the order in which they are shown. Those of the
// limits come last: what they end is the sandbox's own.
func (t *selfTest) run(ctx context.Context) []Check {
	steps := []struct {
		name      string
		dimension posture.Dimension
		try       func(context.Context) (CheckOutcome, string)
	}{
		{checkOutside, posture.Filesystem, t.writeOutside},
		{checkSysctl, posture.Filesystem, t.attempts("sysctl", "kernel/core_pattern", "vm/swappiness", "kernel/hostname")},
		{checkCalls, posture.Filesystem, t.attempts("call",
			"unshare", "mount", "bpf", "keyctl", "perf_event_open", "userfaultfd", "io_uring_setup", "vsock", "packet")},
		{checkLoopback, posture.Network, t.connect},
		{checkTrace, posture.Processes, t.attempts("trace", "")},
		{checkStrangers, posture.Processes, t.attempts("strangers", "")},
		{checkMemory, posture.Limits, t.memory},
		{checkProcesses, posture.Limits, t.processes},
		{checkDisk, posture.Limits, t.disk},
	}
	var out []Check
	for _, s := range steps {
		check := Check{Name: s.name, Dimension: s.dimension}
		if s.dimension != posture.Limits && !t.promised.Has(s.dimension) {
			check.Outcome, check.Detail = CheckNotApplicable, string(s.dimension)+" isolation is not promised"
		} else {
			check.Outcome, check.Detail = s.try(ctx)
		}
		out = append(out, check)
	}
	return out
}

// ask has the probe child carry out trials.
func (t *selfTest) ask(ctx context.Context, request *agentv1.ProbeRequest) (*agentv1.ProbeResponse, error) {
	return t.sandbox.client.Probe(ctx, request)
}

// attempts is a check that no attempt of a kind works.
func (t *selfTest) attempts(kind string, arguments ...string) func(context.Context) (CheckOutcome, string) {
	return func(ctx context.Context) (CheckOutcome, string) {
		request := &agentv1.ProbeRequest{}
		for _, argument := range arguments {
			request.Trials = append(request.Trials, &agentv1.Trial{Kind: kind, Argument: argument})
		}
		answer, err := t.ask(ctx, request)
		if err != nil {
			return CheckFailed, err.Error()
		}
		var reached, refused []string
		for i, outcome := range answer.GetOutcomes() {
			detail := strings.TrimSpace(arguments[i] + ": " + outcome.GetDetail())
			if detail = strings.TrimPrefix(detail, ": "); outcome.GetReached() {
				reached = append(reached, detail)
			} else {
				refused = append(refused, detail)
			}
		}
		if len(reached) > 0 {
			return CheckFailed, strings.Join(reached, "; ")
		}
		return CheckPassed, strings.Join(refused, "; ")
	}
}

// writeOutside tries places of the host. The host itself can write at least to
// berm's own directory: it has just done so. Inside, /tmp has to be writable, or
// nothing was measured.
func (t *selfTest) writeOutside(ctx context.Context) (CheckOutcome, string) {
	places := append(protectedPaths[:], t.sandbox.provider.stateDir, "/var/tmp", "/root", "/boot", "/opt", "/srv")
	if home, err := os.UserHomeDir(); err == nil && !contained(home) {
		places = append(places, home)
	}
	if work, err := os.Getwd(); err == nil && !contained(work) {
		places = append(places, work)
	}
	answer, err := t.ask(ctx, &agentv1.ProbeRequest{WritePaths: append(places, writableControl)})
	if err != nil {
		return CheckFailed, err.Error()
	}
	switch written := answer.GetWritable(); {
	case !slices.Contains(written, writableControl):
		return CheckFailed, "the positive control failed: could not write " + writableControl
	case len(written) > 1:
		return CheckFailed, "could write " + strings.Join(written, ", ")
	}
	return CheckPassed, fmt.Sprintf("none of %d places could be written, berm's own directory among them; %s could",
		len(places), writableControl)
}

// contained reports a path that the sandbox has for itself too.
func contained(path string) bool {
	for _, own := range []string{"/tmp", "/home/user", "/dev/shm", "/run", "/mnt", "/workspace"} {
		if path == own || strings.HasPrefix(path, own+"/") {
			return true
		}
	}
	return false
}

// connect tries a port of the host's loopback that the host reaches.
func (t *selfTest) connect(ctx context.Context) (CheckOutcome, string) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return CheckNotApplicable, fmt.Sprintf("this host has no loopback to listen on: %v", err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			// To be reached is all that it is for.
			_ = conn.Close()
		}
	})
	defer serving.Wait()
	defer func() { _ = listener.Close() }()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp4", listener.Addr().String())
	if err != nil {
		return CheckFailed, fmt.Sprintf("the positive control failed: the host did not reach its own listener: %v", err)
	}
	_ = conn.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return CheckFailed, err.Error()
	}
	outcome, detail := t.attempts("connect", port)(ctx)
	return outcome, strings.TrimPrefix(detail, port+": ") + ", while the host reaches the same port"
}

// exceed has the child take too much of something.
func (t *selfTest) exceed(ctx context.Context, kind string, much int64) (*agentv1.Outcome, error) {
	answer, err := t.ask(ctx, &agentv1.ProbeRequest{
		Trials: []*agentv1.Trial{{Kind: kind, Argument: strconv.FormatInt(much, 10)}},
	})
	if err != nil {
		return nil, err
	}
	return answer.GetOutcomes()[0], nil
}

// unlimited is the outcome for a limit that this host does not apply.
func unlimited(have driver.Enforcement, limit int64) bool {
	return have == driver.Unenforced || limit == 0
}

func (t *selfTest) memory(ctx context.Context) (CheckOutcome, string) {
	have, limit := t.sandbox.provider.caps.Memory, t.sandbox.spec.Limits.MemoryBytes
	if unlimited(have, limit) {
		return CheckNotApplicable, "memory is not limited here"
	}
	before, _ := t.counters(ctx)
	took, err := t.exceed(ctx, "memory", 2*limit)
	after, counted := t.counters(ctx)
	switch {
	case err == nil && took.GetReached():
		return CheckFailed, fmt.Sprintf("%d bytes could be had, with a limit of %d", took.GetAmount(), limit)
	case err == nil && have == driver.Enforced:
		return CheckPassed, fmt.Sprintf("no more than %d bytes could be had, with a limit of %d", took.GetAmount(), limit)
	case err == nil:
		return CheckNotApplicable, fmt.Sprintf("memory is limited for each process only: one could have %d bytes, with a limit of %d",
			took.GetAmount(), limit)
	case have == driver.Enforced && counted && after.MemoryKills > before.MemoryKills:
		return CheckPassed, fmt.Sprintf("a process that took twice the limit of %d bytes was killed", limit)
	case have != driver.Enforced:
		return CheckNotApplicable, fmt.Sprintf("memory is limited for each process only: one that took twice the limit ended: %v", err)
	}
	return CheckFailed, fmt.Sprintf("the limit's counter did not move: %v", err)
}

// counters reads the limits' counters, where there are any.
func (t *selfTest) counters(ctx context.Context) (driver.Counters, bool) {
	if t.sandbox.meter == nil {
		return driver.Counters{}, false
	}
	counters, err := t.sandbox.meter.Counters(ctx)
	return counters, err == nil
}

func (t *selfTest) processes(ctx context.Context) (CheckOutcome, string) {
	limit := int64(t.sandbox.spec.Limits.Processes)
	// Where an rlimit bounds them there is room for the agent's own threads too.
	return t.bounded(ctx, "processes", t.sandbox.provider.caps.Processes, limit, 2*limit)
}

func (t *selfTest) disk(ctx context.Context) (CheckOutcome, string) {
	limit := t.sandbox.spec.Limits.DiskBytes
	return t.bounded(ctx, "disk", t.sandbox.provider.caps.Disk, limit, limit+1)
}

// bounded is the check that so much of something cannot be had.
func (t *selfTest) bounded(ctx context.Context, kind string, have driver.Enforcement, limit, much int64) (CheckOutcome, string) {
	if unlimited(have, limit) {
		return CheckNotApplicable, kind + ": not limited here"
	}
	took, err := t.exceed(ctx, kind, much)
	switch {
	case err != nil:
		return CheckFailed, err.Error()
	case took.GetReached():
		return CheckFailed, fmt.Sprintf("%d could be had, with a limit of %d", took.GetAmount(), limit)
	}
	return CheckPassed, fmt.Sprintf("no more than %d could be had, with a limit of %d", took.GetAmount(), limit)
}
