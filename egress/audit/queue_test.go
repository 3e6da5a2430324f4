package audit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berm-dev/berm/egress"
	"github.com/berm-dev/berm/egress/audit"
	"github.com/berm-dev/berm/errdefs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// child runs the calling test again in a process of its own.
func child(t *testing.T, name, value string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), name+"="+value)
	return cmd.CombinedOutput()
}

// gateSink lets each record wait for the test.
type gateSink struct {
	enter chan *egress.Record
	leave chan error
}

func (g *gateSink) Write(ctx context.Context, r *egress.Record) error {
	select {
	case g.enter <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-g.leave:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func newQueue(t *testing.T, sink egress.Sink, depth int) *audit.Queue {
	t.Helper()
	queue, err := audit.NewQueue(sink, depth)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = queue.Close(ctx)
	})
	return queue
}

func TestQueueKeepsOrder(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []uint64
	queue := newQueue(t, audit.Func(func(_ context.Context, r *egress.Record) error {
		mu.Lock()
		defer mu.Unlock()
		if got = append(got, r.Flow); r.Chain[0] != "a.example.net" {
			t.Errorf("the record has what its caller did to it later: %q", r.Chain)
		}
		return nil
	}), 1000)
	shared := full()
	for i := range uint64(500) {
		shared.Flow, shared.Chain[0] = i, "a.example.net"
		if err := queue.Write(t.Context(), shared); err != nil {
			t.Fatal(err)
		}
		// The record is the caller's again.
		shared.Flow, shared.Chain[0] = 9999, "changed"
	}
	for range 2 {
		if err := queue.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for i, flow := range got {
		if flow != uint64(i) {
			t.Fatalf("record %d is of flow %d", i, flow)
		}
	}
	if len(got) != 500 {
		t.Errorf("%d records", len(got))
	}
	if err := queue.Write(t.Context(), shared); !errors.Is(err, errdefs.Closed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestY05QueueIsBounded(t *testing.T) {
	t.Parallel()
	sink := &gateSink{enter: make(chan *egress.Record), leave: make(chan error)}
	queue := newQueue(t, sink, 3)
	write(t, queue, 0)
	<-sink.enter // one is with the sink, three fit
	for i := range uint64(3) {
		write(t, queue, i+1)
	}
	for range 2 {
		if err := queue.Write(t.Context(), full()); !errors.Is(err, errdefs.Exhausted) {
			t.Errorf("Y05/full: %v", err)
		}
	}
	for i := range uint64(3) {
		sink.leave <- nil
		if r := <-sink.enter; r.Flow != i+1 {
			t.Errorf("flow %d, want %d", r.Flow, i+1)
		}
	}
	write(t, queue, 9)
	sink.leave <- nil
	<-sink.enter
	sink.leave <- nil
	if err := queue.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestY05QueueFailsWithItsSink(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	sink := &gateSink{enter: make(chan *egress.Record), leave: make(chan error)}
	queue := newQueue(t, sink, 10)
	write(t, queue, 1)
	<-sink.enter
	sink.leave <- broken
	// The next try shows that the failure has been noted.
	if r := <-sink.enter; r.Flow != 1 {
		t.Errorf("the record that failed was given up: flow %d", r.Flow)
	}
	if err := queue.Write(t.Context(), full()); !errors.Is(err, broken) || !errors.Is(err, errdefs.Unavailable) {
		t.Errorf("Y05/failing: %v", err)
	}
	sink.leave <- nil
	deadline := time.Now().Add(10 * time.Second)
	for queue.Write(t.Context(), &egress.Record{Flow: 2}) != nil {
		if time.Now().After(deadline) {
			t.Fatal("the queue did not recover")
		}
	}
	if r := <-sink.enter; r.Flow != 2 {
		t.Errorf("flow %d", r.Flow)
	}
	sink.leave <- nil
	if err := queue.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestQueueCloseIsBounded(t *testing.T) {
	t.Parallel()
	sink := &gateSink{enter: make(chan *egress.Record), leave: make(chan error)}
	queue := newQueue(t, sink, 10)
	for i := range uint64(4) {
		write(t, queue, i)
	}
	<-sink.enter
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := queue.Close(ctx); err == nil || fmt.Sprint(err) != "close audit queue: 4 records could not be written" {
			t.Errorf("%v", err)
		}
	}
	for _, depth := range []int{0, -1, audit.MaxDepth + 1} {
		if _, err := audit.NewQueue(sink, depth); !errors.Is(err, errdefs.Invalid) {
			t.Errorf("depth %d: %v", depth, err)
		}
	}
	if _, err := audit.NewQueue(nil, 1); !errors.Is(err, errdefs.Invalid) {
		t.Errorf("no sink: %v", err)
	}
}
