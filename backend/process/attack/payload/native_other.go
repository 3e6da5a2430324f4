//go:build linux && !amd64

package main

import "golang.org/x/sys/unix"

// hardware: other architectures have no such calls.
func (r *report) hardware() {}

// foreign: other architectures have no second ABI here.
func foreign(r *report, _ []string) error {
	r.add("another ABI", unix.ENOSYS)
	return nil
}
