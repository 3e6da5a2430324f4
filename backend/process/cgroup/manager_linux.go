package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// parentName is berm's own cgroup in each hierarchy.
const parentName = "berm"

// controllerNames are those that berm uses.
var controllerNames = [...]string{"memory", "pids", "cpu"}

// Support says what this host offers.
type Support struct {
	// Memory, Processes and CPUs: payloads can be bounded as a whole.
	Memory, Processes, CPUs bool
	// Kill: each command can have a cgroup of its own, killed as a whole.
	Kill bool
	// Facts are what was seen, for people.
	Facts []string
	// Reasons say why something is missing, each with no full stop.
	Reasons []string
}

// Manager knows where cgroups can be made. It is immutable and safe for
// concurrent use. It holds no descriptors and needs no closing.
type Manager struct {
	// tree is berm's parent in the unified hierarchy, empty for none.
	tree       string
	nsDelegate bool
	// unified are the controllers that tree's children can use.
	unified []string
	// legacy maps a controller to berm's parent in its version 1 hierarchy.
	legacy  map[string]string
	detach  func(dir string) (*os.File, error)
	support Support
}

// Host are the facts that Open looks at; the zero value is this host.
type Host struct {
	// MountInfo and Own name the files to read, for tests.
	MountInfo, Own string
	// Detach opens a directory as the root of a detached mount, for a caller that
	// may not do it by itself; nil for none. It may be called concurrently. Where
	// it fails there is no version 2 tree to use: a descriptor that an agent gets
	// must not lead up to the host's directories.
	Detach func(dir string) (*os.File, error)
}

// Close removes berm's own parents where they are empty. Another Manager makes
// them again when it needs them.
func (m *Manager) Close() {
	for _, parent := range m.parents() {
		_ = os.Remove(parent)
	}
}

