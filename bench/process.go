package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
	"github.com/berm-dev/berm/driver"
)

// Targets, from the table of numbers in docs/design.md.
const (
	targetCreate     = 2.5
	targetExecCgroup = 1.5
	targetExecMark   = 6.0
)

// warmups are runs that are not counted.
const warmups = 5

// sample is one measured thing.
type sample struct {
	name string
	once func(context.Context) (time.Duration, error)
	took []time.Duration
}

func (s *sample) median() time.Duration {
	sorted := slices.Sorted(slices.Values(s.took))
	return sorted[len(sorted)/2]
}

// interleave runs all samples in turn, so that a machine whose speed drifts
// treats them alike.
func interleave(ctx context.Context, runs int, samples ...*sample) error {
	for i := range runs + warmups {
		for _, s := range samples {
			took, err := s.once(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if i >= warmups {
				s.took = append(s.took, took)
			}
		}
	}
	return nil
}

func measure(ctx context.Context, agent string, runs int) (missed bool, err error) {
	state, err := os.MkdirTemp("", "berm-bench-state-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	provider, err := berm.Open(ctx, process.Config{}, berm.Config{
		Agent:    berm.AgentProgram{Path: agent},
		StateDir: filepath.Join(state, "state"),
		Require:  berm.Isolation{Filesystem: true, Network: true, Processes: true},
	})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	sandbox, err := provider.Create(ctx, berm.CreateOptions{})
	if err != nil {
		return false, err
	}
	caller := "unprivileged"
	if os.Geteuid() == 0 {
		caller = "root"
	}
	fmt.Printf("process tier as %s; %s; %d runs, medians\n", caller, machine(), runs)
	fmt.Printf("posture: %v; tree kill by %s\n", sandbox.Posture().Achieved.Names(), provider.Capabilities().TreeKill)
	for _, note := range sandbox.Posture().Notes {
		fmt.Println("note:", note)
	}
	create, err := compareCreate(ctx, provider, runs)
	if err != nil {
		return false, err
	}
	execs, err := compareExec(ctx, sandbox, provider.Capabilities().TreeKill, runs*5)
	return create || execs, err
}

// compareCreate is create to first result against raw bubblewrap.
func compareCreate(ctx context.Context, provider *berm.Provider, runs int) (missed bool, err error) {
	raw := &sample{name: "raw bwrap --unshare-all ... true", once: func(ctx context.Context) (time.Duration, error) {
		return timed(func() error {
			return exec.CommandContext(ctx, "bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "true").Run()
		})
	}}
	ours := &sample{name: "create to first result", once: func(ctx context.Context) (time.Duration, error) {
		var sandbox *berm.Sandbox
		took, err := timed(func() (err error) {
			if sandbox, err = provider.Create(ctx, berm.CreateOptions{}); err != nil {
				return err
			}
			return sandbox.CommandContext(ctx, "true").Run()
		})
		if sandbox != nil {
			err = errors.Join(err, sandbox.Close())
		}
		return took, err
	}}
	if err := interleave(ctx, runs, raw, ours); err != nil {
		return false, err
	}
	return report(raw, ours, targetCreate), nil
}

// compareExec is an exec in a live sandbox against the same program run locally.
func compareExec(ctx context.Context, sandbox *berm.Sandbox, kill driver.TreeKill, runs int) (missed bool, err error) {
	local := &sample{name: "local os/exec true", once: func(ctx context.Context) (time.Duration, error) {
		return timed(exec.CommandContext(ctx, "true").Run)
	}}
	inside := &sample{name: "exec true in a live sandbox", once: func(ctx context.Context) (time.Duration, error) {
		return timed(sandbox.CommandContext(ctx, "true").Run)
	}}
	if err := interleave(ctx, runs, local, inside); err != nil {
		return false, err
	}
	target := targetExecMark
	if kill == driver.KillCgroup {
		target = targetExecCgroup
	}
	return report(local, inside, target), nil
}

func timed(do func() error) (time.Duration, error) {
	began := time.Now()
	err := do()
	return time.Since(began), err
}

// report prints both medians and their ratio.
func report(base, ours *sample, target float64) (missed bool) {
	ratio := float64(ours.median()) / float64(base.median())
	verdict := "ok"
	if ratio > target {
		verdict, missed = "MISSED", true
	}
	fmt.Printf("  %-36s %8.2f ms\n", base.name, float64(base.median())/1e6)
	fmt.Printf("  %-36s %8.2f ms   %.2fx (target %.1fx) %s\n", ours.name, float64(ours.median())/1e6, ratio, target, verdict)
	return missed
}
