package seccomp_test

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// nativeCalls are the calls that only this architecture has.
func nativeCalls(path func(string) uintptr) []kernelCall {
	const eperm = syscall.EPERM
	return []kernelCall{
		{"chmod u+s", unix.SYS_CHMOD, [6]uintptr{path("dir"), 0o4755}, eperm},
		{"creat u+s", unix.SYS_CREAT, [6]uintptr{path("s3"), 0o4755}, eperm},
		{"old open u+s", unix.SYS_OPEN, [6]uintptr{path("s4"), unix.O_CREAT | unix.O_WRONLY, 0o4755}, eperm},
		{"old open with a stray mode", unix.SYS_OPEN, [6]uintptr{path("dir"), unix.O_RDONLY, 0o6777}, 0},
		{"old mkdir g+s", unix.SYS_MKDIR, [6]uintptr{path("s5"), 0o2755}, eperm},
		{"old mknod whiteout", unix.SYS_MKNOD, [6]uintptr{path("s6"), unix.S_IFCHR, 0}, eperm},
		{"old mknod fifo", unix.SYS_MKNOD, [6]uintptr{path("fifo2"), unix.S_IFIFO | 0o600}, 0},
		{"iopl", unix.SYS_IOPL, [6]uintptr{0}, eperm},
	}
}

// Calls by other ABIs.
const (
	callInt80 = "int80"
	callX32   = "x32"
)

func foreignCalls() []string { return []string{callInt80, callX32} }

// foreignCall makes getpid by another ABI and gives its result.
func foreignCall(which string) int {
	if which == callX32 {
		result, _, errno := unix.RawSyscall(0x40000000|unix.SYS_GETPID, 0, 0, 0)
		if errno != 0 && errno != syscall.ENOSYS {
			fmt.Fprintln(os.Stderr, errno)
			os.Exit(1)
		}
		return int(result)
	}
	code := []byte{
		0xb8, 20, 0, 0, 0, // mov eax, 20 (getpid of i386)
		0xcd, 0x80, // int 0x80
		0xc3, // ret
	}
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		copy(page, code)
		err = unix.Mprotect(page, unix.PROT_READ|unix.PROT_EXEC)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	entry := unsafe.Pointer(&page[0])
	closure := &entry
	call := *(*func())(unsafe.Pointer(&closure))
	call()
	return 0
}
