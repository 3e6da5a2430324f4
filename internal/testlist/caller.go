package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Of the user without privileges: an id that no account and no lease has, so
// that nothing on the machine belongs to it.
const (
	dropUID  = 61234
	dropName = "berm-test"
)

// caller is who runs the tests.
type caller struct {
	// name is also the list's.
	name string
	// drop: this is root, and the tests run as the user without privileges.
	drop bool
}

func (c caller) test(ctx context.Context, o options) (*results, error) {
	module, err := goOutput(ctx, "list", "-m")
	if err != nil {
		return nil, err
	}
	r := newResults(module)
	r.whole = slices.Equal(o.packages, []string{"./..."})
	if !c.drop {
		return r, direct(ctx, o, r)
	}
	return r, dropped(ctx, o, r)
}

// direct leaves everything to the go command.
func direct(ctx context.Context, o options, r *results) error {
	args := []string{"test", "-json", "-count=1", "-timeout=" + o.timeout}
	if o.race {
		args = append(args, "-race")
	}
	if !o.long {
		args = append(args, "-short")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, o.packages...)...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	return pump(cmd, r)
}

// pump starts cmd and reads its events. That tests failed is in the events.
func pump(cmd *exec.Cmd, r *results) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := r.read(out)
	waitErr := cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(waitErr, &exit) && exit.Exited() && r.any() {
		waitErr = nil
	}
	return errors.Join(readErr, waitErr)
}

// dropped compiles each package's tests as root and runs them as the user, in a
// copy of the tree that belongs to that user.
func dropped(ctx context.Context, o options, r *results) (err error) {
	chosen, err := userPackages(ctx, o)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "berm-testlist-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	if err := os.Chmod(scratch, 0o755); err != nil {
		return err
	}
	user := account{tree: filepath.Join(scratch, "tree"), home: filepath.Join(scratch, "home")}
	if err := user.prepare("."); err != nil {
		return err
	}
	if err := user.seed(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "testlist: tests that compile something will take longer:", err)
	}
	// As many at once as the go command runs on two processors.
	places := make(chan struct{}, userTests)
	faults := make([]error, len(chosen))
	var running sync.WaitGroup
	for i, pkg := range chosen {
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			faults[i] = user.test(ctx, o, r, pkg, filepath.Join(scratch, fmt.Sprintf("%d.test", i)))
		})
	}
	running.Wait()
	return errors.Join(faults...)
}

// userTests is how many packages are tested at once.
const userTests = 2

// test compiles and runs one package's tests.
func (a account) test(ctx context.Context, o options, r *results, pkg, program string) error {
	if err := compile(ctx, o, pkg, program); err != nil {
		r.add(event{Action: "output", Package: pkg, Output: err.Error() + "\n"})
		r.add(event{Action: "fail", Package: pkg})
		return nil //nolint:nilerr // it is among the results
	}
	if _, err := os.Stat(program); err != nil {
		return nil //nolint:nilerr // there are no test files
	}
	return a.run(ctx, o, r, pkg, program)
}

// userPackages intersects the packages that were asked for with those that
// matter to a user without privileges.
func userPackages(ctx context.Context, o options) ([]string, error) {
	patterns, err := readLines(filepath.Join(o.lists, "user-packages.txt"))
	if err != nil {
		return nil, err
	}
	mattering, err := goOutput(ctx, append([]string{"list", "-e"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	asked, err := goOutput(ctx, append([]string{"list", "-e"}, o.packages...)...)
	if err != nil {
		return nil, err
	}
	want := strings.Fields(asked)
	return slices.DeleteFunc(strings.Fields(mattering), func(p string) bool { return !slices.Contains(want, p) }), nil
}

func compile(ctx context.Context, o options, pkg, program string) error {
	args := []string{"test", "-c", "-o", program}
	if o.race {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(ctx, "go", append(args, pkg)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compile: %w\n%s", err, out)
	}
	return nil
}

// goOutput runs the go command; words on its standard error (downloads) are
// passed on.
func goOutput(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// account is the user without privileges.
type account struct{ tree, home string }

// prepare copies the repository and makes a home.
func (a account) prepare(root string) error {
	if err := copyTree(root, a.tree); err != nil {
		return fmt.Errorf("copy the tree: %w", err)
	}
	return errors.Join(mkdirFor(a.home, dropUID), mkdirFor(a.runtime(), dropUID))
}

// runtime is where the user's state goes, so that nothing is left in /tmp.
func (a account) runtime() string { return filepath.Join(a.home, "run") }

// run runs one test program and converts what it prints into events.
func (a account) run(ctx context.Context, o options, r *results, pkg, program string) error {
	args := []string{"-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + o.timeout}
	if !o.long {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = filepath.Join(a.tree, filepath.FromSlash(r.folder(pkg)))
	cmd.Env = a.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: dropUID, Gid: dropUID}}
	cmd.WaitDelay = 10 * time.Second
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		return errors.Join(err, write.Close())
	}
	convert := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", pkg)
	convert.Stdin, convert.Stderr = read, os.Stderr
	if err := write.Close(); err != nil {
		return err
	}
	pumpErr := pump(convert, r)
	if waitErr := cmd.Wait(); waitErr != nil {
		r.add(event{Action: "output", Package: pkg, Output: waitErr.Error() + "\n"})
		r.add(event{Action: "fail", Package: pkg})
	}
	return pumpErr
}

// environment is the caller's without what names root's folders and sessions.
// What a BERM_ variable names below the tree is found in the copy.
func (a account) environment() []string {
	own := []string{
		"HOME=" + a.home, "USER=" + dropName, "LOGNAME=" + dropName, "SHELL=/bin/sh", "PWD=" + a.tree, "XDG_RUNTIME_DIR=" + a.runtime(),
		"GOCACHE=" + a.cache(), "GOPATH=" + filepath.Join(a.home, "go"),
	}
	root, err := filepath.Abs(".")
	if err != nil {
		root = ""
	}
	return append(slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return strings.HasPrefix(name, "XDG_") || strings.HasPrefix(name, "SUDO_") || strings.HasPrefix(name, "BERM_") ||
			slices.Contains([]string{"HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "MAIL", "GOCACHE", "GOPATH", "GOMODCACHE"}, name)
	}), append(own, a.moved(root)...)...)
}

func (a account) moved(root string) []string {
	var out []string
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, "BERM_") {
			continue
		}
		if below, ok := strings.CutPrefix(value, root+"/"); ok && root != "" {
			value = filepath.Join(a.tree, below)
		}
		out = append(out, name+"="+value)
	}
	return out
}

// mkdirFor makes a private folder of a user's.
func mkdirFor(dir string, uid int) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.Chown(dir, uid, uid)
}

// copyTree copies what the tests may read: all but git's data.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case rel == ".git":
			return skipEntry(entry)
		case entry.IsDir():
			return mkdirFor(target, dropUID)
		case entry.Type().IsRegular():
			return copyFile(name, target)
		}
		return nil
	})
}

func skipEntry(entry os.DirEntry) error {
	if entry.IsDir() {
		return filepath.SkipDir
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm()|0o444)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chown(dropUID, dropUID), out.Close())
}
