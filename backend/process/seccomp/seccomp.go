//go:build linux

// Package seccomp compiles the system call filter of the process backend's
// sandboxes: a table of rules, each with its reason, into the kernel's classic
// BPF. It has its own compiler because the filter has to compare 32 bits of an
// argument under a mask, as the kernel itself does; a comparison of all 64 bits
// is passed by TIOCSTI | 1<<32.
//
// The filter refuses; it is not the wall. Namespaces, the dropped uid and the
// missing capabilities stand without it. What it alone does is named in the
// rules: address families, set-id files and devices on shared mounts, and the
// calls by which a payload would reach the agent.
//
// The package imports little, because the agent's start shim is on the path of
// every command.
//
// All functions are pure, except Load, and safe for concurrent use.
package seccomp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Program gives the sandbox's filter for this architecture. On an architecture
// without a table the error matches errors.ErrUnsupported.
func Program() ([]unix.SockFilter, error) { return sandbox().program() }

// Describe gives the rules of Program, for documentation and diagnosis. Beside
// them: any other ABI ends the process, and a call that is newer than the table
// fails with ENOSYS.
func Describe() []Rule { return sandbox().rules }

// program compiles where there is a table.
func (p policy) program() ([]unix.SockFilter, error) {
	if p.arch == 0 {
		return nil, fmt.Errorf("system call filter for %s: %w", runtime.GOARCH, errors.ErrUnsupported)
	}
	prog, err := p.compile()
	if err != nil {
		return nil, fmt.Errorf("system call filter: %w", err)
	}
	return prog, nil
}

// Encode gives the program as an array of struct sock_filter in this machine's
// byte order: what bubblewrap reads from the descriptor of --seccomp.
func Encode(prog []unix.SockFilter) []byte {
	out := make([]byte, 0, 8*len(prog))
	for _, f := range prog {
		out = binary.NativeEndian.AppendUint16(out, f.Code)
		out = append(out, f.Jt, f.Jf)
		out = binary.NativeEndian.AppendUint32(out, f.K)
	}
	return out
}

// Load puts the program on the calling thread, for good: what the thread forks
// or executes inherits it, the process's other threads do not have it. The caller
// has locked its goroutine to the thread, and has set no_new_privs or holds
// CAP_SYS_ADMIN; else the error matches EACCES.
func Load(prog []unix.SockFilter) error {
	if len(prog) == 0 || len(prog) > maxProgram {
		return fmt.Errorf("load a filter of %d instructions: %w", len(prog), unix.EINVAL)
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	if errno != 0 {
		return fmt.Errorf("load a system call filter: %w", errno)
	}
	return nil
}
