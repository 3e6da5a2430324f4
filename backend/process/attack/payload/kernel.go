//go:build linux

package main

import (
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/unix"
)

func kernelFamily() map[string]attack {
	return map[string]attack{
		"interfaces-of-the-kernel": kernelInterfaces, "keys": keys, "administration": administration, "absent": absent,
		"personality": personalities, "core": coreDump, "crash": crash,
	}
}

// kernelInterfaces are large and open to unprivileged users of many hosts: none
// of these calls changes anything.
func kernelInterfaces(r *report, _ []string) error {
	here := unix.AT_FDCWD
	null := ^uintptr(0)
	ring := make([]byte, 120)
	event := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY, Bits: unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv}
	event.Size = uint32(unsafe.Sizeof(event))
	array := []uint32{unix.BPF_MAP_TYPE_ARRAY, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	mapOf := func() uintptr { return uintptr(unsafe.Pointer(&array[0])) }
	for _, high := range highs() {
		r.call("io_uring_setup", unix.SYS_IO_URING_SETUP, 4|high, r.memory(ring))
		r.call("io_uring_enter", unix.SYS_IO_URING_ENTER, null, 0, 0, 0)
		r.call("io_uring_register", unix.SYS_IO_URING_REGISTER, null, 0, 0, 0)
		r.call("userfaultfd", unix.SYS_USERFAULTFD, unix.O_CLOEXEC|high)
		r.call("userfaultfd of user mode", unix.SYS_USERFAULTFD, 1|unix.O_CLOEXEC|high)
		r.call("perf_event_open", unix.SYS_PERF_EVENT_OPEN, uintptr(unsafe.Pointer(&event)), 0, null, null, unix.PERF_FLAG_FD_CLOEXEC)
		r.call("bpf map", unix.SYS_BPF, unix.BPF_MAP_CREATE|high, mapOf(), 72)
		r.call("bpf of an unknown command", unix.SYS_BPF, 9999|high, mapOf(), 72)
		r.call("fanotify_init", unix.SYS_FANOTIFY_INIT, unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|high, unix.O_RDONLY)
		r.call("fanotify_init by id", unix.SYS_FANOTIFY_INIT, unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID|unix.FAN_CLOEXEC|high, unix.O_RDONLY)
		r.call("syslog", unix.SYS_SYSLOG, 10|high, 0, 0)
		r.call("clock_adjtime that only reads", unix.SYS_CLOCK_ADJTIME, unix.CLOCK_REALTIME|high, r.memory(make([]byte, 256)))
		r.call("adjtimex that only reads", unix.SYS_ADJTIMEX, r.memory(make([]byte, 256)))
	}
	handle := make([]byte, 8+128)
	handle[0] = 128
	r.call("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, uintptr(here), r.memory(handle), unix.O_RDONLY)
	return nil
}

// keys are calls for keyrings, which are in no namespace.
func keys(r *report, _ []string) error {
	for _, ring := range []int{
		unix.KEY_SPEC_THREAD_KEYRING, unix.KEY_SPEC_PROCESS_KEYRING, unix.KEY_SPEC_SESSION_KEYRING, unix.KEY_SPEC_USER_KEYRING,
		unix.KEY_SPEC_USER_SESSION_KEYRING,
	} {
		for _, high := range highs() {
			r.call("keyctl id", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID|high, uintptr(uint32(ring)), 0)
		}
		r.call("keyctl read", unix.SYS_KEYCTL, unix.KEYCTL_READ, uintptr(ring), r.memory(make([]byte, 64)), 64)
		r.call("keyctl describe", unix.SYS_KEYCTL, unix.KEYCTL_DESCRIBE, uintptr(ring), r.memory(make([]byte, 64)), 64)
		r.call("request_key", unix.SYS_REQUEST_KEY, r.text("user"), r.text("berm-attack"), 0, uintptr(ring))
	}
	r.call("add_key", unix.SYS_ADD_KEY, r.text("user"), r.text("berm-attack"), r.text("x"), 1, ^uintptr(0)) // no such ring
	return nil
}

// administration are calls for root. Inside only: some would do harm elsewhere.
func administration(r *report, _ []string) error {
	here := unix.AT_FDCWD
	bad := ^uintptr(0)
	r.call("init_module", unix.SYS_INIT_MODULE, 0, 0, r.text(""))
	r.call("finit_module", unix.SYS_FINIT_MODULE, bad, r.text(""), 0)
	r.call("delete_module", unix.SYS_DELETE_MODULE, r.text("berm_attack"), unix.O_NONBLOCK)
	r.call("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)
	r.call("kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, bad, bad, 0, 0, 0)
	r.call("swapon", unix.SYS_SWAPON, r.text("/tmp/none"), 0)
	r.call("swapoff", unix.SYS_SWAPOFF, r.text("/tmp/none"))
	r.call("reboot", unix.SYS_REBOOT, 0, 0, 0, 0) // without its magic numbers
	r.call("acct", unix.SYS_ACCT, r.text("/tmp/none"))
	r.call("quotactl", unix.SYS_QUOTACTL, 0x800001<<8, 0, 0, 0) // Q_SYNC of all is everybody's
	r.call("quotactl_fd", unix.SYS_QUOTACTL_FD, bad, 0, 0, 0)
	r.call("sethostname", unix.SYS_SETHOSTNAME, r.text("evil"), 4)
	r.call("setdomainname", unix.SYS_SETDOMAINNAME, r.text("evil"), 4)
	r.call("vhangup", unix.SYS_VHANGUP)
	r.call("settimeofday", unix.SYS_SETTIMEOFDAY, 0, 0)
	r.call("clock_settime", unix.SYS_CLOCK_SETTIME, unix.CLOCK_REALTIME, 0)
	r.call("mount", unix.SYS_MOUNT, 0, 0, 0, 0, 0)
	r.call("fanotify_init", unix.SYS_FANOTIFY_INIT, unix.FAN_CLASS_CONTENT, 0)
	r.call("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, uintptr(here), 0, 0)
	r.hardware()
	return nil
}

// absent are calls that must look as if the kernel did not have them.
func absent(r *report, _ []string) error {
	r.call("lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE, 0, 0, 0)
	r.call("nfsservctl", unix.SYS_NFSSERVCTL, 0, 0, 0)
	r.call("memfd_secret", unix.SYS_MEMFD_SECRET, 0)
	for number := uintptr(500); number < 600; number++ {
		r.call("a call of the future", number, ^uintptr(0))
	}
	return nil
}

// personalities weaken the layout of memory or change the system's version.
func personalities(r *report, _ []string) error {
	for name, value := range map[string]uintptr{
		"READ_IMPLIES_EXEC": 0x0400000, "MMAP_PAGE_ZERO": 0x0100000, "ADDR_COMPAT_LAYOUT": 0x0200000, "ADDR_LIMIT_3GB": 0x8000000,
		"UNAME26": 0x0020000, "SVR4": 0x0001 | 0x0100000, "LINUX32": 0x0008,
	} {
		r.call(name, unix.SYS_PERSONALITY, value)
		r.call(name+" high", unix.SYS_PERSONALITY, value|1<<32)
	}
	r.call("control a question", unix.SYS_PERSONALITY, 0xffffffff)
	return nil
}

// coreDump crashes a copy of the program where a core file could be written, and
// tries to raise the limit first.
func coreDump(r *report, _ []string) error {
	limit := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	r.add("raise the limit", unix.Setrlimit(unix.RLIMIT_CORE, &limit))
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return err
	}
	// To take what there is of the limit must not help either.
	limit.Cur = limit.Max
	r.add("control take the limit", unix.Setrlimit(unix.RLIMIT_CORE, &limit))
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "crash") //nolint:forbid // ends at once
	_ = cmd.Run()
	status, ok := cmd.ProcessState.Sys().(interface{ CoreDump() bool })
	if ok && status.CoreDump() {
		r.add("dump", nil, "the kernel says that it did")
		return nil
	}
	r.add("dump", unix.EPERM)
	return nil
}

// crash ends this process by a signal that dumps.
func crash(*report, []string) error {
	// The Go runtime has handlers of its own for the usual ones.
	var action [4]uint64
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGQUIT), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	if errno != 0 {
		return errno
	}
	return unix.Kill(unix.Getpid(), unix.SIGQUIT)
}
