//go:build linux

package main

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func rightsFamily() map[string]attack {
	return map[string]attack{"rights": rights, "file-rights": fileRights}
}

// lastCapability is more than any kernel has today; the rest gives EINVAL.
const lastCapability = 40

// rights tries to get any capability or another identity.
func rights(r *report, _ []string) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	r.add("control capget", unix.Capget(&header, &data[0]))
	for c := range uintptr(lastCapability + 1) {
		data[c/32] = unix.CapUserData{Effective: 1 << (c % 32), Permitted: 1 << (c % 32), Inheritable: 1 << (c % 32)}
		r.add(fmt.Sprintf("capset %d", c), unix.Capset(&header, &data[0]))
		data = [2]unix.CapUserData{}
		data[c/32].Inheritable = 1 << (c % 32)
		r.add(fmt.Sprintf("capset inheritable %d", c), unix.Capset(&header, &data[0]))
		data = [2]unix.CapUserData{}
		r.call(fmt.Sprintf("ambient %d", c), unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0)
		if has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err != nil || has != 0 {
			r.add(fmt.Sprintf("bounding set has %d", c), err)
		}
	}
	for _, bits := range []uintptr{1, 3, 4, 0x10, 0x40, 0xff} {
		r.call(fmt.Sprintf("securebits %#x", bits), unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, bits, 0, 0, 0)
	}
	r.call("no_new_privs off", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)
	for _, id := range []uintptr{0, 1, 65534, 1_900_000_000, 0xffffffff &^ 1} {
		name := fmt.Sprint(" ", id)
		r.call("setuid"+name, unix.SYS_SETUID, id)
		r.call("setgid"+name, unix.SYS_SETGID, id)
		r.call("setresuid"+name, unix.SYS_SETRESUID, id, id, id)
		r.call("setresgid"+name, unix.SYS_SETRESGID, id, id, id)
	}
	r.call("setgroups", unix.SYS_SETGROUPS, 0, 0)
	r.call("setgroups with one", unix.SYS_SETGROUPS, 1, r.memory(make([]byte, 4)))
	for name, resource := range map[string]uintptr{"NOFILE": unix.RLIMIT_NOFILE, "NPROC": unix.RLIMIT_NPROC, "NICE": 13, "RTPRIO": 14} {
		limit := unix.Rlimit{Cur: 1 << 40, Max: 1 << 40}
		r.call("raise RLIMIT_"+name, unix.SYS_PRLIMIT64, 0, resource, uintptr(unsafe.Pointer(&limit)), 0)
	}
	// The kernel must not be made to choose the agent, and maps are written once.
	for name, value := range map[string]string{"oom_score_adj": "-1000", "oom_adj": "-17", "uid_map": "0 0 1", "gid_map": "0 0 1", "setgroups": "allow"} {
		r.add("write "+name, os.WriteFile("/proc/self/"+name, []byte(value), 0))
	}
	r.call("nice -20", unix.SYS_SETPRIORITY, unix.PRIO_PROCESS, 0, ^uintptr(19))
	realtime := []byte{10, 0, 0, 0}
	r.call("SCHED_FIFO", unix.SYS_SCHED_SETSCHEDULER, 0, unix.SCHED_FIFO, r.memory(realtime))
	return nil
}

// fileRights gives files what would be a right when they are executed or found,
// in the directory of its argument.
func fileRights(r *report, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want a directory, got %q", args)
	}
	f, err := os.CreateTemp(args[0], "rights-")
	if err != nil {
		return err
	}
	name := f.Name()
	defer func() { _, _ = f.Close(), os.Remove(name) }()
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	rooted := append([]byte{1, 0, 0, 3}, append(capability[4:], 0, 0, 0, 0)...)
	r.add("security.capability", unix.Setxattr(name, "security.capability", capability, 0))
	r.add("security.capability of root", unix.Setxattr(name, "security.capability", rooted, 0))
	r.add("trusted.overlay.opaque", unix.Setxattr(name, "trusted.overlay.opaque", []byte("y"), 0))
	for _, id := range []int{0, 1, 65534} {
		r.add(fmt.Sprintf("chown %d", id), unix.Fchown(int(f.Fd()), id, id))
	}
	const setFlags, immutable, appendOnly = 0x40086602, 0x10, 0x20
	for flagName, flag := range map[string]uint32{"immutable": immutable, "append": appendOnly} {
		value := uint64(flag)
		r.call(flagName, unix.SYS_IOCTL, f.Fd(), setFlags, uintptr(unsafe.Pointer(&value)))
	}
	r.add("control chmod", f.Chmod(0o755))
	return nil
}
