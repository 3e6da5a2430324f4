//go:build linux

package seccomp

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berm-dev/berm/internal/defence"
)

// refusals are the calls that a payload has no use for.
func refusals() []Rule {
	return slices.Concat(kernelRefusals(), mountRefusals(), clockRefusals(), absentCalls())
}

// refuse gives one rule per call.
func refuse(errno unix.Errno, why string, calls ...call) []Rule {
	out := make([]Rule, 0, len(calls))
	for _, c := range calls {
		out = append(out, c.rule(Errno(errno), why))
	}
	return out
}

// kernelRefusals answer EPERM, which is what these calls say on a hardened
// kernel or to a caller without capabilities: programs know it.
func kernelRefusals() []Rule {
	return slices.Concat(
		guard(defence.FilterKernel.Off(), refuse(unix.EPERM, "a large kernel interface with a history of holes",
			call{"bpf", unix.SYS_BPF},
			call{"perf_event_open", unix.SYS_PERF_EVENT_OPEN},
			call{"userfaultfd", unix.SYS_USERFAULTFD},
			call{"io_uring_setup", unix.SYS_IO_URING_SETUP},
			call{"io_uring_enter", unix.SYS_IO_URING_ENTER},
			call{"io_uring_register", unix.SYS_IO_URING_REGISTER},
			call{"fanotify_init", unix.SYS_FANOTIFY_INIT},
		)),
		guard(defence.FilterAdministration.Off(), refuse(unix.EPERM, "for the machine's administrator only",
			call{"kexec_load", unix.SYS_KEXEC_LOAD},
			call{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD},
			call{"init_module", unix.SYS_INIT_MODULE},
			call{"finit_module", unix.SYS_FINIT_MODULE},
			call{"delete_module", unix.SYS_DELETE_MODULE},
			call{"swapon", unix.SYS_SWAPON},
			call{"swapoff", unix.SYS_SWAPOFF},
			call{"reboot", unix.SYS_REBOOT},
			call{"syslog", unix.SYS_SYSLOG},
			call{"acct", unix.SYS_ACCT},
			call{"quotactl", unix.SYS_QUOTACTL},
			call{"quotactl_fd", unix.SYS_QUOTACTL_FD},
			call{"sethostname", unix.SYS_SETHOSTNAME},
			call{"setdomainname", unix.SYS_SETDOMAINNAME},
			call{"vhangup", unix.SYS_VHANGUP},
		)),
	)
}

// mountRefusals: what is mounted was decided outside.
func mountRefusals() []Rule {
	return slices.Concat(
		guard(defence.FilterMounts.Off(), refuse(unix.EPERM, "would change what is mounted",
			call{"mount", unix.SYS_MOUNT},
			call{"umount2", unix.SYS_UMOUNT2},
			call{"pivot_root", unix.SYS_PIVOT_ROOT},
			call{"chroot", unix.SYS_CHROOT},
			call{"fsopen", unix.SYS_FSOPEN},
			call{"fsconfig", unix.SYS_FSCONFIG},
			call{"fsmount", unix.SYS_FSMOUNT},
			call{"fspick", unix.SYS_FSPICK},
			call{"move_mount", unix.SYS_MOVE_MOUNT},
			call{"open_tree", unix.SYS_OPEN_TREE},
			call{"open_tree_attr", unix.SYS_OPEN_TREE_ATTR},
			call{"mount_setattr", unix.SYS_MOUNT_SETATTR},
		)),
		guard(defence.FilterSetNS.Off(), refuse(unix.EPERM, "would leave the sandbox's namespaces", call{"setns", unix.SYS_SETNS})),
		guard(defence.FilterFileHandles.Off(), refuse(unix.EPERM, "would open files by number, past every directory",
			call{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT})),
	)
}

// clockRefusals: the clock is the host's.
func clockRefusals() []Rule {
	return guard(defence.FilterClock.Off(), refuse(unix.EPERM, "the clock is the host's",
		call{"settimeofday", unix.SYS_SETTIMEOFDAY},
		call{"clock_settime", unix.SYS_CLOCK_SETTIME},
		call{"clock_adjtime", unix.SYS_CLOCK_ADJTIME},
		call{"adjtimex", unix.SYS_ADJTIMEX},
	))
}

// absentCalls answer ENOSYS, as kernels do that are built without them: callers
// treat that as "not here" and go on, where EPERM makes some of them give up.
func absentCalls() []Rule {
	return slices.Concat(
		guard(defence.FilterKeyrings.Off(), refuse(unix.ENOSYS, "keyrings are not part of any namespace; Kerberos and others go on without them",
			call{"keyctl", unix.SYS_KEYCTL},
			call{"add_key", unix.SYS_ADD_KEY},
			call{"request_key", unix.SYS_REQUEST_KEY},
		)),
		guard(defence.FilterAsyncIO.Off(), refuse(unix.ENOSYS, "its contexts are counted for the whole machine (fs.aio-max-nr): one payload could use up everybody's",
			call{"io_setup", unix.SYS_IO_SETUP})),
		guard(defence.FilterSecretMemory.Off(), refuse(unix.ENOSYS, "off by default in the kernel, with this answer",
			call{"memfd_secret", unix.SYS_MEMFD_SECRET})),
		refuse(unix.ENOSYS, "removed from current kernels",
			call{"lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE},
			call{"nfsservctl", unix.SYS_NFSSERVCTL},
		),
	)
}
