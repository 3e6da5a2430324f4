package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func cancelGroup() group {
	return group{name: "cancel", behaviours: []behaviour{
		{"exec", cancelExec},
		{"deadline", cancelDeadline},
		{"before-start", cancelBeforeStart},
		{"cmd", cancelCmd},
	}}
}

// cancelExec: the end of the context ends the tree, is told as that, keeps the
// output so far, and leaves the sandbox usable.
func cancelExec(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	payload, beat := s.install(t, sb), newHeart(t, sb)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	var res *berm.Result
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		res, err = sb.Exec(ctx, shell(`echo before; sleep 0.3; "$1" beat "$2" & wait`, payload, beat.file))
	}()
	beat.started()
	cancel()
	within(t, liveness, "the cancelled command", func() { <-ended })
	wantKind(t, err, errdefs.Cancelled)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not match context.Canceled", err)
	}
	noExit(t, res)
	if res == nil || res.Reason != berm.Cancelled || string(res.Stdout) != "before\n" {
		t.Errorf("the partial result is %+v", res)
	}
	beat.stopped("a child of the cancelled command")
	sh(t, sb, "exit 0")
}

// cancelDeadline: the context's deadline is a timeout of the caller's, which is
// an error; the command's own timeout is a result.
func cancelDeadline(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	ctx, cancel := context.WithTimeout(bounded(t), 300*time.Millisecond)
	defer cancel()
	within(t, 300*time.Millisecond+liveness, "a command with a deadline", func() {
		res, err := sb.Exec(ctx, berm.Command{Args: []string{"sleep", "1000"}})
		wantKind(t, err, errdefs.Timeout)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v does not match context.DeadlineExceeded", err)
		}
		noExit(t, res)
	})
}

// cancelBeforeStart: with a context that has ended nothing runs.
func cancelBeforeStart(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res, err := sb.Exec(ctx, berm.Command{Args: []string{"touch", "ran"}})
	wantKind(t, err, errdefs.Cancelled)
	noExit(t, res)
	if err := sb.Files().WriteFile(ctx, "written", nil, 0o644); !errors.Is(err, errdefs.Cancelled) {
		t.Errorf("write with a cancelled context: %v", err)
	}
	for _, name := range []string{"ran", "written"} {
		if exists(t, sb, name) {
			t.Errorf("%s exists", name)
		}
	}
}

// cancelCmd: a Cmd obeys its context between Start and Wait.
func cancelCmd(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	cmd := sb.CommandContext(ctx, "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cancel()
	within(t, liveness, "Wait after cancel", func() { wantKind(t, cmd.Wait(), errdefs.Cancelled) })
	noExit(t, cmd.Result)
}
