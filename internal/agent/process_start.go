package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect/v2"
	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

const (
	// lingerPoll is how often trees without a leader are looked at, doubled up to
	// lingerPollMax as long as nothing changes.
	lingerPoll    = 100 * time.Millisecond
	lingerPollMax = 2 * time.Second
)

// processes runs commands and serves them as berm.agent.v1.Process.
type processes struct {
	planner  planner
	trees    trees
	spawner  *spawner
	null     *os.File
	buffers  buffers
	table    table
	reaper   *reaper
	disks    *disks
	crowd    crowd
	stall    time.Duration
	config   Config
	lingered chan struct{}

	// gate orders starts and close: no start is under way after close began.
	gate    sync.RWMutex
	closed  bool
	closing chan struct{}
	// lastID numbers the processes, kept counts what their rings hold.
	lastID atomic.Uint64
	kept   atomic.Int64
	work   sync.WaitGroup

	// readers are the pipes that are still open.
	readersMu sync.Mutex
	readers   map[*output]struct{}
}

func newProcesses(config Config, sess *session) (*processes, error) {
	if err := config.check(); err != nil {
		config.closeFiles()
		return nil, err
	}
	disks, err := openDisks(config.Boot.SizedPaths)
	if err != nil {
		config.closeFiles()
		return nil, err
	}
	shim := newShim(config)
	spawner, err := newSpawner(config.taskFiles(), shim)
	if err != nil {
		disks.close()
		config.closeFiles()
		return nil, err
	}
	trees, err := newTrees(config)
	if err != nil {
		spawner.close()
		disks.close()
		config.closeFiles()
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		spawner.close()
		disks.close()
		err = errors.Join(err, trees.close())
		config.closeFiles()
		return nil, fmt.Errorf("open the null device: %w", err)
	}
	p := &processes{
		planner: newPlanner(config.Boot, sess), trees: trees, spawner: spawner, null: null, config: config,
		disks: disks, crowd: newCrowd(config, shim),
		stall: stallTime, closing: make(chan struct{}), lingered: make(chan struct{}, 1),
		readers: map[*output]struct{}{},
	}
	if config.Reap {
		p.reaper = newReaper()
	}
	p.work.Go(p.tend)
	p.work.Go(func() { p.disks.watch(p.closing) })
	return p, nil
}

// close ends everything and waits for it.
func (p *processes) close() {
	p.gate.Lock()
	already := p.closed
	p.closed = true
	p.gate.Unlock()
	if already {
		return
	}
	close(p.closing)
	// In this order a process that is just ending is in one of the lists.
	for _, proc := range append(p.table.list(), p.table.left()...) {
		_ = proc.kill()
		proc.disarm()
	}
	p.awaitWork()
	p.spawner.close()
	if p.reaper != nil {
		p.reaper.close()
	}
	p.disks.close()
	_ = p.trees.close()
	_ = p.null.Close()
	p.config.closeFiles()
}

// awaitWork waits for the goroutines. A pipe that somebody else holds (its
// descriptor was sent away) is closed on them. What cannot be killed (a set-id
// program on a shared host) would keep its goroutine for ever: it is left
// behind after a while.
func (p *processes) awaitWork() {
	done := make(chan struct{})
	go func() {
		p.work.Wait()
		close(done)
	}()
	grace := time.NewTimer(closePatience / 10)
	defer grace.Stop()
	select {
	case <-done:
		return
	case <-grace.C:
	}
	p.readersMu.Lock()
	for out := range p.readers {
		_ = out.file.Close()
	}
	p.readersMu.Unlock()
	grace.Reset(closePatience)
	select {
	case <-done:
	case <-grace.C:
	}
}

// read runs one pipe's reader.
func (p *processes) read(out *output) {
	out.run()
	p.readersMu.Lock()
	defer p.readersMu.Unlock()
	delete(p.readers, out)
}

// wish is what a request wants beside the program.
type wish struct {
	program program
	config  *agentv1.ProcessConfig
	tag     *string
	stdin   bool
	timeout time.Duration
	first   *subscriber
	// pty is not nil for a terminal, keep is for how many bytes of each stream.
	pty  *agentv1.PTY
	keep uint32
}

// start runs a program. Errors: a *startError, or a *connect.Error after close.
func (p *processes) start(w wish) (*process, error) {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if p.closed {
		return nil, connect.NewError(connect.CodeUnavailable, "the agent is closing")
	}
	tree, err := p.trees.plant()
	if err != nil {
		return nil, &startError{text: err.Error(), err: err}
	}
	pipes, err := p.openStreams(w)
	if err != nil {
		tree.release()
		return nil, err
	}
	var in start
	tree.place(&in)
	in.attr.Setctty = pipes.terminal // of descriptor 0
	if p.reaper != nil {
		p.reaper.begin()
		defer p.reaper.end()
	}
	// What it fills before anybody looks again would not be counted for it.
	filled := p.disks.begin()
	began := time.Now()
	child, err := p.spawner.start(w.program, &in, pipes.child())
	pipes.closeChild()
	if err != nil {
		p.disks.end(filled, false)
		pipes.closeOwn()
		tree.release()
		return nil, err
	}
	tree.lead(child.pid)
	if p.reaper != nil {
		p.reaper.own(child.pid)
	}
	proc := p.adopt(w, tree, child, pipes, began, filled)
	return proc, nil
}

