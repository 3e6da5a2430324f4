package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// unprivilegedID is the uid and gid of the second pass of a root caller: nobody.
	unprivilegedID = 65534
	// endPatience is how long that pass may take to clean up after an interrupt.
	endPatience = time.Minute
)

// build makes the programs that were not given, in dir.
func (o *options) build(ctx context.Context, dir string) error {
	for _, one := range []struct {
		program   *string
		name, pkg string
	}{
		{&o.agent, "berm-agent", "github.com/berm-dev/berm/cmd/berm-agent"},
		{&o.payload, "payload", "github.com/berm-dev/berm/drivertest/payload"},
	} {
		if *one.program != "" {
			path, err := filepath.Abs(*one.program)
			if err != nil {
				return err
			}
			*one.program = path
			continue
		}
		*one.program = filepath.Join(dir, one.name)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", *one.program, one.pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", one.name, err)
		}
	}
	return nil
}

// unprivileged runs this program again as nobody. It copies what that user
// cannot reach: the folder in which `go run` builds, and the cache, are closed.
func unprivileged(ctx context.Context, o options, dir string) (held bool, err error) {
	program, agent := filepath.Join(dir, "bench"), filepath.Join(dir, "agent")
	payload, work := filepath.Join(dir, "inside"), filepath.Join(dir, "work")
	err = errors.Join(
		copyProgram("/proc/self/exe", program), copyProgram(o.agent, agent), copyProgram(o.payload, payload),
		os.Mkdir(work, 0o700), os.Chown(work, unprivilegedID, unprivilegedID))
	if err != nil {
		return false, err
	}
	args := []string{"-single", "-agent", agent, "-payload", payload, "-runs", fmt.Sprint(o.runs), "-only", o.only}
	if o.json {
		args = append(args, "-json")
	}
	if o.srt != "" {
		// PLACE/node_modules/.bin/srt
		place := filepath.Dir(filepath.Dir(filepath.Dir(o.srt)))
		if err := os.CopyFS(filepath.Join(dir, "srt"), os.DirFS(place)); err != nil {
			return false, fmt.Errorf("copy %s: %w", place, err)
		}
		args = append(args, "-srt", filepath.Join(dir, "srt", "node_modules", ".bin", "srt"))
	}
	if o.peers != "" {
		if err := os.CopyFS(filepath.Join(dir, "peers"), os.DirFS(o.peers)); err != nil {
			return false, fmt.Errorf("copy %s: %w", o.peers, err)
		}
		args = append(args, "-peers", filepath.Join(dir, "peers"))
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = work
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + work, "HOME=" + work, "XDG_RUNTIME_DIR=" + work}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivilegedID, Gid: unprivilegedID, Groups: []uint32{}}}
	// Its sandboxes are its own to clean up.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endPatience
	var exit *exec.ExitError
	switch err := cmd.Run(); {
	case err == nil:
		return true, nil
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return false, nil
	default:
		return false, fmt.Errorf("unprivileged pass: %w", err)
	}
}

func copyProgram(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	// The mode after the fact: a umask may be narrow.
	return errors.Join(os.WriteFile(to, data, 0o755), os.Chmod(to, 0o755))
}
