package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/berm-dev/berm"
)

// followers starts commands in the background, each with a follower that leaves
// in the middle and one that comes back and stays until the end.
func followers(ctx context.Context, sb *berm.Sandbox, s size) error {
	// They all run at once: each waits for a file.
	if err := sb.Files().RemoveAll(ctx, "go"); err != nil {
		return err
	}
	all := make([]*berm.Process, s.processes)
	err := each(len(all), 16, func(i int) (err error) {
		// One shell each; the loop starts nothing.
		all[i], err = sb.Start(ctx, berm.Command{Args: []string{"sh", "-c", `echo up; read line; echo "$line"; exit 3`}, StdinOpen: true})
		return err
	})
	if err != nil {
		return err
	}
	offsets := make([]berm.Offsets, len(all))
	return each(len(all), len(all), func(i int) error {
		p, at := all[i], &offsets[i]
		brief, leave := context.WithCancel(ctx)
		defer leave()
		if _, err := p.Follow(brief, at, &onWrite{leave, 0}, nil); brief.Err() == nil {
			return fmt.Errorf("the first follower ended: %w", err)
		}
		if err := p.Write(ctx, []byte("on\n")); err != nil {
			return err
		}
		rest := &onWrite{func() {}, 0}
		res, err := p.Follow(ctx, at, rest, nil)
		switch {
		case err != nil:
			return err
		case res.ExitCode == nil || *res.ExitCode != 3:
			return fmt.Errorf("a command ended with %v", res)
		case rest.n != len("on\n"):
			return fmt.Errorf("%d bytes came after the first follower left", rest.n)
		}
		return nil
	})
}

// onWrite calls a function with each write and counts the bytes.
type onWrite struct {
	call func()
	n    int
}

// Write implements io.Writer.
func (w *onWrite) Write(p []byte) (int, error) {
	w.n += len(p)
	w.call()
	return len(p), nil
}

// watchers open at once, see one event each, and close.
func watchers(ctx context.Context, sb *berm.Sandbox, s size) error {
	files := sb.Files()
	if err := files.MkdirAll(ctx, "watched/below", 0o755); err != nil {
		return err
	}
	all := make([]*berm.Watcher, s.watchers)
	defer func() {
		for _, w := range all {
			if w != nil {
				_ = w.Close()
			}
		}
	}()
	if err := each(len(all), 16, func(i int) (err error) {
		all[i], err = files.Watch(ctx, "watched", berm.WatchOptions{Recursive: true})
		return err
	}); err != nil {
		return err
	}
	if err := files.WriteFile(ctx, "watched/below/file", []byte("x"), 0o644); err != nil {
		return err
	}
	if err := each(len(all), len(all), func(i int) error {
		for range all[i].Events() {
			return nil
		}
		return fmt.Errorf("a watcher saw nothing: %w", all[i].Err())
	}); err != nil {
		return err
	}
	return files.RemoveAll(ctx, "watched")
}

// streams sends many bytes out of a command and into one, and looks at what both
// sides held at most.
func streams(ctx context.Context, sb *berm.Sandbox, n int64) error {
	out := &onWrite{func() {}, 0}
	res, err := sb.Exec(ctx, berm.Command{Args: []string{"head", "-c", fmt.Sprint(n), "/dev/zero"}, Stdout: out})
	if err != nil || !res.Success() || int64(out.n) != n {
		return fmt.Errorf("%d bytes out of a command: %d came, %v, %w", n, out.n, res, err)
	}
	in := berm.Command{Args: []string{"wc", "-c"}, Stdin: io.LimitReader(zeros{}, n)}
	if res, err = sb.Exec(ctx, in); err != nil || string(res.Stdout) != fmt.Sprintln(n) {
		return fmt.Errorf("%d bytes into a command: %v, %w", n, res, err)
	}
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	agents, err := agentStatus()
	if err != nil {
		return err
	}
	host, agent := field(own, "VmHWM")/1024, field(agents, "VmHWM")/1024
	fmt.Printf("%d MiB in each direction: at most %.1f MiB in the host program, %.1f MiB in the agent\n", n/mebibyte, host, agent)
	if host > mostPeak || agent > mostPeak {
		return fmt.Errorf("a side held more than %v MiB", mostPeak)
	}
	return nil
}

// zeros never ends.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// each calls a function for 0 to n-1, so many at a time, and waits for all.
func each(n, at int, call func(i int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, at)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = call(i)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
