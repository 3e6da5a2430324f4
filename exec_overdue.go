package berm

import (
	"sync"
	"time"
)

// overdue calls late when the agent has not done in time what it owes. Only time
// in which the host listens counts: not what the caller's own writers take, and
// after a stop of the whole process, which makes all of its timers fire at once,
// what has come meanwhile is read first. A nil overdue waits for nothing.
type overdue struct {
	late func()

	mu    sync.Mutex
	timer *time.Timer
	until time.Time
	// away is since when the host does not listen, zero while it does.
	away time.Time
	// warned: the first half of the grace is over.
	warned bool
	ended  bool
}

// newOverdue waits for limit and the agent's grace.
func newOverdue(limit time.Duration, late func()) *overdue {
	o := &overdue{late: late, until: time.Now().Add(limit + agentGrace/2)}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timer = time.AfterFunc(time.Until(o.until), o.look)
	return o
}

func (o *overdue) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	left := time.Until(o.until)
	switch {
	case o.ended || !o.away.IsZero():
	case left > 0:
		o.timer.Reset(left)
	case !o.warned:
		o.warned, o.until = true, time.Now().Add(agentGrace/2)
		o.timer.Reset(agentGrace / 2)
	default:
		o.ended = true
		o.late()
	}
}

// leave and back enclose what the host does without listening.
func (o *overdue) leave() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.away = time.Now()
}

func (o *overdue) back() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.until = o.until.Add(time.Since(o.away))
	o.away = time.Time{}
	if !o.ended {
		o.timer.Reset(max(0, time.Until(o.until)))
	}
}

// stop ends the waiting.
func (o *overdue) stop() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.timer.Stop()
}
