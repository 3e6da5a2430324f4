//go:build linux && !amd64 && !arm64

package seccomp

const (
	// nativeArch zero says that there is no table for this architecture.
	nativeArch = 0
	foreignBit = 0
)

func nativeRules() []Rule { return nil }
