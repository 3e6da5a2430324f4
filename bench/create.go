package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
)

// Targets of starts and commands.
const (
	targetCreate     = 2.5
	targetSRT        = 20.0
	targetExecCgroup = 1.5
	targetExecMark   = 6.0
	targetBurst      = 2.0
)

// firstResult is a sandbox made, and one command run in it.
func (b *bench) firstResult() *sample {
	return &sample{name: "create to first result", once: func(ctx context.Context) (time.Duration, error) {
		sandbox, took, err := b.create(ctx)
		if sandbox != nil {
			err = errors.Join(err, sandbox.Close())
		}
		return took, err
	}}
}

// create makes a sandbox and runs the first command. The sandbox is the caller's,
// also after an error.
func (b *bench) create(ctx context.Context) (*berm.Sandbox, time.Duration, error) {
	var sandbox *berm.Sandbox
	took, err := timed(func() (err error) {
		if sandbox, err = b.provider.Create(ctx, berm.CreateOptions{}); err != nil {
			return err
		}
		return sandbox.CommandContext(ctx, "true").Run()
	})
	return sandbox, took, err
}

// createRow is create to first result against raw bubblewrap.
func createRow(ctx context.Context, b *bench) ([]verdict, error) {
	raw := &sample{name: "raw bwrap --unshare-all ... true", once: func(ctx context.Context) (time.Duration, error) {
		return timed(exec.CommandContext(ctx, "bwrap", "--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev",
			"--proc", "/proc", "--tmpfs", "/tmp", "true").Run)
	}}
	ours := b.firstResult()
	if err := interleave(ctx, b.runs, raw, ours); err != nil {
		return nil, err
	}
	ratio := float64(ours.median()) / float64(raw.median())
	return []verdict{atMost("create to first result against raw bubblewrap", ratio, targetCreate, "x", raw.millis(), ours.millis())}, nil
}

// maxRuntimeFailures is how often srt true may fail before the row does.
const maxRuntimeFailures = 5

// srtRow is how many times faster that is than the sandbox runtime's command.
func srtRow(ctx context.Context, b *bench) ([]verdict, error) {
	const name = "create to first result, times faster than srt true"
	if b.srt == "" {
		return []verdict{{Name: name, Skipped: "no -srt was given; scripts/srt installs it"}}, nil
	}
	command, err := b.runtimeCommand()
	if err != nil {
		return nil, err
	}
	// What it needs and does not find here is said, not hidden in a number.
	if out, err := command(ctx).CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return []verdict{{Name: name, Skipped: fmt.Sprintf("srt true: %v: %s", err, strings.TrimSpace(string(out)))}}, nil
	}
	failures := 0.0
	theirs := &sample{name: "srt " + b.runtimeVersion(ctx), once: func(ctx context.Context) (time.Duration, error) {
		for {
			var out []byte
			took, err := timed(func() (err error) {
				out, err = command(ctx).CombinedOutput()
				return err
			})
			if err == nil || ctx.Err() != nil || failures >= maxRuntimeFailures {
				return took, err
			}
			// It waits for its helpers a fixed time, which a busy machine may not give.
			failures++
			fmt.Fprintf(os.Stderr, "bench: srt true: %v: %s\n", err, strings.TrimSpace(string(out)))
		}
	}}
	ours := b.firstResult()
	if err := interleave(ctx, max(5, b.runs/2), theirs, ours); err != nil {
		return nil, err
	}
	ratio := float64(theirs.median()) / float64(ours.median())
	return []verdict{atLeast(name, ratio, targetSRT, "x", theirs.millis(), ours.millis(),
		figure{Name: "runs of srt true that failed, and were made again", Value: failures})}, nil
}

// runtimeCommand makes `srt true` as its manual has it: settings in a file,
// nothing of the network, writes in the working directory alone, which is what a
// sandbox of ours has too.
func (b *bench) runtimeCommand() (func(context.Context) *exec.Cmd, error) {
	home := filepath.Join(b.dir, "srt")
	work, settings := filepath.Join(home, "work"), filepath.Join(home, "settings.json")
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, err
	}
	none := []string{}
	text, err := json.Marshal(map[string]any{
		"network":    map[string]any{"allowedDomains": none, "deniedDomains": none},
		"filesystem": map[string]any{"denyRead": none, "allowWrite": []string{"."}, "denyWrite": none},
	})
	if err == nil {
		err = os.WriteFile(settings, text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, b.srt, "--settings", settings, "true")
		cmd.Dir = work
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home}
		// Killed outright it leaves its command running.
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = sayEvery
		return cmd
	}, nil
}

