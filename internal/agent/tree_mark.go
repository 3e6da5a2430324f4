package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/boot"
)

const (
	// killPatience bounds one kill of a marked tree.
	killPatience = 10 * time.Second
	// stopRounds bounds the passes that stop a tree before it is killed: a fork
	// bomb loses in two or three.
	stopRounds = 32
	// huntRounds is how often a tree is killed before everything else is stopped
	// for it.
	huntRounds = 16
	// scanPasses bounds the looks at /proc for one that nobody escaped.
	scanPasses  = 64
	alonePasses = 4
)

// markTrees finds a command's processes by a number that each of them carries:
// both values of RLIMIT_LOCKS, which the kernel hands on to every child, shows
// in /proc/PID/limits and has ignored since Linux 2.4. The start shim sets it
// and has a filter refuse each later change.
type markTrees struct {
	shared  bool
	orphans orphans
	// alone: all processes that can be seen are this sandbox's.
	alone bool
	base  uint64
	last  atomic.Uint64
}

func newMarkTrees(shared bool, orphans orphans, base uint64) *markTrees {
	base &= boot.MarkBits
	if base == 0 {
		base = boot.NewMarkBase()
	}
	return &markTrees{shared: shared, orphans: orphans, alone: !shared && os.Getpid() == 1, base: base}
}

func (m *markTrees) plant() (tree, error) {
	return &markTree{owner: m, mark: m.base + m.last.Add(1)&0xffff_ffff}, nil
}

func (m *markTrees) close() error { return nil }

// markTree is one command's marked processes.
type markTree struct {
	owner *markTrees
	mark  uint64
	gone  atomic.Bool
}

func (t *markTree) place(s *start) { s.mark = t.mark }

func (t *markTree) lead(int) {}

func (t *markTree) members() ([]int, error) {
	if t.owner.orphans.none() {
		return nil, nil
	}
	return t.scan(0)
}

func (t *markTree) release() bool {
	if t.gone.Load() {
		return true
	}
	pids, err := t.members()
	if err != nil || len(pids) > 0 {
		return false
	}
	t.gone.Store(true)
	return true
}

// kill stops the processes first, so that none is born while the others die.
// What is quicker than that, by ending and being born all the time, is killed
// while nothing in the sandbox runs.
func (t *markTree) kill() error {
	if t.gone.Load() {
		return nil
	}
	known := 0
	for range stopRounds {
		pids, err := t.scan(unix.SIGSTOP)
		if err != nil || len(pids) <= known {
			break
		}
		known = len(pids)
	}
	deadline := time.Now().Add(killPatience)
	var err error
	for round := 0; ; round++ {
		var pids []int
		pids, err = t.scan(unix.SIGKILL)
		if err == nil && len(pids) == 0 {
			return nil
		}
		if t.owner.alone && (err != nil || round >= huntRounds) {
			pids, err = t.scanFrozen()
			if err == nil && len(pids) == 0 {
				return nil
			}
		}
		if time.Now().After(deadline) {
			return errors.Join(err, fmt.Errorf("%d processes outlived SIGKILL", len(pids)))
		}
		time.Sleep(time.Millisecond)
	}
}

// scanFrozen kills while everything but this process is stopped: a signal to all
// reaches the children of forks that are under way too. What another command had
// stopped itself goes on afterwards.
func (t *markTree) scanFrozen() ([]int, error) {
	if err := unix.Kill(-1, unix.SIGSTOP); err != nil {
		return nil, fmt.Errorf("stop the sandbox: %w", err)
	}
	pids, err := t.scan(unix.SIGKILL)
	if contErr := unix.Kill(-1, unix.SIGCONT); contErr != nil && !errors.Is(contErr, unix.ESRCH) {
		err = errors.Join(err, fmt.Errorf("continue the sandbox: %w", contErr))
	}
	return pids, err
}

// scan lists the living processes with the mark, and signals each unless signal
// is 0. A process that may not be signalled is not counted: to wait for it would
// be for ever.
//
// /proc is not read in one moment: a process that ends between being listed and
// being looked at may have left a child that was born after the list. So an
// empty pass counts only when nobody got away in it.
func (t *markTree) scan(signal unix.Signal) ([]int, error) {
	dead := map[int]bool{}
	passes := scanPasses
	if signal != 0 && t.owner.alone {
		passes = alonePasses // kill has something better than to look again
	}
	for range passes {
		found, restless, err := t.pass(signal, dead)
		if err != nil || len(found) > 0 || !restless {
			return found, err
		}
	}
	return nil, fmt.Errorf("processes came and went in %d looks at /proc", passes)
}

// pass is one look at all processes. dead has those with the mark that were
// found ended before: what they left was born before this pass.
func (t *markTree) pass(signal unix.Signal, dead map[int]bool) (found []int, restless bool, err error) {
	pids, err := listProcesses()
	if err != nil {
		return nil, false, err
	}
	for _, pid := range pids {
		data, err := readProc(pid, "limits")
		if err != nil {
			restless = restless || !errors.Is(err, fs.ErrPermission)
			continue
		}
		if mark, ok := parseMark(data); !ok || mark != t.mark {
			continue
		}
		if t.reach(pid, signal) {
			found = append(found, pid)
		} else if !dead[pid] {
			dead[pid], restless = true, true
		}
	}
	return found, restless, nil
}

// reach holds the process by a descriptor before it looks at the mark again, so
// that the signal cannot go to another one that got the same pid.
func (t *markTree) reach(pid int, signal unix.Signal) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) && !t.owner.shared {
		return signal == 0 || unix.Kill(pid, signal) == nil
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if mark, ok := readMark(pid); !ok || mark != t.mark || ended(fd) {
		return false
	}
	return signal == 0 || unix.PidfdSendSignal(fd, signal, nil, 0) == nil
}

// ended is true for a process that only waits to be collected.
func ended(pidfd int) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1
}
