package drivertest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berm-dev/berm"
	"github.com/berm-dev/berm/driver"
	"github.com/berm-dev/berm/errdefs"
	"github.com/berm-dev/berm/link"
)

func createCancelGroup() group {
	return group{name: "create", alone: true, behaviours: []behaviour{
		{"cancelled", createCancelled},
		{"faults", createFaults},
		{"failed-later", createFailedLater},
		{"leaves-nothing", createLeavesNothing},
	}}
}

// createCancelled: a Create that is cancelled, at whatever moment, returns soon,
// says why, and leaves nothing at all behind.
func createCancelled(t *testing.T, s *suite) {
	p := s.open(t, func(*berm.Config) {})
	full := time.Now()
	destroyNow(t, create(t, p, berm.CreateOptions{}))
	span := time.Since(full)
	before := s.look(t)
	const moments = 12
	for i := range moments {
		ctx, cancel := context.WithTimeout(t.Context(), span*time.Duration(i)/moments)
		if i == 0 {
			cancel()
		}
		var sb *berm.Sandbox
		var err error
		within(t, 5*time.Second, "a cancelled Create", func() { sb, err = p.Create(ctx, berm.CreateOptions{}) })
		cancel()
		if err == nil {
			destroyNow(t, sb) // it was faster this time
			continue
		}
		wantKind(t, err, errdefs.Cancelled, errdefs.Timeout)
	}
	s.checkLeftovers(t, before)
}

func destroyNow(t *testing.T, sb *berm.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := sb.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

// createFaults: options that cannot be right are refused with every reason,
// before anything was made.
func createFaults(t *testing.T, s *suite) {
	var made atomic.Int32
	backend := s.changed(t, func(m driver.Machine) driver.Machine {
		made.Add(1)
		return watchedMachine{m}
	})
	p, err := berm.Open(bounded(t), backend, s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	before := s.look(t)
	_, err = p.Create(bounded(t), berm.CreateOptions{
		Env:    map[string]string{"A;touch x": "1", "": "2", "B": "\x00"},
		Labels: map[string]string{"": "3", "a=b": "4"},
		Layout: &berm.Layout{Workdir: "relative"},
	})
	wantKind(t, err, errdefs.Invalid)
	var known *errdefs.Error
	if !errors.As(err, &known) || len(known.Reasons) < 6 {
		t.Errorf("six faults at once: %v", err)
	}
	if made.Load() != 0 {
		t.Error("a machine was made for options that were refused")
	}
	s.checkLeftovers(t, before)
}

// errRefused is what a machine without a link says.
var errRefused = errors.New("the suite withholds the link")

// linkless is a machine whose link cannot be had.
type linkless struct{ watchedMachine }

// Link refuses.
func (linkless) Link(context.Context) (link.Link, error) { return nil, errRefused }

// createFailedLater: when the machine is made but cannot be used, it is removed
// again.
func createFailedLater(t *testing.T, s *suite) {
	backend := s.changed(t, func(m driver.Machine) driver.Machine { return linkless{watchedMachine{m}} })
	p, err := berm.Open(bounded(t), backend, s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	before := s.look(t)
	_, err = p.Create(bounded(t), berm.CreateOptions{})
	if !errors.Is(err, errRefused) {
		t.Errorf("error %v, want the machine's", err)
	}
	var known *errdefs.Error
	if !errors.As(err, &known) {
		t.Errorf("error %T is not an *errdefs.Error", err)
	}
	s.checkLeftovers(t, before)
}

// createLeavesNothing: a whole life leaves nothing, and so does a provider.
func createLeavesNothing(t *testing.T, s *suite) {
	before := s.look(t)
	p, err := berm.Open(bounded(t), s.backend(t), s.config(t))
	if err != nil {
		t.Fatal(err)
	}
	sb, err := p.Create(bounded(t), berm.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sh(t, sb, "sleep 1000 >/dev/null 2>&1 & echo text > file")
	if err := p.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	s.checkLeftovers(t, before)
}
