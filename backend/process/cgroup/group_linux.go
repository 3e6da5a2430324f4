package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// idPattern is what a sandbox's id must look like to become part of a path.
var idPattern = regexp.MustCompile(`^[a-z0-9]{20}$`)

// Names of the parts of a sandbox's version 2 cgroup.
const (
	agentName   = "agent"
	payloadName = "payload"
)

// Bounds of what an agent can make below its payload directory.
const (
	maxDescendants = 4096
	maxDepth       = 3
)

// Group is the cgroups of one sandbox. All methods may be called concurrently,
// except that Start, Adopt and Limit belong to its creation, in this order.
type Group struct {
	manager  *Manager
	name     string
	uid, gid int
	limits   Limits

	mu      sync.Mutex
	dirs    []string // made so far, parents before children
	start   *os.File // version 2 directory in which the sandbox starts
	payload *os.File // version 2 directory of the commands
	tasks   map[string]*os.File
	meters  meters
}

// New makes the place in which a sandbox starts; Limit makes the rest, so that
// the start need not wait for it. The payloads' version 2 directory becomes uid's
// and gid's. On a host without cgroups the Group is empty, and all of its methods
// do nothing. On an error nothing is left.
func (m *Manager) New(id string, uid, gid int) (*Group, error) {
	if !idPattern.MatchString(id) && !defence.CgroupNames.Off() {
		return nil, fmt.Errorf("cgroup: %q is not a sandbox id", id)
	}
	g := &Group{manager: m, name: "berm-" + id, uid: uid, gid: gid, tasks: map[string]*os.File{}}
	if m.tree == "" {
		return g, nil
	}
	if err := g.makeTree(); err != nil {
		return nil, errors.Join(fmt.Errorf("cgroup v2: %w", err), g.abandon())
	}
	return g, nil
}

// makeTree makes berm-<id> and its agent directory.
func (g *Group) makeTree() error {
	top, err := g.manager.makeBelow(g.manager.tree, g.name)
	if err != nil {
		return err
	}
	g.dirs = append(g.dirs, top)
	where := filepath.Join(top, agentName)
	if err := makeDir(where); err != nil {
		return err
	}
	g.dirs = append(g.dirs, where)
	if g.NeedsAdoption() {
		where = top
	}
	g.start, err = openDir(where)
	return err
}

// makePayload makes the payload directory.
func (g *Group) makePayload() error {
	if g.manager.tree == "" || g.payload != nil {
		return nil
	}
	top := filepath.Join(g.manager.tree, g.name)
	payload := filepath.Join(top, payloadName)
	if err := makeDir(payload); err != nil {
		return err
	}
	g.dirs = append(g.dirs, payload)
	for file, value := range map[string]int{"cgroup.max.descendants": maxDescendants, "cgroup.max.depth": maxDepth} {
		if defence.CgroupBelow.Off() {
			break
		}
		if err := write(payload, file, strconv.Itoa(value)); err != nil {
			return err
		}
	}
	if g.uid != os.Geteuid() {
		// Starting a process in a cgroup needs write access to cgroup.procs of the
		// common ancestor of where it comes from and where it goes to.
		for _, owned := range []string{payload, filepath.Join(payload, "cgroup.procs"), filepath.Join(top, "cgroup.procs")} {
			if err := os.Chown(owned, g.uid, g.gid); err != nil {
				return err
			}
		}
	}
	var err error
	g.payload, err = g.manager.openAlone(payload)
	return err
}

