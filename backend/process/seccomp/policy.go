//go:build linux

package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// Bits of the kernel's interface that x/sys/unix does not name for all
// architectures.
const (
	setIDBits = unix.S_ISUID | unix.S_ISGID
	// tmpfileBit is __O_TMPFILE; O_TMPFILE itself has O_DIRECTORY as well, which
	// alone creates nothing.
	tmpfileBit = unix.O_TMPFILE &^ unix.O_DIRECTORY
	// addrNoRandomize is the one personality flag that debuggers need.
	addrNoRandomize = 0x0040000
	// namespaceBits is every CLONE_NEW flag that clone takes. CLONE_NEWTIME is one
	// of unshare's only: in clone its bit belongs to the exit signal.
	namespaceBits = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
	// Targets of ioprio_set (linux/ioprio.h).
	ioprioProcess = 1
	ioprioGroup   = 2
	ioprioUser    = 3
	// setDelegation is fcntl's F_SETDELEG.
	setDelegation = 1040
	// agentPID is the process that the payloads must not reach.
	agentPID = 1
	// lastKnown is the newest system call that these rules were written with (6.17).
	lastKnown = unix.SYS_FILE_SETATTR
)

// sandbox gives the policy of the sandbox.
func sandbox() policy {
	return policy{
		arch:    nativeArch,
		foreign: foreign(),
		rest:    rest(),
		rules: slices.Concat(
			guard(defence.FilterSockets.Off(), socketRules()),
			guard(defence.FilterTerminals.Off(), terminalRules()),
			guard(defence.FilterSetID.Off(), setIDRules()),
			guard(defence.FilterDevices.Off(), deviceRules()),
			guard(defence.FilterNamespaces.Off(), namespaceRules()),
			guard(defence.FilterPersonality.Off(), personalityRules()),
			agentRules(),
			guard(defence.FilterForgedSignals.Off(), signalRules()),
			guard(defence.FilterFileLeases.Off(), leaseRules()),
			refusals(), nativeRules()),
	}
}

// guard gives the rules of one defence.
func guard(off bool, rules ...[]Rule) []Rule {
	if off {
		return nil
	}
	return slices.Concat(rules...)
}

// foreign is what becomes of calls by another architecture's ABI, whose numbers
// mean something else.
func foreign() Action {
	if defence.FilterForeignABI.Off() {
		return Allow
	}
	return KillProcess
}

// rest says what holds beyond the known numbers: a call that is newer than this
// table is not there, as on an older kernel; another ABI's numbers are an attack.
// The number -1 is what a tracer puts in to skip a call.
func rest() []span {
	missing := Errno(unix.ENOSYS)
	out := []span{{first: lastKnown + 1, action: missing}}
	if defence.FilterNewCalls.Off() {
		out = nil
	}
	if foreignBit != 0 && !defence.FilterX32.Off() {
		out = append(out, span{first: foreignBit, action: KillProcess}, span{first: ^uint32(0), action: missing})
	}
	return out
}

// socketRules is an allowlist of address families. Any other is kernel code that
// few have tested, or a way round the network namespace (vsock).
func socketRules() []Rule {
	var out []Rule
	for _, c := range []call{{"socket", unix.SYS_SOCKET}, {"socketpair", unix.SYS_SOCKETPAIR}} {
		out = append(out,
			c.rule(Allow, "local sockets", is(0, unix.AF_UNIX)),
			c.rule(Allow, "IPv4", is(0, unix.AF_INET)),
			c.rule(Allow, "IPv6", is(0, unix.AF_INET6)),
			c.rule(Allow, "libraries list interfaces through it",
				is(0, unix.AF_NETLINK), is(2, unix.NETLINK_ROUTE)),
			c.rule(Errno(unix.EAFNOSUPPORT), "other families are attack surface or not bound to the network namespace"),
		)
	}
	return out
}

