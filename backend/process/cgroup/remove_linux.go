package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// retryEvery is how long to wait for dying processes to leave a cgroup.
const retryEvery = time.Millisecond

// removeTree removes a cgroup and those below it, waiting while it is busy.
// Missing is fine. Directories are reached by descriptor, so that nothing but
// cgroups of this tree can be removed.
func removeTree(ctx context.Context, dir string) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		err := removeOnce(dir)
		if err == nil || !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
		timer.Reset(retryEvery)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is still busy: %w", dir, context.Cause(ctx))
		case <-timer.C:
		}
	}
}

// removeOnce makes one attempt.
func removeOnce(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	top, openErr := openDir(dir)
	if openErr != nil {
		return optional(openErr)
	}
	below := removeBelow(top, maxDepth+1)
	_ = top.Close()
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return errors.Join(&fs.PathError{Op: "rmdir", Path: dir, Err: err}, below)
	}
	return nil
}

// removeBelow removes the directories in dir, depth levels deep at most.
func removeBelow(dir *os.File, depth int) error {
	if depth == 0 {
		return unix.ENOTEMPTY
	}
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return err
	}
	var faults []error
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		if unix.Unlinkat(int(dir.Fd()), entry.Name(), unix.AT_REMOVEDIR) == nil {
			continue
		}
		fd, err := unix.Openat(int(dir.Fd()), entry.Name(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		below := os.NewFile(uintptr(fd), entry.Name())
		faults = append(faults, removeBelow(below, depth-1))
		_ = below.Close()
		if err := unix.Unlinkat(int(dir.Fd()), entry.Name(), unix.AT_REMOVEDIR); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// Sweep ends whatever is left in the cgroups of a sandbox whose host process is
// gone, and removes them. A sandbox of which nothing is left is no error.
func (m *Manager) Sweep(ctx context.Context, id string) error {
	if !idPattern.MatchString(id) && !defence.CgroupNames.Off() {
		return fmt.Errorf("cgroup: %q is not a sandbox id", id)
	}
	var faults []error
	for _, parent := range m.parents() {
		dir := filepath.Join(parent, "berm-"+id)
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if parent == m.tree {
			// A frozen process takes its SIGKILL only when it is thawed.
			_ = write(dir, "cgroup.freeze", "0")
			if !defence.CgroupSweepKill.Off() {
				faults = append(faults, optional(write(dir, "cgroup.kill", "1")))
			}
		} else {
			faults = append(faults, killListed(dir))
		}
		if defence.CgroupSweep.Off() {
			continue
		}
		faults = append(faults, removeTree(ctx, dir))
	}
	return errors.Join(faults...)
}

// killListed ends the processes that a version 1 cgroup lists. Each is named by
// a descriptor first and looked up again after that, so that a reused pid is
// never hit.
func killListed(dir string) error {
	for range 8 {
		text, err := readTrimmed(filepath.Join(dir, "cgroup.procs"))
		if err != nil || text == "" {
			return optional(err)
		}
		held := map[string]int{}
		for _, word := range strings.Fields(text) {
			pid, err := strconv.Atoi(word)
			if err != nil || pid <= 0 {
				continue
			}
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				held[word] = fd
			}
		}
		again, _ := readTrimmed(filepath.Join(dir, "cgroup.procs"))
		for _, word := range strings.Fields(again) {
			if fd, ok := held[word]; ok {
				_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			}
		}
		for _, fd := range held {
			_ = unix.Close(fd)
		}
	}
	return nil
}
