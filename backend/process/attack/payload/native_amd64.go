//go:build linux

package main

import (
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hardware are calls that only this architecture has.
func (r *report) hardware() {
	r.call("iopl", unix.SYS_IOPL, 3)
	r.call("iopl of nothing", unix.SYS_IOPL, 0)
	r.call("ioperm", unix.SYS_IOPERM, 0x80, 1, 1)
}

// foreignCalls make a call by another ABI than the program's.
func foreignCalls() map[string]func() {
	x32 := func(number uintptr) func() {
		return func() { _, _, _ = unix.RawSyscall(0x40000000|number, ^uintptr(0), 0, 0) }
	}
	return map[string]func(){
		"int80 getpid": int80(20), "int80 socketcall": int80(102), "int80 unshare": int80(310), "int80 an unknown call": int80(9999),
		"x32 getpid": x32(unix.SYS_GETPID), "x32 socket": x32(unix.SYS_SOCKET), "x32 ioctl": x32(514), "x32 an unknown call": x32(9999),
	}
}

// int80 calls the kernel as programs of the 32 bit PC do.
func int80(number uint16) func() {
	return func() {
		code := []byte{0xb8, byte(number), byte(number >> 8), 0, 0, 0xcd, 0x80, 0xc3} // mov eax, number; int 0x80; ret
		page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return
		}
		copy(page, code)
		if unix.Mprotect(page, unix.PROT_READ|unix.PROT_EXEC) != nil {
			return
		}
		entry := unsafe.Pointer(&page[0])
		closure := &entry
		(*(*func())(unsafe.Pointer(&closure)))()
	}
}

// foreign makes each call in a process of its own, which must not survive it.
func foreign(r *report, args []string) error {
	if len(args) > 0 {
		foreignCalls()[args[0]]()
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for name := range foreignCalls() {
		cmd := exec.Command(self, "foreign", name) //nolint:forbid // ends at once
		_ = cmd.Run()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			r.attempts = append(r.attempts, attempt{Name: name, Errno: "killed by " + unix.SignalName(status.Signal())})
			continue
		}
		r.add(name, nil, cmd.ProcessState)
	}
	return nil
}
