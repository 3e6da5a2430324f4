package agent

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// sessionTrees is the weakest way, for callers that asked for neither cgroup
// nor mark: a tree is the command's session. A daemon that makes its own
// session is out of it.
type sessionTrees struct{ orphans orphans }

func (s sessionTrees) plant() (tree, error) { return &sessionTree{orphans: s.orphans}, nil }

func (sessionTrees) close() error { return nil }

// sessionTree is one command's session, known once its leader's pid is.
type sessionTree struct {
	orphans orphans

	mu     sync.Mutex
	leader int
	gone   bool
}

func (t *sessionTree) lead(pid int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leader = pid
}

func (t *sessionTree) place(*start) {}

func (t *sessionTree) members() ([]int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.locked()
}

func (t *sessionTree) locked() ([]int, error) {
	if t.leader == 0 || t.gone || t.orphans.none() {
		return nil, nil
	}
	pids, err := listProcesses()
	if err != nil {
		return nil, err
	}
	var found []int
	for _, pid := range pids {
		if session, living := readSession(pid); living && session == t.leader {
			found = append(found, pid)
		}
	}
	return found, nil
}

func (t *sessionTree) release() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	pids, err := t.locked()
	t.gone = t.gone || (err == nil && len(pids) == 0)
	return t.gone
}

func (t *sessionTree) kill() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range stopRounds {
		pids, err := t.locked()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			err := unix.Kill(pid, unix.SIGKILL)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// readSession gives a process's session; living is false for what is dead.
func readSession(pid int) (session int, living bool) {
	data, err := readProc(pid, "stat")
	if err != nil {
		return 0, false
	}
	return parseSession(data)
}

// parseSession reads a stat file. The name in it may hold anything; what follows
// the last ')' is fixed: state, parent, group, session.
func parseSession(data []byte) (session int, living bool) {
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 4 {
		return 0, false
	}
	session, err := strconv.Atoi(string(fields[3]))
	state := fields[0][0]
	return session, err == nil && state != 'Z' && state != 'X'
}
