package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/berm-dev/berm/internal/defence"
)

// dropUID is the user without privileges, as in package testlist: an id that no
// account and no lease has.
const dropUID = 61234

const module = "github.com/berm-dev/berm"

// blankSize is the room for names, in bytes.
const blankSize = 192

// blank is in every linked program, once or more: no other text looks like it.
func blank() []byte { return bytes.Repeat([]byte{'~'}, blankSize) }

// program is what tests start beside themselves, by the environment variables
// that name it to them.
type program struct {
	pkg   string
	names []string
}

var programs = [...]program{
	{"cmd/berm-agent", []string{"BERM_AGENT", "BERM_TEST_AGENT"}},
	{"drivertest/payload", []string{"BERM_TEST_PAYLOAD"}},
	{"backend/process/attack/payload", []string{"BERM_TEST_ATTACK"}},
}

// shop has everything that was linked, and the place for copies.
type shop struct {
	options options
	root    string // of the repository
	dir     string
	home    string // of the user without privileges
	cgroups map[string]bool
	// linked has the path of each program and each package's tests.
	linked map[string]string
}

// newShop links what the chosen need.
func newShop(ctx context.Context, o options, chosen []defence.Entry) (*shop, error) {
	root, err := filepath.Abs(".")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "berm-mutants-")
	if err != nil {
		return nil, err
	}
	s := &shop{options: o, root: root, dir: dir, home: filepath.Join(dir, "home"), linked: map[string]string{}, cgroups: cgroups()}
	if err := s.link(ctx, chosen); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *shop) link(ctx context.Context, chosen []defence.Entry) error {
	err := errors.Join(os.Chmod(s.dir, 0o755), os.Mkdir(filepath.Join(s.dir, "tests"), 0o755), os.Mkdir(s.home, 0o700), os.Mkdir(filepath.Join(s.home, "run"), 0o700))
	if err == nil && os.Geteuid() == 0 {
		err = errors.Join(os.Chown(s.home, dropUID, dropUID), os.Chown(filepath.Join(s.home, "run"), dropUID, dropUID))
	}
	if err != nil {
		return err
	}
	for _, p := range programs {
		s.linked[p.pkg] = filepath.Join(s.dir, strings.ReplaceAll(p.pkg, "/", "-"))
		if err := s.build(ctx, s.linked[p.pkg], []string{p.pkg}, "build"); err != nil {
			return err
		}
	}
	var packages []string
	for _, e := range chosen {
		for _, j := range jobsOf(e) {
			packages = append(packages, j.pkg)
		}
	}
	slices.Sort(packages)
	packages = slices.Compact(packages)
	for _, pkg := range packages {
		// The go command names it by the package, which has its folder's name.
		name := path.Base(pkg)
		if pkg == "." {
			name = path.Base(module)
		}
		s.linked[pkg] = filepath.Join(s.dir, "tests", name+".test")
	}
	// All at once: the go command uses every processor, and compiles what they
	// share once.
	return s.build(ctx, filepath.Join(s.dir, "tests")+"/", packages, "test", "-c", "-vet=off")
}

// build runs the go command with the tag and the blank.
func (s *shop) build(ctx context.Context, out string, packages []string, args ...string) error {
	args = append(args, "-tags", "berm_mutants", "-ldflags", "-X "+module+"/internal/defence.off="+string(blank()), "-o", out)
	for _, pkg := range packages {
		args = append(args, "./"+pkg)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = s.root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("link %v: %w\n%s", packages, err, text)
	}
	return nil
}

// copies are programs with names in their blanks.
type copies struct {
	dir string
	// stamped has the path of each.
	stamped map[string]string
	mu      sync.Mutex
}

// stamp makes the copies of a mutant, without names of none. The tests of the
// packages are copied when they are first run.
func (s *shop) stamp(names []defence.Defence, packages []string) (*copies, error) {
	dir, err := os.MkdirTemp(s.dir, "copy-")
	if err != nil {
		return nil, err
	}
	c := &copies{dir: dir, stamped: map[string]string{}}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, errors.Join(err, c.remove())
	}
	text := make([]string, len(names))
	for i, name := range names {
		text[i] = string(name)
	}
	filled := blank()
	if joined := strings.Join(text, ","); len(joined) <= len(filled) {
		copy(filled, joined)
	} else {
		return nil, errors.Join(fmt.Errorf("%q is longer than the blank", joined), c.remove())
	}
	found := 0
	for _, pkg := range packages {
		n, err := c.copy(s.linked[pkg], pkg, filled)
		if err != nil {
			return nil, errors.Join(err, c.remove())
		}
		found += n
	}
	if found == 0 {
		return nil, errors.Join(fmt.Errorf("no program has a switch: %v", packages), c.remove())
	}
	return c, nil
}

// copy copies one program and fills its blanks. It gives their number.
func (c *copies) copy(from, pkg string, filled []byte) (int, error) {
	data, err := os.ReadFile(from)
	if err != nil {
		return 0, err
	}
	found := bytes.Count(data, blank())
	data = bytes.ReplaceAll(data, blank(), filled)
	to := filepath.Join(c.dir, filepath.Base(from))
	if err := os.WriteFile(to, data, 0o755); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stamped[pkg] = to
	return found, os.Chmod(to, 0o755)
}

func (c *copies) remove() error { return os.RemoveAll(c.dir) }

// close removes all that was made, and what mutants left that could not clean up
// after themselves.
func (s *shop) close() error {
	return errors.Join(os.RemoveAll(s.dir), sweepCgroups(s.cgroups))
}
