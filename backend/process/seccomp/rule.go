//go:build linux

package seccomp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Action is what the kernel does with a system call: one of its SECCOMP_RET_
// values.
type Action uint32

// The actions of this package. Errno makes the others.
const (
	Allow       Action = unix.SECCOMP_RET_ALLOW
	KillProcess Action = unix.SECCOMP_RET_KILL_PROCESS
)

// Errno is the action that makes the call fail with an error number.
func Errno(errno unix.Errno) Action {
	return Action(unix.SECCOMP_RET_ERRNO | uint32(errno)&unix.SECCOMP_RET_DATA)
}

// String gives the action in a word: "allow", "kill process" or the name of the
// error number.
func (a Action) String() string {
	switch {
	case a == Allow:
		return "allow"
	case a == KillProcess:
		return "kill process"
	case uint32(a)&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO:
		return unix.ErrnoName(unix.Errno(uint32(a) & unix.SECCOMP_RET_DATA))
	}
	return fmt.Sprintf("%#x", uint32(a))
}

// Op is how a condition compares.
type Op uint8

// The comparisons. Equal and NotEqual look at the low 32 bits only, as the
// kernel does for the int arguments that the rules are about: a comparison of
// all 64 bits would let AF_VSOCK | 1<<32 pass.
const (
	// Equal holds when the masked low half is Value.
	Equal Op = iota
	// NotEqual holds when the masked low half is not Value.
	NotEqual
	// NonZero holds when any of the argument's 64 bits is set; Mask and Value are
	// not used. It is for pointers.
	NonZero
)

// Condition is a test of one argument.
type Condition struct {
	// Arg is the argument's index, 0 to 5.
	Arg uint8
	// Mask is what of the low 32 bits is compared. Value has no bit outside it.
	Mask  uint32
	Op    Op
	Value uint32
}

// String gives the condition as text: "arg1&0x6000 != 0x0".
func (c Condition) String() string {
	switch c.Op {
	case NonZero:
		return fmt.Sprintf("arg%d != null", c.Arg)
	case NotEqual:
		return fmt.Sprintf("arg%d&%#x != %#x", c.Arg, c.Mask, c.Value)
	case Equal:
	}
	return fmt.Sprintf("arg%d&%#x == %#x", c.Arg, c.Mask, c.Value)
}

// Rule decides about one system call when all of its conditions hold. Among the
// rules of one call the first that holds decides; when none does, the call is
// allowed.
type Rule struct {
	// Call is the system call's name, Number its number on this architecture.
	Call   string
	Number uint32
	// When holds the conditions; none means always.
	When   []Condition
	Action Action
	// Why says in one line what the rule is for.
	Why string
}

// call is a system call of this architecture.
type call struct {
	name   string
	number uint32
}

// is holds when the low 32 bits of the argument are value.
func is(arg uint8, value uint32) Condition {
	return Condition{Arg: arg, Mask: ^uint32(0), Op: Equal, Value: value}
}

// isNot holds when the low 32 bits of the argument are not value.
func isNot(arg uint8, value uint32) Condition {
	return Condition{Arg: arg, Mask: ^uint32(0), Op: NotEqual, Value: value}
}

// anyOf holds when one of the bits is set.
func anyOf(arg uint8, bits uint32) Condition {
	return Condition{Arg: arg, Mask: bits, Op: NotEqual}
}

// noneOf holds when none of the bits is set.
func noneOf(arg uint8, bits uint32) Condition {
	return Condition{Arg: arg, Mask: bits, Op: Equal}
}

// rule makes one rule.
func (c call) rule(action Action, why string, conditions ...Condition) Rule {
	return Rule{Call: c.name, Number: c.number, When: conditions, Action: action, Why: why}
}
