package execmode

import (
	"runtime"
	"syscall"
	"unsafe"

	"github.com/berm-dev/berm/internal/defence"
)

// What package syscall does not have; the numbers are the kernel's.
const (
	rlimitProcesses   = 6
	rlimitLocks       = 10
	sysCloseRange     = 436
	closeRangeCloexec = 4

	prSetNoNewPrivs      = 38
	seccompSetModeFilter = 1
	seccompReturnAllow   = 0x7fff0000
	seccompReturnErrno   = 0x00050000

	archX8664   = 0xc000003e
	archI386    = 0x40000003
	archAArch64 = 0xc00000b7
	archARM     = 0x40000028
)

// Offsets in struct seccomp_data (little-endian machines only).
const (
	dataNumber   = 0
	dataArch     = 4
	dataArgument = 16
)

// rlimitCalls are one architecture's numbers of the calls that change a limit.
type rlimitCalls struct {
	arch      uint32
	setrlimit uint32
	prlimit64 uint32
}

// rlimitNumbers lists the architectures that a process on this kernel can use,
// the native one and its 32-bit sibling, with the native number of seccomp(2).
// Both are empty where they are not known.
func rlimitNumbers() (calls []rlimitCalls, seccomp uintptr) {
	switch runtime.GOARCH {
	case "amd64":
		return []rlimitCalls{{archX8664, 160, 302}, {archI386, 75, 340}}, 317
	case "arm64":
		return []rlimitCalls{{archAArch64, 164, 261}, {archARM, 75, 369}}, 277
	}
	return nil, 0
}

// x32Bit marks the calls of the x32 ABI, which are the same calls again.
const x32Bit = 0x40000000

// keepMark has the kernel refuse, for this process and all its children, every
// change of the limit that serves as mark.
func keepMark() error {
	calls, seccomp := rlimitNumbers()
	program := markFilter(calls)
	if len(program) == 0 || defence.CommandMarkKept.Off() {
		return syscall.ENOSYS
	}
	prog := syscall.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := syscall.RawSyscall(seccomp, seccompSetModeFilter, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return errno
	}
	return nil
}

// markFilter compiles the filter: for each architecture
//
//	setrlimit(RLIMIT_LOCKS, *)                 -> EPERM
//	prlimit64(*, RLIMIT_LOCKS, not nil, *)     -> EPERM
//
// and all else is allowed. The kernel takes the low 32 bits of the resource.
func markFilter(all []rlimitCalls) []syscall.SockFilter {
	var out []syscall.SockFilter
	for _, calls := range all {
		block := archBlock(calls)
		out = append(out, load(dataArch), jump(syscall.BPF_JEQ, calls.arch, 0, uint8(len(block))))
		out = append(out, block...)
	}
	if len(out) == 0 {
		return nil
	}
	return append(out, syscall.SockFilter{Code: syscall.BPF_RET | syscall.BPF_K, K: seccompReturnAllow})
}

// archBlock always returns: nothing falls out of its end.
func archBlock(calls rlimitCalls) []syscall.SockFilter {
	const (
		resourceOfSet = dataArgument
		resourceOfPr  = dataArgument + 8
		newLow        = dataArgument + 16
		newHigh       = dataArgument + 20
	)
	return []syscall.SockFilter{
		load(dataNumber), // 0
		{Code: syscall.BPF_ALU | syscall.BPF_AND | syscall.BPF_K, K: ^uint32(x32Bit)}, // 1
		jump(syscall.BPF_JEQ, calls.setrlimit, 0, 2),                                  // 2: else to 5
		load(resourceOfSet),                          // 3
		jump(syscall.BPF_JEQ, rlimitLocks, 8, 7),     // 4: deny 13, allow 12
		jump(syscall.BPF_JEQ, calls.prlimit64, 0, 6), // 5: else allow 12
		load(resourceOfPr),                           // 6
		jump(syscall.BPF_JEQ, rlimitLocks, 0, 4),     // 7: else allow 12
		load(newLow),                                 // 8
		jump(syscall.BPF_JEQ, 0, 0, 3),               // 9: else deny 13
		load(newHigh),                                // 10
		jump(syscall.BPF_JEQ, 0, 0, 1),               // 11: else deny 13
		{Code: syscall.BPF_RET | syscall.BPF_K, K: seccompReturnAllow},                         // 12
		{Code: syscall.BPF_RET | syscall.BPF_K, K: seccompReturnErrno | uint32(syscall.EPERM)}, // 13
	}
}

func load(offset uint32) syscall.SockFilter {
	return syscall.SockFilter{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: offset}
}

func jump(test uint16, value uint32, yes, no uint8) syscall.SockFilter {
	return syscall.SockFilter{Code: syscall.BPF_JMP | test | syscall.BPF_K, Jt: yes, Jf: no, K: value}
}
