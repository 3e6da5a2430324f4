package agent

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reapDelay collects the ends of many orphans in one pass, off the path of the
// command whose end was signalled by the same SIGCHLD.
const reapDelay = 5 * time.Millisecond

// maxMissed is how often in a row the reaper gives way to starts.
const maxMissed = 100

// reaper collects the orphans that this process inherits, and no one else's
// children: it looks without taking (WNOWAIT), and leaves alone what a command's
// own goroutine will collect. A start holds begin until own has been called, so
// that no leader is ever mistaken for an orphan.
type reaper struct {
	signals chan os.Signal
	stop    chan struct{}
	done    chan struct{}

	starts sync.RWMutex
	mu     sync.Mutex
	owned  map[int]struct{}
	kick   chan struct{}
	missed int
}

func newReaper() *reaper {
	r := &reaper{
		signals: make(chan os.Signal, 1), stop: make(chan struct{}), done: make(chan struct{}),
		owned: map[int]struct{}{}, kick: make(chan struct{}, 1),
	}
	signal.Notify(r.signals, unix.SIGCHLD)
	go r.run()
	return r
}

func (r *reaper) close() {
	signal.Stop(r.signals)
	close(r.stop)
	<-r.done
}

// begin and end enclose a start.
func (r *reaper) begin() { r.starts.RLock() }
func (r *reaper) end()   { r.starts.RUnlock() }

// own says that pid's status belongs to a command.
func (r *reaper) own(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owned[pid] = struct{}{}
}

// disown says that the command has collected it.
func (r *reaper) disown(pid int) {
	r.mu.Lock()
	delete(r.owned, pid)
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *reaper) run() {
	defer close(r.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	armed := true
	for {
		select {
		case <-r.stop:
			return
		case <-r.signals:
		case <-r.kick:
		case <-timer.C:
			armed = !r.collect()
			if armed {
				timer.Reset(reapDelay)
			}
			continue
		}
		if !armed {
			armed = true
			timer.Reset(reapDelay)
		}
	}
}

// collect takes every ended child up to the first that is owned. Its owner's
// disown brings us back for those behind it. It is false when starts under way
// kept it from looking; they are not made to wait, within reason.
func (r *reaper) collect() bool {
	for {
		pid, ok := peek()
		if !ok {
			return true
		}
		if !r.starts.TryLock() {
			if r.missed++; r.missed < maxMissed {
				return false
			}
			r.starts.Lock()
		}
		r.missed = 0
		r.mu.Lock()
		_, owned := r.owned[pid]
		r.mu.Unlock()
		if !owned {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		r.starts.Unlock()
		if owned {
			return true
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

// peek names one ended child and leaves it as it is.
func peek() (int, bool) {
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
	return int(child.pid), child.pid > 0
}