// terminalRules keep a payload from typing into a terminal that it shares.
func terminalRules() []Rule {
	c := call{"ioctl", unix.SYS_IOCTL}
	return []Rule{
		c.rule(Errno(unix.EPERM), "would type into the terminal of whoever started us", is(1, unix.TIOCSTI)),
		c.rule(Errno(unix.EPERM), "would paste into the console", is(1, unix.TIOCLINUX)),
	}
}

// setIDRules: through an idmapped mount a payload's files belong to the owner of
// the directory on the host, which may be root. A set-id file or a device made
// there would be one for the whole host.
func setIDRules() []Rule {
	const setID = "set-id files in a shared directory would work on the host"
	denied := Errno(unix.EPERM)
	mode := func(c call, arg uint8) Rule { return c.rule(denied, setID, anyOf(arg, setIDBits)) }
	out := []Rule{
		mode(call{"fchmod", unix.SYS_FCHMOD}, 1),
		mode(call{"fchmodat", unix.SYS_FCHMODAT}, 2),
		mode(call{"fchmodat2", unix.SYS_FCHMODAT2}, 2),
		mode(call{"mkdirat", unix.SYS_MKDIRAT}, 2),
		{
			Call: "openat2", Number: unix.SYS_OPENAT2, Action: Errno(unix.ENOSYS),
			Why: "its mode lies in memory, where a filter cannot see it; programs fall back to openat",
		},
	}
	return append(out, openRules(call{"openat", unix.SYS_OPENAT}, 2)...)
}

// deviceRules are about whatever else would act as a file.
func deviceRules() []Rule {
	whiteout := call{"renameat2", unix.SYS_RENAMEAT2}.rule(Errno(unix.EINVAL),
		"leaves a character device behind; EINVAL is what file systems without it say",
		anyOf(4, unix.RENAME_WHITEOUT))
	return append(nodeRules(call{"mknodat", unix.SYS_MKNODAT}, 2), whiteout)
}

// openRules judge the mode only where the flags give it a meaning: without
// O_CREAT and O_TMPFILE the argument is whatever was in the register.
func openRules(c call, flags uint8) []Rule {
	return []Rule{c.rule(Errno(unix.EPERM), "would create a set-id file",
		anyOf(flags, unix.O_CREAT|tmpfileBit), anyOf(flags+1, setIDBits))}
}

// nodeRules allow regular files, FIFOs and sockets.
func nodeRules(c call, mode uint8) []Rule {
	const why = "harmless kinds of node"
	kind := func(value uint32) Condition {
		return Condition{Arg: mode, Mask: unix.S_IFMT, Op: Equal, Value: value}
	}
	plain := noneOf(mode, setIDBits)
	return []Rule{
		c.rule(Allow, why, plain, kind(0)),
		c.rule(Allow, why, plain, kind(unix.S_IFREG)),
		c.rule(Allow, why, plain, kind(unix.S_IFIFO)),
		c.rule(Allow, why, plain, kind(unix.S_IFSOCK)),
		c.rule(Errno(unix.EPERM), "devices, whiteouts and set-id files"),
	}
}

// namespaceRules: no capability is to be had in a new namespace. clone3 stays,
// its flags lie in memory and Go starts processes in a cgroup with it; user
// namespaces inside are disabled by bubblewrap's --disable-userns, and the other
// kinds need a capability.
func namespaceRules() []Rule {
	const why = "new namespaces open kernel code that is meant for root"
	denied := Errno(unix.EPERM)
	return []Rule{
		call{"clone", unix.SYS_CLONE}.rule(denied, why, anyOf(0, namespaceBits)),
		call{"unshare", unix.SYS_UNSHARE}.rule(denied, why, anyOf(0, namespaceBits|unix.CLONE_NEWTIME)),
	}
}

// personalityRules are an allowlist.
func personalityRules() []Rule {
	c := call{"personality", unix.SYS_PERSONALITY}
	return []Rule{
		c.rule(Allow, "the default", is(0, 0)),
		c.rule(Allow, "a question", is(0, ^uint32(0))),
		c.rule(Allow, "debuggers start programs so", is(0, addrNoRandomize)),
		c.rule(Errno(unix.EPERM), "old ABIs and weakened memory layouts"),
	}
}

