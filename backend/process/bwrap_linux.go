package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berm-dev/berm/internal/defence"
)

// oldestBwrap has --disable-userns, --size and --perms.
var oldestBwrap = [...]int{0, 8, 0}

// bwrapNeeds are the options that a sandbox cannot do without.
var bwrapNeeds = [...]string{
	"--args", "--as-pid-1", "--die-with-parent", "--disable-userns", "--info-fd", "--perms", "--remount-ro",
	"--ro-bind-data", "--seccomp", "--size",
}

// queryLimit bounds one question to bubblewrap.
const queryLimit = 5 * time.Second

const (
	// queryGrace is how long the answer's pipe may stay open after the answer.
	queryGrace = time.Second
	// maxAnswer bounds what is kept of an answer, in bytes.
	maxAnswer = 64 << 10
)

// head keeps the first bytes that are written to it.
type head struct{ text bytes.Buffer }

// Write never fails.
func (h *head) Write(p []byte) (int, error) {
	h.text.Write(p[:min(len(p), maxAnswer-h.text.Len())])
	return len(p), nil
}

// bwrap is an installed bubblewrap.
type bwrap struct {
	path    string
	version string
	// bindFD: it can bind an open directory.
	bindFD bool
}

// toolbox is how the host is asked, so that tests can answer.
type toolbox struct {
	lookPath func(string) (string, error)
	stat     func(string) (fs.FileInfo, error)
	// output runs a program with one argument and gives what it printed.
	output   func(ctx context.Context, path, arg string) (string, error)
	readFile func(string) (string, error)
	// otherRoot reports that the first process has another root directory; nil
	// where that cannot be said.
	otherRoot func() bool
	// otherProc reports that /proc numbers processes otherwise than they are here;
	// nil where that cannot be said.
	otherProc func() bool
	euid, pid int
}

// thisHost asks the real one.
func thisHost() toolbox {
	return toolbox{
		lookPath: exec.LookPath,
		stat:     os.Stat,
		euid:     os.Geteuid(),
		pid:      os.Getpid(),
		otherRoot: func() bool {
			own, err := os.Stat("/")
			first, firstErr := os.Stat("/proc/1/root/")
			return errors.Join(err, firstErr) == nil && !os.SameFile(own, first)
		},
		otherProc: func() bool {
			self, err := os.Readlink("/proc/self")
			return err == nil && self != strconv.Itoa(os.Getpid())
		},
		readFile: func(name string) (string, error) {
			data, err := os.ReadFile(name)
			return strings.TrimSpace(string(data)), err
		},
		output: func(ctx context.Context, path, arg string) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, queryLimit)
			defer cancel()
			cmd := exec.CommandContext(ctx, path, arg)
			cmd.Env = []string{"LC_ALL=C"}
			// A child of its that keeps the pipe must not keep us.
			cmd.WaitDelay = queryGrace
			out := &head{}
			cmd.Stdout, cmd.Stderr = out, out
			err := cmd.Run()
			return out.text.String(), err
		},
	}
}

// findBwrap finds bubblewrap and looks whether it will do. Every fault that it
// finds is a reason.
func (t toolbox) findBwrap(ctx context.Context, path string) (bwrap, []string) {
	if path == "" {
		found, err := t.lookPath("bwrap")
		if err != nil {
			return bwrap{}, []string{"bubblewrap (bwrap) is not installed, or not in PATH"}
		}
		path = found
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return bwrap{}, []string{fmt.Sprintf("bubblewrap at %s: %v", path, err)}
	}
	b := bwrap{path: absolute}
	info, err := t.stat(absolute)
	switch {
	case err != nil:
		return b, []string{fmt.Sprintf("bubblewrap at %s cannot be used: %v", absolute, plainPath(err))}
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return b, []string{fmt.Sprintf("%s is not a program", absolute)}
	case info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 && !defence.BubblewrapWithoutSetuid.Off():
		return b, []string{fmt.Sprintf("%s is setuid: berm does not run with privileges that it was not given", absolute)}
	}
	var help, version string
	var helpErr, versionErr error
	var asking sync.WaitGroup
	asking.Go(func() { help, helpErr = t.output(ctx, absolute, "--help") })
	version, versionErr = t.output(ctx, absolute, "--version")
	asking.Wait()
	switch {
	case helpErr != nil:
		return b, []string{fmt.Sprintf("%s --help: %v", absolute, helpErr)}
	case versionErr != nil:
		return b, []string{fmt.Sprintf("%s --version: %v", absolute, versionErr)}
	}
	b.bindFD = hasOption(help, "--bind-fd") && hasOption(help, "--ro-bind-fd")
	return b, b.judge(version, help)
}

// judge compares version and options with what is needed.
func (b *bwrap) judge(version, help string) []string {
	var reasons []string
	parsed, ok := parseVersion(version)
	switch {
	case !ok:
		reasons = append(reasons, fmt.Sprintf("%s does not say its version: %q", b.path, firstLine(version)))
	case slices.Compare(parsed, oldestBwrap[:]) < 0 && !defence.BubblewrapVersion.Off():
		reasons = append(reasons, fmt.Sprintf("bubblewrap %s is too old, 0.8.0 is needed", dotted(parsed)))
	}
	b.version = dotted(parsed)
	for _, option := range bwrapNeeds {
		if !hasOption(help, option) {
			reasons = append(reasons, fmt.Sprintf("%s has no option %s", b.path, option))
		}
	}
	return reasons
}

// hasOption finds an option in the help text.
func hasOption(help, option string) bool {
	for line := range strings.Lines(help) {
		if words := strings.Fields(line); len(words) > 0 && words[0] == option {
			return true
		}
	}
	return false
}

// parseVersion reads "bubblewrap 0.8.0".
func parseVersion(text string) ([]int, bool) {
	words := strings.Fields(firstLine(text))
	if len(words) < 2 || words[0] != "bubblewrap" {
		return nil, false
	}
	var out []int
	for _, part := range strings.Split(words[1], ".") {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			return nil, false
		}
		out = append(out, n)
		if digits != part {
			break
		}
	}
	return out, len(out) >= 2
}

func dotted(version []int) string {
	words := make([]string, len(version))
	for i, n := range version {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ".")
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if len(line) > 200 {
		line = line[:200]
	}
	return line
}

// plainPath drops the path that the caller names already.
func plainPath(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// mapped reports whether the uids of the range exist in this user namespace.
func (t toolbox) mapped(base, count uint32) bool {
	text, err := t.readFile(uidMapFile)
	if err != nil {
		return false
	}
	for line := range strings.Lines(text) {
		var inside, outside, length uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &length); err == nil &&
			uint64(base) >= inside && uint64(base)+uint64(count) <= inside+length {
			return true
		}
	}
	return false
}
