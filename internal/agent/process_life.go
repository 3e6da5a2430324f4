package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/gen/agentv1"
)

// process is one command from its start until its tree is empty and its end is
// forgotten.
type process struct {
	pid     int
	id      uint64
	config  *agentv1.ProcessConfig
	tag     *string
	tree    tree
	stdin   *input
	outputs []*output
	buffers *buffers
	// terminal is true where one is all three streams.
	terminal bool
	// keep is true where streams has a limit.
	keep    bool
	began   time.Time
	filled  uint64 // disks.begin's count
	closing <-chan struct{}

	// life ends when the leader has ended; done is closed when end is set and
	// every chunk was offered.
	life      context.Context
	endLife   context.CancelFunc
	done      chan struct{}
	end       *agentv1.ProcessEvent_EndEvent
	finished  time.Time
	lingering bool

	mu       sync.Mutex
	reaped   bool
	timedOut bool
	timer    *time.Timer
	subs     []*subscriber
	streams  streams
}

// subscribe adds a stream; after the end it gets nothing but the end. With from
// it first gets what was kept, and then what comes: each byte once.
func (p *process) subscribe(s *subscriber, from *agentv1.Offsets) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs = append(slices.Clip(p.subs), s)
	if from != nil {
		s.backlog = p.streams.backlog(from)
	}
}

// forget gives up what was kept.
func (p *process) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.streams {
		p.streams[i].drop()
	}
}

// unsubscribe takes a stream away and lets a waiting reader go on.
func (p *process) unsubscribe(s *subscriber) {
	close(s.gone)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs = slices.DeleteFunc(slices.Clone(p.subs), func(other *subscriber) bool { return other == s })
}

// deliver offers a chunk to every subscriber; without one it is dropped.
func (p *process) deliver(c chunk) {
	p.mu.Lock()
	if p.keep {
		c.offset = p.streams[c.stream-1].add(c.data)
	}
	subs := p.subs
	p.mu.Unlock()
	// One reference is the reader's own, until the last was offered.
	c.refs.Add(int32(len(subs)) + 1)
	for _, s := range subs {
		taken, drop := s.offer(c, p.closing)
		if !taken {
			p.buffers.release(c)
		}
		if drop {
			p.drop(s)
		}
	}
	p.buffers.release(c)
}

// drop takes a slow stream away. Two readers may find it slow at once.
func (p *process) drop(s *subscriber) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.subs, s)
	if i < 0 {
		return
	}
	p.subs = slices.Delete(slices.Clone(p.subs), i, i+1)
	close(s.dropped)
}

// signal reaches the leader's process group. It is false once the leader has
// been collected: its pid may then be another's.
func (p *process) signal(number syscall.Signal) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return false, nil
	}
	err := unix.Kill(-p.pid, number)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	return true, err
}

// kill ends the whole tree.
func (p *process) kill() error { return p.tree.kill() }

// expire is the timeout's end.
func (p *process) expire() {
	p.mu.Lock()
	p.timedOut = !p.reaped
	p.mu.Unlock()
	_ = p.kill()
}

// collect reaps the leader if it has ended. The lock keeps signal from using
// the pid afterwards.
func (p *process) collect(status *unix.WaitStatus, flags int) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		pid, err := unix.Wait4(p.pid, status, flags, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			p.reaped = true
			return true, fmt.Errorf("wait for process %d: %w", p.pid, err)
		}
		p.reaped = pid == p.pid
		return p.reaped, nil
	}
}

// await waits for the leader's end on its descriptor, which holds up no thread.
func (p *process) await(pidfd int) (unix.WaitStatus, error) {
	var (
		status unix.WaitStatus
		err    error
	)
	if ended, err := p.collect(&status, unix.WNOHANG); ended {
		// So short that there is nothing to wait for.
		_ = unix.Close(pidfd)
		return status, err
	}
	file, fileErr := pollable(pidfd, "process")
	if fileErr != nil {
		return p.awaitBlocking()
	}
	defer file.Close()
	raw, rawErr := file.SyscallConn()
	if rawErr == nil {
		rawErr = raw.Read(func(uintptr) bool {
			var ended bool
			ended, err = p.collect(&status, unix.WNOHANG)
			return ended
		})
	}
	if rawErr != nil {
		return p.awaitBlocking()
	}
	return status, err
}

// awaitBlocking is await where the kernel has no process descriptors. WNOWAIT
// leaves the status, so that the pid stays taken until it is collected under
// the lock.
func (p *process) awaitBlocking() (unix.WaitStatus, error) {
	var status unix.WaitStatus
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_, err := p.collect(&status, 0)
	return status, err
}

// settle sees the command through after its leader's end: its output, what it
// left running, and its end event.
func (p *process) settle(status unix.WaitStatus, waitErr error) {
	duration := time.Since(p.began)
	p.endLife()
	p.stdin.close()
	for _, out := range p.outputs {
		if !out.isSettled() {
			out.wake()
		}
	}
	left, listErr := p.tree.members()
	p.mu.Lock()
	end := endOf(status, p.timedOut)
	p.mu.Unlock()
	if waitErr != nil {
		end = &agentv1.ProcessEvent_EndEvent{ExitCode: -1, Status: "unknown", Error: optional(waitErr.Error())}
	}
	for _, out := range p.outputs {
		<-out.settled
		end.OutputIncomplete = end.OutputIncomplete || out.incomplete
	}
	for _, pid := range left {
		if pid != p.pid {
			end.Lingering = append(end.Lingering, uint32(pid))
		}
	}
	if p.keep {
		p.mu.Lock()
		end.Total = p.streams.total()
		p.mu.Unlock()
	}
	end.DurationUs = uint64(duration.Microseconds())
	p.lingering = listErr != nil || !p.tree.release()
	p.end, p.finished = end, time.Now()
}

// endOf describes a wait status in envd's words and ours.
func endOf(status unix.WaitStatus, timedOut bool) *agentv1.ProcessEvent_EndEvent {
	if !status.Signaled() {
		end := &agentv1.ProcessEvent_EndEvent{
			ExitCode: int32(status.ExitStatus()), Exited: true,
			Status: fmt.Sprintf("exit status %d", status.ExitStatus()), Reason: agentv1.EndReason_END_REASON_EXITED,
		}
		if end.ExitCode != 0 {
			end.Error = optional(end.Status)
		}
		return end
	}
	number := status.Signal()
	end := &agentv1.ProcessEvent_EndEvent{
		ExitCode: -1, Status: "signal: " + number.String(), Signal: int32(number),
		Reason: agentv1.EndReason_END_REASON_SIGNALED,
	}
	end.Error = optional(end.Status)
	if timedOut && number == unix.SIGKILL {
		end.Reason = agentv1.EndReason_END_REASON_TIMED_OUT
	}
	return end
}

// optional makes an optional field.
func optional(s string) *string { return &s }
