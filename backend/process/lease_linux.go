package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/internal/defence"
)

// maxIdle is how many leases a driver keeps for its next sandboxes.
const maxIdle = 32

// leasesDir holds the leases of every driver of this host, whatever their state
// directories: one uid must never serve two sandboxes. Only root can reach it.
const leasesDir = "/run/berm-uids"

// leases gives each sandbox of a root caller a host uid of its own. A lease is a
// locked file, which ends with this process.
type leases struct {
	dir   string
	base  uint32
	count uint32

	mu sync.Mutex
	// held are all leases of this driver, idle those that no sandbox uses: their
	// uids are known to have no process.
	held map[uint32]*lease
	idle []*lease
}

// lease is one uid in use.
type lease struct {
	uid   uint32
	owner *leases
	file  *os.File
}

// newLeases makes the directory and removes the locks of processes that are
// gone.
func newLeases(dir string, base, count uint32) (*leases, error) {
	if err := leasesPlace(dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		file, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // it ended just now
		}
		if lockNamed(file, name) && !defence.LeaseSweep.Off() {
			_ = os.Remove(name)
		}
		_ = file.Close()
	}
	return &leases{dir: dir, base: base, count: count, held: map[uint32]*lease{}}, nil
}

// take leases a uid under which no process runs: one that was leased before, else
// the lowest free one. Errors: Exhausted when there is none.
func (l *leases) take(ctx context.Context) (*lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.idle); n > 0 {
		got := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return got, nil
	}
	for n := range l.count {
		if err := ctx.Err(); err != nil {
			return nil, errdefs.Wrap(errdefs.KindOf(err), "lease a uid", err)
		}
		if l.held[l.base+n] != nil {
			continue
		}
		got, err := l.tryEmpty(l.base + n)
		if err != nil {
			return nil, errdefs.Wrap(errdefs.Unavailable, "lease a uid", err)
		}
		if got != nil {
			l.held[got.uid] = got
			return got, nil
		}
	}
	return nil, refused(errdefs.Exhausted, "lease a uid",
		fmt.Sprintf("all %d uids from %d are in use", l.count, l.base))
}

// tryEmpty leases one uid; nil when another has it or processes run under it.
func (l *leases) tryEmpty(uid uint32) (*lease, error) {
	got, err := l.try(uid)
	if err != nil || got == nil {
		return nil, err
	}
	used, err := uidRuns("/proc", uid)
	if err != nil || used && !defence.LeaseOfEmptyUID.Off() {
		got.free()
		return nil, err
	}
	return got, nil
}

// try locks one uid; nil when another holds it.
func (l *leases) try(uid uint32) (*lease, error) {
	name := filepath.Join(l.dir, strconv.FormatUint(uint64(uid), 10)+".lock")
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if !lockNamed(file, name) && !defence.LeaseLock.Off() {
		return nil, file.Close()
	}
	return &lease{uid: uid, owner: l, file: file}, nil
}

// lockNamed locks the file, and makes sure that it is still the one of that
// name: a lease that ends removes its file.
func lockNamed(file *os.File, name string) bool {
	if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false
	}
	mine, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(name)
	return err == nil && os.SameFile(mine, there)
}

// leasesPlace makes the directory, and refuses one that others could have made
// or can write.
func leasesPlace(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return fmt.Errorf("look at %s: %w", dir, err)
	}
	trusted := stat.Mode&unix.S_IFMT == unix.S_IFDIR && int(stat.Uid) == os.Geteuid() && stat.Mode&0o022 == 0
	if !trusted && !defence.LeasesPrivate.Off() {
		return fmt.Errorf("%s is not a directory of the caller's alone", dir)
	}
	return nil
}

// uidRuns reports whether a process has uid among its four.
func uidRuns(proc string, uid uint32) (bool, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return false, err
	}
	want := strconv.FormatUint(uint64(uid), 10)
	for _, e := range entries {
		if name := e.Name(); name[0] < '0' || name[0] > '9' {
			continue
		}
		// The owner of the directory is not it: a process that is not dumpable
		// belongs to root there.
		uids, err := statusField(filepath.Join(proc, e.Name(), "status"), "Uid:")
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue
			}
			return false, err
		}
		if slices.Contains(strings.Fields(uids), want) {
			return true, nil
		}
	}
	return false, nil
}

// statusField reads one line of a /proc/<pid>/status file, without its name.
func statusField(file, name string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(rest), nil
		}
	}
	return "", fmt.Errorf("%s has no %s", file, name)
}

// release gives the lease back; nothing runs under its uid any more.
func (l *lease) release() {
	o := l.owner
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.idle) < maxIdle {
		o.idle = append(o.idle, l)
		return
	}
	delete(o.held, l.uid)
	l.free()
}

// close ends the idle leases.
func (l *leases) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.idle {
		delete(l.held, one.uid)
		one.free()
	}
	l.idle = nil
}

// free ends the lease for everybody.
func (l *lease) free() {
	_ = os.Remove(l.file.Name())
	_ = l.file.Close()
}
