package drivertest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
)

func treeGroup() group {
	return group{name: "tree", behaviours: []behaviour{
		{"lingering", treeLingering},
		{"lingering-ends", treeLingeringEnds},
		{"deep", treeDeep},
		{"siblings", treeSiblings},
		{"reaping", treeReaping},
	}}
}

// treeLingering: a child that is alive when the leader ends is listed, and goes
// on.
func treeLingering(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	payload, beat := s.install(t, sb), newHeart(t, sb)
	res := exited(t, sb, 0, shell(`"$1" beat "$2" >/dev/null 2>&1 & while [ ! -s "$2" ]; do sleep 0.01; done; echo $!`, payload, beat.file))
	if len(res.Lingering) != 1 || itoa(res.Lingering[0]) != strings.TrimSpace(string(res.Stdout)) {
		t.Errorf("lingering %v, want the child %q", res.Lingering, res.Stdout)
	}
	size := beat.size()
	eventually(t, liveness, "the child goes on", func() bool { return beat.size() > size })
	if res := exited(t, sb, 0, shell("exit 0")); len(res.Lingering) != 0 {
		t.Errorf("a command without children lists %v", res.Lingering)
	}
}

// treeLingeringEnds: the timeout counts for children that outlive the leader.
func treeLingeringEnds(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	payload, beat := s.install(t, sb), newHeart(t, sb)
	command := shell(`"$1" beat "$2" >/dev/null 2>&1 & while [ ! -s "$2" ]; do sleep 0.01; done`, payload, beat.file)
	command.Timeout = 3 * time.Second
	exited(t, sb, 0, command)
	time.Sleep(command.Timeout)
	beat.stopped("a lingering child after the command's timeout")
}

// treeDeep: the depth of a tree, with a session for each generation, does not
// matter.
func treeDeep(t *testing.T, s *suite) {
	if s.declared(t).TreeKill == driver.KillGroup {
		t.Skip("the backend declares that a daemon may survive")
	}
	sb := s.sandbox(t)
	payload, beat := s.install(t, sb), newHeart(t, sb)
	args := append(repeat("daemon", 12), "beat", beat.file)
	ctx, cancel := context.WithCancel(bounded(t))
	ended := make(chan error, 1)
	go func() {
		_, err := sb.Exec(ctx, shell(`"$@"; sleep 1000`, append([]string{payload}, args...)...))
		ended <- err
	}()
	beat.started()
	cancel()
	within(t, liveness, "the cancelled command", func() { wantKind(t, <-ended, errdefs.Cancelled) })
	beat.stopped("a daemon twelve generations down")
}

func repeat(word string, n int) []string { return strings.Fields(strings.Repeat(word+" ", n)) }

// treeSiblings: the end of one command touches no other.
func treeSiblings(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	payload, beat := s.install(t, sb), newHeart(t, sb)
	ctx, cancel := context.WithCancel(bounded(t))
	ended := make(chan error, 1)
	go func() {
		_, err := sb.Exec(ctx, berm.Command{Args: []string{payload, "beat", beat.file}})
		ended <- err
	}()
	beat.started()
	command := shell(`sleep 1000 & sleep 1000`)
	command.Timeout = 100 * time.Millisecond
	if res, err := sb.Exec(bounded(t), command); err != nil || res.Reason != berm.TimedOut {
		t.Errorf("the command that times out: %v, %v", res, err)
	}
	size := beat.size()
	eventually(t, liveness, "the other command goes on", func() bool { return beat.size() > size })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the other command: %v", err)
	}
}

// treeReaping: orphans do not stay as zombies.
func treeReaping(t *testing.T, s *suite) {
	if !s.declared(t).Isolation.Processes {
		t.Skip("other processes of the host are seen inside, so zombies cannot be counted there")
	}
	sb := s.sandbox(t)
	sh(t, sb, `i=0; while [ $i -lt 100 ]; do (sleep 0 & ) ; i=$((i+1)); done`)
	eventually(t, 5*time.Second, "no zombie is left", func() bool {
		out := sh(t, sb, `grep -l '^State:[[:space:]]*Z' /proc/[0-9]*/status 2>/dev/null | wc -l`)
		return strings.TrimSpace(out) == "0"
	})
}