// openAlone opens a directory for the agent. It is the root of a detached mount:
// whoever holds a plain descriptor of a directory can walk up from it by "..",
// out of the sandbox and into the host's root directory.
func (m *Manager) openAlone(name string) (*os.File, error) {
	if defence.CgroupAlone.Off() {
		return openDir(name)
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EPERM) && m.detach != nil {
		return m.detach(name)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open_tree", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// makeDir makes a cgroup with the mode that it needs, whatever the umask is.
func makeDir(name string) error {
	if err := os.Mkdir(name, 0o755); err != nil {
		return err
	}
	return os.Chmod(name, 0o755)
}

// openDir opens a directory for use as a place to start processes in.
func openDir(name string) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Start is the version 2 directory in which the sandbox's first process has to
// be started (SysProcAttr.CgroupFD); nil for none. It stays the Group's.
func (g *Group) Start() *os.File { return g.start }

// NeedsAdoption reports that the sandbox starts above its agent's cgroup, so
// that its cgroup namespace has both that and the payloads' below it, and must
// be moved by Adopt once the namespace exists: with the nsdelegate mount option
// the kernel lets nobody start a process across a namespace's edge.
func (g *Group) NeedsAdoption() bool { return g.manager.tree != "" && g.manager.nsDelegate }

// Adopt moves processes into the agent's cgroup. One that has ended is no error.
func (g *Group) Adopt(pids ...int) error {
	dir := filepath.Join(g.manager.tree, g.name, agentName)
	for _, pid := range pids {
		if err := write(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("cgroup v2: move the agent: %w", err)
		}
	}
	return nil
}

// Limit makes the payloads' cgroups, sets the limits and opens the counters.
// After an error the Group can only be removed.
func (g *Group) Limit(l Limits) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits = l
	if err := g.makePayload(); err != nil {
		return fmt.Errorf("cgroup v2: %w", err)
	}
	if err := g.limitTree(l); err != nil {
		return fmt.Errorf("cgroup v2: %w", err)
	}
	for _, controller := range controllerNames {
		if err := g.limitOld(controller, l); err != nil {
			return fmt.Errorf("cgroup v1 %s: %w", controller, err)
		}
	}
	return g.meters.open(g)
}

// limitTree sets the limits that the unified hierarchy keeps.
func (g *Group) limitTree(l Limits) error {
	if g.manager.tree == "" {
		return nil
	}
	top := filepath.Join(g.manager.tree, g.name)
	for _, controller := range g.manager.unified {
		if err := write(top, "cgroup.subtree_control", "+"+controller); err != nil {
			return err
		}
		if err := limitUnified(filepath.Join(top, payloadName), controller, l); err != nil {
			return err
		}
	}
	return nil
}

// limitOld makes the sandbox's cgroup in a version 1 hierarchy, when a limit
// there was asked for.
func (g *Group) limitOld(controller string, l Limits) error {
	parent := g.manager.legacy[controller]
	asked := map[string]bool{"memory": l.MemoryBytes > 0, "pids": l.Processes > 0, "cpu": l.CPUs > 0}
	if parent == "" || !asked[controller] {
		return nil
	}
	dir := filepath.Join(parent, g.name)
	if !slices.Contains(g.dirs, dir) {
		if _, err := g.manager.makeBelow(parent, g.name); err != nil {
			return err
		}
		g.dirs = append(g.dirs, dir)
		tasks, err := os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		g.tasks[controller] = tasks
	}
	return limitLegacy(dir, controller, l)
}

// Payload is the version 2 directory for the commands' cgroups, nil for none and
// before Limit. It stays the Group's.
func (g *Group) Payload() *os.File { return g.payload }

// Tasks are the version 1 files that the thread which starts commands has to
// join, by controller. They stay the Group's.
func (g *Group) Tasks() map[string]*os.File {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make(map[string]*os.File, len(g.tasks))
	for name, file := range g.tasks {
		out[name] = file
	}
	return out
}

// Kill ends every process in the sandbox's version 2 cgroups. It does nothing
// where there are none.
func (g *Group) Kill() error {
	if g.manager.tree == "" {
		return nil
	}
	return optional(write(filepath.Join(g.manager.tree, g.name), "cgroup.kill", "1"))
}

// Remove removes the cgroups, which must be empty of processes or about to be;
// it waits for that as long as ctx allows. A second call does nothing.
func (g *Group) Remove(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closeFiles()
	var faults []error
	var left []string
	for _, dir := range slices.Backward(g.dirs) {
		if err := removeTree(ctx, dir); err != nil {
			faults = append(faults, err)
			left = append(left, dir)
		}
	}
	slices.Reverse(left)
	g.dirs = left
	return errors.Join(faults...)
}

// abandon removes what New has made before it failed.
func (g *Group) abandon() error {
	g.closeFiles()
	var faults []error
	for _, dir := range slices.Backward(g.dirs) {
		faults = append(faults, os.Remove(dir))
	}
	return errors.Join(faults...)
}

// closeFiles closes every descriptor.
func (g *Group) closeFiles() {
	for _, file := range []*os.File{g.start, g.payload} {
		if file != nil {
			_ = file.Close()
		}
	}
	for _, file := range g.tasks {
		_ = file.Close()
	}
	g.meters.close()
}
