package passthrough

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/boot"
)

const (
	// markPoll is the pause between two looks at processes that are ending.
	markPoll = 5 * time.Millisecond
	// restlessLooks bounds the empty looks at /proc during which other processes
	// came and went. A busy host is never still for long.
	restlessLooks = 64
	// limitsBytes bounds what is read of one /proc/PID/limits.
	limitsBytes = 16 << 10
)

// endMarked ends every process whose mark begins with base, and returns when
// none is left. The agent has done that already, unless it was killed itself:
// here it is no safer than its own commands.
func endMarked(ctx context.Context, base uint64) error {
	dead := map[int]bool{}
	for restless := 0; restless < restlessLooks; {
		look, err := lookForMarked(base, dead)
		switch {
		case err != nil:
			return err
		case look.alive == 0 && !look.restless:
			return nil
		case look.alive == 0:
			restless++
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes do not end: %w", look.alive, ctx.Err())
		case <-time.After(markPoll):
		}
	}
	return nil
}

// look is what one pass over /proc found.
type look struct {
	alive int
	// restless: a process went away between being listed and being looked at. It
	// may have left a child that the list has not.
	restless bool
}

// lookForMarked stops what has the mark, so that nothing is born meanwhile, and
// then kills it. dead has those that were found ended in an earlier pass.
func lookForMarked(base uint64, dead map[int]bool) (look, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return look{}, fmt.Errorf("list processes: %w", err)
	}
	var out look
	var held []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		marked, err := hasMark(pid, base)
		if err != nil {
			out.restless = out.restless || !errors.Is(err, fs.ErrPermission)
			continue
		}
		if !marked {
			continue
		}
		fd, alive := hold(pid, base)
		if !alive {
			out.restless = out.restless || !dead[pid]
			dead[pid] = true
			continue
		}
		// What may not be signalled (a set-id program) is still alive, and said to
		// be so in the end.
		_ = unix.PidfdSendSignal(fd, unix.SIGSTOP, nil, 0)
		held = append(held, fd)
	}
	for _, fd := range held {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		_ = unix.Close(fd)
	}
	out.alive = len(held)
	return out, nil
}

// hold opens a living process that has the mark. The mark is looked at again
// once the process is held, since its number may have become another's.
func hold(pid int, base uint64) (fd int, alive bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, false
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // a descriptor is small
	ended, pollErr := unix.Poll(poll, 0)
	if marked, err := hasMark(pid, base); err != nil || !marked || pollErr != nil || ended != 0 {
		_ = unix.Close(fd)
		return -1, false
	}
	return fd, true
}

// hasMark reads a process's mark.
func hasMark(pid int, base uint64) (bool, error) {
	file, err := os.Open("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return false, fmt.Errorf("read limits: %w", err)
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, limitsBytes))
	if err != nil {
		return false, fmt.Errorf("read limits: %w", err)
	}
	for line := range bytes.Lines(content) {
		rest, ok := bytes.CutPrefix(line, []byte("Max file locks"))
		if !ok {
			continue
		}
		fields := bytes.Fields(rest)
		if len(fields) == 0 {
			return false, nil
		}
		mark, err := strconv.ParseUint(string(fields[0]), 10, 64)
		return err == nil && mark&boot.MarkBits == base, nil
	}
	return false, nil
}
