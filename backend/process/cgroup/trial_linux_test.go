package cgroup

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestTrialsOfTheDeadGo: what a process that was killed while it opened has left
// is removed; a trial in use is not.
func TestTrialsOfTheDeadGo(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	left := filepath.Join(parent, trialPrefix+"left")
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Fatal(err)
	}
	used, err := newTrial(parent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(left); err == nil {
		t.Errorf("%s is left", left)
	}
	sweepTrials(parent)
	if _, err := os.Lstat(used.dir); err != nil {
		t.Errorf("a trial in use was removed: %v", err)
	}
	used.close()
	if entries, err := os.ReadDir(parent); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// TestTrialsAtOnce: sweeps do not take each other's new trials away.
func TestTrialsAtOnce(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for range 200 {
				one, err := newTrial(parent)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Lstat(one.dir); err != nil {
					t.Error(err)
				}
				one.close()
			}
		})
	}
	work.Wait()
	if entries, err := os.ReadDir(parent); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
