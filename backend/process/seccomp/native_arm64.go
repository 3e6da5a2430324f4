package seccomp

import "golang.org/x/sys/unix"

const (
	nativeArch = unix.AUDIT_ARCH_AARCH64
	// foreignBit is zero: there is no second ABI with this architecture's value.
	foreignBit = 0
)

// nativeRules is empty: all of this architecture's calls are in the shared rules.
func nativeRules() []Rule { return nil }
