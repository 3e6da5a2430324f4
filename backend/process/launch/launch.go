//go:build linux

// Package launch is the way from a root caller to a sandbox that has nothing of
// root. The driver starts the agent's launch mode with a Plan; the launcher makes
// a mount namespace of its own, opens the shared directories as root and without
// following links, maps their owner to a leased uid, gives up everything that
// root has, and becomes bubblewrap.
//
// It is needed because a dropped uid cannot reach a directory below a parent that
// only its owner may search, and cannot map owners; and because bubblewrap
// started by root would leave the sandbox's processes with root's uid on the host.
package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

// Main carries out the plan that it reads from in, in a process that exists for
// this alone and has root's capabilities. It does not return unless it fails. The
// failure is written to the plan's status descriptor as one JSON object
// (errdefs.Encoded), with every reason, and returned.
func Main(in io.Reader) error {
	// Namespaces, credentials and capabilities belong to a thread. All is done on
	// this one, which then executes the program; that ends the others. The lock is
	// never released: on failure the thread is not fit for anything else.
	runtime.LockOSThread()
	plan, err := decode(in)
	if err == nil {
		err = plan.run()
	}
	if plan.Status >= 3 {
		report(plan.Status, err)
	}
	return err
}

// report writes the failure where the driver reads it.
func report(status int, failure error) {
	data, err := json.Marshal(errdefs.Encode(failure))
	if err != nil {
		return
	}
	out := os.NewFile(uintptr(status), "status")
	if out == nil {
		return
	}
	// Nobody is left to tell when the driver's end is closed.
	_, _ = out.Write(data[:min(len(data), maxStatus)])
	_ = out.Close()
}

// run is the plan's steps; it returns only a failure.
func (p Plan) run() error {
	if err := closeOnExec(); err != nil {
		return step("descriptors", err)
	}
	if err := ownMounts(); err != nil {
		return step("mount namespace", err)
	}
	trees, err := p.cloneAll()
	if err != nil {
		return err
	}
	if err := p.stage(trees); err != nil {
		return step("staging directory "+p.Staging, err)
	}
	if err := limitCores(); err != nil {
		return step("core limit", err)
	}
	if err := p.drop(); err != nil {
		return step("drop privileges", err)
	}
	if err := unix.Access(p.Staging, unix.F_OK); err != nil {
		return step(fmt.Sprintf("staging directory %s as uid %d", p.Staging, p.UID), err)
	}
	if err := p.keep(); err != nil {
		return step("descriptors", err)
	}
	var env []string
	if defence.LaunchEnvironment.Off() {
		env = os.Environ()
	}
	return step("start "+p.Program, syscall.Exec(p.Program, p.Args, env))
}

// step names the step that failed. A refusal of the kernel means that the host
// does not offer what is needed.
func step(what string, err error) error {
	kind := errdefs.Internal
	for _, errno := range []error{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.ENOENT, unix.ENOSPC} {
		if errors.Is(err, errno) {
			kind = errdefs.Unavailable
		}
	}
	return &errdefs.Error{Kind: kind, Op: "launch", Reasons: []string{what}, Err: err}
}

// closeOnExec marks every descriptor but 0 to 2.
func closeOnExec() error {
	if defence.LaunchDescriptors.Off() {
		return nil
	}
	return unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}

// keep lets the listed descriptors pass, and puts /dev/null in the place of
// standard ones that are not listed.
func (p Plan) keep() error {
	for fd := range 3 {
		if slices.Contains(p.Keep, fd) || defence.LaunchStandardStreams.Off() {
			continue
		}
		null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("/dev/null: %w", err)
		}
		if err := unix.Dup3(null, fd, 0); err != nil {
			return fmt.Errorf("descriptor %d: %w", fd, err)
		}
	}
	for _, fd := range p.Keep {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("descriptor %d: %w", fd, err)
		}
	}
	return nil
}
