package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// settling is how long a cgroup has to lie empty to count as left: those of
// sandboxes that are being made elsewhere are empty for a moment.
const settling = 2 * time.Second

// cgroups lists those of sandboxes on this host.
func cgroups() map[string]bool {
	out := map[string]bool{}
	for _, pattern := range []string{"/sys/fs/cgroup/berm/berm-*", "/sys/fs/cgroup/*/berm/berm-*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		for _, dir := range found {
			out[dir] = true
		}
	}
	return out
}

// sweepCgroups removes the empty ones that were not there before: a mutant that
// does not clean up leaves some.
func sweepCgroups(before map[string]bool) error {
	var left []string
	for dir := range cgroups() {
		if !before[dir] && idle(dir) {
			left = append(left, dir)
		}
	}
	if len(left) == 0 {
		return nil
	}
	time.Sleep(settling)
	var faults []error
	for _, dir := range left {
		if idle(dir) {
			faults = append(faults, removeCgroup(dir))
		}
	}
	return errors.Join(faults...)
}

// idle is true for a cgroup without processes, in it and below.
func idle(dir string) bool {
	empty := true
	_ = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "cgroup.procs" {
			text, err := os.ReadFile(name)
			empty = empty && err == nil && strings.TrimSpace(string(text)) == ""
		}
		return nil
	})
	return empty
}

// removeCgroup removes a cgroup and those below, the deepest first. One that is
// gone is no fault.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	faults := []error{err}
	for _, entry := range entries {
		if entry.IsDir() {
			faults = append(faults, removeCgroup(filepath.Join(dir, entry.Name())))
		}
	}
	if err := os.Remove(dir); !errors.Is(err, fs.ErrNotExist) {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}