// adopt makes the process known and starts its goroutines.
func (p *processes) adopt(w wish, tree tree, child spawned, pipes *pipes, began time.Time, filled uint64) *process {
	proc := &process{
		pid: child.pid, id: p.lastID.Add(1), config: w.config, tag: w.tag, tree: tree, buffers: &p.buffers, began: began, filled: filled,
		closing: p.closing, done: make(chan struct{}), terminal: pipes.terminal, keep: w.keep > 0, streams: newStreams(w.keep, &p.kept),
	}
	proc.life, proc.endLife = context.WithCancel(context.Background())
	if pipes.stdin != nil {
		proc.stdin = newInput(pipes.stdin)
	}
	if w.first != nil {
		proc.subs = []*subscriber{w.first}
	}
	for i, file := range pipes.outputs {
		stream := i + 1
		if pipes.terminal {
			stream = terminalStream
		}
		out := &output{
			stream: stream, file: file, buffers: &p.buffers, deliver: proc.deliver,
			leaderEnded: proc.life.Done(), settled: make(chan struct{}), done: make(chan struct{}),
		}
		proc.outputs = append(proc.outputs, out)
	}
	p.readersMu.Lock()
	for _, out := range proc.outputs {
		p.readers[out] = struct{}{}
	}
	p.readersMu.Unlock()
	for _, out := range proc.outputs {
		p.work.Go(func() { p.read(out) })
	}
	if w.timeout > 0 && !defence.CommandTimeout.Off() {
		p.limit(proc, w.timeout)
	}
	p.table.add(proc)
	p.work.Go(func() { p.attend(proc, child.pidfd) })
	return proc
}

// limit ends the tree after a time, also when the leader has ended before.
func (p *processes) limit(proc *process, after time.Duration) {
	proc.mu.Lock()
	defer proc.mu.Unlock()
	if proc.timer != nil && !proc.timer.Stop() {
		return
	}
	proc.timer = time.AfterFunc(after, func() { p.expire(proc) })
}

// expire is the end of a timeout. close waits for it.
func (p *processes) expire(proc *process) {
	p.gate.RLock()
	defer p.gate.RUnlock()
	if !p.closed {
		proc.expire()
	}
}

// attend is a process's own goroutine.
func (p *processes) attend(proc *process, pidfd int) {
	var (
		status unix.WaitStatus
		err    error
	)
	if pidfd >= 0 {
		status, err = proc.await(pidfd)
	} else {
		status, err = proc.awaitBlocking()
	}
	if p.reaper != nil {
		p.reaper.disown(proc.pid)
	}
	// At once: what ends with the leader may free what it had run into.
	failed := err == nil && status != 0
	diskLimit := p.disks.end(proc.filled, failed)
	processLimit := failed && p.crowd.full()
	proc.settle(status, err)
	proc.end.DiskLimit, proc.end.ProcessLimit = diskLimit, processLimit
	p.table.finish(proc)
	close(proc.done)
	if proc.lingering {
		select {
		case p.lingered <- struct{}{}:
		default:
		}
		return
	}
	proc.disarm()
}

// disarm stops the timeout of a process with nothing left.
func (p *process) disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
}

// tend releases the trees of processes that left something running, once that
// has ended too.
func (p *processes) tend() {
	timer := time.NewTimer(lingerPollMax)
	defer timer.Stop()
	wait := lingerPoll
	for {
		left := p.table.left()
		var tick <-chan time.Time
		if len(left) > 0 {
			timer.Reset(wait)
			tick = timer.C
			wait = min(2*wait, lingerPollMax)
		}
		select {
		case <-p.closing:
			return
		case <-p.lingered:
			wait = lingerPoll
		case <-tick:
			for _, proc := range left {
				if proc.tree.release() {
					proc.disarm()
					p.table.forget(proc)
				}
			}
		}
	}
}

// pipes are one command's standard streams: our ends and the child's.
type pipes struct {
	stdin   *os.File
	outputs []*os.File
	ends    [3]int
	null    bool
	// terminal: all three are one.
	terminal bool
}

// openStreams makes what a wish asks for. The error is a *startError or the
// request's fault.
func (p *processes) openStreams(w wish) (*pipes, error) {
	open := func() (*pipes, error) { return p.openPipes(w.stdin) }
	if w.pty != nil {
		open = func() (*pipes, error) { return openTerminal(w.pty.GetSize()) }
	}
	out, err := open()
	var wrong *connect.Error
	if err != nil && !errors.As(err, &wrong) {
		err = &startError{text: err.Error(), err: err}
	}
	return out, err
}

// openPipes makes the streams; stdin is the null device unless it is wanted.
func (p *processes) openPipes(stdin bool) (*pipes, error) {
	out := &pipes{ends: [3]int{-1, -1, -1}}
	if stdin {
		var err error
		if out.ends[0], out.stdin, err = newPipe(true); err != nil {
			return nil, err
		}
	} else {
		out.ends[0], out.null = int(p.null.Fd()), true
	}
	for i := range out.ends[1:] {
		end, own, err := newPipe(false)
		if err != nil {
			out.closeChild()
			out.closeOwn()
			return nil, err
		}
		out.ends[i+1], out.outputs = end, append(out.outputs, own)
	}
	return out, nil
}

// newPipe gives the child's end and ours. Ours writes when the child reads.
func newPipe(childReads bool) (int, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, fmt.Errorf("make a pipe: %w", err)
	}
	child, own := fds[1], fds[0]
	if childReads {
		child, own = fds[0], fds[1]
	}
	file, err := pollable(own, "pipe")
	if err != nil {
		_ = unix.Close(child)
		return -1, nil, err
	}
	return child, file, nil
}

func (s *pipes) child() [3]int { return s.ends }

func (s *pipes) closeChild() {
	for i, fd := range s.ends {
		if fd >= 0 && (i > 0 || !s.null) {
			_ = unix.Close(fd)
		}
	}
}

func (s *pipes) closeOwn() {
	if s.stdin != nil {
		_ = s.stdin.Close()
	}
	for _, file := range s.outputs {
		_ = file.Close()
	}
}
