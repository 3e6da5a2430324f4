package agent

import (
	"context"
	"errors"
	"strconv"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/berm-dev/berm/internal/defence"
	"github.com/berm-dev/berm/internal/gen/agentv1"
)

const (
	// inFlight is how many chunks may wait for one subscriber.
	inFlight = 2
	// stallTime is how long one subscriber may hold up a command that does not
	// belong to it.
	stallTime = 30 * time.Second
	// holdTime is how long a small message may wait for the next one.
	holdTime = 2 * time.Millisecond
	// defaultKeepalive is envd's interval when the client names none.
	defaultKeepalive = 90 * time.Second
)

// subscriber is one stream that follows a command.
type subscriber struct {
	// backlog comes before chunks.
	backlog []chunk
	chunks  chan chunk
	// gone is closed when the stream has ended, dropped when the subscriber was
	// too slow.
	gone    chan struct{}
	dropped chan struct{}
	// owner is true for the stream whose end is the command's end: it may slow
	// the command down for as long as it likes.
	owner bool
	stall time.Duration
}

func newSubscriber(owner bool, stall time.Duration) *subscriber {
	return &subscriber{
		chunks: make(chan chunk, inFlight), gone: make(chan struct{}), dropped: make(chan struct{}),
		owner: owner, stall: stall,
	}
}

// offer hands over a chunk and waits while the subscriber is behind. It is false
// when the subscriber did not take it; give says whether to drop it.
func (s *subscriber) offer(c chunk, closing <-chan struct{}) (taken, drop bool) {
	select {
	case s.chunks <- c:
		return true, false
	default:
	}
	var late <-chan time.Time
	if !s.owner && !defence.SlowFollowers.Off() {
		timer := time.NewTimer(s.stall)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case s.chunks <- c:
		return true, false
	case <-s.gone:
	case <-closing:
	case <-late:
		return false, true
	}
	return false, false
}

// follower sends one process's events to one stream.
type follower struct {
	process   *process
	sub       *subscriber
	gate      *gate
	send      func(*agentv1.ProcessEvent) error
	keepalive time.Duration
}

// newFollower takes the request's wishes from its headers.
func newFollower(ctx context.Context, p *process, sub *subscriber, send func(*agentv1.ProcessEvent) error) *follower {
	return &follower{process: p, sub: sub, gate: gateOf(ctx), send: send, keepalive: keepaliveOf(ctx)}
}

// keepaliveOf reads envd's header, in seconds.
func keepaliveOf(ctx context.Context) time.Duration {
	info, ok := connect.CallInfoForServerContext(ctx)
	if !ok {
		return defaultKeepalive
	}
	seconds, err := strconv.ParseUint(info.RequestHeader().Get("Keepalive-Ping-Interval"), 10, 24)
	if err != nil || seconds == 0 {
		return defaultKeepalive
	}
	return time.Duration(seconds) * time.Second
}

// run sends the start event and everything up to the end event. It returns the
// context's error when that ended first.
func (f *follower) run(ctx context.Context) error {
	// It stays held: the end of the request flushes what is left, once.
	f.gate.hold()
	started := &agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Start{
		Start: &agentv1.ProcessEvent_StartEvent{Pid: uint32(f.process.pid), Id: f.process.id},
	}}
	if err := f.send(started); err != nil {
		return err
	}
	for _, c := range f.sub.backlog {
		if err := f.data(c); err != nil {
			return err
		}
	}
	f.sub.backlog = nil
	wait := holdTime
	if !f.sub.owner {
		// The stream's client wants the pid, perhaps nothing else.
		f.gate.flush()
		wait = f.keepalive
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	held := f.sub.owner
	for {
		select {
		case c := <-f.sub.chunks:
			if err := f.data(c); err != nil {
				return err
			}
			if !held {
				held = true
				timer.Reset(holdTime)
			}
		case <-timer.C:
			if err := f.idle(&held); err != nil {
				return err
			}
			timer.Reset(f.keepalive)
		case <-f.process.done:
			return f.finish(ctx)
		case <-f.sub.dropped:
			return connect.NewError(connect.CodeResourceExhausted, "the stream was read too slowly and was dropped")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// idle flushes what was held, or says that the stream lives.
func (f *follower) idle(held *bool) error {
	if !*held {
		if err := f.send(&agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Keepalive{
			Keepalive: &agentv1.ProcessEvent_KeepAlive{},
		}}); err != nil {
			return err
		}
	}
	*held = false
	f.gate.flush()
	return nil
}

// data sends one chunk. A large one is worth a flush of its own.
func (f *follower) data(c chunk) error {
	large := c.whole != nil
	var err error
	if large && f.gate.framed && !f.process.keep {
		err = f.gate.output(c)
	} else {
		err = f.send(dataEvent(c))
	}
	f.process.buffers.release(c)
	if err == nil && large && len(f.sub.chunks) == 0 {
		f.gate.flush()
	}
	return err
}

// finish sends what is left and the end event. Every chunk was offered before
// the process was done.
func (f *follower) finish(ctx context.Context) error {
	for {
		select {
		case c := <-f.sub.chunks:
			if err := f.data(c); err != nil {
				return err
			}
			continue
		case <-f.sub.dropped:
			return connect.NewError(connect.CodeResourceExhausted, "the stream was read too slowly and was dropped")
		default:
		}
		// A deadline that ended the process is the news, not the signal.
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return ctx.Err()
		}
		return f.send(&agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_End{End: f.process.end}})
	}
}

func dataEvent(c chunk) *agentv1.ProcessEvent {
	data := &agentv1.ProcessEvent_DataEvent{Offset: c.offset}
	switch c.stream {
	case 1:
		data.Output = &agentv1.ProcessEvent_DataEvent_Stdout{Stdout: c.data}
	case terminalStream:
		data.Output = &agentv1.ProcessEvent_DataEvent_Pty{Pty: c.data}
	default:
		data.Output = &agentv1.ProcessEvent_DataEvent_Stderr{Stderr: c.data}
	}
	return &agentv1.ProcessEvent{Event: &agentv1.ProcessEvent_Data{Data: data}}
}
