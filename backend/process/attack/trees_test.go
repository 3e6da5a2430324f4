//go:build linux

package attack_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

// treesThatResist are ways to be there when a kill looks, or not to be found by it.
func treesThatResist() map[string][]string {
	return map[string][]string{
		"fork bomb":             {"fork-bomb"},
		"vfork storm":           {"vfork-storm", "12"},
		"chains":                {"chain-storm", "12"},
		"daemons":               {"daemons", "20"},
		"stopped":               {"stopped", "20"},
		"leader's thread ended": {"headless"},
		"zombies":               {"zombie-tree", "40"},
	}
}

// strangers lists the processes inside that the payload's program runs in, zombies
// not included.
func strangers(t *testing.T, b *box) string {
	t.Helper()
	res, err := b.Exec(bounded(t), berm.Command{Args: []string{"sh", "-c",
		`for p in /proc/[0-9]*; do read -r comm < $p/comm && [ "$comm" = attack ] && grep -q '^State:[[:space:]]*[^ZX]' $p/status && echo $p; done 2>/dev/null; exit 0`}})
	if err != nil && !errors.Is(err, errdefs.Exhausted) {
		t.Errorf("list processes: %v", err)
	}
	if err != nil || !res.Success() {
		return "so many that no more can start"
	}
	return string(res.Stdout)
}

// treeGone waits until no process of the payload's is left.
func treeGone(t *testing.T, b *box) {
	t.Helper()
	var seen []string
	for began := time.Now(); ; {
		left := strangers(t, b)
		if left == "" {
			return
		}
		seen = append(seen, left)
		if time.Since(began) > 30*time.Second {
			t.Fatalf("processes of the tree are left: %q", seen[max(0, len(seen)-5):])
		}
	}
}

// processesIn counts processes without making one.
func processesIn(t *testing.T, b *box) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	entries, err := b.Files().ReadDir(ctx, "/proc")
	if err != nil {
		t.Errorf("list /proc: %v", err)
	}
	n := 0
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	return n
}

// attacks 17, process-tier 1.1 "setsid child is reaped": a timeout ends them all, in
// time, and the sandbox lives.
func TestTimeoutEndsEveryTree(t *testing.T) {
	t.Parallel()
	for name, args := range treesThatResist() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := place(t, nil, berm.Layout{})
			for _, limit := range []time.Duration{time.Second, 5 * time.Second} {
				if endsByTimeout(t, b, limit, args) >= 5 {
					return
				}
			}
			t.Error("too few processes were seen while it ran, so the rest proves little")
		})
	}
}

// endsByTimeout runs an attack until its timeout and gives how many processes were
// seen in the sandbox meanwhile, or five.
func endsByTimeout(t *testing.T, b *box, limit time.Duration, args []string) int {
	t.Helper()
	began := time.Now()
	seen := make(chan int, 1)
	go func() {
		n := 0
		for n < 5 && time.Since(began) < limit {
			n = processesIn(t, b)
		}
		seen <- n
	}()
	res, err := b.Exec(bounded(t), berm.Command{Args: append([]string{b.payload}, args...), Timeout: limit})
	if err != nil || res.Reason != berm.TimedOut {
		t.Errorf("%v %v", res, err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	treeGone(t, b)
	alive(t, b)
	return <-seen
}

// The same by the end of the context, by a signal, and with the sandbox itself.
func TestEveryTreeEndsOtherwise(t *testing.T) {
	t.Parallel()
	for name, args := range treesThatResist() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := place(t, nil, berm.Layout{})
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := b.Exec(ctx, berm.Command{Args: append([]string{b.payload}, args...)})
			if !errors.Is(err, errdefs.Timeout) {
				t.Errorf("the context's end: %v", err)
			}
			treeGone(t, b)
			stop := background(t, b, append([]string{b.payload}, args...)...)
			began := time.Now()
			stop()
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("a signal took %v", took)
			}
			treeGone(t, b)
			last := b.CommandContext(bounded(t), b.payload, args...)
			if err := last.Start(); err != nil {
				t.Fatal(err)
			}
			destroyed(t, b.Sandbox) // with it under way
			if err := last.Wait(); err == nil {
				t.Error("the command ended well")
			}
		})
	}
}

