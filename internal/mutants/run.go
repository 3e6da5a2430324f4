package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berm-dev/berm/internal/defence"
)

const (
	// patience bounds one run of tests; hangPatience one that is expected not to
	// end.
	patience     = 90 * time.Second
	hangPatience = 8 * time.Second
	// maxOutput bounds what is kept of a run, in bytes.
	maxOutput = 4 << 20
)

// job is tests of one package, run by one caller.
type job struct {
	pkg  string
	run  string
	drop bool // run by the user without privileges, started by root
}

// jobsOf are the proofs that this caller can run; nil when each needs root.
func jobsOf(e defence.Entry) []job {
	root := os.Geteuid() == 0
	var out []job
	for _, p := range e.Proofs {
		if p.As == defence.Root && !root {
			continue
		}
		out = append(out, job{pkg: p.Package, run: p.Run, drop: root && p.As == defence.User})
	}
	return out
}

// anchored makes each alternative of a pattern match whole names.
func anchored(run string) string {
	all := strings.Split(run, "|")
	for i, one := range all {
		levels := strings.Split(one, "/")
		for k, level := range levels {
			levels[k] = "^" + level + "$"
		}
		all[i] = strings.Join(levels, "/")
	}
	return strings.Join(all, "|")
}

// baseline runs every test that the chosen rows name, with every defence on. It
// is false when one does not pass, or a row has none that ran.
func (s *shop) baseline(ctx context.Context, chosen []defence.Entry) bool {
	type group struct {
		pkg  string
		drop bool
	}
	patterns := map[group][]string{}
	for _, e := range chosen {
		for _, j := range jobsOf(e) {
			g := group{j.pkg, j.drop}
			if !slices.Contains(patterns[g], j.run) {
				patterns[g] = append(patterns[g], j.run)
			}
		}
	}
	began, ok := time.Now(), true
	var work sync.WaitGroup
	var mu sync.Mutex
	places := make(chan struct{}, max(1, s.options.workers))
	for g, runs := range patterns {
		for _, run := range runs {
			work.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				v, output := s.try(ctx, nil, job{pkg: g.pkg, run: run, drop: g.drop}, patience)
				if ctx.Err() == nil && (len(v.failed) > 0 || v.hung || v.broken != "") {
					mu.Lock()
					defer mu.Unlock()
					ok = false
					fmt.Printf("without any mutant: %s %s: %s\n%s\n", g.pkg, run, cmp.Or(strings.Join(v.failed, ", "), v.why()), output)
				}
			})
		}
	}
	work.Wait()
	fmt.Printf("every defence on: %d runs in %d s\n", len(patterns), int(time.Since(began).Seconds()))
	return ok && ctx.Err() == nil
}

// turnOff makes one mutant after the other.
func (s *shop) turnOff(ctx context.Context, chosen []defence.Entry) (killed, survived int) {
	var work sync.WaitGroup
	var mu sync.Mutex
	places := make(chan struct{}, max(1, s.options.workers))
	for _, e := range chosen {
		places <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		work.Go(func() {
			defer func() { <-places }()
			began := time.Now()
			by, story := s.mutant(ctx, e)
			if ctx.Err() != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if by == "" {
				survived++
				fmt.Printf("SURVIVED  %s: %s\n", e.Name, story)
				return
			}
			killed++
			fmt.Printf("killed    %s by %s (%.1f s)\n", e.Name, by, time.Since(began).Seconds())
		})
	}
	work.Wait()
	return killed, survived
}

// mutant turns one defence off and says by what it was killed, or how it was not.
func (s *shop) mutant(ctx context.Context, e defence.Entry) (by, story string) {
	limit := patience
	if e.Hangs {
		limit = hangPatience
	}
	names := append([]defence.Defence{e.Name}, e.With...)
	var stories []string
	for _, j := range jobsOf(e) {
		v, output := s.try(ctx, names, j, limit)
		if s.options.verbose {
			fmt.Printf("--- %s: %s %s\n%s\n", e.Name, j.pkg, j.run, output)
		}
		if by := v.kills(e.Hangs); by != "" {
			return j.pkg + " " + by, ""
		}
		stories = append(stories, fmt.Sprintf("%s %s: %s", j.pkg, j.run, v.why()))
	}
	return "", strings.Join(stories, "; ")
}

// try runs one job with defences off.
func (s *shop) try(ctx context.Context, names []defence.Defence, j job, limit time.Duration) (verdict, string) {
	packages := []string{j.pkg}
	for _, p := range programs {
		packages = append(packages, p.pkg)
	}
	c, err := s.stamp(names, packages)
	if err != nil {
		return verdict{broken: err.Error()}, ""
	}
	defer func() { _ = c.remove() }()
	ctx, cancel := context.WithTimeout(ctx, limit+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.stamped[j.pkg], "-test.v", "-test.short", "-test.timeout="+limit.String(), "-test.run="+anchored(j.run))
	cmd.Dir, cmd.Env = filepath.Join(s.root, filepath.FromSlash(j.pkg)), s.environment(c, j.drop)
	if j.drop {
		cmd.Dir = s.home
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: dropUID, Gid: dropUID}}
	}
	// What a mutant leaves running may hold the output.
	cmd.WaitDelay = 5 * time.Second
	out := &head{}
	cmd.Stdout, cmd.Stderr = out, out
	_ = cmd.Run() // what became of it is in the status
	status := -1
	if cmd.ProcessState != nil {
		status = cmd.ProcessState.ExitCode()
	}
	return judge(out.text.String(), status), out.text.String()
}

// environment is the caller's without what names root's folders, and with the
// stamped programs.
func (s *shop) environment(c *copies, drop bool) []string {
	out := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return strings.HasPrefix(name, "BERM_") || drop && (strings.HasPrefix(name, "XDG_") || strings.HasPrefix(name, "SUDO_") ||
			slices.Contains([]string{"HOME", "USER", "LOGNAME", "TMPDIR", "PWD", "OLDPWD"}, name))
	})
	if drop {
		out = append(out, "HOME="+s.home, "TMPDIR="+s.home, "XDG_RUNTIME_DIR="+filepath.Join(s.home, "run"), "USER=berm-test", "LOGNAME=berm-test")
	}
	for _, p := range programs {
		for _, name := range p.names {
			out = append(out, name+"="+c.stamped[p.pkg])
		}
	}
	return out
}

// head keeps the first bytes that are written to it.
type head struct{ text bytes.Buffer }

// Write never fails.
func (h *head) Write(p []byte) (int, error) {
	h.text.Write(p[:min(len(p), maxOutput-h.text.Len())])
	return len(p), nil
}
