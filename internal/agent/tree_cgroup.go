package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

const (
	// idleCgroups is how many empty cgroups are kept for the next commands: to
	// make and remove one costs more than the rest of a command's bookkeeping.
	idleCgroups = 16
	// closePatience bounds the wait for killed processes to leave.
	closePatience = 5 * time.Second
)

// cgroupTrees gives each command a cgroup of its own below dir (cgroup v2; no
// controller is needed).
type cgroupTrees struct {
	dir *os.File

	mu   sync.Mutex
	last int
	idle []*cgroupTree
	all  map[*cgroupTree]struct{}
}

// newCgroupTrees proves that dir serves before it returns. It owns dir.
func newCgroupTrees(dir *os.File) (*cgroupTrees, error) {
	g := &cgroupTrees{dir: dir, all: map[*cgroupTree]struct{}{}}
	first, err := g.plant()
	if err != nil {
		return nil, err
	}
	first.release()
	g.mu.Lock()
	err = unix.Faccessat(g.idle[0].dir, "cgroup.kill", unix.W_OK, 0)
	g.mu.Unlock()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look for cgroup.kill: %w", err), g.close())
	}
	return g, nil
}

func (g *cgroupTrees) plant() (tree, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.idle); n > 0 {
		t := g.idle[n-1]
		g.idle = g.idle[:n-1]
		t.reuse()
		return t, nil
	}
	g.last++
	t, err := newCgroupTree(g, "cmd-"+strconv.Itoa(g.last))
	if err != nil {
		return nil, err
	}
	g.all[t] = struct{}{}
	return t, nil
}

// put takes back an empty cgroup. One that was killed is not used again: the
// kernel would take the next command's birth for one that the kill had missed.
func (g *cgroupTrees) put(t *cgroupTree) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.idle) < idleCgroups && !t.killed {
		g.idle = append(g.idle, t)
		return
	}
	if t.remove() == nil {
		delete(g.all, t)
	}
}

func (g *cgroupTrees) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	deadline := time.Now().Add(closePatience)
	var faults []error
	for t := range g.all {
		err := t.remove()
		for errors.Is(err, unix.EBUSY) && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
			err = t.remove()
		}
		faults = append(faults, err)
	}
	return errors.Join(append(faults, g.dir.Close())...)
}

// cgroupTree is one command's cgroup.
type cgroupTree struct {
	owner  *cgroupTrees
	name   string
	dir    int
	events int

	mu       sync.Mutex
	released bool
	killed   bool
}

func newCgroupTree(owner *cgroupTrees, name string) (*cgroupTree, error) {
	parent := int(owner.dir.Fd())
	if err := unix.Mkdirat(parent, name, 0o755); err != nil {
		return nil, fmt.Errorf("make a cgroup: %w", err)
	}
	t := &cgroupTree{owner: owner, name: name, dir: -1, events: -1}
	var err error
	t.dir, err = unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == nil {
		t.events, err = unix.Openat(t.dir, "cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a cgroup: %w", err), t.remove())
	}
	return t, nil
}

func (t *cgroupTree) place(s *start) {
	s.attr.UseCgroupFD = true
	s.attr.CgroupFD = t.dir
}

func (t *cgroupTree) lead(int) {}

func (t *cgroupTree) members() ([]int, error) {
	if empty, err := t.empty(); err != nil || empty {
		return nil, err
	}
	data, err := readAt(t.dir, "cgroup.procs")
	if err != nil {
		return nil, fmt.Errorf("list a cgroup: %w", err)
	}
	var pids []int
	for field := range strings.FieldsSeq(string(data)) {
		// 0 is a process of another PID namespace: it has no name here.
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// empty asks the kernel's own count.
func (t *cgroupTree) empty() (bool, error) {
	var buf [128]byte
	n, err := unix.Pread(t.events, buf[:], 0)
	if err != nil {
		return false, fmt.Errorf("read cgroup.events: %w", err)
	}
	return bytes.Contains(buf[:n], []byte("populated 0")), nil
}

// kill has the kernel kill the cgroup. That signals the first thread of each
// process only, and does not reach a process whose first thread has ended while
// others go on: those are killed one by one, and what they were forking is found
// by looking until nobody is new.
func (t *cgroupTree) kill() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.released {
		return nil
	}
	t.killed = true
	signalled := map[int]bool{}
	for range stopRounds {
		if err := t.killAll(); err != nil {
			return err
		}
		pids, err := t.members()
		if err != nil {
			return err
		}
		fresh := false
		for _, pid := range pids {
			fresh = fresh || !signalled[pid]
			signalled[pid] = true
			if defence.CommandHeadless.Off() {
				continue
			}
			if err := t.killMember(pid); err != nil {
				return err
			}
		}
		if !fresh {
			return nil
		}
	}
	return fmt.Errorf("processes came up in %d kills of a cgroup", stopRounds)
}

// killAll writes to cgroup.kill.
func (t *cgroupTree) killAll() error {
	fd, err := unix.Openat(t.dir, "cgroup.kill", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("kill a cgroup: %w", err)
	}
	_, err = unix.Write(fd, []byte("1"))
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("kill a cgroup: %w", err)
	}
	return nil
}

// killMember kills a process, if it still belongs to the cgroup once it is held
// by a descriptor: the number may have come to mean another one.
func (t *cgroupTree) killMember(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	defer unix.Close(fd)
	pids, err := t.members()
	if err != nil || !slices.Contains(pids, pid) {
		return err
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

func (t *cgroupTree) release() bool {
	t.mu.Lock()
	if t.released {
		t.mu.Unlock()
		return true
	}
	empty, err := t.empty()
	t.released = err == nil && empty
	done := t.released
	t.mu.Unlock()
	if done {
		t.owner.put(t)
	}
	return done
}

// reuse makes an idle cgroup the next command's.
func (t *cgroupTree) reuse() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released = false
}

// remove takes the directory away and then the descriptors.
func (t *cgroupTree) remove() error {
	err := unix.Unlinkat(int(t.owner.dir.Fd()), t.name, unix.AT_REMOVEDIR)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove cgroup %s: %w", t.name, err)
	}
	for _, fd := range []int{t.dir, t.events} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	t.dir, t.events = -1, -1
	return nil
}

// readAt reads a small kernel file below an open directory.
func readAt(dir int, name string) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	return readAll(file, maxKernelFile)
}
