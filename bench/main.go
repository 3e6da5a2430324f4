// Command bench measures berm beside what it is compared with, in one run, and
// compares the medians' ratios with the targets of docs/design.md. It exits with
// status 1 when a target is missed. It prints the posture under which it
// measured.
//
//	go run ./bench            as root: once as root and once unprivileged
//	go run ./bench -runs 50
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// unprivilegedID is the uid and gid of the second pass of a root caller: nobody.
const unprivilegedID = 65534

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	missed, err := run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if missed {
		os.Exit(1)
	}
}

func run(ctx context.Context) (missed bool, err error) {
	runs := flag.Int("runs", 40, "counted runs of each measurement")
	agent := flag.String("agent", os.Getenv("BERM_AGENT"), "the agent's program; built when empty")
	single := flag.Bool("single", false, "measure as this caller only")
	flag.Parse()
	if *agent == "" {
		dir, err := os.MkdirTemp("", "berm-bench-")
		if err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		// An unprivileged second pass must be able to read it.
		if err := os.Chmod(dir, 0o755); err != nil {
			return false, err
		}
		*agent = filepath.Join(dir, "berm-agent")
		if err := build(ctx, *agent); err != nil {
			return false, err
		}
	}
	missed, err = measure(ctx, *agent, *runs)
	if err != nil || *single || os.Geteuid() != 0 {
		return missed, err
	}
	again, err := unprivileged(ctx, *agent, *runs)
	return missed || again, err
}

func build(ctx context.Context, to string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", to, "github.com/berm-dev/berm/cmd/berm-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the agent: %w", err)
	}
	return nil
}

// unprivileged runs this program again as nobody. It copies itself first: the
// folder in which `go run` builds is closed to others.
func unprivileged(ctx context.Context, agent string, runs int) (missed bool, err error) {
	dir, err := os.MkdirTemp("", "berm-bench-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return false, err
	}
	program := filepath.Join(dir, "bench")
	if err := errors.Join(os.WriteFile(program, self, 0o755), os.Chmod(dir, 0o755)); err != nil {
		return false, err
	}
	work := filepath.Join(dir, "work")
	if err := errors.Join(os.Mkdir(work, 0o700), os.Chown(work, unprivilegedID, unprivilegedID)); err != nil {
		return false, err
	}
	cmd := exec.CommandContext(ctx, program, "-single", "-agent", agent, "-runs", fmt.Sprint(runs))
	cmd.Dir = work
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + work, "HOME=" + work, "XDG_RUNTIME_DIR=" + work}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivilegedID, Gid: unprivilegedID, Groups: []uint32{}}}
	var exit *exec.ExitError
	switch err := cmd.Run(); {
	case err == nil:
		return false, nil
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return true, nil
	default:
		return false, fmt.Errorf("unprivileged pass: %w", err)
	}
}

// machine describes what was measured on.
func machine() string {
	var parts []string
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		parts = append(parts, "kernel "+strings.TrimSpace(string(release)))
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		processors := strings.Count(string(info), "\nprocessor") + 1
		parts = append(parts, fmt.Sprintf("%d processors", processors))
		for line := range strings.Lines(string(info)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				parts = append(parts, strings.TrimLeft(strings.TrimSpace(name), ": "))
				break
			}
		}
	}
	return strings.Join(parts, ", ")
}
