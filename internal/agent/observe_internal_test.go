package agent

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestLooksComeOftenerTheLessIsFree(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		all  []disk
		want time.Duration
	}{
		{nil, lookLatest},
		{[]disk{{freeBytes: 1 << 40}}, lookLatest},
		{[]disk{{freeBytes: 1 << 40}, {freeBytes: 20 << 20}}, 20 * time.Millisecond},
		{[]disk{{freeBytes: 4096}}, lookSoonest},
		{[]disk{{full: true}}, lookLatest},
	} {
		if got := (&disks{all: c.all}).soonest(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.all, got, c.want)
		}
	}
}

func TestACrowdIsCountedByThreads(t *testing.T) {
	t.Parallel()
	// A thread of this test's own, so that there are at least two.
	runtime.LockOSThread()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(data), "\nThreads:")
	line, _, _ := strings.Cut(after, "\n")
	want, err := strconv.Atoi(strings.TrimSpace(line))
	if got := countThreads(os.Getpid()); err != nil || got < want || want < 2 {
		t.Errorf("%d threads, the kernel said %d before, %v", got, want, err)
	}
	if got := countThreads(1 << 30); got != 0 {
		t.Errorf("a process that is not there has %d", got)
	}
	for limit, full := range map[int]bool{0: false, 2: true, 1 << 30: false} {
		if got := (crowd{limit: limit}).full(); got != full {
			t.Errorf("limit %d: %v", limit, got)
		}
	}
}

// BenchmarkLooks is what a command pays that does not fail, in a sandbox with
// four file systems of its own.
func BenchmarkLooks(b *testing.B) {
	d, err := openDisks([]string{"/dev/shm", "/dev/shm", "/dev/shm", "/dev/shm"})
	if err != nil {
		b.Skip(err)
	}
	defer d.close()
	for b.Loop() {
		d.end(d.begin(), false)
	}
}
