package agent

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// program is one resolved command: what execve needs.
type program struct {
	path string
	args []string
	env  []string
	dir  string
}

// spawner forks every command. It has a thread of its own when that thread has
// to live in the payloads' cgroups (v1): children are born where the forking
// thread is, so none is ever outside.
type spawner struct {
	shim *shim
	jobs chan spawnJob
	done chan struct{}
}

// spawnJob is one start for the spawner's thread.
type spawnJob struct {
	program program
	start   *start
	reply   chan<- spawned
}

// spawned is a start's outcome; pid and pidfd are the child's.
type spawned struct {
	pid   int
	pidfd int
	err   error
}

// newSpawner joins the cgroups of tasks, which it does not own. shim is nil when
// commands start directly.
func newSpawner(tasks []*os.File, shim *shim) (*spawner, error) {
	s := &spawner{shim: shim}
	if len(tasks) == 0 {
		return s, nil
	}
	s.jobs, s.done = make(chan spawnJob), make(chan struct{})
	joined := make(chan error, 1)
	go s.serve(tasks, joined)
	if err := <-joined; err != nil {
		<-s.done
		return nil, err
	}
	return s, nil
}

// serve owns the thread. It never unlocks it: a thread that has been in the
// payloads' cgroups must not run anything else, and ends with the goroutine.
func (s *spawner) serve(tasks []*os.File, joined chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() && !defence.StarterApart.Off() {
		// A process counts as where its first thread is: the kernel would end the
		// agent for memory that its payloads take. This thread waits, so that
		// another one is found.
		elsewhere := make(chan struct{})
		go func() {
			defer close(elsewhere)
			s.serve(tasks, joined)
		}()
		<-elsewhere
		return
	}
	defer close(s.done)
	for _, file := range tasks {
		if _, err := unix.Write(int(file.Fd()), []byte("0")); err != nil {
			joined <- fmt.Errorf("join a cgroup: %w", err)
			return
		}
	}
	joined <- nil
	for job := range s.jobs {
		job.reply <- fork(job.program, job.start)
	}
}

// close ends the thread. No start may follow.
func (s *spawner) close() {
	if s.jobs != nil {
		close(s.jobs)
		<-s.done
	}
}

// busyPatience bounds how long a program that is open for writing is waited for.
const busyPatience = 100 * time.Millisecond

// start runs the program with the three descriptors of stdio. The error is a
// *startError.
func (s *spawner) start(p program, in *start, stdio [3]int) (spawned, error) {
	in.attr.Setsid = !defence.CommandSession.Off()
	in.files = []uintptr{uintptr(stdio[0]), uintptr(stdio[1]), uintptr(stdio[2])}
	out, err := s.try(p, in)
	// A child that another start is just making holds what the agent has open until
	// it executes, and so a program that was written a moment ago.
	for wait := time.Millisecond; errors.Is(err, unix.ETXTBSY) && wait < busyPatience; wait *= 2 {
		time.Sleep(wait)
		out, err = s.try(p, in)
	}
	return out, err
}

func (s *spawner) try(p program, in *start) (spawned, error) {
	if s.shim != nil {
		return s.shim.start(s, p, in)
	}
	out := s.fork(p, in)
	if out.err != nil {
		return spawned{}, diagnose(p, out.err)
	}
	return out, nil
}

// fork starts the child from the right thread.
func (s *spawner) fork(p program, in *start) spawned {
	if s.jobs == nil {
		return fork(p, in)
	}
	reply := make(chan spawned, 1)
	s.jobs <- spawnJob{program: p, start: in, reply: reply}
	return <-reply
}

// usualSlack is the kernel's own timer slack, in nanoseconds.
const usualSlack = 50_000

// fork starts the child from this thread. A host may have started the agent with
// a larger timer slack, so that the Go runtime's monitor thread disturbs short
// commands less; a child inherits its thread's, and gets the usual one.
func fork(p program, in *start) spawned {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err == nil && slack > usualSlack {
		// A refusal only makes the child's timers less exact.
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, usualSlack, 0, 0, 0)
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0) }()
	}
	out := spawned{pidfd: -1}
	attr := in.attr
	attr.PidFD = &out.pidfd
	out.pid, out.err = syscall.ForkExec(p.path, p.args, &syscall.ProcAttr{
		Dir: p.dir, Env: p.env, Files: in.files, Sys: &attr,
	})
	return out
}

// startReason says why nothing ran.
type startReason int

const (
	startFailed startReason = iota
	notFound
	notExecutable
	badDirectory
	processLimit
)

// startError is a start that did not happen.
type startError struct {
	reason startReason
	text   string
	err    error
}

// Error gives the sentence for the caller.
func (e *startError) Error() string { return e.text }

// Unwrap gives the system's error.
func (e *startError) Unwrap() error { return e.err }

// diagnose finds out what an errno of chdir or execve meant. Only a failed start
// pays for it.
func diagnose(p program, err error) *startError {
	fault := func(reason startReason, text string) *startError {
		return &startError{reason: reason, text: text, err: err}
	}
	if errors.Is(err, unix.EAGAIN) {
		return fault(processLimit, "the limit on processes is reached")
	}
	if known := checkDirectory(p.dir); known != nil {
		return known
	}
	name := p.args[0]
	switch {
	case errors.Is(err, unix.ENOENT):
		if _, missing := os.Lstat(resolveFrom(p.dir, p.path)); missing != nil {
			return fault(notFound, fmt.Sprintf("%q: no such program", name))
		}
		return fault(notExecutable, fmt.Sprintf("%q: its interpreter is missing", name))
	case errors.Is(err, unix.ENOTDIR):
		return fault(notFound, fmt.Sprintf("%q: no such program", name))
	case slices.ContainsFunc([]error{
		unix.EACCES, unix.EPERM, unix.ENOEXEC, unix.EISDIR, unix.ELIBBAD, unix.ETXTBSY, unix.EINVAL, unix.ELOOP,
	}, func(target error) bool { return errors.Is(err, target) }):
		return fault(notExecutable, fmt.Sprintf("%q cannot be executed: %v", name, err))
	}
	return fault(startFailed, fmt.Sprintf("start %q: %v", name, err))
}

// checkDirectory says what is wrong with a working directory.
func checkDirectory(dir string) *startError {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return &startError{reason: badDirectory, text: fmt.Sprintf("cwd '%s' does not exist", dir), err: err}
	case err != nil:
		return &startError{reason: badDirectory, text: fmt.Sprintf("cwd '%s' cannot be used: %v", dir, err), err: err}
	case !info.IsDir():
		return &startError{reason: badDirectory, text: fmt.Sprintf("cwd '%s' is not a directory", dir), err: unix.ENOTDIR}
	}
	if err := unix.Access(dir, unix.X_OK); err != nil {
		return &startError{reason: badDirectory, text: fmt.Sprintf("cwd '%s' cannot be entered: %v", dir, err), err: err}
	}
	return nil
}
