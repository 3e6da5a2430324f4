package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// trialPrefix begins the names of cgroups that Open makes to see what works.
const trialPrefix = "trial-"

// trial is such a cgroup. Its lock ends with the process, so that one that was
// left by a killed process can be told from one in use.
type trial struct {
	dir  string
	lock *os.File
}

// newTrial makes a trial cgroup in parent, and removes those that were left.
func newTrial(parent string) (*trial, error) {
	sweepTrials(parent)
	for {
		dir, err := os.MkdirTemp(parent, trialPrefix)
		if err != nil {
			return nil, err
		}
		t, err := lockTrial(dir)
		if err == nil && t != nil {
			return t, nil
		}
		_ = os.Remove(dir)
		// Another sweep may have taken it between making and locking.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// close removes the cgroup.
func (t *trial) close() {
	_ = os.Remove(t.dir)
	_ = t.lock.Close()
}

// lockTrial takes a trial's lock without waiting; nil when another has it.
func lockTrial(dir string) (*trial, error) {
	lock, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, err
	}
	if _, err := os.Lstat(dir); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return &trial{dir: dir, lock: lock}, nil
}

// sweepTrials removes the trials whose process is gone. What cannot be removed
// is left for the next time.
func sweepTrials(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), trialPrefix) || defence.CgroupTrialSweep.Off() {
			continue
		}
		if t, err := lockTrial(filepath.Join(parent, entry.Name())); err == nil && t != nil {
			t.close()
		}
	}
}
