//go:build linux && !amd64

package seccomp_test

func nativeCalls(func(string) uintptr) []kernelCall { return nil }

func foreignCalls() []string { return nil }

func foreignCall(string) int { return 0 }
