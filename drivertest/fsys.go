package drivertest

import (
	"errors"
	"io/fs"
	"testing"
	"testing/fstest"
)

func fsysGroup() group {
	return group{name: "fs", behaviours: []behaviour{
		{"testfs", fsTestFS},
		{"walk", fsWalk},
		{"bounds", fsBounds},
	}}
}

// fsTestFS: the standard library's own suite.
func fsTestFS(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, `mkdir -p tree/a/b tree/empty; echo one > tree/one; echo two > tree/a/two; printf x > tree/a/b/three; ln -s ../one tree/a/link; ln -s b tree/a/dirlink`)
	if err := fstest.TestFS(sb.FS(bounded(t), "tree"), "one", "a/two", "a/b/three", "empty", "a/link"); err != nil {
		t.Error(err)
	}
}

func fsWalk(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	sh(t, sb, `mkdir -p tree/a; echo one > tree/one; echo two > tree/a/two`)
	fsys := sb.FS(bounded(t), sb.WorkDir()+"/tree")
	got := ""
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		got += name + " "
		return err
	})
	if err != nil || got != ". a a/two one " {
		t.Errorf("walk: %q, %v", got, err)
	}
	if data, err := fs.ReadFile(fsys, "a/two"); err != nil || string(data) != "two\n" {
		t.Errorf("read: %q, %v", data, err)
	}
}

// fsBounds: io/fs's rules for names hold, and its errors are there.
func fsBounds(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	fsys := sb.FS(bounded(t), "")
	for _, name := range []string{"/etc/passwd", "../x", "a/../b", "", "a//b", "a/"} {
		if _, err := fsys.Open(name); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("open %q: %v", name, err)
		}
	}
	_, err := fsys.Open("missing")
	var pathErr *fs.PathError
	if !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &pathErr) || pathErr.Path != "missing" {
		t.Errorf("open a missing file: %v", err)
	}
}
