package agent

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// fillRate is about what one writer puts into an in-memory file system, in
	// bytes per millisecond.
	fillRate = 1 << 20
	// lookSoonest and lookLatest bound the time between two looks.
	lookSoonest = time.Millisecond
	lookLatest  = 250 * time.Millisecond
)

// disks counts how often one of the sandbox's own file systems was seen to have
// become full: without a free block, or without a free inode. The kernel counts
// neither refused writes nor the highest use of such a file system, so it is
// looked at: when a command begins, when one fails, and in between the oftener
// the less is free. A file system that is full and freed again between two looks
// is missed, and so is a second refusal by one that stays full; none is made up.
//
// All methods may be called concurrently.
type disks struct {
	timer *time.Timer

	mu      sync.Mutex
	all     []disk
	filled  uint64
	running int
	armed   bool
	wait    time.Duration
}

// disk is one file system, as it was at the last look.
type disk struct {
	dir                *os.File
	full               bool
	freeBytes, freeIno uint64
}

// openDisks opens the file systems that hold paths.
func openDisks(paths []string) (*disks, error) {
	d := &disks{timer: time.NewTimer(0)}
	if !d.timer.Stop() {
		<-d.timer.C
	}
	for _, path := range paths {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			d.close()
			return nil, fmt.Errorf("open the file system at %s: %w", path, err)
		}
		d.all = append(d.all, disk{dir: os.NewFile(uintptr(fd), path)})
	}
	return d, nil
}

// close gives up the descriptors. Nothing is seen after it.
func (d *disks) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.all {
		_ = one.dir.Close()
	}
	d.all = nil
}

// begin is called for each command before it runs, and gives the count then.
func (d *disks) begin() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.all) == 0 {
		return 0
	}
	d.look()
	d.running++
	if !d.armed {
		d.armed = true
		d.wait = d.soonest()
		d.timer.Reset(d.wait)
	}
	return d.filled
}

// end is called for each command when its leader has ended. For one that failed
// it says whether the count has moved since its beginning.
func (d *disks) end(began uint64, failed bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.all) == 0 {
		return false
	}
	d.running--
	if failed {
		d.look()
	}
	return failed && d.filled > began
}

// watch looks as long as commands run, until closing.
func (d *disks) watch(closing <-chan struct{}) {
	defer d.timer.Stop()
	for {
		select {
		case <-closing:
			return
		case <-d.timer.C:
			d.tick()
		}
	}
}

// tick is one look of watch.
func (d *disks) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running == 0 {
		d.armed = false
		return
	}
	d.wait *= 2
	if d.look() {
		d.wait = d.soonest()
	}
	d.wait = min(d.wait, lookLatest)
	d.timer.Reset(d.wait)
}

// look counts what has become full, and is true when anything has changed. The
// lock is held.
func (d *disks) look() bool {
	changed := false
	for i := range d.all {
		one := &d.all[i]
		var st unix.Statfs_t
		if unix.Fstatfs(int(one.dir.Fd()), &st) != nil {
			continue
		}
		freeBytes := st.Bfree * uint64(st.Bsize)
		changed = changed || freeBytes != one.freeBytes || st.Ffree != one.freeIno
		one.freeBytes, one.freeIno = freeBytes, st.Ffree
		// A file system without a limit says 0 of 0.
		full := st.Blocks > 0 && st.Bfree == 0 || st.Files > 0 && st.Ffree == 0
		if full && !one.full {
			d.filled++
		}
		one.full = full
	}
	return changed
}

// soonest is how long it takes at least, about, until another one is full. The
// lock is held.
func (d *disks) soonest() time.Duration {
	wait := lookLatest
	for _, one := range d.all {
		if !one.full {
			wait = min(wait, time.Duration(one.freeBytes/fillRate)*time.Millisecond)
		}
	}
	return max(wait, lookSoonest)
}

// crowd sees whether the sandbox has reached a limit on processes that works by
// rlimit, where the kernel counts no refusals. Each start proves by a fork of its
// own that it has not (execmode), so that a crowd at the end of a command has
// come up during it. The zero value has no limit.
type crowd struct {
	orphans orphans
	// limit is RLIMIT_NPROC, 0 for none.
	limit int
}

func newCrowd(config Config, s *shim) crowd {
	c := crowd{orphans: orphans{adopted: config.Reap}}
	// On a shared host the user's other processes count too, and cannot be told.
	if s != nil && !config.Boot.Shared {
		c.limit = s.limits.Processes
	}
	return c
}

// full reports that the sandbox is at its limit now, or was until the command
// ended that was just collected. It is for commands that failed: it looks at every
// process where there is any.
func (c crowd) full() bool {
	if c.limit == 0 || c.orphans.none() {
		return false
	}
	pids, err := listProcesses()
	if err != nil {
		return false
	}
	threads := 1 // the leader, which has just gone
	for _, pid := range pids {
		threads += countThreads(pid)
	}
	return threads >= c.limit
}

// countThreads gives a process's threads, 1 for one that has ended and was not
// collected: the kernel counts those too.
func countThreads(pid int) int {
	var st unix.Stat_t
	for {
		err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/task", &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0
		}
		// The directory's links: itself, its parent's, one of each thread.
		return max(int(st.Nlink)-2, 0)
	}
}
