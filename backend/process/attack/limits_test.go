//go:build linux

package attack_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func threadExists(tid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
	return err == nil
}

// memoryWays are all ways to take memory that there are without privileges.
var memoryWays = []string{"malloc", "memfd", "shm", "tmpfs", "pipes", "sockets", "tcp"}

// attacks 7 "tmpfs and memfd fill, with cgroups and with rlimits: the limit holds, or
// the capability says that it does not", process-tier 1.7 weak 13.
func TestMemoryIsBoundedOrSaidNotToBe(t *testing.T) {
	t.Parallel()
	prepare(t)
	caps := stage.provider.Capabilities()
	if caps.Memory != driver.Enforced {
		memoryIsBestEffort(t, caps)
		return
	}
	const limit = 64 // MiB
	p := opened(t, func(c *berm.Config) {
		c.Limits = berm.Limits{MemoryBytes: limit << 20, DiskBytes: 512 << 20}
	})
	for _, way := range memoryWays {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := place(t, p, berm.Layout{})
			res, err := b.Exec(bounded(t), berm.Command{Args: []string{b.payload, "hog", way, "512"}})
			if err != nil {
				t.Fatalf("%v %v", res, err)
			}
			switch {
			case res.Reason == berm.OutOfMemory && res.ExitCode == nil:
			case res.Success():
				// It was refused before the limit: descriptors or file systems have limits too.
				v := read(t, "hog", bytes.NewReader(res.Stdout))
				if got, err := strconv.Atoi(v[0].Detail); err != nil || got >= limit || v[0].Errno == "" {
					t.Errorf("took %s MiB: %s", v[0].Detail, v[0].Errno)
				}
			default:
				t.Errorf("%v: %s", res, res.Stderr)
			}
			sh(t, b, `rm -f /dev/shm/hog; ipcs -m 2>/dev/null | awk '$2 ~ /^[0-9]+$/ {print $2}' | while read -r id; do ipcrm -m $id; done; true`)
			alive(t, b)
		})
	}
}

// memoryIsBestEffort checks that a host without memory cgroups says so, in every
// place where somebody could rely on the limit.
func memoryIsBestEffort(t *testing.T, caps driver.Capabilities) {
	t.Helper()
	if caps.Memory != driver.Partial || caps.Isolation.Limits {
		t.Errorf("memory is %q, limits are promised: %v", caps.Memory, caps.Isolation.Limits)
	}
	if notes := strings.Join(caps.Notes, "; "); !strings.Contains(notes, "Memory is bounded for each process only") || !strings.Contains(notes, "number of files") {
		t.Errorf("the notes do not say it: %s", notes)
	}
	for name, config := range map[string]berm.Config{
		"limit":   {Limits: berm.Limits{MemoryBytes: 64 << 20}},
		"require": {Require: berm.Isolation{Limits: true}},
	} {
		config.Agent, config.StateDir = berm.AgentProgram{Path: stage.agent}, filepath.Join(t.TempDir(), "state")
		if p, err := berm.Open(bounded(t), backend(), config); !errors.Is(err, errdefs.Unsupported) {
			t.Errorf("%s: %v %v", name, p, err)
		}
	}
	// Best effort bounds the single process.
	p := opened(t, func(c *berm.Config) { c.Limits = berm.Limits{MemoryBytes: 128 << 20, BestEffort: true} })
	b := place(t, p, berm.Layout{})
	if notes := strings.Join(b.Posture().Notes, "; "); !strings.Contains(notes, "limit on memory is applied in part only") {
		t.Errorf("the posture does not say it: %s", notes)
	}
	res, err := b.Exec(bounded(t), berm.Command{Args: []string{b.payload, "hog", "malloc", "512"}})
	if err != nil {
		t.Fatal(err)
	}
	if v := res.Stdout; res.Success() && strings.Contains(string(v), `"512"`) {
		t.Errorf("one process took 512 MiB under a limit of 128: %s", v)
	}
	alive(t, b)
}

// attacks 7: each of the sandbox's own file systems ends at its size, and together
// they end at the limit; the rest of the tree cannot be written.
func TestFileSystemsEndAtTheirSize(t *testing.T) {
	t.Parallel()
	const limit = 16 << 20
	p := opened(t, func(c *berm.Config) { c.Limits.DiskBytes = limit })
	b := fresh(t, berm.CreateOptions{}) // the payload needs no room of the other's
	small, err := p.Create(bounded(t), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { destroyed(t, small) })
	script := `for d in . /tmp /dev/shm /home/user /run /dev / /mnt /var/tmp /etc /usr /proc /dev/pts; do
dd if=/dev/zero of="$d/fill" bs=64k 2>/dev/null; [ -f "$d/fill" ] && stat -c %s "$d/fill"; done; true`
	total := 0
	for _, size := range strings.Fields(sh(t, &box{Sandbox: small}, script)) {
		n, err := strconv.Atoi(size)
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	if total > limit || total < limit/2 {
		t.Errorf("%d bytes were written under a limit of %d", total, limit)
	}
	// Full file systems are typed, and do not end anything.
	if err := small.Files().WriteFile(bounded(t), "more", make([]byte, 1<<20), 0o644); !errors.Is(err, errdefs.Exhausted) {
		t.Errorf("a file in a full file system: %v", err)
	}
	alive(t, &box{Sandbox: small})
	alive(t, b)
}

// Files in memory count for the payloads, not for the agent: who fills /tmp is ended
// for it, and the sandbox goes on.
func TestWhoFillsTmpEndsAlone(t *testing.T) {
	t.Parallel()
	prepare(t)
	if stage.provider.Capabilities().Memory != driver.Enforced {
		t.Skip("there is no memory cgroup here; that this is said is in TestMemoryIsBoundedOrSaidNotToBe")
	}
	p := opened(t, func(c *berm.Config) { c.Limits = berm.Limits{MemoryBytes: 64 << 20, DiskBytes: 1 << 30} })
	b := place(t, p, berm.Layout{})
	for range 3 {
		// One process: of two the kernel may choose the other, and the writer would go
		// on with the file open.
		res, err := b.Exec(bounded(t), berm.Command{Args: []string{"sh", "-c", "exec head -c 100m /dev/zero > /tmp/full"}})
		if err != nil || res.Reason != berm.OutOfMemory {
			t.Fatalf("%v %v", res, err)
		}
		// A command would find no memory to remove it with.
		if err := b.Files().RemoveAll(bounded(t), "/tmp/full"); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, b, "echo next"); got != "next\n" {
			t.Errorf("the next command says %q", got)
		}
	}
}

