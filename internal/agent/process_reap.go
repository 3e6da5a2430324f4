package agent

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// reapDelay collects the ends of many orphans in one pass, off the path of the
// command whose end was signalled by the same SIGCHLD. It is short enough that
// the dead do not use up a limit on processes.
const reapDelay = 10 * time.Millisecond

// maxMissed is how often in a row the reaper gives way to starts.
const maxMissed = 100

// reaper collects the orphans that this process inherits, and no one else's
// children: it looks without taking (WNOWAIT), and leaves alone what a command's
// own goroutine will collect. A start holds begin until own has been called, so
// that no leader is ever mistaken for an orphan.
//
// As long as there are no children but commands that have just begun it does not
// listen to SIGCHLD: the kernel would wake a thread for the end of each, which
// costs a short command a tenth of its time. It looks after reapDelay then.
type reaper struct {
	signals chan os.Signal
	timer   *time.Timer
	stop    chan struct{}
	done    chan struct{}

	starts sync.RWMutex
	mu     sync.Mutex
	owned  map[int]time.Time
	armed  bool

	// The goroutine's own: listening is true while SIGCHLD has its handler.
	listening bool
	handler   sigaction
	missed    int
}

func newReaper() *reaper {
	r := &reaper{
		signals: make(chan os.Signal, 1), stop: make(chan struct{}), done: make(chan struct{}),
		owned: map[int]time.Time{}, timer: time.NewTimer(0), armed: true, listening: true,
	}
	signal.Notify(r.signals, unix.SIGCHLD)
	swapAction(nil, &r.handler)
	go r.run()
	return r
}

func (r *reaper) close() {
	close(r.stop)
	<-r.done
	r.listen(true)
	signal.Stop(r.signals)
}

// begin and end enclose a start.
func (r *reaper) begin() { r.starts.RLock() }
func (r *reaper) end()   { r.starts.RUnlock() }

// own says that pid's status belongs to a command.
func (r *reaper) own(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owned[pid] = time.Now()
	r.arm()
}

// disown says that the command has collected it.
func (r *reaper) disown(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.owned, pid)
	r.arm()
}

// arm has the goroutine look soon. The lock is held.
func (r *reaper) arm() {
	if !r.armed {
		r.armed = true
		r.timer.Reset(reapDelay)
	}
}

func (r *reaper) run() {
	defer close(r.done)
	defer r.timer.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-r.signals:
			r.mu.Lock()
			r.arm()
			r.mu.Unlock()
		case <-r.timer.C:
			r.look()
		}
	}
}

// look collects, and decides how the next end will be noticed.
func (r *reaper) look() {
	r.mu.Lock()
	r.armed = false
	r.mu.Unlock()
	seen := r.collect()
	if seen == noChildren {
		r.listen(false)
		return
	}
	young := r.young()
	if !young && !r.listening {
		r.listen(true)
		// What ended before that was not signalled.
		seen = r.collect()
	}
	if young || seen == notSeen {
		r.mu.Lock()
		r.arm()
		r.mu.Unlock()
	}
}

// young is true when there are commands, and all have just begun.
func (r *reaper) young() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, began := range r.owned {
		if time.Since(began) >= reapDelay {
			return false
		}
	}
	return len(r.owned) > 0
}

// listen gives SIGCHLD its handler, or the kernel's default, which does nothing
// and wakes nobody.
func (r *reaper) listen(on bool) {
	switch {
	case on == r.listening:
		return
	case on:
		swapAction(&r.handler, nil)
	default:
		swapAction(&sigaction{}, nil)
	}
	r.listening = on
}

// sigaction has room for the kernel's struct of that name; all of its bytes zero
// are the default action.
type sigaction [8]uint64

// swapAction sets and gives the action for SIGCHLD, past the Go runtime, which
// has no way to leave a signal to its default.
func swapAction(set, get *sigaction) {
	const setBytes = 8
	// It cannot fail with a valid signal and valid addresses.
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD),
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), setBytes, 0, 0)
}

// sight is what collect has found.
type sight int

const (
	noChildren sight = iota // not one, living or dead
	someLeft
	notSeen // starts under way kept it from looking
)

// collect takes every ended child up to the first that is owned. Its owner's
// disown brings us back for those behind it. Starts under way are not made to
// wait, within reason.
func (r *reaper) collect() sight {
	for {
		pid, children := peek()
		switch {
		case !children:
			return noChildren
		case pid == 0:
			return someLeft
		}
		if !r.starts.TryLock() {
			if r.missed++; r.missed < maxMissed {
				return notSeen
			}
			r.starts.Lock()
		}
		r.missed = 0
		r.mu.Lock()
		_, owned := r.owned[pid]
		r.mu.Unlock()
		if !owned && !defence.AgentReaps.Off() {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		r.starts.Unlock()
		if owned {
			return someLeft
		}
	}
}

// childInfo is the part of siginfo_t that waitid fills for a child.
type childInfo struct {
	signo, errno, code, pad int32
	pid                     int32
	uid                     uint32
	status                  int32
}

// peek names one ended child, 0 for none, and leaves it as it is. It is false
// when there are no children at all.
func peek() (pid int, children bool) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, false
		}
		break
	}
	child := (*childInfo)(unsafe.Pointer(&info))
	return int(max(child.pid, 0)), true
}
