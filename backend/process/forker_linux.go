package process

import (
	"errors"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// forker starts processes from one thread that lives until close. The kernel
// ties "die with the parent", which bubblewrap asks for, to the thread that
// forked, not to its process; and the thread's session keyring, which children inherit, is a fresh one, so that
// the caller's keys cannot be read from a sandbox.
type forker struct {
	requests chan func()
	quit     chan struct{}
	done     chan struct{}
	once     sync.Once
	// keyring is why there is no fresh keyring, nil when there is.
	keyring error
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
