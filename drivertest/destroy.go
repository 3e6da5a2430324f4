package drivertest

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"sync"
	"testing"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/errdefs"
)

func destroyGroup() group {
	return group{name: "destroy", behaviours: []behaviour{
		{"idempotent", destroyIdempotent},
		{"concurrent", destroyConcurrent},
		{"under-way", destroyUnderWay},
		{"afterwards", destroyAfterwards},
		{"without-link", destroyWithoutLink},
		{"everything-ends", destroyEverythingEnds},
		{"provider", destroyProvider},
		{"same-id", destroySameID},
	}}
}

// destroyIdempotent: it ends in time, and again.
func destroyIdempotent(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	for range 3 {
		within(t, liveness, "destroy", func() {
			ctx, cancel := context.WithTimeout(t.Context(), liveness)
			defer cancel()
			if err := sb.Destroy(ctx); err != nil {
				t.Errorf("destroy: %v", err)
			}
		})
	}
	if err := sb.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	select {
	case <-sb.Done():
	default:
		t.Error("Done is not closed")
	}
}

func destroyConcurrent(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	within(t, 10*liveness, "eight destroys at once", func() {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := sb.Destroy(bounded(t)); err != nil {
					t.Errorf("destroy: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

// destroyUnderWay: a command under way ends as lost, never with a status.
func destroyUnderWay(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	up := &arrival{first: make(chan struct{})}
	command := shell("echo up; sleep 1000")
	command.Stdout = up
	var res *berm.Result
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		res, err = sb.Exec(bounded(t), command)
	}()
	within(t, patience, "the command's start", func() { <-up.first })
	destroyNow(t, sb)
	within(t, liveness, "the command of a destroyed sandbox", func() { <-ended })
	wantKind(t, err, errdefs.TransportLost, errdefs.Closed)
	noExit(t, res)
}

// destroyAfterwards: everything says that it is closed.
func destroyAfterwards(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	fsys := sb.FS(bounded(t), "")
	destroyNow(t, sb)
	ctx := bounded(t)
	_, execErr := sb.Exec(ctx, berm.Command{Args: []string{"true"}})
	_, readErr := sb.Files().ReadFile(ctx, "x")
	_, dialErr := sb.DialContext(ctx, "tcp", "localhost:80")
	_, statErr := fs.Stat(fsys, "x")
	for what, err := range map[string]error{
		"exec": execErr, "cmd": sb.CommandContext(ctx, "true").Run(), "read": readErr, "dial": dialErr, "fs": statErr,
		"write": sb.Files().WriteFile(ctx, "x", nil, 0o644),
	} {
		if !errors.Is(err, errdefs.Closed) || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after destroy: %v", what, err)
		}
	}
}

// destroyWithoutLink: when the link is gone, all the rest can still be ended.
func destroyWithoutLink(t *testing.T, s *suite) {
	sb := s.sandbox(t)
	l, err := s.machine(t, sb).Link(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	within(t, 10*liveness, "destroy without a link", func() { destroyNow(t, sb) })
}

// destroyEverythingEnds: daemons too, and their ports are free.
func destroyEverythingEnds(t *testing.T, s *suite) {
	if !s.declared(t).HostDirs {
		t.Skip("without a directory of the host nobody outside sees what goes on after the end")
	}
	dir := hostDir(t)
	sb := s.layout(t, berm.Layout{Outputs: berm.HostVolume(dir)})
	payload := s.install(t, sb)
	beat := newHeart(t, sb)
	sh(t, sb, `"$1" daemon daemon beat "$2"`, payload, beat.file)
	beat.started()
	destroyNow(t, sb)
	onHost := hostBeat(dir, beat.file)
	first := onHost(t)
	eventuallyStill(t, func() int64 { return onHost(t) }, first)
}

func destroyProvider(t *testing.T, s *suite) {
	p, err := berm.Open(bounded(t), s.backend(t), s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	sb, err := p.Create(bounded(t), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	_, err = sb.Exec(bounded(t), berm.Command{Args: []string{"true"}})
	wantKind(t, err, errdefs.Closed)
	_, err = p.Create(bounded(t), berm.CreateOptions{})
	wantKind(t, err, errdefs.Closed)
}