// parents lists berm's parent in each hierarchy, each once.
func (m *Manager) parents() []string {
	var out []string
	if m.tree != "" {
		out = append(out, m.tree)
	}
	for _, controller := range controllerNames {
		if p := m.legacy[controller]; p != "" && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// makeBelow makes a directory in one of berm's parents, and the parent again if
// another Manager has removed it meanwhile.
func (m *Manager) makeBelow(parent, name string) (string, error) {
	dir := filepath.Join(parent, name)
	for range 3 {
		err := makeDir(dir)
		if !errors.Is(err, fs.ErrNotExist) {
			return dir, err
		}
		if err := makeDir(parent); err != nil && !errors.Is(err, fs.ErrExist) {
			return dir, err
		}
		if parent == m.tree {
			enable(filepath.Dir(parent), parent)
		}
	}
	return dir, fmt.Errorf("%s vanishes again and again: %w", parent, fs.ErrNotExist)
}

// Open finds out by trying what this host offers. It never fails: a host
// without usable cgroups gives a Manager whose Support says so and why.
func Open(host Host) *Manager {
	m := &Manager{legacy: map[string]string{}, detach: host.Detach}
	mounts, err := hierarchies(host.MountInfo)
	if err != nil {
		m.miss("cgroups cannot be listed: %v", err)
		return m
	}
	for _, h := range mounts {
		if h.v2 {
			m.openUnified(h, host)
		}
	}
	for _, h := range mounts {
		if !h.v2 {
			m.openLegacy(h)
		}
	}
	if len(mounts) == 0 {
		m.miss("no cgroup file system is mounted")
	}
	m.support.Memory, m.support.Processes, m.support.CPUs = m.has("memory"), m.has("pids"), m.has("cpu")
	m.support.Kill = m.tree != ""
	return m
}

// Support says what was found.
func (m *Manager) Support() Support { return m.support }

func (m *Manager) miss(format string, args ...any) {
	m.support.Reasons = append(m.support.Reasons, fmt.Sprintf(format, args...))
}

func (m *Manager) saw(format string, args ...any) {
	m.support.Facts = append(m.support.Facts, fmt.Sprintf(format, args...))
}

func (m *Manager) has(controller string) bool {
	return slices.Contains(m.unified, controller) || m.legacy[controller] != ""
}

// hierarchies reads the mount table.
func hierarchies(name string) ([]hierarchy, error) {
	if name == "" {
		name = "/proc/self/mountinfo"
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return parseMounts(file)
}

// openUnified looks for a place in the version 2 tree: below the root of the mount
// for root, and below the caller's own cgroup and those above it as far as they
// were delegated to the caller. It takes the first that gives its children all
// controllers that there are: a cgroup that holds other processes, as a login's or
// a service's does, gives none, but one above it can. If none gives all, it takes
// the first of those that give most.
func (m *Manager) openUnified(h hierarchy, host Host) {
	m.nsDelegate = h.nsDelegate
	var reasons []string
	for _, base := range bases(host) {
		tree, unified, reason := m.tryUnified(filepath.Join(h.root, base))
		if reason != "" {
			reasons = append(reasons, reason)
			continue
		}
		if m.tree == "" || len(unified) > len(m.unified) {
			m.leave()
			m.tree, m.unified = tree, unified
		} else if tree != m.tree {
			_ = os.Remove(tree)
		}
		if len(m.unified) == len(offered(h.root)) {
			break
		}
	}
	switch {
	case m.tree != "":
		m.saw("cgroup v2 at %s with %s", m.tree, listed(m.unified))
	case len(reasons) > 0:
		m.miss("%s", reasons[0])
	default:
		m.miss("cgroup v2: the caller's own cgroup is not visible")
	}
}

// leave removes the parent that a better one replaces, if nobody uses it.
func (m *Manager) leave() {
	if m.tree != "" {
		_ = os.Remove(m.tree)
	}
}

// bases are the cgroups that a place is looked for in, best first.
func bases(host Host) []string {
	if host.Own == "" {
		host.Own = "/proc/self/cgroup"
	}
	var out []string
	if os.Geteuid() == 0 {
		out = append(out, "/")
	}
	data, err := os.ReadFile(host.Own)
	if err != nil {
		return out
	}
	own := parseOwn(string(data))
	if own == "" || strings.HasPrefix(own, "/..") {
		return out
	}
	for _, base := range ancestors(own) {
		if !slices.Contains(out, base) {
			out = append(out, base)
		}
	}
	return out
}

// offered are the controllers that the unified hierarchy has for berm.
func offered(root string) []string {
	var out []string
	for _, controller := range controllerNames {
		if listedIn(filepath.Join(root, "cgroup.controllers"), controller) {
			out = append(out, controller)
		}
	}
	return out
}

// tryUnified makes berm's parent below base and proves that a cgroup can be made
// there, has cgroup.kill, and can be entered and handed to an agent. With a reason
// nothing is left.
func (m *Manager) tryUnified(base string) (tree string, unified []string, reason string) {
	if err := unix.Access(filepath.Join(base, "cgroup.procs"), unix.W_OK); err != nil {
		return "", nil, fmt.Sprintf("cgroup v2: %s is not delegated to this user: %v", base, err)
	}
	tree = filepath.Join(base, parentName)
	if err := makeDir(tree); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", nil, fmt.Sprintf("cgroup v2: %s cannot be made: %v", tree, plain(err))
	}
	defer func() {
		if reason != "" {
			_ = os.Remove(tree)
		}
	}()
	unified = enable(base, tree)
	trial, err := newTrial(tree)
	if err != nil {
		return "", nil, fmt.Sprintf("cgroup v2: no cgroup can be made in %s: %v", tree, plain(err))
	}
	defer trial.close()
	if _, err := os.Stat(filepath.Join(trial.dir, "cgroup.kill")); err != nil {
		return "", nil, "cgroup v2: this kernel has no cgroup.kill (needs 5.14)"
	}
	for _, file := range []string{"cgroup.procs", "cgroup.kill", "cgroup.subtree_control"} {
		if err := unix.Access(filepath.Join(trial.dir, file), unix.W_OK); err != nil {
			return "", nil, fmt.Sprintf("cgroup v2: %s of a new cgroup is not writable: %v", file, err)
		}
	}
	alone, err := m.openAlone(trial.dir)
	if err != nil {
		return "", nil, fmt.Sprintf("cgroup v2: %s cannot be given to an agent without a way up from it: %v", tree, plain(err))
	}
	_ = alone.Close()
	return tree, unified, ""
}

// enable turns on berm's controllers for the children of tree, where base has
// them to give. What cannot be turned on is left out.
func enable(base, tree string) []string {
	var on []string
	for _, controller := range controllerNames {
		if !listedIn(filepath.Join(tree, "cgroup.controllers"), controller) &&
			!grant(base, controller) {
			continue
		}
		if os.WriteFile(filepath.Join(tree, "cgroup.subtree_control"), []byte("+"+controller), 0) == nil {
			on = append(on, controller)
		}
	}
	return on
}

// grant makes base give one controller to its children. A cgroup that holds
// processes cannot; where this process is the only one there, as in a scope of
// its own, it moves to a leaf first.
func grant(base, controller string) bool {
	if !listedIn(filepath.Join(base, "cgroup.controllers"), controller) {
		return false
	}
	control := filepath.Join(base, "cgroup.subtree_control")
	err := os.WriteFile(control, []byte("+"+controller), 0)
	if errors.Is(err, unix.EBUSY) && evacuate(base) {
		err = os.WriteFile(control, []byte("+"+controller), 0)
	}
	return err == nil
}

// evacuate moves this process out of base into a leaf below it, if it is alone.
func evacuate(base string) bool {
	self := strconv.Itoa(os.Getpid())
	if procs, err := readTrimmed(filepath.Join(base, "cgroup.procs")); err != nil || procs != self {
		return false
	}
	leaf := filepath.Join(base, parentName+"-host")
	if err := makeDir(leaf); err != nil && !errors.Is(err, fs.ErrExist) {
		return false
	}
	return os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(self), 0) == nil
}

// openLegacy tries a version 1 hierarchy for the controllers that the unified
// one does not have.
func (m *Manager) openLegacy(h hierarchy) {
	var wanted []string
	for _, controller := range h.controllers {
		if !m.has(controller) {
			wanted = append(wanted, controller)
		}
	}
	if len(wanted) == 0 {
		return
	}
	parent := filepath.Join(h.root, parentName)
	if err := makeDir(parent); err != nil && !errors.Is(err, fs.ErrExist) {
		m.miss("cgroup v1 %s: %s cannot be made: %v", listed(wanted), parent, plain(err))
		return
	}
	trial, err := newTrial(parent)
	if err != nil {
		m.miss("cgroup v1 %s: no cgroup can be made in %s: %v", listed(wanted), parent, plain(err))
		return
	}
	defer trial.close()
	tasks, err := os.OpenFile(filepath.Join(trial.dir, "tasks"), os.O_WRONLY, 0)
	if err != nil {
		m.miss("cgroup v1 %s: a new cgroup cannot be entered: %v", listed(wanted), plain(err))
		return
	}
	_ = tasks.Close()
	for _, controller := range wanted {
		if err := limitLegacy(trial.dir, controller, Limits{MemoryBytes: 64 << 20, Processes: 16, CPUs: 1}); err != nil {
			m.miss("cgroup v1 %s: a limit cannot be set: %v", controller, err)
			continue
		}
		m.legacy[controller] = parent
		m.saw("cgroup v1 %s at %s", controller, parent)
	}
}

// listedIn reports whether a file of space-separated words has word.
func listedIn(file, word string) bool {
	text, err := readTrimmed(file)
	return err == nil && slices.Contains(strings.Fields(text), word)
}

// listed joins names for a sentence.
func listed(names []string) string {
	if len(names) == 0 {
		return "no controllers"
	}
	return strings.Join(names, ", ")
}

// plain drops the path that the caller names already.
func plain(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}
