package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/agent/execmode"
	"github.com/berm-dev/berm/internal/defence"
)

// selfProgram is the agent's own program, whatever it was started from.
const selfProgram = "/proc/self/exe"

// Run is Serve in a process that is the agent and nothing else, init of its
// sandbox or not. It first puts the process out of its payloads' reach. control
// is the control socket's descriptor; all other inherited ones above 2 are
// closed.
func Run(ctx context.Context, control int) error {
	if err := harden(control); err != nil {
		return err
	}
	settled, stop := drainSignals()
	defer stop()
	// The agent moves bytes between others. More threads would wake each other,
	// which for a short command costs more than the work itself.
	runtime.GOMAXPROCS(1)
	file := os.NewFile(uintptr(control), "control")
	if file == nil {
		return fmt.Errorf("descriptor %d is not one", control)
	}
	return serve(ctx, file, Config{Executable: selfProgram, Reap: true, settled: settled})
}

// harden makes the process unreadable for what it will start, and gives its
// children nothing but what they are given.
func harden(control int) error {
	// Before anything is read from the link.
	if !defence.AgentNotDumpable.Off() {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return fmt.Errorf("become unreadable: %w", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of orphans: %w", err)
	}
	if !defence.AgentCores.Off() {
		if err := execmode.LimitCores(); err != nil {
			return fmt.Errorf("turn off core files: %w", err)
		}
	}
	if err := errors.Join(limitDescriptors(), limitSignals()); err != nil {
		return err
	}
	unix.Umask(0o022)
	if err := heedSignals(); err != nil {
		return err
	}
	if err := unblockSignals(control); err != nil {
		return err
	}
	unix.CloseOnExec(control)
	closeInherited(control)
	return nil
}

// limitDescriptors leaves the payloads half of the descriptors that the host
// program may have. The kernel counts the descriptors that lie in sockets'
// queues for a user as a whole, over all sandboxes, and refuses to send more when
// they exceed the sender's own limit: with the host's limit, a payload of the
// host's own uid could stop the host from sending any.
func limitDescriptors() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit on descriptors: %w", err)
	}
	if defence.PayloadDescriptors.Off() {
		return nil
	}
	limit.Max /= 2
	limit.Cur = min(limit.Cur, limit.Max)
	// By syscall, not unix: the runtime's own record is what children get.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("limit descriptors: %w", err)
	}
	return nil
}

// signalShare is the part of the host program's queued signals and timers that
// one sandbox may have.
const signalShare = 16

// limitSignals leaves the payloads a small part of the signals that may be queued,
// and of the timers. The kernel counts both for a user as a whole, over all
// sandboxes and the user's own programs.
func limitSignals() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_SIGPENDING, &limit); err != nil {
		return fmt.Errorf("read the limit on queued signals: %w", err)
	}
	if defence.PayloadSignals.Off() {
		return nil
	}
	limit.Max /= signalShare
	limit.Cur = min(limit.Cur, limit.Max)
	if err := unix.Setrlimit(unix.RLIMIT_SIGPENDING, &limit); err != nil {
		return fmt.Errorf("limit queued signals: %w", err)
	}
	return nil
}

// heedSignals gives the signal that the C library keeps for itself its default
// again. Some programs (make) start others with it ignored, the Go runtime leaves
// it alone, and children would inherit it.
func heedSignals() error {
	const libraryCancel = 32
	// The kernel's struct sigaction; all zero is the default action.
	var action [4]uint64
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, libraryCancel, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	if errno != 0 {
		return fmt.Errorf("heed signal %d: %w", libraryCancel, errno)
	}
	return nil
}

// unblockSignals starts the program again with no signal blocked, when it was
// started with some: the Go runtime hands the first mask on to every child.
func unblockSignals(control int) error {
	var none, mask unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &mask); err != nil {
		return fmt.Errorf("read the signal mask: %w", err)
	}
	if mask == none {
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(control), unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("keep the control socket: %w", err)
	}
	if err := syscall.Exec(selfProgram, os.Args, nil); err != nil {
		return fmt.Errorf("start again without blocked signals: %w", err)
	}
	return nil
}

// closeInherited closes what whoever started the agent left open. Descriptors
// that the Go runtime itself uses stay.
func closeInherited(control int) {
	// Whatever follows, no child gets any.
	if defence.AgentDescriptors.Off() {
		return
	}
	_ = unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC)
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return
	}
	names, err := dir.Readdirnames(-1)
	_ = dir.Close()
	if err != nil {
		return
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd <= 2 || fd == control {
			continue
		}
		target, err := os.Readlink("/proc/self/fd/" + name)
		if err == nil && !strings.HasPrefix(target, "anon_inode:[event") {
			_ = unix.Close(fd)
		}
	}
}

// drainSignals takes every signal that would end or stop a Go program, and does
// nothing: an init that leaves one to its default dies of it, and one that
// ignores it has its children ignore it too. All others the runtime catches
// itself and drops (package os/signal lists them); to ask for each of the 62 is
// a hand-over between threads, which together are a tenth of a sandbox's start.
// SIGCHLD is the reaper's. It goes on in the background: settled is closed when
// all are taken, and stop ends the draining.
func drainSignals() (settled <-chan struct{}, stop func()) {
	signals := make(chan os.Signal, 16)
	taken, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		if defence.AgentSignals.Off() {
			close(taken)
			return
		}
		signal.Notify(signals,
			unix.SIGHUP, unix.SIGINT, unix.SIGTERM,
			unix.SIGQUIT, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGSTKFLT, unix.SIGSYS,
			unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV,
			// Of the writer to a closed standard stream.
			unix.SIGPIPE)
		if os.Getpid() != 1 {
			// The kernel stops no init.
			signal.Notify(signals, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
		}
		close(taken)
		for range signals {
		}
	}()
	return taken, func() {
		<-taken
		signal.Stop(signals)
		close(signals)
		<-done
	}
}
