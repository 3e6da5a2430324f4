package agent

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

const (
	// keepEnds is how long an end is remembered for a late Connect, maxEnds how
	// many of them at most.
	keepEnds = 30 * time.Second
	maxEnds  = 4096
)

// table finds processes. The zero value is ready.
type table struct {
	mu sync.Mutex
	// running have a living leader; their pids are unique.
	running map[int]*process
	// lingering have an ended leader and living descendants.
	lingering map[*process]struct{}
	// ended are in the order of their ends.
	ended []*process
}

func (t *table) add(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == nil {
		t.running, t.lingering = map[int]*process{}, map[*process]struct{}{}
	}
	t.running[p.pid] = p
}

// finish moves a process whose leader has ended. Its pid may be another's by
// now.
func (t *table) finish(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running[p.pid] == p {
		delete(t.running, p.pid)
	}
	if p.lingering {
		t.lingering[p] = struct{}{}
	}
	t.ended = append(t.ended, p)
	t.prune()
}

// prune forgets old ends. The caller holds the lock.
func (t *table) prune() {
	old := time.Now().Add(-keepEnds)
	n := max(0, len(t.ended)-maxEnds)
	if defence.EndsForgotten.Off() {
		return
	}
	for n < len(t.ended) && t.ended[n].finished.Before(old) {
		n++
	}
	for _, p := range t.ended[:n] {
		p.forget()
	}
	if n > 0 {
		t.ended = slices.Clone(t.ended[n:])
	}
}

// forget drops a process that has nothing left.
func (t *table) forget(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.lingering, p)
}

// list gives the running processes, by pid.
func (t *table) list() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*process, 0, len(t.running))
	for _, p := range t.running {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *process) int { return cmp.Compare(a.pid, b.pid) })
	return out
}

// left gives the processes whose leader has ended and whose tree has not.
func (t *table) left() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]*process, 0, len(t.lingering))
	for p := range t.lingering {
		out = append(out, p)
	}
	return out
}

// find gives the process that the selector means, nil when there is none: a
// running one before one that lingers before one that is remembered; of several
// with one tag the one that began last.
func (t *table) find(selector *agentv1.ProcessSelector) *process {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prune()
	matches := matcher(selector)
	newest := func(best, p *process) *process {
		if matches(p) && (best == nil || p.began.After(best.began)) {
			return p
		}
		return best
	}
	var best *process
	for _, p := range t.running {
		best = newest(best, p)
	}
	if best != nil {
		return best
	}
	for p := range t.lingering {
		best = newest(best, p)
	}
	if best != nil {
		return best
	}
	for _, p := range t.ended {
		best = newest(best, p)
	}
	return best
}

func matcher(selector *agentv1.ProcessSelector) func(*process) bool {
	switch by := selector.GetSelector().(type) {
	case *agentv1.ProcessSelector_Pid:
		return func(p *process) bool { return uint64(p.pid) == uint64(by.Pid) }
	case *agentv1.ProcessSelector_Id:
		return func(p *process) bool { return p.id == by.Id }
	case *agentv1.ProcessSelector_Tag:
		return func(p *process) bool { return p.tag != nil && *p.tag == by.Tag }
	}
	return func(*process) bool { return false }
}