// The noise of one tree does not save another one, and other commands go on.
func TestNoiseDoesNotSaveATree(t *testing.T) {
	t.Parallel()
	b := place(t, nil, berm.Layout{})
	stop := background(t, b, b.payload, "vfork-storm", "6")
	stop2 := background(t, b, b.payload, "zombies", "100")
	for range 2 {
		began := time.Now()
		res, err := b.Exec(bounded(t), berm.Command{Args: []string{"sh", "-c", "sleep 77 & setsid sleep 77 & sleep 77"}, Timeout: 500 * time.Millisecond})
		if err != nil || res.Reason != berm.TimedOut || time.Since(began) > 30*time.Second {
			t.Errorf("%v %v after %v", res, err, time.Since(began))
		}
	}
	soon(t, 5*time.Second, "none of them is left", func() bool {
		return strings.TrimSpace(sh(t, b, `grep -lx sleep /proc/[0-9]*/comm 2>/dev/null | wc -l`)) == "0"
	})
	stop()
	stop2()
	alive(t, b)
}

// 1,000 processes that come and go leave nothing, and no zombies that nobody waits
// for.
func TestChurnLeavesNothing(t *testing.T) {
	t.Parallel()
	b := place(t, nil, berm.Layout{})
	count := func() string { return sh(t, b, `ls -d /proc/[0-9]* | wc -l`) }
	before := count()
	times := "1000"
	if testing.Short() {
		times = "200"
	}
	attack(t, b, "churn", times).succeeded(t)
	soon(t, 5*time.Second, "as many processes as before", func() bool { return count() == before })
	_, stop := hold(t, b, "zombies", "200")
	alive(t, b)
	stop()
	soon(t, 5*time.Second, "as many processes as before", func() bool { return count() == before })
}

// attacks "Fork bomb at the pids limit, then another Exec: typed, agent alive".
func TestForkBombLeavesTheAgentAlive(t *testing.T) {
	t.Parallel()
	p := opened(t, func(c *berm.Config) { c.Limits = berm.Limits{Processes: 64} })
	b := place(t, p, berm.Layout{})
	neighbour := place(t, p, berm.Layout{})
	stop := background(t, b, b.payload, "fork-bomb")
	for range 3 {
		began := time.Now()
		res, err := b.Exec(bounded(t), berm.Command{Args: []string{"sh", "-c", "(true); (true); exit 3"}})
		switch {
		case err != nil && errors.Is(err, errdefs.NotStarted) && errors.Is(err, errdefs.Exhausted):
		case err == nil && (res.Reason == berm.ProcessLimit || res.Reason == berm.Exited):
		default:
			t.Errorf("a command at the limit: %v %v", res, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	}
	if _, err := b.Files().ReadFile(bounded(t), "/etc/passwd"); err != nil {
		t.Errorf("files at the limit: %v", err)
	}
	// Where all sandboxes are of one user, its limits are still each sandbox's own.
	alive(t, neighbour)
	if res := stop(); res == nil || res.Reason == berm.Exited {
		t.Errorf("the bomb ended with %v", res)
	}
	soon(t, 10*time.Second, "the sandbox works again", func() bool {
		res, err := b.Exec(bounded(t), berm.Command{Args: []string{"sh", "-c", "(true) && (true)"}})
		return err == nil && res.Success()
	})
}

// attacks 2 and 17: a thread that starts a sandbox and ends takes nothing with it.
func TestThreadThatStartedASandboxEnds(t *testing.T) {
	t.Parallel()
	prepare(t)
	tid := make(chan int, 1)
	made := make(chan *berm.Sandbox, 1)
	var start func()
	start = func() {
		runtime.LockOSThread() // for good: the goroutine's end is the thread's
		if unix.Gettid() == os.Getpid() {
			// The first thread does not end. While it waits here, another one is found.
			elsewhere := make(chan struct{})
			go func() {
				defer close(elsewhere)
				start()
			}()
			<-elsewhere
			runtime.UnlockOSThread()
			return
		}
		defer close(made)
		tid <- unix.Gettid()
		sb, err := stage.provider.Create(bounded(t), berm.CreateOptions{})
		if err != nil {
			t.Errorf("create: %v", err)
			return
		}
		made <- sb
	}
	go start()
	id, sb := <-tid, <-made
	if sb == nil {
		t.FailNow()
	}
	t.Cleanup(func() { destroyed(t, sb) })
	soon(t, 5*time.Second, "the thread has ended", func() bool { return !threadExists(id) })
	res, err := sb.Exec(bounded(t), berm.Command{Args: []string{"sh", "-c", "sleep 0.3; echo well"}})
	if err != nil || string(res.Stdout) != "well\n" {
		t.Errorf("%v %v", res, err)
	}
}
