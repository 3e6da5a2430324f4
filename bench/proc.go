package main

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// member is a process below this one.
type member struct {
	pid, parent int
	// name is the program's, 15 characters at most.
	name string
	// depth is 1 for a child.
	depth int
}

// sandboxProcesses are what berm itself started: bubblewrap is our child, and the
// agent, the sandbox's first process, is its. Payloads are further down.
func sandboxProcesses() (ours []member, agents int, err error) {
	all, err := offspring()
	for _, m := range all {
		switch {
		case m.depth == 1 && m.name == "bwrap":
			ours = append(ours, m)
		case m.depth == 2:
			ours = append(ours, m)
			agents++
		}
	}
	return ours, agents, err
}

// offspring lists all processes below this one.
func offspring() ([]member, error) {
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := map[int]member{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// PID (NAME) STATE PARENT; a name may hold anything.
		head, rest, _ := strings.Cut(string(data), " (")
		end := strings.LastIndex(rest, ") ")
		pid, err := strconv.Atoi(head)
		if err != nil || end < 0 {
			continue
		}
		fields := strings.Fields(rest[end+2:])
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			continue
		}
		all[pid] = member{pid: pid, parent: parent, name: rest[:end]}
	}
	var out []member
	for _, m := range all {
		if m.depth = depth(all, m); m.depth > 0 {
			out = append(out, m)
		}
	}
	return out, nil
}

// depth is how far below this process a member is, 0 when it is not.
func depth(all map[int]member, m member) int {
	for n := 1; n <= len(all); n++ {
		if m.parent == os.Getpid() {
			return n
		}
		next, ok := all[m.parent]
		if !ok {
			return 0
		}
		m = next
	}
	return 0
}

// growth watches how much more memory this program and its sandboxes have than
// in the beginning.
type growth struct {
	quit, done   chan struct{}
	host, inside peak
}

// watchGrowth begins to watch; stop has to be called. Sandboxes that are made
// later are not seen.
func watchGrowth() (*growth, error) {
	ours, agents, err := sandboxProcesses()
	if err != nil {
		return nil, err
	}
	if agents == 0 {
		return nil, errors.New("the agent is not among the processes")
	}
	debug.FreeOSMemory()
	var inside []int
	for _, m := range ours {
		inside = append(inside, m.pid)
	}
	return watchProcesses([]int{os.Getpid()}, inside), nil
}

// watchProcesses begins to watch two groups of processes.
func watchProcesses(host, inside []int) *growth {
	g := &growth{quit: make(chan struct{}), done: make(chan struct{}), host: peak{pids: host}, inside: peak{pids: inside}}
	g.host.look()
	g.inside.look()
	go func() {
		defer close(g.done)
		tick := time.NewTicker(growthPoll)
		defer tick.Stop()
		for {
			select {
			case <-g.quit:
				return
			case <-tick.C:
				g.host.look()
				g.inside.look()
			}
		}
	}()
	return g
}

// stop ends the watching and gives the most that each side grew, in MiB.
func (g *growth) stop() (host, inside float64) {
	close(g.quit)
	<-g.done
	return g.host.most - g.host.start, g.inside.most - g.inside.start
}

// peak is the most that some processes have together, in MiB.
type peak struct {
	pids        []int
	start, most float64
}

func (p *peak) look() {
	sum := 0.0
	for _, pid := range p.pids {
		used, err := resident(pid)
		if err != nil {
			return // it is ending
		}
		sum += used
	}
	if p.start == 0 {
		p.start = sum
	}
	p.most = max(p.most, sum)
}
