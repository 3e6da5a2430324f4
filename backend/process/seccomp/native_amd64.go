package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

const (
	nativeArch = unix.AUDIT_ARCH_X86_64
	// foreignBit marks the numbers of the x32 ABI, which share the native
	// architecture's value and would pass every rule.
	foreignBit = 0x40000000
)

// nativeRules are about calls that only this architecture has: those before the
// ...at family, and those of the PC.
func nativeRules() []Rule {
	const setID = "set-id files in a shared directory would work on the host"
	denied := Errno(unix.EPERM)
	mode := func(c call) Rule { return c.rule(denied, setID, anyOf(1, setIDBits)) }
	return slices.Concat(
		guard(defence.FilterSetID.Off(), []Rule{
			mode(call{"chmod", unix.SYS_CHMOD}),
			mode(call{"creat", unix.SYS_CREAT}),
			mode(call{"mkdir", unix.SYS_MKDIR}),
		}, openRules(call{"open", unix.SYS_OPEN}, 1)),
		guard(defence.FilterDevices.Off(), nodeRules(call{"mknod", unix.SYS_MKNOD}, 1)),
		guard(defence.FilterHardware.Off(),
			refuse(unix.EPERM, "would touch the hardware", call{"iopl", unix.SYS_IOPL}, call{"ioperm", unix.SYS_IOPERM})),
		refuse(unix.ENOSYS, "16-bit segments serve only foreign programs; absent where the kernel leaves it out",
			call{"modify_ldt", unix.SYS_MODIFY_LDT}),
		refuse(unix.ENOSYS, "off in current kernels, with this answer", call{"uselib", unix.SYS_USELIB}),
	)
}
