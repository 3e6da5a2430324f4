package drivertest

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// world is what could be left of sandboxes on this host. Each entry is a line
// for people.
type world struct {
	things     map[string]bool
	goroutines map[string]string // number to stack
}

// settling is how long what was ended may take to be gone.
const settling = 5 * time.Second

// look takes stock.
func (s *suite) look(t *testing.T) world {
	t.Helper()
	w := world{things: map[string]bool{}, goroutines: goroutines()}
	add := func(kind string, names []string) {
		for _, name := range names {
			w.things[kind+" "+name] = true
		}
	}
	add("process", s.processes())
	add("mount", s.mounts(t))
	add("cgroup", s.cgroups())
	add("socket", s.sockets())
	add("descriptor", descriptors())
	add("file", s.files())
	return w
}

// checkLeftovers compares with what was there before, giving what is on its way
// out some time.
func (s *suite) checkLeftovers(t *testing.T, before world) {
	t.Helper()
	deadline := time.Now().Add(settling)
	for {
		left := s.look(t).beyond(before)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("left over:\n\t%s", strings.Join(left, "\n\t"))
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// beyond lists what w has and before had not.
func (w world) beyond(before world) []string {
	var out []string
	for thing := range w.things {
		if !before.things[thing] {
			out = append(out, thing)
		}
	}
	for number, stack := range w.goroutines {
		if _, ok := before.goroutines[number]; !ok {
			out = append(out, "goroutine "+number+" "+stack)
		}
	}
	slices.Sort(out)
	return out
}

// processes lists descendants of this process and processes with the suite's
// mark in their environment.
func (s *suite) processes() []string {
	parents := map[int]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		parents[pid] = parentOf(pid)
		environment, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err == nil && strings.Contains(string(environment), s.mark) {
			out = append(out, describe(pid))
		}
	}
	self := os.Getpid()
	for pid := range parents {
		for up := parents[pid]; up > 0; up = parents[up] {
			if up == self {
				out = append(out, describe(pid))
				break
			}
		}
	}
	return out
}

// parentOf reads a process's parent, 0 when it is gone.
func parentOf(pid int) int {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(line[strings.LastIndexByte(string(line), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return parent
}

func describe(pid int) string {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	command, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	name, _ := os.ReadFile(filepath.Join(dir, "comm"))
	return strconv.Itoa(pid) + " " + strings.TrimSpace(string(name)) + " " + strconv.Quote(string(command))
}

// mounts lists mounts of this process's namespace that have to do with berm or
// the suite's own directories.
func (s *suite) mounts(t *testing.T) []string {
	t.Helper()
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(content)) {
		if strings.Contains(line, filepath.Dir(s.stateDir)) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// cgroups lists cgroups that carry the name of a sandbox of the suite.
func (s *suite) cgroups() []string {
	s.mu.Lock()
	names := map[string]bool{}
	for id := range s.machines {
		names["berm-"+id] = true
	}
	s.mu.Unlock()
	var out []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // cgroups come and go while they are listed
		}
		if names[d.Name()] {
			out = append(out, path)
		}
		return nil
	})
	return out
}

// sockets lists named unix sockets below the suite's directories.
func (s *suite) sockets() []string {
	content, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(content)) {
		if strings.Contains(line, filepath.Dir(s.stateDir)) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// descriptors lists this process's descriptors by what they are. Numbers are
// used again, so that equal ones are counted instead.
func descriptors() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	counts := map[string]int{}
	var out []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil || strings.HasPrefix(target, "/proc/") {
			continue // the one that lists them
		}
		kind, _, numbered := strings.Cut(target, ":[")
		if numbered {
			target = kind
		}
		counts[target]++
		out = append(out, target+" #"+strconv.Itoa(counts[target]))
	}
	return out
}

// files lists what lies in the suite's temporary and state directories. The
// state directory's own skeleton may stay.
func (s *suite) files() []string {
	var out []string
	for _, root := range []string{os.TempDir(), s.stateDir} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			relative, relErr := filepath.Rel(s.stateDir, path)
			switch {
			case err != nil || relErr != nil:
				return nil //nolint:nilerr // files come and go while they are listed
			case root == s.stateDir && d.IsDir() && !strings.Contains(relative, "/"):
				return nil
			case root != s.stateDir && strings.HasPrefix(d.Name(), "Test"):
				return fs.SkipDir // of the testing package, which removes it itself
			case path == root:
				return nil
			}
			out = append(out, path)
			return nil
		})
	}
	return out
}

// goroutines gives all goroutines but those of the runtime and the testing
// package, by number.
func goroutines() map[string]string {
	buffer := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buffer, true)
		if n < len(buffer) {
			buffer = buffer[:n]
			break
		}
		buffer = make([]byte, 2*len(buffer))
	}
	out := map[string]string{}
	for i, stack := range strings.Split(string(buffer), "\n\n") {
		head, rest, _ := strings.Cut(strings.TrimPrefix(stack, "goroutine "), " ")
		ours := strings.Contains(rest, "created by testing.") || strings.Contains(rest, "os/signal.")
		if i == 0 || ours {
			continue // the one that looks, tests, and what lives as long as the process
		}
		out[head] = rest
	}
	return out
}
