package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// forker starts processes from one thread that lives until close. The kernel
// ties "die with the parent", which bubblewrap asks for, to the thread that
// forked, not to its process; and the thread's session keyring, which children inherit, is a fresh one, so that
// the caller's keys cannot be read from a sandbox. It never comes before other
// programs: a caller with a real-time policy or a negative nice value does not
// hand that on to payloads.
type forker struct {
	requests chan func()
	quit     chan struct{}
	done     chan struct{}
	once     sync.Once
	// keyring is why there is no fresh keyring, nil when there is.
	keyring error
	// priority is why the thread still comes before others, nil when it does not.
	priority error
}

// agentTimerSlack is in nanoseconds.
const agentTimerSlack = 500_000

var errForkerClosed = errors.New("the driver is closed")

// newForker starts the thread.
func newForker() *forker {
	f := &forker{requests: make(chan func()), quit: make(chan struct{}), done: make(chan struct{})}
	ready := make(chan struct{})
	go f.serve(ready)
	<-ready
	return f
}

// serve is the thread. It is never unlocked, so that the thread ends with it.
func (f *forker) serve(ready chan<- struct{}) {
	runtime.LockOSThread()
	defer close(f.done)
	if !defence.DriverKeyring.Off() {
		_, f.keyring = unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	}
	if !defence.DefaultPriority.Off() {
		f.priority = becomeOrdinary()
	}
	// Inherited by the agent, whose runtime has a thread that sleeps for short
	// times and would wake on the very processor that a command runs on. The agent
	// gives its commands the usual 50 us back. Best effort.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, agentTimerSlack, 0, 0, 0)
	close(ready)
	for {
		select {
		case request := <-f.requests:
			request()
		case <-f.quit:
			return
		}
	}
}

// becomeOrdinary gives up what the calling thread has before others by default:
// with a real-time policy it would starve them, and with --cpus not even start. A
// lower rank than the default stays.
func becomeOrdinary() error {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return fmt.Errorf("read the scheduling policy: %w", err)
	}
	ordinary := attr.Policy == unix.SCHED_NORMAL || attr.Policy == unix.SCHED_BATCH || attr.Policy == unix.SCHED_IDLE
	if ordinary && attr.Nice >= 0 {
		return nil
	}
	// The kernel lets nobody without privileges take the flag back.
	attr.Flags &= unix.SCHED_FLAG_RESET_ON_FORK
	if !ordinary {
		attr.Policy = unix.SCHED_NORMAL
	}
	attr.Nice = max(attr.Nice, 0)
	attr.Priority, attr.Runtime, attr.Deadline, attr.Period = 0, 0, 0, 0
	if err := unix.SchedSetAttr(0, attr, 0); err != nil {
		return fmt.Errorf("leave the scheduling policy: %w", err)
	}
	return nil
}

// start starts a process on the thread.
func (f *forker) start(path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	var proc *os.Process
	var err error
	finished := make(chan struct{})
	request := func() {
		defer close(finished)
		proc, err = os.StartProcess(path, argv, attr)
	}
	select {
	case f.requests <- request:
		<-finished
		return proc, err
	case <-f.done:
		return nil, errForkerClosed
	}
}

// close ends the thread, and so every process that it started, and waits for it.
func (f *forker) close() {
	f.once.Do(func() { close(f.quit) })
	<-f.done
}
