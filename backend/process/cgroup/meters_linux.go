package cgroup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// meters holds the open counter files of a group: they are read around every
// command.
type meters struct {
	mu        sync.Mutex
	memory    *os.File
	processes *os.File
}

// open opens the counters that this group has.
func (c *meters) open(g *Group) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range []struct {
		controller, unified, legacy string
		file                        **os.File
	}{
		{"memory", "memory.events", "memory.oom_control", &c.memory},
		{"pids", "pids.events", "pids.events", &c.processes},
	} {
		dir, v2 := g.place(one.controller)
		if dir == "" {
			continue
		}
		name := one.legacy
		if v2 {
			name = one.unified
		}
		file, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		*one.file = file
	}
	return nil
}

func (c *meters) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, file := range []**os.File{&c.memory, &c.processes} {
		if *file != nil {
			_ = (*file).Close()
			*file = nil
		}
	}
}

// Counters reads how many processes were killed for memory and how many forks
// were refused. Where a limit is not kept by a cgroup its counter stays 0.
func (g *Group) Counters() (memoryKills, forkRefusals uint64, err error) {
	c := &g.meters
	c.mu.Lock()
	defer c.mu.Unlock()
	var faults [2]error
	memoryKills, faults[0] = reading(c.memory, "oom_kill")
	forkRefusals, faults[1] = reading(c.processes, "max")
	return memoryKills, forkRefusals, errors.Join(faults[:]...)
}

// reading reads one counter from the start of an open file.
func reading(file *os.File, name string) (uint64, error) {
	if file == nil {
		return 0, nil
	}
	buffer := make([]byte, 4096)
	n, err := file.ReadAt(buffer, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	value, ok := counter(string(buffer[:n]), name)
	if !ok {
		return 0, fmt.Errorf("%s has no counter %q", file.Name(), name)
	}
	return value, nil
}

// place is the directory in which a controller's limit is kept, "" for none.
func (g *Group) place(controller string) (dir string, v2 bool) {
	if slices.Contains(g.manager.unified, controller) {
		return filepath.Join(g.manager.tree, g.name, payloadName), true
	}
	if g.tasks[controller] != nil {
		return filepath.Join(g.manager.legacy[controller], g.name), false
	}
	return "", false
}

// Proof is what an outsider reads about a group.
type Proof struct {
	Held   bool
	Detail string
}

// ProveMemory reads the memory limit back, and that payloads cannot be outside
// of it. pid is the agent's, in the caller's namespace.
func (g *Group) ProveMemory(pid int) Proof {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.limits.MemoryBytes <= 0 {
		return Proof{Detail: "no memory limit was asked for"}
	}
	dir, v2 := g.place("memory")
	if dir == "" {
		return Proof{Detail: "no cgroup keeps the memory limit"}
	}
	file := "memory.limit_in_bytes"
	if v2 {
		file = "memory.max"
	}
	page := int64(os.Getpagesize())
	return g.prove(pid, dir, file, v2, g.limits.MemoryBytes/page*page)
}

// ProveProcesses does the same for the process limit.
func (g *Group) ProveProcesses(pid int) Proof {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.limits.Processes <= 0 {
		return Proof{Detail: "no process limit was asked for"}
	}
	dir, v2 := g.place("pids")
	if dir == "" {
		return Proof{Detail: "no cgroup keeps the process limit"}
	}
	want := int64(g.limits.Processes)
	if !v2 {
		want += agentThreads
	}
	return g.prove(pid, dir, "pids.max", v2, want)
}

// prove compares a limit with what was asked and looks for the agent.
func (g *Group) prove(pid int, dir, file string, v2 bool, want int64) Proof {
	have, err := number(dir, file)
	if err != nil {
		return Proof{Detail: fmt.Sprintf("%s cannot be read: %v", file, plain(err))}
	}
	if have != want {
		return Proof{Detail: fmt.Sprintf("%s is %d, asked for %d", file, have, want)}
	}
	member := g.starterIn
	if v2 {
		member = g.agentBeside
	}
	if reason := member(dir, pid); reason != "" {
		return Proof{Detail: reason}
	}
	return Proof{Held: true, Detail: fmt.Sprintf("%s is %d", file, have)}
}

// starterIn reports, for version 1, whether a thread of the agent is in the
// cgroup: the one that starts commands, which hand it down.
func (g *Group) starterIn(dir string, pid int) string {
	text, err := readTrimmed(filepath.Join(dir, "tasks"))
	if err != nil {
		return fmt.Sprintf("tasks cannot be read: %v", plain(err))
	}
	for _, tid := range strings.Fields(text) {
		if _, err := strconv.Atoi(tid); err != nil {
			continue
		}
		if _, err := os.Lstat(filepath.Join("/proc", strconv.Itoa(pid), "task", tid)); err == nil {
			return ""
		}
	}
	return "the agent's starting thread has not joined the cgroup"
}

// agentBeside reports, for version 2, whether the agent is in its own cgroup, so
// that the only way to start a process is down into the payload's.
func (g *Group) agentBeside(_ string, pid int) string {
	text, err := readTrimmed(filepath.Join(g.manager.tree, g.name, agentName, "cgroup.procs"))
	if err != nil {
		return fmt.Sprintf("the agent's cgroup cannot be read: %v", plain(err))
	}
	if !slices.Contains(strings.Fields(text), strconv.Itoa(pid)) {
		return "the agent is not in its cgroup"
	}
	return ""
}
