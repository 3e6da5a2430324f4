//go:build linux

package main

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacySetID makes set-id files by the calls that newer machines do not have.
func legacySetID(r *report, fresh, file func() string) {
	one := func(number uintptr, name string, args ...uintptr) error {
		p, err := unix.BytePtrFromString(name)
		if err != nil {
			return err
		}
		var a [2]uintptr
		copy(a[:], args)
		fd, _, errno := unix.Syscall(number, uintptr(unsafe.Pointer(p)), a[0], a[1])
		if errno != 0 {
			return errno
		}
		if fd > 2 {
			return unix.Close(int(fd))
		}
		return nil
	}
	for _, bits := range []uintptr{0o4755, 0o2755, 0o6755} {
		r.add(fmt.Sprintf("old chmod %o", bits), one(unix.SYS_CHMOD, file(), bits))
		r.add(fmt.Sprintf("old creat %o", bits), one(unix.SYS_CREAT, fresh(), bits))
		r.add(fmt.Sprintf("old open %o", bits), one(unix.SYS_OPEN, fresh(), unix.O_CREAT|unix.O_WRONLY, bits))
		r.add(fmt.Sprintf("old mknod %o", bits), one(unix.SYS_MKNOD, fresh(), unix.S_IFREG|bits, 0))
	}
}
