package agent

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
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
	defer drainSignals()()
	file := os.NewFile(uintptr(control), "control")
	if file == nil {
		return fmt.Errorf("descriptor %d is not one", control)
	}
	return serve(ctx, file, Config{Executable: selfProgram, Reap: true})
}

// harden makes the process unreadable for what it will start, and gives its
// children nothing but what they are given.
func harden(control int) error {
	// Before anything is read from the link.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become unreadable: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of orphans: %w", err)
	}
	// 1, not 0: only 1 also keeps the kernel from running a core_pattern pipe.
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); err != nil {
		return fmt.Errorf("turn off core files: %w", err)
	}
	unix.Umask(0o022)
	if err := unblockSignals(control); err != nil {
		return err
	}
	unix.CloseOnExec(control)
	closeInherited(control)
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

// drainSignals takes every signal and does nothing: an init that leaves one to
// its default dies of it, and one that ignores it has its children ignore it
// too. It returns what ends the draining.
func drainSignals() (stop func()) {
	signals := make(chan os.Signal, 16)
	for number := syscall.Signal(1); number <= 64; number++ {
		// The runtime preempts goroutines by SIGURG, many times a second; SIGCHLD
		// is the reaper's. Both do nothing by default.
		if number != unix.SIGURG && number != unix.SIGCHLD {
			signal.Notify(signals, number)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range signals {
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
		<-done
	}
}
