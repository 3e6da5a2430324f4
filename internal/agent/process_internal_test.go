package agent

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

func TestSlowSubscriberIsDropped(t *testing.T) {
	t.Parallel()
	lent := &buffers{}
	p := &process{pid: 1, closing: make(chan struct{}), done: make(chan struct{}), buffers: lent}
	slow := newSubscriber(false, 20*time.Millisecond)
	quick := newSubscriber(true, 0)
	p.subscribe(slow, nil)
	p.subscribe(quick, nil)
	const chunks = 3 * inFlight
	for range chunks {
		c := chunk{data: []byte("x"), refs: new(atomic.Int32)}
		p.deliver(c)
		if got := <-quick.chunks; string(got.data) != "x" {
			t.Fatal("another chunk")
		}
	}
	select {
	case <-slow.dropped:
	default:
		t.Error("the slow one was not dropped")
	}
	select {
	case <-quick.dropped:
		t.Error("the owner was dropped")
	default:
	}
	p.unsubscribe(slow)
	p.unsubscribe(quick)
	if len(p.subs) != 0 {
		t.Errorf("%d subscribers left", len(p.subs))
	}
}

func TestOwnerHoldsUpItsCommandUntilItGoes(t *testing.T) {
	t.Parallel()
	p := &process{closing: make(chan struct{}), buffers: &buffers{}}
	owner := newSubscriber(true, time.Nanosecond)
	p.subscribe(owner, nil)
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		for range inFlight + 1 {
			p.deliver(chunk{data: []byte("x"), refs: new(atomic.Int32)})
		}
	}()
	select {
	case <-delivered:
		t.Error("the reader did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	p.unsubscribe(owner)
	<-delivered
}

func TestInputWakesWithItsContext(t *testing.T) {
	t.Parallel()
	_, file, err := newPipe(true)
	if err != nil {
		t.Fatal(err)
	}
	in := newInput(file)
	defer in.close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := in.write(ctx, make([]byte, 4*readSize)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a write that nobody reads: %v", err)
	}
	go in.close()
	if err := in.write(t.Context(), make([]byte, 4*readSize)); !errors.Is(err, errStdinClosed) {
		t.Errorf("a write that close ends: %v", err)
	}
}

func TestEndsAreForgotten(t *testing.T) {
	t.Parallel()
	var tab table
	for i := range maxEnds + 10 {
		p := &process{pid: i + 1, finished: time.Now()}
		tab.add(p)
		tab.finish(p)
	}
	if len(tab.ended) != maxEnds || len(tab.running) != 0 {
		t.Errorf("%d ends, %d running", len(tab.ended), len(tab.running))
	}
	tab.ended[0].finished = time.Now().Add(-keepEnds - time.Second)
	tab.finish(&process{pid: 1, finished: time.Now()})
	if len(tab.ended) != maxEnds {
		t.Errorf("%d ends after an old one", len(tab.ended))
	}
}

func FuzzParseMark(f *testing.F) {
	if data, err := os.ReadFile("/proc/self/limits"); err == nil {
		f.Add(data)
	}
	f.Add([]byte("Max file locks 5 5 locks\n"))
	f.Add([]byte("Max file locks"))
	f.Fuzz(func(_ *testing.T, data []byte) { parseMark(data) })
}

func FuzzParseSession(f *testing.F) {
	f.Add([]byte("1 (a) b) S 1 1 77 0"))
	f.Add([]byte(") "))
	f.Fuzz(func(_ *testing.T, data []byte) { parseSession(data) })
}
