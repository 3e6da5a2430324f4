package probe_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berm-dev/berm/internal/agent/probe"
)

// tried runs trials in this process, with itself for the agent.
func tried(t *testing.T, trials ...probe.Trial) []probe.Outcome {
	t.Helper()
	order := probe.Order{AgentPID: os.Getpid(), Trials: trials}
	var out bytes.Buffer
	if err := probe.Run(bytes.NewReader(order.Encode()), &out); err != nil {
		t.Fatal(err)
	}
	report, err := probe.DecodeReport(out.Bytes())
	if err != nil || len(report.Outcomes) != len(trials) {
		t.Fatalf("%+v, %v", report, err)
	}
	return report.Outcomes
}

// Where nothing is in the way every attempt has its effect.
func TestTrialsReach(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range tried(t,
		probe.Trial{Kind: probe.Connect, Argument: port},
		// This process descends from others, which it can see.
		probe.Trial{Kind: probe.Strangers},
		probe.Trial{Kind: probe.Memory, Argument: "3000000"},
		probe.Trial{Kind: probe.Processes, Argument: "3"},
		probe.Trial{Kind: probe.Disk, Argument: "3000000"},
	) {
		if !o.Reached || o.Detail == "" {
			t.Errorf("trial %d: %+v", i, o)
		}
		if want := []uint64{0, 0, 3_000_000, 3, 3_000_000}[i]; o.Amount < want {
			t.Errorf("trial %d: %d, want %d", i, o.Amount, want)
		}
	}
	left, err := filepath.Glob("/tmp/.berm-probe-" + strconv.Itoa(os.Getpid()) + "-fill")
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestTrialsAreRefused(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	for i, o := range tried(t,
		probe.Trial{Kind: probe.Connect, Argument: port},
		probe.Trial{Kind: probe.Sysctl, Argument: "kernel/no-such-setting"},
		probe.Trial{Kind: probe.Sysctl, Argument: "kernel/version"}, // nobody can write it
		probe.Trial{Kind: probe.Trace},                              // no process can trace itself
	) {
		if o.Reached || !strings.Contains(o.Detail, "refused: ") {
			t.Errorf("trial %d: %+v", i, o)
		}
	}
}

// Each call can be made without an effect on this process.
func TestCallsAreHarmless(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"unshare", "mount", "bpf", "keyctl", "perf_event_open", "userfaultfd", "io_uring_setup", "vsock", "packet"} {
		if o := tried(t, probe.Trial{Kind: probe.Call, Argument: name})[0]; o.Detail == "" {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

func TestUnknownTrialsAreNoMeasurement(t *testing.T) {
	t.Parallel()
	for _, trial := range []probe.Trial{
		{Kind: "dance"},
		{Kind: probe.Call, Argument: "dance"},
		{Kind: probe.Memory, Argument: "much"},
		{Kind: probe.Disk, Argument: "-1"},
	} {
		order := probe.Order{AgentPID: os.Getpid(), Trials: []probe.Trial{trial}}
		var out bytes.Buffer
		if err := probe.Run(bytes.NewReader(order.Encode()), &out); err == nil || out.Len() > 0 {
			t.Errorf("%+v: %v, %q", trial, err, out.String())
		}
	}
}
