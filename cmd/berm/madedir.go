package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// parentFault says why a missing directory cannot be made.
func parentFault(dir string) string {
	parent := filepath.Dir(dir)
	info, err := os.Stat(parent)
	switch {
	case err != nil:
		return fmt.Sprintf("%s cannot be made: %v", dir, err)
	case !info.IsDir():
		return fmt.Sprintf("%s cannot be made: %s is not a directory", dir, parent)
	}
	return ""
}

// madeDirs are directories that this run has made.
type madeDirs struct{ made map[string]os.FileInfo }

// makeDirs makes directories, or none.
func makeDirs(paths []string) (*madeDirs, error) {
	m := &madeDirs{made: map[string]os.FileInfo{}}
	for _, path := range paths {
		err := os.Mkdir(path, 0o755)
		if err == nil {
			var info os.FileInfo
			if info, err = os.Lstat(path); err == nil {
				m.made[path] = info
			}
		}
		if err != nil {
			m.remove()
			return nil, fmt.Errorf("make a directory: %w", err)
		}
	}
	return m, nil
}

// remove takes the directories away again. One that is not empty, or is another
// one by now, belongs to somebody else.
func (m *madeDirs) remove() {
	for path, made := range m.made {
		if now, err := os.Lstat(path); err == nil && os.SameFile(now, made) {
			_ = os.Remove(path)
		}
	}
}
