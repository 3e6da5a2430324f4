package drivertest

import (
	"context"

	"github.com/berm-dev/berm/driver"
)

// watched is a backend that shows each machine to the suite. It decorates all
// three levels, so that running the suite at all proves that package berm finds
// optional powers through decorators.
type watched struct {
	driver.Backend
	// change replaces each machine.
	change func(driver.Machine) driver.Machine
}

var _ driver.Unwrapper[driver.Backend] = watched{}

// Unwrap gives the backend below.
func (w watched) Unwrap() driver.Backend { return w.Backend }

// Open opens the backend below.
func (w watched) Open(ctx context.Context, host driver.Host) (driver.Driver, error) {
	d, err := w.Backend.Open(ctx, host)
	if err != nil {
		return nil, err
	}
	return watchedDriver{Driver: d, watched: w}, nil
}

type watchedDriver struct {
	driver.Driver
	watched watched
}

// Unwrap gives the driver below.
func (w watchedDriver) Unwrap() driver.Driver { return w.Driver }

// Create decorates the machine.
func (w watchedDriver) Create(ctx context.Context, spec *driver.Spec) (driver.Machine, error) {
	m, err := w.Driver.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return w.watched.change(m), nil
}

type watchedMachine struct{ driver.Machine }

// Unwrap gives the machine below.
func (w watchedMachine) Unwrap() driver.Machine { return w.Machine }
