// Command soak uses one sandbox of the process backend over and over, and fails
// when what it used stays: a thousand commands in the background with a follower
// each, a hundred watchers, and streams of many gigabytes in both directions.
//
// Memory is resident memory as the kernel counts it, of this program and of the
// sandbox's agent.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/backend/process"
)

const mebibyte = 1 << 20

// Bounds, in MiB. Growth is that over four rounds, in which a leak of six
// kilobytes for each command is more; garbage that was not collected yet moves
// resident memory by up to that.
const (
	mostGrowth = 24.0
	mostPeak   = 64.0
)

// size is how much is done.
type size struct {
	rounds, processes, watchers int
	stream                      int64 // bytes in each direction
}

func main() {
	short := flag.Bool("short", false, "a tenth of everything")
	flag.Parse()
	// The agent remembers some thousands of ends; after five rounds they are there.
	s := size{rounds: 12, processes: 1000, watchers: 100, stream: 10 << 30}
	if *short {
		s = size{rounds: 7, processes: 100, watchers: 20, stream: 1 << 30}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := soak(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func soak(ctx context.Context, s size) (err error) {
	p, err := berm.Open(ctx, process.Config{}, berm.Config{
		Limits: berm.Limits{Processes: 4*s.processes + 200, BestEffort: true},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	// First, because the most that a process ever held is what counts.
	errs := []error{within(ctx, p, func(sb *berm.Sandbox) error { return streams(ctx, sb, s.stream) })}
	for name, use := range map[string]func(context.Context, *berm.Sandbox, size) error{
		"background commands and followers": followers, "watchers": watchers,
	} {
		errs = append(errs, within(ctx, p, func(sb *berm.Sandbox) error { return rounds(ctx, sb, s, name, use) }))
	}
	return errors.Join(errs...)
}

// within lends a new sandbox.
func within(ctx context.Context, p *berm.Provider, use func(*berm.Sandbox) error) error {
	sb, err := p.Create(ctx, berm.CreateOptions{})
	if err != nil {
		return err
	}
	return errors.Join(use(sb), sb.Close())
}

// rounds does the same thing again and again and compares two windows of three
// rounds: one after everything has its working size, and the last.
func rounds(ctx context.Context, sb *berm.Sandbox, s size, name string, use func(context.Context, *berm.Sandbox, size) error) error {
	var seen []usage
	for i := range s.rounds {
		start := time.Now()
		if err := use(ctx, sb, s); err != nil {
			return fmt.Errorf("%s, round %d: %w", name, i+1, err)
		}
		now, err := settled(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("%s, round %d: %s (%.1f s)\n", name, i+1, now, time.Since(start).Seconds())
		seen = append(seen, now)
	}
	before, after := mean(seen[s.rounds-7:s.rounds-4]), mean(seen[s.rounds-3:])
	switch {
	case after.goroutines > before.goroutines:
		return fmt.Errorf("%s: goroutines grew from %d to %d", name, before.goroutines, after.goroutines)
	case after.agentThreads > before.agentThreads+8:
		return fmt.Errorf("%s: the agent's threads grew from %d to %d", name, before.agentThreads, after.agentThreads)
	case after.host-before.host > mostGrowth || after.agent-before.agent > mostGrowth:
		return fmt.Errorf("%s: memory grew from %s to %s", name, before, after)
	}
	return nil
}

func mean(of []usage) usage {
	var sum usage
	for _, u := range of {
		sum.host += u.host / float64(len(of))
		sum.agent += u.agent / float64(len(of))
		sum.goroutines = max(sum.goroutines, u.goroutines)
		sum.agentThreads = max(sum.agentThreads, u.agentThreads)
	}
	return sum
}

// usage is what is held between two rounds.
type usage struct {
	host, agent              float64 // resident, MiB
	goroutines, agentThreads int
}

func (u usage) String() string {
	return fmt.Sprintf("host %.1f MiB, %d goroutines; agent %.1f MiB, %d threads", u.host, u.goroutines, u.agent, u.agentThreads)
}

// settled waits until the goroutines of what was closed are gone.
func settled(ctx context.Context) (u usage, err error) {
	for range 100 {
		debug.FreeOSMemory()
		n := runtime.NumGoroutine()
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return u, ctx.Err()
		}
		if u.goroutines = runtime.NumGoroutine(); u.goroutines == n {
			break
		}
	}
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u, err
	}
	agents, err := agentStatus()
	if err != nil {
		return u, err
	}
	u.host, u.agent = field(own, "VmRSS")/1024, field(agents, "VmRSS")/1024
	u.agentThreads = int(field(agents, "Threads"))
	return u, nil
}

// agentStatus reads /proc/PID/status of the agent: the sandbox's first process,
// a child of the bubblewrap that is ours.
func agentStatus() ([]byte, error) {
	parents := []string{"self"}
	for range 2 {
		var below []string
		for _, parent := range parents {
			tasks, err := filepath.Glob("/proc/" + parent + "/task/*/children")
			if err != nil {
				return nil, err
			}
			for _, name := range tasks {
				if list, err := os.ReadFile(name); err == nil { // else the thread has ended
					below = append(below, strings.Fields(string(list))...)
				}
			}
		}
		parents = below
	}
	if len(parents) != 1 {
		return nil, fmt.Errorf("%d processes could be the agent", len(parents))
	}
	return os.ReadFile("/proc/" + parents[0] + "/status")
}

// field gives a number of /proc/PID/status, 0 where there is none.
func field(status []byte, name string) float64 {
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64) //nolint:errcheck // the kernel writes numbers there
			return n
		}
	}
	return 0
}
