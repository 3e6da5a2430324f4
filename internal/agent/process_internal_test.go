package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
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

// FuzzParseMark hides a mark in a limits file: it is found by its line, whatever
// else there is.
func FuzzParseMark(f *testing.F) {
	if data, err := os.ReadFile("/proc/self/limits"); err == nil {
		f.Add(data, uint64(1))
	}
	for i, line := range []string{
		"", "\n", "Max file locks 5 5 locks\n", "Max file locks", "Max file locks \n", "Max file locks 1\n", "Max file locks unlimited unlimited locks\n",
		"Max file locks -1 -1\n", "Max file locks 1 18446744073709551616\n", "Max file locks 1 0x5\n", "max file locks 5 5\n", " Max file locks 5 5\n", "Max file locksx 5 5\n",
		"Max file locks 5 5", "Max open files 1 1\nMax file locks 2 3\n", "Max file locks 1 1\nMax file locks 2 2\n", "Max file locks\t1\t1\n", "Max file locks 1 1\r\n", "\x00\n\xff", "Max file locks 1 +5\n",
	} {
		f.Add([]byte(line), uint64(1)<<(3*i))
	}
	f.Fuzz(func(t *testing.T, data []byte, mark uint64) {
		before, already := parseMark(data)
		if already && !bytes.Contains(data, []byte("Max file locks")) {
			t.Fatalf("mark %d in %q", before, data)
		}
		lines := slices.DeleteFunc(bytes.Split(data, []byte("\n")), func(l []byte) bool { return bytes.HasPrefix(l, []byte("Max file locks")) })
		text := bytes.Join(append(lines, fmt.Appendf(nil, "Max file locks            %d  %d  locks", mark, mark)), []byte("\n"))
		if got, ok := parseMark(text); !ok || got != mark {
			t.Fatalf("%q has mark %d, %t, want %d", text, got, ok, mark)
		}
	})
}

// FuzzParseSession gives a process any name, as a payload can: it cannot make its
// session or its state another's.
func FuzzParseSession(f *testing.F) {
	for i, name := range []string{
		"", "a", "sh", ")", "(", "a) b", ") Z 1 1 5 0", ") S 1 1 1 1", "\n", ") R 1 1 7\n1 (x) R 1 1 8", "))))", "((((", " ) Z", "\x00", "\xff)", "kworker/0:1-ev", ") Z 1 1 1) Z 1 1 1", "a b c d e f", "-1", ")\t",
	} {
		f.Add([]byte(name), byte("RSDZTtXIP"[i%9]), uint16(i*3000))
	}
	f.Fuzz(func(t *testing.T, name []byte, state byte, session uint16) {
		parseSession(name)
		if state <= ' ' || state == ')' {
			return
		}
		stat := fmt.Appendf(nil, "77 (%s) %c 1 77 %d 0 -1 4194560 0", name, state, session)
		if state >= 0x80 {
			return // the kernel's are letters
		}
		got, living := parseSession(stat)
		if got != int(session) || living != (state != 'Z' && state != 'X') {
			t.Fatalf("%q: session %d, living=%t", stat, got, living)
		}
	})
}
