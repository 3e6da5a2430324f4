package audit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/errdefs"
)

const (
	// MaxDepth is the largest queue, in records.
	MaxDepth = 1 << 16
	// retryEvery is how long a record that could not be written waits for the next
	// try.
	retryEvery = 250 * time.Millisecond
	// writeTimeout bounds one try.
	writeTimeout = 5 * time.Second
)

// Queue is a bounded queue before a slow sink. Write returns when the record is in
// the queue, which a crash of the program loses. A full queue fails, and so does
// every Write from a failure of the sink until a later try succeeds. The records
// are written in order, one at a time, by one goroutine that Close ends.
type Queue struct {
	sink    egress.Sink
	pending chan *egress.Record
	// quit asks the writer to end when the queue is empty, cut to end at once.
	quit, done chan struct{}
	cut        context.CancelFunc

	mu     sync.Mutex
	closed bool
	fault  error
	lost   int
}

// NewQueue starts a queue of depth records, 1 to MaxDepth (errdefs.Invalid).
func NewQueue(sink egress.Sink, depth int) (*Queue, error) {
	if sink == nil || depth < 1 || depth > MaxDepth {
		return nil, errdefs.New(errdefs.Invalid, "make audit queue", fmt.Sprintf("it needs a sink and a depth of 1 to %d, not %d", MaxDepth, depth))
	}
	ctx, cut := context.WithCancel(context.Background())
	q := &Queue{
		sink: sink, pending: make(chan *egress.Record, depth),
		quit: make(chan struct{}), done: make(chan struct{}), cut: cut,
	}
	go q.run(ctx)
	return q, nil
}

// Write implements egress.Sink. It never waits.
func (q *Queue) Write(_ context.Context, r *egress.Record) error {
	// r is the caller's again when Write returns.
	copied := bound(r)
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return errdefs.New(errdefs.Closed, "write audit record", "the queue is closed")
	case q.fault != nil:
		return errdefs.Wrap(errdefs.Unavailable, "write audit record", q.fault)
	}
	select {
	case q.pending <- &copied:
		return nil
	default:
		return errdefs.New(errdefs.Exhausted, "write audit record", fmt.Sprintf("the queue of %d records is full", cap(q.pending)))
	}
}

func (q *Queue) run(ctx context.Context) {
	defer close(q.done)
	for {
		select {
		case r := <-q.pending:
			q.keep(ctx, r)
		case <-q.quit:
			// Nothing is added any more.
			for len(q.pending) > 0 {
				q.keep(ctx, <-q.pending)
			}
			return
		}
	}
}

// keep writes one record, as often as it takes.
func (q *Queue) keep(ctx context.Context, r *egress.Record) {
	for {
		err := q.try(ctx, r)
		lost := err != nil && ctx.Err() != nil
		q.mu.Lock()
		q.fault = err
		if lost {
			q.lost++
		}
		q.mu.Unlock()
		if err == nil || lost {
			return
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

func (q *Queue) try(ctx context.Context, r *egress.Record) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return q.sink.Write(ctx, r)
}

// Close takes no more records and waits until those in the queue are written, or
// for ctx: what is left then is handed to the sink once more, with a context that
// has ended, and the number of those lost is in the error. It returns when the
// queue's goroutine has ended; only a sink that does not come back from Write for
// 5 seconds longer is left behind (errdefs.Timeout). A second Close gives the same.
func (q *Queue) Close(ctx context.Context) error {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.quit)
	}
	q.mu.Unlock()
	select {
	case <-q.done:
	case <-ctx.Done():
		q.cut()
		select {
		case <-q.done:
		case <-time.After(writeTimeout):
			return errdefs.New(errdefs.Timeout, "close audit queue", "the sink does not come back")
		}
	}
	q.cut()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lost > 0 {
		return errdefs.New(errdefs.Unavailable, "close audit queue", fmt.Sprintf("%d records could not be written", q.lost))
	}
	return nil
}