// runtimeVersion names what was measured, Node.js too: most of the time is its.
func (b *bench) runtimeVersion(ctx context.Context) string {
	var manifest struct {
		Version string `json:"version"`
	}
	program, err := filepath.EvalSymlinks(b.srt)
	if err == nil {
		// PACKAGE/dist/cli.js
		data, readErr := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(program)), "package.json"))
		err = errors.Join(readErr, json.Unmarshal(data, &manifest))
	}
	node, nodeErr := exec.CommandContext(ctx, "node", "--version").Output()
	if errors.Join(err, nodeErr) != nil {
		return "(unknown version) true"
	}
	return fmt.Sprintf("%s (node %s) true", manifest.Version, strings.TrimSpace(string(node)))
}

// execRow is a command in a live sandbox against the same program run locally.
func execRow(ctx context.Context, b *bench) (out []verdict, err error) {
	sandbox, _, err := b.create(ctx)
	if sandbox != nil {
		defer func() { err = errors.Join(err, sandbox.Close()) }()
	}
	if err != nil {
		return nil, err
	}
	local := &sample{name: "local os/exec true", once: func(ctx context.Context) (time.Duration, error) {
		return timed(exec.CommandContext(ctx, "true").Run)
	}}
	inside := &sample{name: "exec true in a live sandbox", once: func(ctx context.Context) (time.Duration, error) {
		return timed(sandbox.CommandContext(ctx, "true").Run)
	}}
	if err := interleave(ctx, b.runs*5, local, inside); err != nil {
		return nil, err
	}
	kill, target := b.provider.Capabilities().TreeKill, targetExecMark
	if kill == driver.KillCgroup {
		target = targetExecCgroup
	}
	ratio := float64(inside.median()) / float64(local.median())
	return []verdict{atMost(fmt.Sprintf("exec round trip, tree ends by %s", kill), ratio, target, "x", local.millis(), inside.millis())}, nil
}

// burstSize is how many sandboxes are made at once.
const burstSize = 100

// burstRow makes many sandboxes at once, and one at a time between.
func burstRow(ctx context.Context, b *bench) ([]verdict, error) {
	alone, together := b.firstResult(), &sample{name: fmt.Sprintf("p95 of %d at once", burstSize)}
	rounds := max(1, b.runs/20)
	say := newProgress("burst", rounds)
	var failures []error
	for i := range rounds {
		if err := interleave(ctx, 10, alone); err != nil {
			return nil, err
		}
		faults, err := b.burst(ctx, together)
		if err != nil {
			return nil, err
		}
		failures = append(failures, faults...)
		say.at(i + 1)
	}
	failed := atMost(fmt.Sprintf("failures among %d creates, %d at once", rounds*burstSize, burstSize), float64(len(failures)), 0, "")
	if len(failures) > 0 {
		failed.Name += fmt.Sprintf(" (the first: %v)", failures[0])
	}
	if len(together.took) == 0 {
		return []verdict{failed}, nil
	}
	alone.name += ", one at a time"
	fair := float64(burstSize) / float64(runtime.NumCPU()) * float64(alone.median())
	p95 := together.quantile(0.95)
	ratio := atMost(fmt.Sprintf("p95 against (%d / %d processors) x the median of one", burstSize, runtime.NumCPU()), float64(p95)/fair, targetBurst, "x",
		alone.millis(), figure{Name: together.name, Value: milliseconds(p95), Unit: "ms"})
	return []verdict{failed, ratio}, nil
}

// burst makes burstSize sandboxes at once; none is closed before all are there.
// Failures to make one are faults, failures to close one an error.
func (b *bench) burst(ctx context.Context, into *sample) (faults []error, err error) {
	var mu sync.Mutex
	var sandboxes []*berm.Sandbox
	var work sync.WaitGroup
	for range burstSize {
		work.Go(func() {
			sandbox, took, err := b.create(ctx)
			mu.Lock()
			defer mu.Unlock()
			if sandbox != nil {
				sandboxes = append(sandboxes, sandbox)
			}
			if err != nil {
				faults = append(faults, err)
				return
			}
			into.took = append(into.took, took)
		})
	}
	work.Wait()
	ends := make([]error, len(sandboxes))
	for i, sandbox := range sandboxes {
		work.Go(func() { ends[i] = sandbox.Close() })
	}
	work.Wait()
	return faults, errors.Join(append(ends, ctx.Err())...)
}