// Files without content cost memory all the same: a memory limit bounds them.
func TestFilesWithoutContentAreBounded(t *testing.T) {
	t.Parallel()
	prepare(t)
	if stage.provider.Capabilities().Memory != driver.Enforced {
		t.Skip("there is no memory cgroup here; that this is said is in TestMemoryIsBoundedOrSaidNotToBe")
	}
	p := opened(t, func(c *berm.Config) { c.Limits = berm.Limits{MemoryBytes: 16 << 20, DiskBytes: 256 << 20} })
	b := place(t, p, berm.Layout{})
	res, err := b.Exec(bounded(t), berm.Command{Args: []string{b.payload, "inodes", "/dev/shm", "1000000"}})
	if err != nil {
		t.Fatalf("%v %v", res, err)
	}
	if res.Success() && !strings.Contains(string(res.Stdout), "errno") {
		t.Errorf("a million files: %v %s", res, res.Stdout)
	}
	if _, err := b.Files().Stat(bounded(t), "/dev/shm"); err != nil {
		t.Errorf("the agent: %v", err)
	}
}

// attacks 21: whatever is written, the host keeps what it said and counts the rest,
// in a heap that does not grow.
func TestOutputFloodIsCounted(t *testing.T) {
	t.Parallel()
	b := shared(t)
	const kept = 1 << 20
	size := int64(scaled(1 << 29))
	var res *berm.Result
	peak := heapPeak(t, func() {
		var err error
		res, err = b.Exec(bounded(t), berm.Command{
			Args:      []string{"sh", "-c", `head -c "$1" /dev/zero & head -c "$1" /dev/zero >&2; wait`, "sh", fmt.Sprint(size)},
			MaxOutput: kept,
		})
		if err != nil || !res.Success() {
			t.Errorf("%v %v", res, err)
		}
	})
	if len(res.Stdout) != kept || res.StdoutDropped != size-kept || len(res.Stderr) != kept || res.StderrDropped != size-kept {
		t.Errorf("kept %d and %d, dropped %d and %d of %d", len(res.Stdout), len(res.Stderr), res.StdoutDropped, res.StderrDropped, size)
	}
	if peak > 128<<20 {
		t.Errorf("the host's memory grew by %d MiB", peak>>20)
	}
}

// Very many small writes are as many events as the agent cares to send.
func TestEventFloodIsBounded(t *testing.T) {
	t.Parallel()
	b := shared(t)
	count := scaled(400_000)
	peak := heapPeak(t, func() {
		res, err := b.Exec(bounded(t), berm.Command{Args: []string{b.payload, "flakes", fmt.Sprint(count)}})
		if err != nil || !res.Success() {
			t.Fatalf("%v %v", res, err)
		}
		// The last line of the standard output is the report.
		flakes := bytes.Count(res.Stdout, []byte{'.'}) + bytes.Count(res.Stderr, []byte{'.'})
		if flakes != count {
			t.Errorf("%d of %d arrived", flakes, count)
		}
	})
	if peak > 128<<20 {
		t.Errorf("the host's memory grew by %d MiB", peak>>20)
	}
}

// zeros is an input that never ends.
type zeros struct{ given int64 }

func (z *zeros) Read(p []byte) (int, error) {
	z.given += int64(len(p))
	return len(p), nil
}

// A command that does not read gets no more than what fits on the way, and ends when
// it wants to.
func TestInputThatNobodyReads(t *testing.T) {
	t.Parallel()
	b := shared(t)
	in := &zeros{}
	peak := heapPeak(t, func() {
		began := time.Now()
		res, err := b.Exec(bounded(t), berm.Command{Args: []string{"sleep", "0.5"}, Stdin: io.Reader(in)})
		if err != nil || !res.Success() || time.Since(began) > 10*time.Second {
			t.Errorf("%v %v after %v", res, err, time.Since(began))
		}
	})
	if peak > 128<<20 {
		t.Errorf("the host's memory grew by %d MiB", peak>>20)
	}
}

// A user's descriptors on their way are counted over all of its processes: where
// sandboxes share the caller's uid, one must not use up what the others need.
func TestDescriptorsInFlightStopNobodyElse(t *testing.T) {
	t.Parallel()
	prepare(t)
	b := place(t, nil, berm.Layout{})
	neighbour := place(t, nil, berm.Layout{})
	v, stop := hold(t, b, "in-flight")
	defer stop()
	v.of("in flight").blocked(t, "ETOOMANYREFS", "EMFILE", "ENFILE", "ENOMEM", "ENOBUFS")
	if n, err := strconv.Atoi(v[0].Detail); err != nil || n < 253 {
		t.Errorf("only %s were in flight, so the rest proves nothing", v[0].Detail)
	}
	alive(t, neighbour)
	alive(t, b)
	alive(t, place(t, nil, berm.Layout{}))
}
