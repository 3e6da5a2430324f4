// Package detach is the agent's detach mode: it opens a directory as the root of
// a mount of its own and hands it back. A caller without privileges cannot do
// that, so the mode runs as root of a user and mount namespace that were made for
// it, and ends at once. It is a light mode, and imports very little for the reason
// that package execmode gives.
package detach

import (
	"runtime"
	"syscall"
	"unsafe"
)

// SocketFD is where the mode finds the socket over which it sends the directory.
const SocketFD = 3

// Refusal is the length of the answer when there is no directory: an errno, low
// byte first. With a directory the answer is one byte.
const Refusal = 2

// Main opens the directory named by its one argument. It returns the exit status.
func Main(args []string) int {
	if len(args) != 1 {
		return answer(-1, syscall.EINVAL)
	}
	return answer(openTree(args[0]))
}

// atFDCWD is AT_FDCWD, as an argument of a system call.
const atFDCWD = ^uintptr(99)

// openTree clones the mount at a directory, without those below it.
func openTree(name string) (int, syscall.Errno) {
	const (
		sysOpenTree = 428 // the same on all architectures
		clone       = 1
		noFollow    = 0x100
	)
	path, err := syscall.BytePtrFromString(name)
	if err != nil {
		return -1, syscall.EINVAL
	}
	fd, _, errno := syscall.Syscall(sysOpenTree, atFDCWD, uintptr(unsafe.Pointer(path)), clone|noFollow|syscall.O_CLOEXEC)
	runtime.KeepAlive(path)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), 0
}

// answer sends the descriptor, or why there is none.
func answer(fd int, errno syscall.Errno) int {
	if errno != 0 {
		_ = syscall.Sendmsg(SocketFD, []byte{byte(errno), byte(errno >> 8)}, nil, nil, syscall.MSG_NOSIGNAL)
		return 1
	}
	if syscall.Sendmsg(SocketFD, []byte{0}, syscall.UnixRights(fd), nil, syscall.MSG_NOSIGNAL) != nil {
		return 1
	}
	return 0
}
