//go:build !berm_mutants

package defence

// Off reports whether the defence was left out of this build: never.
func (Defence) Off() bool { return false }
