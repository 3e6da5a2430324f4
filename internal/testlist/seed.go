package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// seedBudget bounds what is copied of the build cache, in bytes. It is an aid
// only: what is missing is compiled again.
const seedBudget = 2 << 30

// seed lets tests that call the go command work for the user without privileges:
// dependencies go into the tree's vendor folder, and what root has compiled is
// shared, by link where that is possible.
func (a account) seed(ctx context.Context) error {
	vendor := exec.CommandContext(ctx, "go", "mod", "vendor", "-o", filepath.Join(a.tree, "vendor"))
	if out, err := vendor.CombinedOutput(); err != nil {
		return fmt.Errorf("go mod vendor: %w\n%s", err, out)
	}
	cache, err := goOutput(ctx, "env", "GOCACHE")
	if err != nil {
		return err
	}
	return share(cache, a.cache())
}

func (a account) cache() string { return filepath.Join(a.home, "go-build") }

// share makes a copy of a tree whose folders belong to the user. Files that are
// gone in the meantime are left out.
func share(from, to string) error {
	copied := int64(0)
	err := filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if entry.IsDir() {
			if entry.Name() == "fuzz" {
				return filepath.SkipDir
			}
			return mkdirFor(target, dropUID)
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		if os.Link(name, target) == nil {
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if copied += info.Size(); copied > seedBudget {
			return filepath.SkipAll
		}
		return copyFile(name, target)
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