// agentRules keep a payload, which has the agent's uid, from slowing or limiting
// the agent. A thread of the agent other than its first can still be reniced:
// the host's deadlines bound what that is worth.
func agentRules() []Rule {
	denied := Errno(unix.EPERM)
	const slow = "would slow the agent"
	priority := call{"setpriority", unix.SYS_SETPRIORITY}
	io := call{"ioprio_set", unix.SYS_IOPRIO_SET}
	limits := call{"prlimit64", unix.SYS_PRLIMIT64}.rule(denied,
		"a limit of a few bytes or seconds ends the agent; a process's own limits are pid 0", isNot(0, 0))
	out := []Rule{
		priority.rule(denied, slow, is(0, unix.PRIO_USER)),
		priority.rule(denied, slow, is(0, unix.PRIO_PROCESS), is(1, agentPID)),
		priority.rule(denied, slow, is(0, unix.PRIO_PGRP), is(1, agentPID)),
		io.rule(denied, slow, is(0, ioprioUser)),
		io.rule(denied, slow, is(0, ioprioProcess), is(1, agentPID)),
		io.rule(denied, slow, is(0, ioprioGroup), is(1, agentPID)),
	}
	for _, c := range []call{
		{"sched_setscheduler", unix.SYS_SCHED_SETSCHEDULER},
		{"sched_setparam", unix.SYS_SCHED_SETPARAM},
		{"sched_setattr", unix.SYS_SCHED_SETATTR},
		{"sched_setaffinity", unix.SYS_SCHED_SETAFFINITY},
	} {
		out = append(out, c.rule(denied, slow, is(0, agentPID)))
	}
	return slices.Concat(
		guard(defence.FilterAgentLimits.Off(), []Rule{limits}),
		guard(defence.FilterAgentPriority.Off(), out))
}

// faultSignals are those that a Go program takes for a fault of its own, and dies
// of, unless the kernel says that kill or tgkill sent them.
func faultSignals() []uint32 {
	return []uint32{
		uint32(unix.SIGILL), uint32(unix.SIGTRAP), uint32(unix.SIGBUS), uint32(unix.SIGFPE), uint32(unix.SIGSEGV),
		uint32(unix.SIGSTKFLT), uint32(unix.SIGSYS),
	}
}

// signalRules keep a payload from sending the agent a signal that looks like a
// fault: by calls that let the sender say where it comes from, and by having the
// kernel send it as the news of a descriptor. The agent can be named by any of
// its threads, so that the signal is what the rules look at. Only
// rt_tgsigqueueinfo names its target for certain; crash handlers raise their own
// signal again by it.
func signalRules() []Rule {
	const forged = "the agent would take it for a fault of its own and end"
	denied := Errno(unix.EPERM)
	out := []Rule{call{"rt_tgsigqueueinfo", unix.SYS_RT_TGSIGQUEUEINFO}.rule(denied, forged, is(0, agentPID))}
	for _, signal := range faultSignals() {
		out = append(out,
			call{"rt_sigqueueinfo", unix.SYS_RT_SIGQUEUEINFO}.rule(denied, forged, is(1, signal)),
			call{"pidfd_send_signal", unix.SYS_PIDFD_SEND_SIGNAL}.rule(denied, forged,
				is(1, signal), Condition{Arg: 2, Op: NonZero}),
			call{"fcntl", unix.SYS_FCNTL}.rule(denied, forged, is(1, unix.F_SETSIG), is(2, signal)),
		)
	}
	return out
}

// leaseRules: who holds a lease on a file makes everybody else who opens it wait,
// for 45 seconds by default, also the host that reads or writes a shared
// directory. EINVAL is what file systems without leases say.
func leaseRules() []Rule {
	const why = "would hold up the host's own opening of shared files"
	c := call{"fcntl", unix.SYS_FCNTL}
	return []Rule{
		c.rule(Errno(unix.EINVAL), why, is(1, unix.F_SETLEASE)),
		c.rule(Errno(unix.EINVAL), why, is(1, setDelegation)),
	}
}
